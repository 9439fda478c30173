// node formats.mjs LIBRARY FOLDER: reads and writes the files that Python's test made and checks.
import assert from "node:assert/strict";
import { copyFile, mkdir, readdir, readFile, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { print } from "./print.mjs";

const [library, folder] = process.argv.slice(2);
const load = (name) => import(pathToFileURL(`${library}/${name}.js`));
const lib = await load("index");
const wanted = JSON.parse(await readFile(`${folder}/wanted.json`, "utf8"));
const bytes = (name) => lib.readBytes(`${folder}/${name}`);

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
  Object.assign(other.random, { seed: BigInt(seed), generation: BigInt(generation) });
  assert.equal(await other.seedOf(node), value);
}
state.properties.set("new", 2.5);
state.properties.set("endless", -Infinity);
state.properties.set("wrong", [1]);
await assert.rejects(lib.CheckpointState.saveCheckpoint(state), /Property "wrong" must be/);
state.properties.delete("wrong");
const values = await state.getParameter("w");
await state.setParameter("w", values.map((v) => v * 2));
await assert.rejects(state.setParameter("w", new Float32Array(1)), lib.InputError);
await assert.rejects(state.getParameter("nobody"), lib.InputError);
await lib.writeBytes(`${folder}/back`, await lib.CheckpointState.saveCheckpoint(state, true));
assert.deepEqual((await readdir(folder)).filter((name) => name.startsWith("back")), ["back"]);
await assert.rejects(lib.writeBytes(`${folder}/no/where`, file), /ENOENT/);

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
    schedule.step();
  }
  assert.equal(optimizer.module.state.scheduler.scheduler, name);
}

// mistakes in a call are named before anything runs
const ort = createRequire(`${process.argv[4]}/x.js`)("onnxruntime-node");
const { module, optimizer } = await lib.loadArtifacts(folder, { ort });
const x = { data: new Float32Array(128), dims: [2, 64] };
const y = { data: BigInt64Array.of(1n, 2n), dims: [2] };
const refused = (inputs, pattern) => assert.rejects(module.trainStep(...inputs), pattern);
await refused([x], /2 inputs are needed \(x, labels\), 1 were given/);
await refused([{ ...x, dims: [2, 63] }, y], /Input "x": .*126.*128/);
await refused([{ ...x, dims: [4, 32] }, y], /dimensions for input: x/);
await refused([x, { data: Float32Array.of(1, 2), dims: [2] }], /Input "labels": .*BigInt64Array/);
await assert.rejects(optimizer.step(), /No gradients: call trainStep first/);
assert.throws(() => optimizer.setLearningRate(NaN), lib.InputError);
assert.ok((await module.trainStep(x, y)).loss > 0);
const narrow = { data: Int32Array.of(1, 2), dims: [2] }; // class numbers of any width
assert.ok((await module.trainStep(x, narrow)).loss > 0);

// one vector with all parameters, there and back
const vector = await module.getContiguousParameters(true);
assert.equal(vector.length, module.getParametersSize());
await module.copyBufferToParameters(vector.map((v) => v + 1));
assert.deepEqual(await module.getContiguousParameters(true), vector.map((v) => v + 1));
await assert.rejects(module.copyBufferToParameters(vector.subarray(1)), lib.InputError);

// a schedule by its formula, under a name of Python's: it goes on there, and here
const schedule = (of) => new lib.LRScheduler(of, "ExponentialLR", (lr, t) => lr * 0.9 ** t);
const decay = schedule(optimizer);
for (let i = 0; i < 3; i++) decay.step();
const scheduled = await lib.CheckpointState.saveCheckpoint(module.state, true);
await lib.writeBytes(`${folder}/scheduled`, scheduled);
const resumed = (await lib.loadArtifacts(folder, { ort, checkpoint: scheduled })).optimizer;
assert.equal(new lib.StepLR(resumed, 2).resume(), false);
assert.equal(schedule(resumed).resume(), true);
assert.equal(resumed.getLearningRate(), optimizer.getLearningRate());

// a loss that is no number is an error if that is wanted, and the state can be used on
const bad = { ...x, data: x.data.map(() => NaN) };
assert.ok(Number.isNaN((await module.trainStep(bad, y)).loss));
module.checkFinite = true;
module.lazyResetGrad();
await refused([bad, y], lib.NonFiniteError);
assert.ok((await module.trainStep(x, y)).loss > 0);

// moments of another optimizer are refused, unless they are not wanted
module.state.optimizer.name = "Lion";
assert.throws(() => new lib.Optimizer(module), /state of Lion, which does not fit AdamW/);
assert.equal(new lib.Optimizer(module, true).stepCount, 0);

// artifacts that are not there, from before device.json, or changed since
const nowhere = lib.loadArtifacts(`${folder}/nowhere`, { ort });
await assert.rejects(nowhere, /There is no file ".*nowhere/);
await mkdir(`${folder}/old`);
for (const name of wanted.artifacts) await copyFile(`${folder}/${name}`, `${folder}/old/${name}`);
const old = () => lib.loadArtifacts(`${folder}/old`, { ort });
await assert.rejects(old(), /device\.json"\. If an older onnxtrain wrote the artifacts, run `python -m/);
await copyFile(`${folder}/device.json`, `${folder}/old/device.json`);
assert.ok((await old()).optimizer);
await writeFile(`${folder}/old/eval_model.onnx`, "another");
await assert.rejects(old(), /device\.json is not the one of this "eval_model\.onnx"/);
await print({ done: true });
process.exit(0);
