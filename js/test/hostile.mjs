// node hostile.mjs LIBRARY MODULES DIRECTORY...: try to load and export each, print what happens.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { print } from "./print.mjs";

const [library, modules, ...directories] = process.argv.slice(2);
const lib = await import(pathToFileURL(`${library}/index.js`));
const ort = createRequire(`${modules}/x.js`)("onnxruntime-node");
for (const directory of directories) {
  try {
    const { module } = await lib.loadArtifacts(directory, { ort });
    const bytes = await module.exportModelForInferencing();
    await print({ directory, bytes: Buffer.from(bytes).toString("latin1") });
  } catch (error) {
    const { name, message } = error;
    await print({ directory, name, message, isOurs: error instanceof lib.OnnxTrainError });
  }
}
process.exit(0);
