// node strangers.mjs LIBRARY MODULES FOLDER: tokenizers, texts and adapters of somebody else's; one line per case.
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { print } from "./print.mjs";

const [library, modules, folder] = process.argv.slice(2);
const lib = await import(pathToFileURL(`${library}/index.js`));
const ort = createRequire(`${modules}/x.js`)("onnxruntime-node");
const { encodeAdapterFile } = await import(pathToFileURL(`${library}/adapter-file.js`));
const bytes = (text) => new TextEncoder().encode(text);
const sound = JSON.parse(await readFile(`${folder}/tokenizer.json`, "utf8"));
const adapterFile = await lib.readBytes(`${folder}/python.onnx_adapter`);
const peft = {
  "adapter_model.safetensors": await lib.readBytes(`${folder}/python_peft/adapter_model.safetensors`),
  "adapter_config.json": await lib.readBytes(`${folder}/python_peft/adapter_config.json`),
};
const { module } = await lib.loadArtifacts(`${folder}/artifacts`, { ort });
const tokenizer = lib.loadTokenizer(bytes(JSON.stringify(sound)));

/** The sound tokenizer.json with something else in it. */
const changed = (change) => () => {
  const copy = structuredClone(sound);
  change(copy);
  return lib.loadTokenizer(bytes(JSON.stringify(copy))).encode("the cat sat");
};
const splitBy = (Regex) =>
  changed((t) => {
    const split = { type: "Split", pattern: { Regex }, behavior: "Isolated", invert: false };
    t.pre_tokenizer = { type: "Sequence", pretokenizers: [split, { type: "ByteLevel", use_regex: false }] };
  });
const settings = (change) => () => {
  const config = { ...JSON.parse(new TextDecoder().decode(peft["adapter_config.json"])), ...change };
  return lib.loadPeft({ ...peft, "adapter_config.json": bytes(JSON.stringify(config)) });
};
/** An .onnx_adapter whose parameters all have the bytes of the last: 2 GB in a file of 1 MB. */
function shared(count = 2000, size = 250_000) {
  const empty = { type: "float32", dims: [size], data: new Float32Array() };
  const tensors = new Map(Array.from({ length: count }, (_, i) => [`layer${i}.lora_A.weight`, empty]));
  tensors.set("last.lora_A.weight", { ...empty, data: new Float32Array(size) });
  const file = encodeAdapterFile({ adapterVersion: 1, modelVersion: 0, tensors });
  const view = new DataView(file.buffer);
  const to = (at) => at + view.getUint32(at, true);
  const list = to(to(0) + 16);
  const tables = Array.from({ length: count + 1 }, (_, i) => to(list + 4 + 4 * i));
  const bytes = to(tables.at(-1) + 16);
  for (const table of tables) view.setUint32(table + 16, bytes - table - 16, true);
  return file;
}

const cases = {
  "tokenizer is not JSON": () => lib.loadTokenizer(bytes("{")),
  "tokenizer is a list": () => lib.loadTokenizer(bytes("[]")),
  "tokenizer is not UTF-8": () => lib.loadTokenizer(Uint8Array.of(123, 255, 254, 125)),
  "tokenizer is nested": () => lib.loadTokenizer(bytes("[".repeat(1e6))),
  "tokenizer is too large": () => lib.loadTokenizer(new Uint8Array(2 ** 26 + 1)),
  "tokenizer is empty": () => lib.loadTokenizer(bytes("{}")),
  "model of words": changed((t) => (t.model.type = "WordLevel")),
  "model is null": changed((t) => (t.model = null)),
  "bytes as a fallback": changed((t) => (t.model.byte_fallback = true)),
  "another decoder": changed((t) => (t.decoder = { type: "WordPiece" })),
  "another pre-tokenizer": changed((t) => (t.pre_tokenizer = { type: "Whitespace" })),
  "no pre-tokenizer": changed((t) => (t.pre_tokenizer = null)),
  "another normalizer": changed((t) => (t.normalizer = { type: "Lowercase" })),
  "an expression without end": splitBy("(a+)+$"),
  "vocabulary of text": changed((t) => (t.model.vocab = "all")),
  "a negative token": changed((t) => (t.model.vocab.the = -1)),
  "a token too large": changed((t) => (t.model.vocab.the = 2 ** 40)),
  "a token that is a fraction": changed((t) => (t.model.vocab.the = 0.5)),
  "merges of one": changed((t) => (t.model.merges = [["a"]])),
  "merges of numbers": changed((t) => (t.model.merges = [[1, 2]])),
  "merges of strangers": changed((t) => (t.model.merges = [["qqq", "zzz"]])),
  "merges are an object": changed((t) => (t.model.merges = {})),
  "an added token without a number": changed((t) => (t.added_tokens = [{ content: "x" }])),
  "an added token that strips": changed((t) => (t.added_tokens[0].lstrip = true)),
  "config is a list": () => lib.loadTokenizer(bytes(JSON.stringify(sound)), bytes("[]")),
  "text of 100 MB": () => tokenizer.encode("a".repeat(1e8)),
  "text of 100 MB as bytes": () => lib.byteTokenizer.encode("a".repeat(1e8)),
  "half a character": () => tokenizer.encode("a\ud800b"),
  "tokens of another model": () => lib.causalLmRows(module, ["x"], { ...tokenizer, size: 1e6, encode: () => [999_999] }),
  "adapter is empty": () => lib.loadOnnxAdapter(new Uint8Array()),
  "adapter is junk": () => lib.loadOnnxAdapter(bytes("junk".repeat(100))),
  "adapter is a name only": () => lib.loadOnnxAdapter(bytes("....TORT")),
  "adapter is cut": () => lib.loadOnnxAdapter(adapterFile.subarray(0, adapterFile.length / 2)),
  "adapter that grows": () => lib.loadOnnxAdapter(shared()),
  "weights are junk": () => lib.loadPeft({ ...peft, "adapter_model.safetensors": bytes("junk".repeat(9)) }),
  "weights are settings": () => lib.loadPeft({ ...peft, "adapter_model.safetensors": peft["adapter_config.json"] }),
  "settings are junk": () => lib.loadPeft({ ...peft, "adapter_config.json": bytes("{") }),
  "settings are null": () => lib.loadPeft({ ...peft, "adapter_config.json": bytes("null") }),
  "settings of another kind": settings({ peft_type: "IA3" }),
  "settings without a rank": settings({ r: 0 }),
  "settings of many ranks": settings({ rank_pattern: { q_proj: 3 } }),
};

async function tried(call) {
  const before = process.cpuUsage();
  try {
    await call();
    return { error: null };
  } catch (error) {
    const { user, system } = process.cpuUsage(before);
    const isOurs = error instanceof lib.TextError || error instanceof lib.AdapterError;
    return { error: `${error.name}: ${error.message}`, isOurs, seconds: (user + system) / 1e6 };
  }
}
const report = {};
for (const [name, call] of Object.entries(cases)) report[name] = await tried(call);

// a word without end takes its time, and no more
const started = process.cpuUsage();
const long = tokenizer.encode("ab".repeat(200_000));
const spent = process.cpuUsage(started);
if (tokenizer.decode(long).length !== 400_000) throw new Error("the long word was lost");

// files that chance has damaged: read, or refused by name
let state = 1;
const random = (n) => (state = (Math.imul(state, 1664525) + 1013904223) >>> 0) % n;
const damaged = (file) => {
  const copy = file.slice(0, random(4) ? file.length : random(file.length));
  for (let i = random(6); i >= 0; i--) if (copy.length) copy[random(copy.length)] = random(3) ? random(256) : [0, 255, 127][random(3)];
  return copy;
};
const odd = new Set();
const outcomes = { read: 0, refused: 0 };
const doors = [
  [1500, () => lib.loadOnnxAdapter(damaged(adapterFile))],
  [600, () => lib.loadPeft({ ...peft, "adapter_model.safetensors": damaged(peft["adapter_model.safetensors"]) })],
  [400, () => lib.loadPeft({ ...peft, "adapter_config.json": damaged(peft["adapter_config.json"]) })],
  [150, () => lib.loadTokenizer(damaged(bytes(JSON.stringify(sound)))).encode("the cat sat <|endoftext|>")],
];
for (const [times, call] of doors) {
  for (let i = 0; i < times; i++) {
    const { error, isOurs } = await tried(call);
    outcomes[error === null ? "read" : "refused"] += 1;
    if (error !== null && !isOurs) odd.add(error);
  }
}
await print({ report, odd: [...odd], outcomes, longWord: (spent.user + spent.system) / 1e6 });
process.exit(0);
