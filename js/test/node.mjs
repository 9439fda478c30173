// node node.mjs LIBRARY MODULES BACKEND DIRECTORY...: train each directory, print one JSON per line.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { train } from "./train.mjs";
import { print } from "./print.mjs";

const [library, modules, backend, ...directories] = process.argv.slice(2);
const lib = await import(pathToFileURL(`${library}/index.js`));
const checkpoint = await import(pathToFileURL(`${library}/checkpoint.js`));
const require = createRequire(`${modules}/x.js`);
const ort = require(backend === "node" ? "onnxruntime-node" : "onnxruntime-web");
if (backend === "wasm") ort.env.wasm.numThreads = 1;
const sessionOptions = backend === "wasm" ? { executionProviders: ["wasm"] } : {};
for (const directory of directories) {
  await print(await train(lib, checkpoint, ort, directory, sessionOptions));
}
process.exit(0);
