// node labels.mjs LIBRARY MODULES FOLDER: labels that are no classes, in artifacts that Python's test made.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { print } from "./print.mjs";

const [library, modules, folder] = process.argv.slice(2);
const lib = await import(pathToFileURL(`${library}/index.js`));
const ort = createRequire(`${modules}/x.js`)("onnxruntime-node");
ort.env.logLevel = "fatal";
const x = { data: Float32Array.from({ length: 256 }, (_, i) => Math.sin(i)), dims: [4, 64] };
const labels = (...numbers) => ({ data: BigInt64Array.from(numbers, BigInt), dims: [numbers.length] });
const load = async (name) => (await lib.loadArtifacts(`${folder}/${name}`, { ort })).module;
const refused = async (module, inputs, pattern) => {
  for (const step of ["trainStep", "evalStep"]) {
    await assert.rejects(module[step](...inputs), (error) => {
      assert.ok(error instanceof lib.LabelError && error instanceof lib.InputError, String(error));
      assert.match(error.message, pattern);
      return true;
    });
  }
};
const losses = {};
const both = async (module, ...inputs) => [
  (await module.trainStep(...inputs)).loss,
  (await module.evalStep(...inputs)).loss,
];

const usual = await load("usual");
await refused(usual, [x, labels(0, 1, -1, 3)], /"labels" has the label -1 in row 2.* 0 to 9, or -100/);
await refused(usual, [x, labels(0, 10, 2, 3)], /has the label 10 in row 1.*more classes/);
await refused(usual, [x, labels(0, 1, 2, -(2n ** 63n))], /has the label -9223372036854775808 in row 3/);
const tensor = new ort.Tensor("int64", labels(0, 1, 2, -2).data, [4]);
await refused(usual, [x, tensor], /has the label -2 in row 3/);
losses.usual = await both(usual, x, labels(3, -100, 2, -100));
const narrow = { data: Int32Array.of(3, -100, 2, -100), dims: [4] };
assert.deepEqual((await both(usual, x, narrow)), losses.usual);
await assert.rejects(lib.loadArtifacts(`${folder}/usual`), /loadArtifacts\(directory, \{ ort \}\)/);
losses.none = await both(usual, x, labels(-100, -100, -100, -100));

const minus = await load("minus");
await refused(minus, [x, labels(0, 1, -100, 3)], /has the label -100 in row 2.* or -1 to be left out/);
losses.minus = await both(minus, x, labels(3, -1, 2, -1));

// the number of classes is known only when the model runs
const open = await load("open");
const candidates = { data: Float32Array.from({ length: 96 }, (_, i) => Math.cos(i)), dims: [32, 3] };
await refused(open, [x, candidates, labels(0, 1, -1, 2)], /has the label -1 in row 2.*numbers from 0 on/);
await refused(open, [x, candidates, labels(0, 1, 3, 2)], /has labels up to 3: are there as many classes/);
losses.open = await both(open, x, candidates, labels(0, -100, 1, 2));
await print(losses);
process.exit(0);
