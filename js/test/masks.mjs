// node masks.mjs LIBRARY MODULES BACKEND DIRECTORY CHECKPOINT PASSES: the masks of some training
// passes from a checkpoint, and the checkpoint after them.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { print } from "./print.mjs";

const [library, modules, backend, directory, file, passes] = process.argv.slice(2);
const lib = await import(pathToFileURL(`${library}/index.js`));
const { decode } = await import(pathToFileURL(`${library}/checkpoint.js`));
const require = createRequire(`${modules}/x.js`);
const ort = require(backend === "node" ? "onnxruntime-node" : "onnxruntime-web");
if (backend === "wasm") ort.env.wasm.numThreads = 1;
const sessionOptions = backend === "wasm" ? { executionProviders: ["wasm"] } : {};
const checkpoint = await lib.readBytes(file);
const { values } = decode(await lib.readBytes(`${directory}/batches`));
const inputs = [values.get("0/0"), values.get("0/1")];
const { state, module } = await lib.loadArtifacts(directory, { ort, sessionOptions, checkpoint });
module.checkFinite = true;
const [first, labels] = inputs;
const bad = [{ data: new Float32Array(first.data.length).fill(NaN), dims: first.dims }, labels];
const masks = [];
let refused = 0;
for (let pass = 0; pass < Number(passes); pass++) {
  // neither a pass that is dropped draws, nor one that is refused
  await module.trainStep(...inputs);
  await module.trainStep(...bad).catch((error) => {
    if (!(error instanceof lib.NonFiniteError)) throw error;
    refused += 1;
  });
  const { outputs } = await module.trainStep(...inputs);
  for (const mask of outputs.slice(1)) masks.push(Array.from(await mask.getData()));
  module.lazyResetGrad();
}
if (refused !== Number(passes)) throw new Error(`${refused} of ${passes} batches were refused`);
const saved = await lib.CheckpointState.saveCheckpoint(state, true);
await print({ masks, checkpoint: Buffer.from(saved).toString("base64") });
process.exit(0);
