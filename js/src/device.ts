/** The models that device.json describes, put together and run. */
import type { CheckpointState } from "./checkpoint.js";
import { check, ModelFileError } from "./errors.js";
import { hostValue, joined } from "./ort.js";
import type { Data, Ort, Session, Tensor, Tensors, Value } from "./ort.js";

/** An input; a dimension that is not fixed has a name, an unknown rank has no dimensions. */
export interface ValueInfo {
  readonly name: string;
  readonly type: string;
  readonly shape: readonly (number | string)[];
}

/** Bytes of the file from … to, bytes in base64, or what is known only here. */
type Piece = [number, number] | string | { seed: string; float: boolean } | { value: string };

interface Model {
  readonly file: string | null;
  readonly pieces: readonly Piece[];
  /** What the user gives and gets. */
  readonly inputs: readonly ValueInfo[];
  readonly outputs: readonly string[];
  /** Inputs that come from the state, and outputs that go there, by key. */
  readonly feeds: Readonly<Record<string, string>>;
  readonly updates: Readonly<Record<string, string>>;
  /** Options on WebGPU: of the session, and of the provider. */
  readonly webgpu: { readonly session: object; readonly provider: object };
}

/** device.json; Python writes it (onnxtrain.artifacts.device). */
export interface Facts {
  readonly version: number;
  /** The artifacts that models are made of, and their sizes. */
  readonly files: Readonly<Record<string, number>>;
  readonly models: Readonly<Record<string, Model>>;
  readonly parameters: readonly ValueInfo[];
  readonly trainable: readonly string[];
  /** `moments` has the keys and shapes of what the optimizer remembers. */
  readonly optimizer: OptimizerFacts | null;
}

type OptimizerFacts = { name: string; clip_norm: number | null; moments: Record<string, number[]> };

/** onnxruntime's options for a session, e.g. `{ executionProviders: ["webgpu"] }`. */
export interface SessionOptions {
  readonly executionProviders?: readonly (string | { readonly name: string })[];
  readonly [other: string]: unknown;
}

export class Device {
  private readonly providers = (this.options.executionProviders ?? []).map((provider) =>
    typeof provider === "string" ? { name: provider } : provider,
  );
  /** Whether parameters, gradients and moments stay in the device's own buffers. */
  readonly isGpu = this.providers.some(({ name }) => name === "webgpu");
  private readonly sessions = new Map<string, Promise<Session>>();

  constructor(
    readonly facts: Facts,
    private readonly files: ReadonlyMap<string, Uint8Array>,
    readonly state: CheckpointState,
    private readonly ort: Ort,
    private readonly options: SessionOptions = {},
  ) {}

  model(name: string): Model {
    const found = this.facts.models[name];
    check(found, `The artifacts have no model to ${name} with.`, ModelFileError);
    return found;
  }

  /** The bytes of a model: pieces of an artifact, with seeds and values put in. */
  async bytes(name: string): Promise<Uint8Array> {
    return joined(await Promise.all(this.model(name).pieces.map((p) => this.part(name, p))));
  }

  /** The session of a model, made when it is first needed. */
  session(name: string): Promise<Session> {
    const session = this.sessions.get(name) ?? this.create(name);
    this.sessions.set(name, session);
    return session;
  }

  /** Run a model: what it needs of the state is fed, what it changes there is kept. */
  async run(name: string, given: Tensors = {}): Promise<Tensors> {
    const { feeds, updates } = this.model(name);
    const all: Record<string, Tensor> = { ...given };
    for (const [input, key] of Object.entries(feeds)) {
      all[input] = await this.upload(this.state.values.get(key) as Value);
      this.state.replace(key, all[input]);
    }
    const results = await (await this.session(name)).run(all);
    for (const [output, key] of Object.entries(updates)) {
      this.state.replace(key, results[output] as Tensor);
    }
    return results;
  }

  tensor(type: string, data: Data, dims: readonly number[]): Tensor {
    return new this.ort.Tensor(type as never, data as never, dims) as Tensor;
  }

  async release(): Promise<void> {
    for (const session of this.sessions.values()) await (await session).release();
    this.sessions.clear();
  }

  private async part(name: string, piece: Piece): Promise<Data> {
    if (typeof piece === "string") return Uint8Array.from(atob(piece), (c) => c.charCodeAt(0));
    if ("value" in piece) return (await hostValue(this.state.parameter(piece.value))).data;
    const file = this.files.get(this.model(name).file ?? "") ?? new Uint8Array();
    if (!("seed" in piece)) return file.subarray(...piece);
    const seed = await this.state.seedOf(piece.seed);
    if (piece.float) return Float32Array.of(seed);
    // protobuf's form of a whole number, as long as the place that is left for it
    return Uint8Array.of(seed | 128, (seed >> 7) | 128, (seed >> 14) | 128, seed >> 21);
  }

  /** The tensor to feed for a value; floats are brought to the device if there is one. */
  private async upload(value: Value | Tensor): Promise<Tensor> {
    const a = "getData" in value ? value : this.tensor(value.type, value.data, value.dims);
    const stays = !this.isGpu || a.type !== "float32" || a.location !== "cpu";
    return stays ? a : ((await this.run("copy", { a }))["y"] as Tensor);
  }

  private async create(name: string): Promise<Session> {
    const { session, provider } = this.model(name).webgpu;
    const executionProviders = this.providers.map((p) => ({ ...provider, ...p }));
    const options = this.isGpu ? { ...this.options, ...session, executionProviders } : this.options;
    return (await this.ort.InferenceSession.create(await this.bytes(name), options)) as Session;
  }
}
