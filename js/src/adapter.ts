/** Adapters (LoRA): what artifacts with adapters train, to files of PEFT and onnxruntime and back. */
import { decodeAdapterFile, encodeAdapterFile } from "./adapter-file.js";
import { decode, encode } from "./checkpoint.js";
import { AdapterError, check } from "./errors.js";
import { isRecord } from "./facts.js";
import type { Module } from "./module.js";
import type { Data, Value } from "./ort.js";

/** The settings of an adapter; the names are those of Python's `lora.Config`. */
export interface AdapterConfig {
  readonly rank: number;
  /** The update A·B is multiplied by alpha ÷ rank, with `use_rslora` by alpha ÷ √rank. */
  readonly alpha: number;
  readonly dropout: number;
  readonly use_rslora: boolean;
  readonly use_dora: boolean;
}

/** Where the artifacts have the adapter of each layer: names of parameters, "" for none. */
export interface AdapterFacts {
  readonly config: AdapterConfig;
  /** Fingerprint of the weights that are adapted. */
  readonly base: string;
  readonly places: readonly { layer: string; a: string; b: string; magnitude: string }[];
  /** Parameters of the model itself that are trained in full. */
  readonly saved: readonly string[];
}

/** The weight W of a layer becomes W + scale · A·B; a is [inputs, rank], b is [rank, outputs]. */
export interface LayerAdapter {
  readonly a: Value;
  readonly b: Value;
  /** With DoRA, the norm that the weights of each output are given. */
  readonly magnitude?: Value | undefined;
}

/** An adapter by itself, independent of any file. */
export interface Adapter {
  readonly config: AdapterConfig;
  /** Fingerprint of its base, or how that begins; "" where it is not known. */
  readonly base: string;
  readonly layers: ReadonlyMap<string, LayerAdapter>;
  readonly saved: ReadonlyMap<string, Value>;
}

/** PEFT's two files. */
export interface PeftFiles {
  readonly "adapter_model.safetensors": Uint8Array;
  readonly "adapter_config.json": Uint8Array;
}

const PREFIX = "base_model.model.";
const FINGERPRINT = "onnxtrain.base";
const A = ".lora_A.weight";
const B = ".lora_B.weight";
const MAGNITUDE = ".lora_magnitude_vector";
/** The name of a part in PEFT's files, which may have that of an adapter inside. */
const PART = /^(.*)\.lora_(A|B|magnitude_vector)(?:\.default)?(?:\.weight)?$/;
/** How many digits of the fingerprint an .onnx_adapter holds. */
const DIGITS = 7;
/** Settings of PEFT that change what the numbers mean, and what is understood of each. */
const UNDERSTOOD: Record<string, string> = {
  rank_pattern: "{}", alpha_pattern: "{}", bias: '"none"', layers_pattern: "null",
  lora_bias: "false", megatron_config: "null", trainable_token_indices: "null",
};

/** What A·B is multiplied by. */
export const scaleOf = ({ alpha, rank, use_rslora }: AdapterConfig): number =>
  alpha / (use_rslora ? Math.sqrt(rank) : rank);

function factsOf(module: Module): AdapterFacts {
  const { adapter } = module.facts;
  const remedy = "Make them from what onnxtrain.lora.add gives.";
  check(adapter, `The artifacts train a whole model and have no adapter. ${remedy}`, AdapterError);
  return adapter;
}

/** The adapter that a module has trained so far: a copy. */
export async function adapterOf(module: Module): Promise<Adapter> {
  const { config, base, places, saved } = factsOf(module);
  const shapes = new Map(module.facts.parameters.map((info) => [info.name, info]));
  const value = async (name: string): Promise<Value> => {
    const data = await module.state.getParameter(name);
    const { type = "float32", shape = [] } = shapes.get(name) ?? {};
    return { type, dims: shape, data };
  };
  // all are asked for at once: no step comes between one and the next
  const layers = Promise.all(
    places.map(async ({ layer, a, b, magnitude }) => {
      const [left, right, norms] = await Promise.all([
        value(a), value(b), magnitude ? value(magnitude) : undefined,
      ]);
      return [layer, { a: left, b: right, magnitude: norms }] as const;
    }),
  );
  const whole = Promise.all(saved.map(async (name) => [name, await value(name)] as const));
  return { config, base, layers: new Map(await layers), saved: new Map(await whole) };
}

/** Go on with an adapter that exists; one for another base is an `AdapterError`, and changes nothing. */
export async function setAdapter(module: Module, adapter: Adapter): Promise<void> {
  const facts = factsOf(module);
  const foreign = (why: string): AdapterError =>
    new AdapterError(`The adapter was made for another base: ${why}. Use the one it belongs to.`);
  const names = facts.places.map(({ layer }) => layer);
  const missing = names.find((name) => !adapter.layers.has(name));
  const strange = [...adapter.layers.keys()].find((name) => !names.includes(name));
  if (strange !== undefined) throw foreign(`the artifacts adapt no layer "${strange}"`);
  if (missing !== undefined) throw foreign(`it has nothing for the layer "${missing}"`);
  const whole = `${[...adapter.saved.keys()].sort()}` === `${[...facts.saved].sort()}`;
  if (!whole) throw foreign(`beside the layers it has [${[...adapter.saved.keys()]}]`);
  if (!facts.base.startsWith(adapter.base)) throw foreign("names fit, the weights differ");
  // the artifacts have their own factor inside: what the file's differs by goes into B
  const factor = scaleOf(adapter.config) / scaleOf(facts.config);
  const values = new Map<string, Value>(adapter.saved);
  for (const { layer, a, b, magnitude } of facts.places) {
    const own = adapter.layers.get(layer) as LayerAdapter;
    if ((own.magnitude === undefined) !== (magnitude === "")) throw foreign("one has use_dora");
    values.set(a, own.a).set(b, scaled(own.b, factor));
    if (own.magnitude !== undefined) values.set(magnitude, own.magnitude);
  }
  for (const { name, type, shape } of module.facts.parameters) {
    const value = values.get(name);
    const has = value && `${value.type}[${value.dims}]`;
    if (has === undefined || has === `${type}[${shape}]`) continue;
    throw foreign(`"${name}" is ${has} there and ${type}[${shape}] here`);
  }
  const set = Array.from(values, ([name, { data }]) => module.state.setParameter(name, data));
  await Promise.all(set);
}

// --- PEFT -----------------------------------------------------------------------------------------

/** The two files of PEFT, which Python's `lora.load_peft` reads from a folder. */
export async function savePeft(adapter: Adapter): Promise<PeftFiles> {
  const values = new Map<string, Value>();
  for (const [name, { a, b, magnitude }] of adapter.layers) {
    values.set(PREFIX + name + A, turned(a)).set(PREFIX + name + B, turned(b));
    if (magnitude !== undefined) values.set(PREFIX + name + MAGNITUDE, magnitude);
  }
  for (const [name, value] of adapter.saved) values.set(PREFIX + name, value);
  const metadata = { format: "pt", [FINGERPRINT]: adapter.base };
  return {
    "adapter_model.safetensors": await encode({ values, metadata }),
    "adapter_config.json": new TextEncoder().encode(JSON.stringify(settingsOf(adapter), null, 2)),
  };
}

function settingsOf({ config, layers, saved }: Adapter): object {
  const modules = new Set([...saved.keys()].map((name) => name.replace(/\.?[^.]*$/, "")));
  modules.delete("");
  return {
    peft_type: "LORA",
    base_model_name_or_path: null,
    task_type: null,
    inference_mode: true,
    r: config.rank,
    lora_alpha: config.alpha,
    lora_dropout: config.dropout,
    use_rslora: config.use_rslora,
    use_dora: config.use_dora,
    target_modules: [...layers.keys()].sort(),
    modules_to_save: modules.size > 0 ? [...modules].sort() : null,
    bias: "none",
    fan_in_fan_out: false,
  };
}

/** The adapter in PEFT's two files; what is damaged or not supported is an `AdapterError`. */
export function loadPeft(files: PeftFiles): Adapter {
  const config = configIn(files["adapter_config.json"]);
  const { values, metadata } = weightsIn(files["adapter_model.safetensors"]);
  const parts = new Map<string, Map<string, Value>>();
  const saved = new Map<string, Value>();
  for (const [key, value] of values) {
    const name = key.replace(PREFIX, "");
    const [, layer, kind] = PART.exec(name) ?? [];
    if (layer === undefined || kind === undefined) saved.set(name, value);
    else parts.set(layer, (parts.get(layer) ?? new Map<string, Value>()).set(kind, value));
  }
  const layers = new Map<string, LayerAdapter>();
  for (const [name, own] of parts) {
    const [a, b] = [own.get("A"), own.get("B")];
    check(a && b, `The adapter's layer "${name}" lacks lora_A or lora_B.`, AdapterError);
    layers.set(name, { a: turned(a), b: turned(b), magnitude: own.get("magnitude_vector") });
  }
  check(layers.size > 0, "The file has no lora_A and lora_B: it is no LoRA adapter.", AdapterError);
  return { config, base: metadata[FINGERPRINT] ?? "", layers, saved };
}

function weightsIn(bytes: Uint8Array): ReturnType<typeof decode> {
  try {
    return decode(bytes);
  } catch (error) {
    const why = (error as Error).message.replace("The checkpoint", "adapter_model.safetensors");
    throw new AdapterError(why);
  }
}

function configIn(bytes: Uint8Array): AdapterConfig {
  let written: unknown;
  try {
    written = JSON.parse(new TextDecoder().decode(bytes));
  } catch (error) {
    throw new AdapterError(`adapter_config.json is not JSON: ${(error as Error).message}.`);
  }
  const text = "adapter_config.json describes no LoRA adapter.";
  check(isRecord(written) && written["peft_type"] === "LORA", text, AdapterError);
  for (const [key, understood] of Object.entries(UNDERSTOOD)) {
    const value = JSON.stringify(written[key] ?? null);
    const isFine = value === "null" || value === understood;
    check(isFine, `adapter_config.json: ${key}=${value} is not supported.`, AdapterError);
  }
  const { r: rank, lora_alpha: alpha, lora_dropout: dropout = 0, use_rslora, use_dora } = written;
  const isFine = Number.isSafeInteger(rank) && (rank as number) > 0 && Number.isFinite(alpha);
  check(isFine, `adapter_config.json has r=${rank}, lora_alpha=${alpha}.`, AdapterError);
  return {
    rank: rank as number,
    alpha: alpha as number,
    dropout: Number(dropout) || 0,
    use_rslora: use_rslora === true,
    use_dora: use_dora === true,
  };
}

// --- onnxruntime ----------------------------------------------------------------------------------

/** An .onnx_adapter: onnxruntime's `LoraAdapter` and `lora.load_onnx_adapter` take it. */
export function saveOnnxAdapter(adapter: Adapter): Uint8Array {
  const { config, saved, layers, base } = adapter;
  const extra = config.use_dora ? "use_dora" : saved.size > 0 ? "modules_to_save" : undefined;
  const text = `An .onnx_adapter holds A and B only; this adapter has ${extra}: save it for PEFT.`;
  check(extra === undefined, text, AdapterError);
  const tensors = new Map<string, Value>();
  for (const [name, { a, b }] of layers) {
    tensors.set(name + A, a).set(name + B, scaled(b, scaleOf(config)));
  }
  const modelVersion = Number.parseInt(base.slice(0, DIGITS) || "0", 16);
  return encodeAdapterFile({ adapterVersion: 1, modelVersion, tensors });
}

/** The adapter in an .onnx_adapter; its scale is 1, as it is part of B. */
export function loadOnnxAdapter(bytes: Uint8Array): Adapter {
  const { tensors, modelVersion } = decodeAdapterFile(bytes);
  const layers = new Map<string, LayerAdapter>();
  const ranks = new Set<number>();
  for (const [key, a] of tensors) {
    if (key.endsWith(B)) continue;
    const name = key.slice(0, -A.length);
    const b = tensors.get(name + B);
    const isPair = key.endsWith(A) && b !== undefined;
    check(isPair, `"${key}" in the .onnx_adapter is not one of a pair of A and B.`, AdapterError);
    layers.set(name, { a, b });
    ranks.add((a.dims.length === 2 ? a.dims[1] : a.dims[0]) ?? 0);
  }
  const [rank = 0] = ranks;
  const isFine = layers.size * 2 === tensors.size && ranks.size === 1 && rank > 0;
  check(isFine, "The .onnx_adapter has no pairs of A and B of one rank.", AdapterError);
  const config = { rank, alpha: rank, dropout: 0, use_rslora: false, use_dora: false };
  const base = modelVersion ? modelVersion.toString(16).padStart(DIGITS, "0") : "";
  return { config, base, layers, saved: new Map() };
}

// --- numbers --------------------------------------------------------------------------------------

function scaled(value: Value, factor: number): Value {
  if (factor === 1) return value;
  const data = (value.data as Float32Array).map((x) => x * Math.fround(factor));
  return { ...value, data: data as Data };
}

/** A matrix with rows and columns exchanged; PEFT has them so, and convolutions as they are. */
function turned(value: Value): Value {
  const [rows = 0, columns = 0] = value.dims;
  if (value.dims.length !== 2) return value;
  const source = value.data as Float32Array;
  const data = source.slice();
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < columns; c++) data[c * rows + r] = source[r * columns + c] as number;
  }
  return { ...value, dims: [columns, rows], data: data as Data };
}
