// node finite.mjs LIBRARY MODULES BACKEND FOLDER: batches that are no good change nothing.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { print } from "./print.mjs";

const [library, modules, backend, folder] = process.argv.slice(2);
const lib = await import(pathToFileURL(`${library}/index.js`));
const { decode } = await import(pathToFileURL(`${library}/checkpoint.js`));
const ort = createRequire(`${modules}/x.js`)(
  backend === "node" ? "onnxruntime-node" : "onnxruntime-web",
);
if (backend === "wasm") ort.env.wasm.numThreads = 1;
const sessionOptions = backend === "wasm" ? { executionProviders: ["wasm"] } : {};
const { values } = decode(await lib.readBytes(`${folder}/batches`));
const batch = (name) => [values.get(`${name}/0`), values.get(`${name}/1`)];
const [first, second, third] = ["good 0", "good 1", "good 2"].map(batch);

async function load() {
  const made = await lib.loadArtifacts(folder, { ort, sessionOptions });
  made.module.checkFinite = true;
  made.optimizer.setLearningRate(0.05);
  return made;
}

/** One update from several batches. */
async function update({ module, optimizer }, ...batches) {
  for (const inputs of batches) await module.trainStep(...inputs);
  await optimizer.apply(1 / batches.length);
  module.lazyResetGrad();
}

const saved = async ({ state }) => lib.CheckpointState.saveCheckpoint(state, true);
async function same(a, b, text) {
  assert.ok(Buffer.from(await saved(a)).equals(Buffer.from(await saved(b))), text);
}

const bad = [...values.keys()].filter((k) => k.endsWith("/0") && !k.startsWith("good"));
for (const name of bad.map((key) => key.slice(0, -2))) {
  const [trained, twin] = [await load(), await load()];
  const refused = (...batches) =>
    assert.rejects(update(trained, ...batches), (error) => {
      assert.ok(error instanceof lib.NonFiniteError, `${error}`);
      assert.match(error.message, /in update 2\. Nothing was changed/);
      return true;
    });
  for (const made of [trained, twin]) await update(made, first);
  await refused(batch(name));
  await same(trained, twin, name);
  await refused(second, batch(name)); // the good one is dropped with it
  await same(trained, twin, `${name} gathered`);
  await refused(batch(name), second);
  await same(trained, twin, `${name} first`);
  for (const made of [trained, twin]) await update(made, second, third);
  await same(trained, twin, `${name} after`);
  assert.equal(trained.optimizer.stepCount, 2);
}

// batches that lazyResetGrad gave up still count for running statistics
{
  const [trained, twin] = [await load(), await load()];
  for (const { module } of [trained, twin]) {
    await module.trainStep(...first);
    module.lazyResetGrad();
  }
  await assert.rejects(trained.module.trainStep(...batch("nan input")), lib.NonFiniteError);
  await same(trained, twin);
}

// an update that overflows is not made; without the option nobody looks
{
  const { module, optimizer, state } = await load();
  await module.trainStep(...first);
  const before = await state.getParameter("W");
  const huge = new Float32Array(4).fill(3e38);
  state.replace("grad/W", { type: "float32", dims: [4, 1], data: huge });
  optimizer.setLearningRate(3e38);
  optimizer.clipNorm = Infinity;
  await assert.rejects(optimizer.step(), /What the update makes of/);
  assert.deepEqual(await state.getParameter("W"), before);
  module.checkFinite = false;
  await module.trainStep(...batch("nan input"));
  await optimizer.step();
  assert.ok((await state.getParameter("W")).every(Number.isNaN));
}

// gradients whose squares overflow are clipped to the limit
const norms = {};
for (const size of [1, 1e18, 1e20, 1e30, 3e38]) {
  const { module, optimizer, state } = await load();
  await module.trainStep(...first);
  for (const name of state.trainable) {
    const { dims, data } = state.values.get(`grad/${name}`);
    const filled = new Float32Array(data.length).fill(size);
    state.replace(`grad/${name}`, { type: "float32", dims, data: filled });
  }
  optimizer.clipNorm = 0.5;
  await optimizer.step();
  let total = 0;
  for (const [key, value] of state.values) {
    if (!key.startsWith("optim/first_order_moments/")) continue;
    for (const x of await value.getData()) total += x * x;
  }
  norms[size] = Math.sqrt(total) / 0.1;
}

// numbers that make no sense
const { optimizer, state } = await load();
for (const rate of [NaN, Infinity, -Infinity, -0.1, 1e39, "0.1"]) {
  assert.throws(() => optimizer.setLearningRate(rate), /must be 0 or a positive finite number/);
}
optimizer.setLearningRate(0);
for (const limit of [NaN, 0, -1]) {
  assert.throws(() => { optimizer.clipNorm = limit; }, /clipNorm must be a positive number/);
}
for (const limit of [null, undefined, 1, Infinity]) optimizer.clipNorm = limit;
optimizer.setLearningRate(0.1);
const falling = new lib.LRScheduler(optimizer, "Falling", (lr, t) => lr * (1 - t));
falling.step();
assert.throws(() => falling.step(), lib.InputError);
state.optimizer.learning_rate = -1;
const checkpoint = await saved({ state });
await assert.rejects(lib.loadArtifacts(folder, { ort, sessionOptions, checkpoint }), lib.CheckpointError);
await print({ norms });
process.exit(0);
