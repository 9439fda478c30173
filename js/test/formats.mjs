// node formats.mjs LIBRARY FOLDER: reads and writes the files that Python's test made and checks.
import assert from "node:assert/strict";
import { readFile, writeFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";
import { print } from "./print.mjs";

const [library, folder] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(`${library}/${name}.js`));
const [lib, { Model }, { Message }] = await Promise.all(["index", "onnx", "protobuf"].map(load));
const wanted = JSON.parse(await readFile(`${folder}/wanted.json`, "utf8"));
const bytes = (name) => lib.readBytes(`${folder}/${name}`);

// protobuf: what is read and written back is the same, byte for byte, opened or not
for (const name of wanted.models) {
  const data = await bytes(name);
  const model = new Model(data, name);
  model.setSeeds(new Map()); // opens every node
  assert.deepEqual(model.encode(), data);
  for (const cut of [1, 7, 100, data.length - 1]) {
    const piece = data.subarray(0, cut);
    assert.throws(() => new Model(piece, name).setSeeds(new Map()), lib.ModelFileError);
  }
}
for (const value of [0, 1, 127, 128, 300, 2 ** 31, 2 ** 40, 2 ** 52 + 1]) {
  assert.equal(Message.parse(Message.of({ 3: value }).encode()).integer(3), value);
}
for (const bad of [[0x08], [0x07, 0x00], [0x0b, 0x00], [0x12, 0x05, 0x00], Array(12).fill(0xff)]) {
  assert.throws(() => Message.parse(Uint8Array.from(bad)), lib.ModelFileError);
}

// checkpoints: there and back
const file = await bytes("state");
const state = lib.CheckpointState.loadCheckpoint(file);
assert.equal(state.properties.get("whole"), 3);
assert.equal(state.properties.get("float"), 1);
assert.equal(state.properties.get("huge"), 2n ** 62n);
assert.equal(state.properties.get("text"), 'a "quoted" {é}, text');
assert.ok(Number.isNaN(state.properties.get("nan")));
assert.equal(state.properties.get("inf"), Infinity);
assert.equal(state.random.seed, 2n ** 63n + 1n);
for (const [seed, generation, node, value] of wanted.seeds) {
  const other = lib.CheckpointState.loadCheckpoint(file);
  Object.assign(other.random, { seed: BigInt(seed), generation: BigInt(generation) - 1n });
  assert.deepEqual(await other.nextSeeds([node]), new Map([[node, value]]));
  assert.equal(other.random.generation, BigInt(generation));
}
state.properties.set("new", 2.5);
state.properties.set("endless", -Infinity);
const values = await state.getParameter("w");
await state.setParameter("w", values.map((v) => v * 2));
await assert.rejects(state.setParameter("w", new Float32Array(1)), lib.InputError);
await assert.rejects(state.getParameter("nobody"), lib.InputError);
await writeFile(`${folder}/back`, await lib.CheckpointState.saveCheckpoint(state, true));

// checkpoints: damaged, foreign
for (let cut = 0; cut < file.length; cut += 13) {
  assert.throws(() => lib.CheckpointState.loadCheckpoint(file.subarray(0, cut)), lib.CheckpointError);
}
const edited = (from, to) =>
  Uint8Array.from(Buffer.from(Buffer.from(file).toString("latin1").replace(from, to), "latin1"));
for (const [from, to] of [
  ['"onnxtrain"', '"somebody_"'], ['"version":"1"', '"version":"9"'], ['"F32"', '"F64"'],
  ["data_offsets", "data_offsetz"], ['{"__metadata__', '["__metadata__'], ["param/", "parax/"],
]) {
  assert.throws(() => lib.CheckpointState.loadCheckpoint(edited(from, to)), lib.CheckpointError, from);
}

// learning-rate schedules, as in Python
class Optimizer {
  rate = 0.5;
  module = { state: { scheduler: {} } };
  getLearningRate() { return this.rate; }
  setLearningRate(rate) { this.rate = rate; }
}
for (const { name, args, rates } of wanted.schedules) {
  const optimizer = new Optimizer();
  const schedule = new lib[name](optimizer, ...args);
  for (const [i, rate] of rates.entries()) {
    assert.ok(Math.abs(optimizer.rate - rate) < 1e-12, `${name} ${i}: ${optimizer.rate} ${rate}`);
    schedule.step(1.0);
  }
  assert.equal(optimizer.module.state.scheduler.scheduler, name);
}

// mistakes in a call are named before anything runs
const { module } = await import("node:module").then(async ({ createRequire }) => {
  const ort = createRequire(`${process.argv[4]}/x.js`)("onnxruntime-node");
  return lib.loadArtifacts(folder, { ort });
});
const x = { data: new Float32Array(128), dims: [2, 64] };
const y = { data: BigInt64Array.of(1n, 2n), dims: [2] };
const refused = (inputs, pattern) => assert.rejects(module.trainStep(...inputs), pattern);
await refused([x], /2 inputs are needed \(x, labels\), 1 were given/);
await refused([{ ...x, dims: [2, 63] }, y], /128 values for the shape \[2,63\]/);
await refused([{ ...x, dims: [4, 32] }, y], /has the shape \[4,32\], the model takes \[N,64\]/);
await refused([x, { data: Int32Array.of(1, 2), dims: [2] }], /in a BigInt64Array, not in a Int32Array/);
await assert.rejects(module.exportModelForInferencing(["nothing"]), /computes no value "nothing"/);
const trained = lib.loadArtifacts(`${folder}/nowhere`, { ort: {} });
await assert.rejects(trained, /There is no file ".*nowhere/);
assert.ok((await module.trainStep(x, y)).loss > 0);
await print({ done: true });
process.exit(0);
