import { check, CheckpointError } from "./errors.js";
import { hasForm, isListOf, isRecord, isText, isWhole } from "./facts.js";
import { arrayOf, hostValue, joined, sizeOf, TYPES } from "./ort.js";
import type { Data, Tensor, Value } from "./ort.js";

/** A number or a string of the user's own. */
export type Property = number | bigint | string;
const IS_OPTIMIZER = hasForm({ name: isText, step: isWhole, learning_rate: Number.isFinite });
export type OptimizerState = { name: string; step: number; learning_rate: number };

/** Everything a training run has to remember, to and from a safetensors file. */
export class CheckpointState {
  readonly trainable: readonly string[] = this.read("trainable") ?? [];
  readonly frozen: readonly string[] = this.read("frozen") ?? [];
  /** What the optimizer remembers besides its moments. */
  optimizer = this.read<OptimizerState>("optimizer");
  scheduler = this.read<Record<string, unknown>>("scheduler") ?? {};
  /** The schedule's position as it was loaded, until a schedule takes it back. */
  resumableScheduler: typeof this.scheduler | undefined;
  private readonly texts = members(this.metadata["properties"]);
  readonly properties = new Map(Array.from(this.texts, ([name, text]) => [name, property(text)]));
  /** From which random numbers follow; `counter` counts training passes, `generation` sessions. */
  readonly random = {
    seed: this.whole("seed"),
    generation: this.whole("generation"),
    counter: this.whole("counter"),
  };
  private queue: Promise<unknown> = Promise.resolve();

  private constructor(
    /** The current values, wherever they live: "param/<name>", "optim/<state>/<name>", "grad/…". */
    readonly values: Map<string, Value | Tensor>,
    private readonly metadata: Readonly<Record<string, string>>,
  ) {}

  /** Read the bytes of a checkpoint; a damaged or foreign one is a `CheckpointError`. */
  static loadCheckpoint(file: Uint8Array): CheckpointState {
    const { values, metadata } = decode(file);
    const { format, version, nominal } = metadata;
    const found = `format "${format}", version "${version}", nominal: ${nominal}`;
    const isOurs = format === "onnxtrain" && version === "1" && nominal !== "true";
    check(isOurs, `No checkpoint of onnxtrain, version 1, with values: ${found}.`, CheckpointError);
    const state = CheckpointState.described(values, metadata);
    const missing = [...state.trainable, ...state.frozen].find((n) => !values.has(`param/${n}`));
    check(missing === undefined, `The checkpoint has no values of "${missing}".`, CheckpointError);
    return state;
  }

  /** The state that metadata describe, which are JSON of somebody's. */
  private static described(
    values: Map<string, Value>,
    metadata: Readonly<Record<string, string>>,
  ): CheckpointState {
    const damaged = (why: string): CheckpointError =>
      new CheckpointError(`The checkpoint is damaged: ${why}. Take the one before it.`);
    let state: CheckpointState;
    try {
      state = new CheckpointState(values, metadata);
    } catch (error) {
      throw damaged((error as Error).message);
    }
    const { optimizer, scheduler, trainable, frozen } = state;
    if (!isListOf(isText)(trainable) || !isListOf(isText)(frozen)) throw damaged("its names");
    if (!isRecord(scheduler)) throw damaged("its schedule");
    const isFine = optimizer === undefined || IS_OPTIMIZER(optimizer);
    if (!isFine) throw damaged("its optimizer");
    return state;
  }

  /** The bytes of a checkpoint that every onnxtrain reads. */
  static saveCheckpoint(state: CheckpointState, withOptimizer = false): Promise<Uint8Array> {
    return state.exclusive(async () => {
      const values = new Map<string, Value>();
      for (const [key, value] of state.values) {
        const isSaved = key.startsWith("param/") || (withOptimizer && key.startsWith("optim/"));
        if (isSaved) values.set(key, await hostValue(value));
      }
      return encode({ values, metadata: state.metadataNow(withOptimizer) });
    });
  }

  /** A copy of a parameter's values, flat. */
  getParameter(name: string): Promise<Data> {
    return this.exclusive(async () => (await hostValue(this.parameter(name))).data.slice());
  }

  setParameter(name: string, data: Data): Promise<void> {
    return this.exclusive(async () => {
      const { type, dims } = this.parameter(name);
      const fits = data instanceof arrayOf(type) && data.length === sizeOf(dims);
      check(fits, `Parameter "${name}" holds ${sizeOf(dims)} values of the type ${type}.`);
      this.replace(`param/${name}`, { type, dims, data: data.slice() });
    });
  }

  /** Do one thing after the other: a step must not meet a half-written update or save. */
  exclusive<T>(work: () => Promise<T>): Promise<T> {
    const result = this.queue.then(work);
    this.queue = result.catch(() => undefined);
    return result;
  }

  parameter(name: string): Value | Tensor {
    const found = this.values.get(`param/${name}`);
    check(found, `No parameter "${name}"; there are ${[...this.trainable, ...this.frozen]}.`);
    return found;
  }

  /** Let another value be the current one; a device's buffer is freed. */
  replace(key: string, value: Value | Tensor): void {
    const old = this.values.get(key);
    if (old !== undefined && old !== value && "dispose" in old) old.dispose();
    this.values.set(key, value);
  }

  /** The seed of a random node as in Python, below 2**24: a float holds it exactly. */
  async seedOf(node: string): Promise<number> {
    const text = new TextEncoder().encode(`${this.random.seed}/${this.random.generation}/${node}`);
    const hash: ArrayBuffer | undefined = await crypto.subtle?.digest("SHA-256", text);
    // browsers offer no hash on a page that came over plain http
    const bytes = hash ?? crypto.getRandomValues(new Uint8Array(4)).buffer;
    return new DataView(bytes).getUint32(0, true) % 2 ** 24;
  }

  private read<T>(key: string): T | undefined {
    return JSON.parse(this.metadata[key] ?? "null") ?? undefined;
  }

  private whole(key: string): bigint {
    return BigInt(members(this.metadata["random"]).get(key) ?? 0);
  }

  private metadataNow(withOptimizer: boolean): Record<string, string> {
    const { optimizer: _, scheduler: __, trainer, ...rest } = this.metadata;
    const numbers = Object.entries(this.random).map(([name, n]) => `"${name}": ${n}`);
    const random = `{${numbers.join(", ")}}`;
    const properties = Array.from(this.properties, ([name, value]) => {
      const old = this.texts.get(name);
      const isOld = old !== undefined && Object.is(property(old), value); // 1.0 stays 1.0
      return `${JSON.stringify(name)}: ${isOld ? old : propertyText(name, value)}`;
    });
    const always = { ...rest, random, properties: `{${properties.join(", ")}}` };
    if (!withOptimizer) return always;
    const optimizer = this.optimizer && { optimizer: JSON.stringify(this.optimizer) };
    const scheduler = JSON.stringify(this.scheduler);
    return { ...always, scheduler, ...(trainer && { trainer }), ...optimizer };
  }
}

/** The members of an object in JSON as text: in JavaScript 1 is 1.0, and 2**63 + 1 is 2**63. */
function members(json = "{}"): Map<string, string> {
  const member = /("(?:[^"\\]|\\.)*")\s*:\s*("(?:[^"\\]|\\.)*"|\{[^{}]*\}|[^\s,{}"]+)/g;
  const found = [...json.matchAll(member)];
  return new Map(found.map(([, name = "", text = ""]) => [JSON.parse(name), text]));
}

/** A property from its text; what JSON has no number for is `{"float": "nan"}`. */
function property(text: string): Property {
  if (/^-?\d{16,}$/.test(text)) return BigInt(text);
  const value = JSON.parse(text) as string | number | { float: string };
  return typeof value === "object" ? Number(value.float.replace("inf", "Infinity")) : value;
}

function propertyText(name: string, value: Property): string {
  if (typeof value === "bigint") return String(value);
  if (typeof value === "string" || Number.isFinite(value)) return JSON.stringify(value);
  check(typeof value === "number", `Property "${name}" must be a number or a string.`);
  return `{"float": "${String(value).toLowerCase().replace("infinity", "inf")}"}`;
}

type Content = { values: Map<string, Value>; metadata: Readonly<Record<string, string>> };
type Entries = Record<string, { dtype: string; shape: number[]; data_offsets: [number, number] }>;

/** float32 is F32, bfloat16 BF16, int64 I64, uint8 U8, bool BOOL. */
const codeOf = (type: string): string =>
  type.replace("float", "f").replace("uint", "u").replace("int", "i").toUpperCase();

/** The length of the header in eight bytes, the header in JSON, the data, which it must fill. */
export function decode(file: Uint8Array): Content {
  try {
    const start = 8 + Number(new DataView(file.buffer, file.byteOffset, 8).getBigUint64(0, true));
    const header = JSON.parse(new TextDecoder().decode(file.subarray(8, start)));
    const { __metadata__: metadata = {}, ...entries } = header;
    const isFine = isRecord(metadata) && Object.values(metadata).every(isText);
    check(isFine, "Its metadata are not strings.");
    const values = new Map<string, Value>();
    let end = start;
    for (const [name, { dtype, shape, data_offsets: at }] of Object.entries(entries as Entries)) {
      const type = TYPES.find((t) => codeOf(t) === dtype) ?? dtype;
      const array = arrayOf(type);
      const bytes = new Uint8Array(file.subarray(start + at[0], start + at[1]));
      const size = sizeOf(shape) * array.BYTES_PER_ELEMENT;
      check(at[1] - at[0] === size && bytes.length === size, `"${name}" has another size.`);
      values.set(name, { type, dims: shape, data: new array(bytes.buffer) });
      end += size;
    }
    check(end === file.length, `It has ${file.length} bytes, its header says ${end}.`);
    return { metadata: metadata as Record<string, string>, values };
  } catch (error) {
    const why = (error as Error).message;
    throw new CheckpointError(`The checkpoint is damaged, truncated or none at all: ${why}`);
  }
}

/** Write a safetensors file: tensors (wide types first, so that all stay aligned) and metadata. */
export function encode({ values, metadata }: Content): Promise<Uint8Array> {
  const width = ({ data }: Value): number => data.BYTES_PER_ELEMENT;
  const order = [...values].sort(([, a], [, b]) => width(b) - width(a));
  const header: Record<string, unknown> = { __metadata__: metadata };
  let at = 0;
  for (const [name, { type, dims, data }] of order) {
    const offsets = [at, (at += data.byteLength)];
    header[name] = { dtype: codeOf(type), shape: dims, data_offsets: offsets };
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  const padding = new Uint8Array(-text.length & 7).fill(0x20);
  const length = BigUint64Array.of(BigInt(text.length + padding.length));
  return joined([length, text, padding, ...order.map(([, { data }]) => data)]);
}
