import type { InferenceSession } from "onnxruntime-common";
import type { AdapterFacts } from "./adapter.js";
import type { CheckpointState } from "./checkpoint.js";
import { check, CheckpointError, InputError, ModelFileError, notFinite } from "./errors.js";
import { checkLabels, explained } from "./labels.js";
import type { ClassLabels } from "./labels.js";
import { hostValue, joined, sizeOf, widened } from "./ort.js";
import type { Data, Ort, Tensor, Tensors, Value } from "./ort.js";
import { checkModel } from "./sound.js";

/** What a user may pass: a tensor of onnxruntime, or data with dimensions. */
export type Input = Tensor | { readonly data: Data; readonly dims: readonly number[] };

/** The outputs of a model; the first one is the loss. */
export type StepResult = { readonly loss: number; readonly outputs: readonly Tensor[] };

/** An input; a dimension that is not fixed has a name, an unknown rank has no dimensions. */
export type ValueInfo = { name: string; type: string; shape: readonly (number | string)[] };

/** device.json; Python writes it (onnxtrain.artifacts.device). */
export interface Facts {
  version: number;
  /** The artifacts that models are made of, and their sizes. */
  files: Record<string, number>;
  models: Record<string, Model>;
  parameters: { name: string; type: string; shape: number[] }[];
  trainable: string[];
  /** `moments` has the keys and shapes of what the optimizer remembers. */
  optimizer: { name: string; clip_norm: number | null; moments: Record<string, number[]> } | null;
  /** What is trained beside the layers of a base; artifacts without adapters have none. */
  adapter?: AdapterFacts | null;
}

/** `inputs` and `outputs` are the user's; `feeds` come from the state, `updates` go there. */
interface Model {
  file: string | null;
  pieces: Piece[];
  inputs: ValueInfo[];
  outputs: string[];
  /** What inputs with class labels may hold; artifacts of an older onnxtrain do not say. */
  labels?: ClassLabels[];
  feeds: Record<string, string>;
  updates: Record<string, string>;
  /** The input for what random nodes draw from: seed and number of the training pass. */
  random?: string | null;
  webgpu: { session: object; provider: object };
}

/** Bytes of the file from … to, bytes in base64, or what is known only on the device. */
type Piece = [number, number] | string | { seed: string; float: boolean } | { value: string };

/** The models that device.json describes: put together, and run on the values of the state. */
export class Module {
  /**
   * Whether a loss, or in `Optimizer.step` a gradient, that is NaN or infinite is an error. Nothing
   * is changed then, gathered gradients are dropped, and the next batch may follow. On WebGPU the
   * gradients come to the host for it.
   */
  checkFinite = false;
  /** With `checkFinite`: running statistics from before the batches since the last update. */
  private readonly before = new Map<string, Value | Tensor>();
  private overwrite = true;
  /** Training passes since the last update that have drawn random numbers. */
  private passes = 0n;
  private readonly sessions = new Map<string, Promise<InferenceSession>>();
  private readonly providers = (this.options.executionProviders ?? []).map((provider) =>
    typeof provider === "string" ? { name: provider } : provider,
  );
  /** Whether parameters, gradients and moments stay in the device's own buffers. */
  readonly isGpu = this.providers.some(({ name }) => name === "webgpu");

  constructor(
    readonly facts: Facts,
    private readonly files: ReadonlyMap<string, Uint8Array>,
    readonly state: CheckpointState,
    private readonly ort: Ort,
    private readonly options: InferenceSession.SessionOptions = {},
  ) {
    const need = (isFine: boolean, text: string): void =>
      check(isFine, `The checkpoint does not fit the model: ${text}.`, CheckpointError);
    for (const { name, type, shape } of facts.parameters) {
      const found = state.values.get(`param/${name}`);
      const has = found && `${found.type}[${found.dims}]`;
      need(has === `${type}[${shape}]`, `"${name}" is ${has}, not ${type}[${shape}]`);
    }
    const idle = state.trainable.find((name) => !facts.trainable.includes(name));
    need(idle === undefined, `"${idle}" is not trained`);
    const seeded = facts.models["train"]?.pieces.some((p) => typeof p === "object" && "seed" in p);
    if (seeded) state.random.generation += 1n;
  }

  /** One forward and backward pass; gradients are added unless `lazyResetGrad` was called. */
  trainStep(...inputs: Input[]): Promise<StepResult> {
    return this.state.exclusive(async () => {
      const result = await this.step("train", inputs, (loss) => {
        if (!this.checkFinite || Number.isFinite(loss)) return;
        if (this.overwrite) this.acceptStep(); // what was given up without an update stays
        this.discardStep();
        throw notFinite(`The training loss is ${loss}`, this.state.optimizer?.step);
      });
      if (!this.overwrite) await this.run("accumulate");
      for (const name of this.state.trainable) {
        this.state.replace(`grad/${name}`, this.state.values.get(`fresh/${name}`) as Tensor);
        this.state.values.delete(`fresh/${name}`);
      }
      this.overwrite = false;
      return result;
    });
  }

  /** The eval model's outputs. */
  evalStep(...inputs: Input[]): Promise<StepResult> {
    return this.state.exclusive(() => this.step("evaluate", inputs));
  }

  /** Outputs of the original model: no loss, no targets. */
  predict(inputs: readonly Input[]): Promise<readonly Tensor[]> {
    return this.state.exclusive(async () => (await this.step("predict", inputs)).outputs);
  }

  /** Let the next training step overwrite the gradients; until then they stay readable. */
  lazyResetGrad(): void {
    this.overwrite = true;
  }

  /** Drop the batches since the last update: they drew nothing, and leave no statistics behind. */
  discardStep(): void {
    for (const [key, value] of this.before) this.state.replace(key, value);
    this.before.clear();
    this.overwrite = true;
    this.state.random.counter -= this.passes;
    this.passes = 0n;
  }

  /** The batches so far count: the optimizer has made its update. */
  acceptStep(): void {
    for (const value of this.before.values()) if ("dispose" in value) value.dispose();
    this.before.clear();
    this.passes = 0n;
  }

  /** What `trainStep` takes, or `predict`: the inputs that the original outputs depend on. */
  inputs(model: "train" | "predict" = "train"): readonly ValueInfo[] {
    return this.model(model).inputs;
  }

  /** Number of elements of the (trainable) parameters. */
  getParametersSize(trainableOnly = true): number {
    return this.parameters(trainableOnly).reduce((sum, { shape }) => sum + sizeOf(shape), 0);
  }

  /** A copy of all parameters as one vector, in the order of the training model's inputs. */
  async getContiguousParameters(trainableOnly = false): Promise<Float32Array> {
    // all are asked for, or set, at once: no step comes between one and the next
    const asked = this.parameters(trainableOnly).map(({ name }) => this.state.getParameter(name));
    const parts = await Promise.all(asked);
    const isFine = parts.every((part) => part instanceof Float32Array);
    check(isFine, "A vector holds float32 only, and some parameters are not.");
    return new Float32Array((await joined(parts)).buffer);
  }

  async copyBufferToParameters(buffer: Float32Array, trainableOnly = true): Promise<void> {
    const size = this.getParametersSize(trainableOnly);
    check(buffer.length === size, `The buffer must have ${size} values, not ${buffer.length}.`);
    let end = 0;
    const set = this.parameters(trainableOnly).map(({ name, shape }) =>
      this.state.setParameter(name, buffer.subarray(end, (end += sizeOf(shape)))),
    );
    await Promise.all(set);
  }

  /** The bytes of the original model, without Dropout, the current parameters as constants. */
  exportModelForInferencing(): Promise<Uint8Array> {
    return this.state.exclusive(() => this.bytes("export"));
  }

  /** Free the sessions, the optimizer's too. */
  async release(): Promise<void> {
    for (const session of this.sessions.values()) await (await session).release();
    this.sessions.clear();
  }

  /** The session of a model, made when it is first needed. */
  session(name: string): Promise<InferenceSession> {
    const session = this.sessions.get(name) ?? this.create(name);
    this.sessions.set(name, session);
    return session;
  }

  /** Run a model: what it needs of the state is fed, what it changes there is kept. */
  async run(name: string, given: Tensors = {}): Promise<Tensors> {
    const results = await this.compute(name, given);
    this.keep(name, results);
    return results;
  }

  /** Run a model on what it needs of the state; `keep`, or `drop`, is for what it would change. */
  async compute(name: string, given: Tensors): Promise<Tensors> {
    const { feeds } = this.model(name);
    const all: Record<string, Tensor> = { ...given };
    for (const [input, key] of Object.entries(feeds)) {
      all[input] = await this.upload(this.state.values.get(key) as Value);
      this.state.replace(key, all[input]);
    }
    return (await (await this.session(name)).run(all)) as Tensors;
  }

  /** Let what a model has computed be the state. */
  keep(name: string, results: Tensors): void {
    if (name === "train" && this.overwrite) this.acceptStep();
    for (const [output, key] of Object.entries(this.model(name).updates)) {
      const old = this.state.values.get(key);
      const isStatistic = name === "train" && this.checkFinite && key.startsWith("param/");
      if (isStatistic && old !== undefined && !this.before.has(key)) {
        this.before.set(key, old);
        this.state.values.delete(key); // `replace` would free it
      }
      this.state.replace(key, results[output] as Tensor);
    }
  }

  /** Free what a model has computed and nobody shall see. */
  drop(name: string, results: Tensors): void {
    for (const output of Object.keys(this.model(name).updates)) results[output]?.dispose();
  }

  tensor(type: string, data: Data, dims: readonly number[]): Tensor {
    return new this.ort.Tensor(type as never, data as never, dims) as Tensor;
  }

  private async step(
    model: string,
    given: readonly Input[],
    inspect = (_loss: number): void => undefined,
  ): Promise<StepResult> {
    const { inputs, outputs: wanted, random, labels = [] } = this.model(model);
    const names = inputs.map(({ name }) => name).join(", ");
    const counts = `${inputs.length} inputs are needed (${names}), ${given.length} were given.`;
    check(given.length === inputs.length, counts);
    const tensors: Record<string, Tensor> = {};
    for (const [i, { name, type }] of inputs.entries()) {
      const input = given[i] as Input;
      try {
        tensors[name] =
          "getData" in input ? input : this.tensor(type, widened(type, input.data), input.dims);
      } catch (error) {
        // onnxruntime checks data and dimensions itself, but does not say which input is wrong
        throw new InputError(`Input "${name}": ${(error as Error).message}`);
      }
    }
    for (const expected of labels) checkLabels(expected, tensors[expected.input] as Tensor);
    const { seed, counter } = this.state.random;
    // BigInt64Array keeps the lowest 64 bits of a seed, as Python does
    if (random) tensors[random] = this.tensor("int64", BigInt64Array.of(seed, counter), [2]);
    const results = await this.compute(model, tensors).catch((error: Error) => {
      throw explained(error, labels, tensors);
    });
    const outputs = wanted.map((name) => results[name] as Tensor);
    const [loss] = (await outputs[0]?.getData()) as Data;
    try {
      inspect(Number(loss));
    } catch (error) {
      this.drop(model, results);
      throw error;
    }
    this.keep(model, results);
    if (random) {
      this.state.random.counter += 1n;
      this.passes += 1n;
    }
    return { loss: Number(loss), outputs };
  }

  private parameters(trainableOnly: boolean): Facts["parameters"] {
    const { parameters, trainable } = this.facts;
    return parameters.filter(({ name }) => !trainableOnly || trainable.includes(name));
  }

  private model(name: string): Model {
    const found = this.facts.models[name];
    check(found, `The artifacts have no model to ${name} with.`, ModelFileError);
    return found;
  }

  private async create(name: string): Promise<InferenceSession> {
    const { session, provider } = this.model(name).webgpu;
    const executionProviders = this.providers.map((p) => ({ ...provider, ...p }));
    const options = this.isGpu ? { ...this.options, ...session, executionProviders } : this.options;
    const bytes = await this.bytes(name);
    try {
      return (await this.ort.InferenceSession.create(bytes, options)) as InferenceSession;
    } catch (error) {
      throw new ModelFileError(
        `onnxruntime cannot load the model to ${name} with: ${(error as Error).message}`,
      );
    }
  }

  /** The bytes of a model: pieces of an artifact, with seeds and values put in. */
  private async bytes(name: string): Promise<Uint8Array> {
    const { file, pieces } = this.model(name);
    const bytes = this.files.get(file ?? "") ?? new Uint8Array();
    const model = await joined(await Promise.all(pieces.map((piece) => this.part(bytes, piece))));
    checkModel(model);
    return model;
  }

  private async part(file: Uint8Array, piece: Piece): Promise<Data> {
    if (typeof piece === "string") return Uint8Array.from(atob(piece), (c) => c.charCodeAt(0));
    if ("value" in piece) return (await hostValue(this.state.parameter(piece.value))).data;
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
}
