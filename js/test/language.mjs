// node language.mjs LIBRARY MODULES FOLDER: adapt a language model as Python's test does, and exchange adapters.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { print } from "./print.mjs";

const [library, modules, folder] = process.argv.slice(2);
const lib = await import(pathToFileURL(`${library}/index.js`));
const ort = createRequire(`${modules}/x.js`)("onnxruntime-node");
const plan = JSON.parse(await readFile(`${folder}/plan.json`, "utf8"));
const tokenizer = lib.loadTokenizer(await lib.readBytes(`${folder}/tokenizer.json`));
const numbers = (data) => Array.from(data, Number);
const slice = (value, from, to) => {
  const size = value.dims[1];
  return { data: value.data.subarray(from * size, to * size), dims: [to - from, size] };
};

const { module, optimizer, state } = await lib.loadArtifacts(`${folder}/artifacts`, { ort });
const inputs = lib.languageInputs(module);
const rows = lib.causalLmRows(module, plan.texts, tokenizer, { maxLength: plan.length });
const single = lib.causalLmRows(module, plan.texts, tokenizer, { maxLength: plan.length, packing: false });
const arrays = lib.languageArrays(module, rows);
const names = module.inputs().map(({ name }) => name);
const named = (values) => Object.fromEntries(values.map((v, i) => [names[i], numbers(v.data)]));

const before = await lib.generate(module, tokenizer, plan.prompt, { maxNewTokens: plan.tokens });
optimizer.setLearningRate(plan.rate);
const losses = [];
for (let step = 0; step < plan.steps; step++) {
  const from = (step * plan.batch) % (rows.count - plan.batch);
  const batch = arrays.map((value) => slice(value, from, from + plan.batch));
  losses.push((await module.trainStep(...batch)).loss);
  await optimizer.step();
  module.lazyResetGrad();
}
const after = await lib.generate(module, tokenizer, plan.prompt, { maxNewTokens: plan.tokens });
const windowed = await lib.generate(module, tokenizer, plan.prompt, { maxNewTokens: 100, context: 16 });
assert.ok(windowed.length > after.length);
const draw = (seed) => lib.generate(module, tokenizer, "", { maxNewTokens: 9, temperature: 1, topK: 50, seed });
assert.equal(await draw(1), await draw(1));
assert.notEqual(await draw(1), await draw(2));
const predicted = arrays.slice(0, module.inputs("predict").length).map((value) => slice(value, 0, 1));
const [scores] = await module.predict(predicted);

// the adapter to files and back, by both formats
const adapter = await lib.adapterOf(module);
const file = lib.saveOnnxAdapter(adapter);
const peft = await lib.savePeft(adapter);
await lib.writeBytes(`${folder}/js.onnx_adapter`, file);
for (const [name, bytes] of Object.entries(peft)) await lib.writeBytes(`${folder}/js_peft/${name}`, bytes);
const learned = await module.getContiguousParameters();
for (const loaded of [lib.loadOnnxAdapter(file), lib.loadPeft(peft)]) {
  const fresh = await lib.loadArtifacts(`${folder}/artifacts`, { ort });
  assert.notDeepEqual(await fresh.module.getContiguousParameters(), learned);
  await lib.setAdapter(fresh.module, loaded);
  const back = await fresh.module.getContiguousParameters();
  // B is multiplied by the scale in one of the formats, and divided by it here
  const off = back.map((x, i) => Math.abs(x - learned[i]));
  assert.ok(Math.max(...off) <= (loaded.config.alpha === 3 ? 0 : 1e-7), String(Math.max(...off)));
}

// those that Python wrote
const python = {};
const folderOf = async (name) => ({
  "adapter_model.safetensors": await lib.readBytes(`${folder}/${name}/adapter_model.safetensors`),
  "adapter_config.json": await lib.readBytes(`${folder}/${name}/adapter_config.json`),
});
const theirs = {
  onnx: lib.loadOnnxAdapter(await lib.readBytes(`${folder}/python.onnx_adapter`)),
  peft: lib.loadPeft(await folderOf("python_peft")),
};
for (const [kind, loaded] of Object.entries(theirs)) {
  await lib.setAdapter(module, loaded);
  python[kind] = Array.from(await module.getContiguousParameters());
}

// another base, another model, another tokenizer
const refused = async (call, pattern, Kind = lib.AdapterError) =>
  assert.rejects(async () => call(), (error) => {
    assert.ok(error instanceof Kind && error instanceof lib.OnnxTrainError, String(error));
    assert.match(error.message, pattern);
    return true;
  });
const kept = await module.getContiguousParameters();
const set = (loaded) => () => lib.setAdapter(module, loaded);
const other = lib.loadOnnxAdapter(await lib.readBytes(`${folder}/other.onnx_adapter`));
await refused(set(other), /another base: names fit, the weights differ/);
await refused(set(lib.loadPeft(await folderOf("other_peft"))), /another base: names fit, the weights differ/);
await refused(set(lib.loadOnnxAdapter(await lib.readBytes(`${folder}/wide.onnx_adapter`))), /is float32\[8,3\] there and float32\[8,2\]/);
const [first] = adapter.layers.keys();
const less = new Map([...adapter.layers].filter(([name]) => name !== first));
await refused(set({ ...adapter, layers: less }), /nothing for the layer "layers\.0\.q_proj"/);
const more = new Map([...adapter.layers, ["elsewhere", adapter.layers.get(first)]]);
await refused(set({ ...adapter, layers: more }), /no layer "elsewhere"/);
await refused(set({ ...adapter, saved: new Map([["head", adapter.layers.get(first).a]]) }), /beside the layers/);
assert.deepEqual(await module.getContiguousParameters(), kept);
const plain = (await lib.loadArtifacts(`${folder}/plain`, { ort })).module;
await refused(() => lib.adapterOf(plain), /train a whole model and have no adapter/);
assert.equal(lib.languageInputs(plain), undefined);
await refused(() => lib.generate(plain, tokenizer, "a"), /not those of a causal language model/, lib.TextError);
const large = { ...lib.byteTokenizer, size: 100_000 };
await refused(() => lib.causalLmRows(module, ["abc"], large), /has 100000 tokens, and the model knows 300/, lib.TextError);
await refused(() => lib.causalLmRows(module, [""], lib.byteTokenizer), /nothing to learn/, lib.TextError);

const dora = (await lib.loadArtifacts(`${folder}/dora`, { ort })).module;
const norms = await lib.adapterOf(dora);
await refused(() => lib.saveOnnxAdapter(norms), /holds A and B only; this adapter has use_dora/);
const doraFiles = await lib.savePeft(norms);
for (const [name, bytes] of Object.entries(doraFiles)) await lib.writeBytes(`${folder}/js_dora/${name}`, bytes);
await lib.setAdapter(dora, lib.loadPeft(doraFiles));
await refused(() => lib.setAdapter(dora, { ...norms, layers: adapter.layers }), /another base/);

await print({
  inputs, before, after, losses, python, rows: named(arrays), single: named(lib.languageArrays(module, single)),
  scores: Array.from(await scores.getData()), steps: state.optimizer.step,
});
process.exit(0);
