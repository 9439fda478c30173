/** Module: the forward and backward pass of a training artifact, and the eval model. */
import {
  checkState, gradientOf, hostNodes, loadArtifact, withoutAccumulation, type Artifact,
} from "./artifact.js";
import { InputError, NonFiniteError, StateError } from "./errors.js";
import { exportModel } from "./export.js";
import { ModelFile, type ValueInfo } from "./onnxfile.js";
import { Backend, BY_ONNX, type Data, type Ort, type Session, type Tensor } from "./ort.js";
import { reseed } from "./seeds.js";
import type { CheckpointState } from "./state.js";
import { copy, type TensorStore } from "./store.js";
import { Vectors } from "./vectors.js";

/** What a user may pass: a tensor of onnxruntime, or data with dimensions. */
export type Input = Tensor | { data: Data; dims: readonly number[] };

export interface StepResult {
  /** The first output. */
  readonly loss: number;
  /** All outputs, the loss first, in the order of `outputNames()`. */
  readonly outputs: readonly Tensor[];
}

export interface ModuleOptions {
  ort: Ort;
  /** Bytes of training_model.onnx. */
  trainModel: Uint8Array;
  state: CheckpointState;
  /** Bytes of eval_model.onnx, for `evalStep`, `predict` and export. */
  evalModel?: Uint8Array | undefined;
  /** onnxruntime's options, e.g. `{ executionProviders: ["webgpu"] }`. */
  sessionOptions?: Readonly<Record<string, unknown>> | undefined;
  /** Throw `NonFiniteError` when a training loss is NaN or infinite. */
  checkFinite?: boolean | undefined;
}

/** Computes loss and gradients with the training model, or outputs with the eval model. */
export class Module {
  readonly vectors: Vectors;
  readonly gradients: TensorStore;
  private overwrite = true;
  private readonly evaluations = new Map<string, Promise<Session>>();

  private constructor(
    readonly backend: Backend,
    readonly state: CheckpointState,
    private readonly training: Artifact,
    private readonly session: Session,
    private readonly evaluation: Artifact | undefined,
    private readonly evalModel: Uint8Array | undefined,
    private readonly checkFinite: boolean,
  ) {
    this.vectors = new Vectors(backend);
    state.gradients ??= state.trainable.like();
    this.gradients = state.gradients;
  }

  static async create(options: ModuleOptions): Promise<Module> {
    const { ort, state, evalModel } = options;
    const training = loadArtifact(options.trainModel, "training", state);
    const evaluation = evalModel && loadArtifact(evalModel, "eval", state);
    checkState(training, state, true);
    if (evaluation !== undefined) checkState(evaluation, state, false);
    const backend = new Backend(ort, options.sessionOptions);
    reseed(training.model, training.randomNodes, state.random);
    const kept = training.trainable.map((p) => gradientOf(training, p));
    for (const [name, updated] of training.states) {
      if (training.specs.get(name)?.type.code === "F32") kept.push(updated);
    }
    const model = withoutAccumulation(training);
    const session = await backend.session(model, kept, hostNodes(training.model));
    const finite = options.checkFinite ?? false;
    return new Module(backend, state, training, session, evaluation, evalModel, finite);
  }

  // --- running ----------------------------------------------------------------------------------

  /** One forward and backward pass; gradients are added unless `lazyResetGrad` was called. */
  trainStep(...inputs: Input[]): Promise<StepResult> {
    return this.state.exclusive(async () => {
      this.state.needValues();
      const { userInputs, userOutputs } = this.training;
      const feeds = await this.feeds(userInputs, inputs, this.training.specs.keys());
      const fetches: Record<string, Tensor | null> = {};
      for (const name of this.session.outputNames) fetches[name] = null;
      const direct = this.overwrite && this.backend.inPlace;
      if (direct) this.bindGradients(fetches);
      const results = await this.session.run(feeds, fetches);
      if (!direct) await this.takeGradients(results);
      this.overwrite = false;
      this.takeStates(results);
      const step = await stepResult(userOutputs, results);
      if (this.checkFinite && !Number.isFinite(step.loss)) throw nonFinite(step.loss);
      return step;
    });
  }

  /** The eval model's outputs. */
  evalStep(...inputs: Input[]): Promise<StepResult> {
    const { userInputs, userOutputs } = this.needEval();
    return this.state.exclusive(async () =>
      stepResult(userOutputs, await this.evaluate(userInputs, inputs, userOutputs)),
    );
  }

  /**
   * Outputs of the original model: no loss, no targets.
   *
   * @param inputs - the model's own inputs, in order.
   * @param outputs - which of its values; all outputs of the original model by default.
   */
  predict(inputs: readonly Input[], outputs?: readonly string[]): Promise<Tensor[]> {
    const artifact = this.needEval();
    const names = outputs ?? artifact.modelOutputs;
    return this.state.exclusive(async () => {
      const own = artifact.userInputs.filter((v) => this.needed(names).has(v.name));
      const results = await this.evaluate(own, inputs, names);
      return names.map((n) => results[n] as Tensor);
    });
  }

  /** Let the next training step overwrite the gradients; until then they stay readable. */
  lazyResetGrad(): void {
    this.overwrite = true;
  }

  /** The user's inputs of the training model, with type and shape. */
  inputs(): readonly ValueInfo[] {
    return this.training.userInputs;
  }

  inputNames(training = true): string[] {
    return (training ? this.training : this.needEval()).userInputs.map((v) => v.name);
  }

  outputNames(training = true): string[] {
    return [...(training ? this.training : this.needEval()).userOutputs];
  }

  /** Outputs of the original model, for `predict` and `exportModelForInferencing`. */
  modelOutputNames(): string[] {
    return [...this.needEval().modelOutputs];
  }

  /** The original model's own inputs: those that its outputs depend on. */
  modelInputs(): ValueInfo[] {
    const { userInputs, modelOutputs } = this.needEval();
    const needed = this.needed(modelOutputs);
    return userInputs.filter((v) => needed.has(v.name));
  }

  /** Free the sessions. */
  async release(): Promise<void> {
    await this.session.release();
    for (const session of this.evaluations.values()) await (await session).release();
  }

  // --- parameters as one vector -----------------------------------------------------------------

  /** Number of elements of the (trainable) parameters. */
  getParametersSize(trainableOnly = true): number {
    return this.chosen(trainableOnly).reduce((n, p) => n + this.state.storeOf(p).spec(p).size, 0);
  }

  /** A copy of all parameters as one vector, in the order of the training model's inputs. */
  getContiguousParameters(trainableOnly = false): Promise<Float32Array> {
    const names = this.chosen(trainableOnly);
    this.needFloats(names);
    this.state.needValues();
    return this.state.exclusive(async () => {
      await this.state.sync();
      const vector = new Float32Array(this.getParametersSize(trainableOnly));
      let at = 0;
      for (const name of names) {
        const view = this.state.storeOf(name).view(name) as Float32Array;
        vector.set(view, at);
        at += view.length;
      }
      return vector;
    });
  }

  /** Set the parameters from one vector; completes a nominal state (`trainableOnly` false). */
  copyBufferToParameters(buffer: Float32Array, trainableOnly = true): Promise<void> {
    const names = this.chosen(trainableOnly);
    this.needFloats(names);
    if (this.state.isNominal && names.length !== this.training.specs.size) {
      throw new StateError("The checkpoint is nominal: all parameters are needed at once.");
    }
    const size = this.getParametersSize(trainableOnly);
    if (!(buffer instanceof Float32Array) || buffer.length !== size) {
      throw new InputError(`The buffer must be a Float32Array of ${size} values.`);
    }
    return this.state.exclusive(async () => {
      await this.state.sync();
      let at = 0;
      for (const name of names) {
        const view = this.state.storeOf(name).view(name);
        copy(view, buffer.subarray(at, at + view.length));
        at += view.length;
      }
      this.state.filled();
      this.state.push();
    });
  }

  /**
   * The bytes of a clean inference model with the current parameters: only the outputs asked for
   * and what they need, parameters as initializers, targets and Dropout gone.
   */
  exportModelForInferencing(outputs: readonly string[] = []): Promise<Uint8Array> {
    const names = outputs.length > 0 ? outputs : this.needEval().modelOutputs;
    this.needEval();
    this.state.needValues();
    return this.state.exclusive(async () => {
      await this.state.sync();
      return exportModel(this.evalModel as Uint8Array, this.state, names, this.backend);
    });
  }

  // --- inside -----------------------------------------------------------------------------------

  private async feeds(
    declared: readonly ValueInfo[],
    inputs: readonly Input[],
    parameters: Iterable<string>,
  ): Promise<Record<string, Tensor>> {
    const names = declared.map((v) => v.name);
    if (inputs.length !== names.length) {
      throw new InputError(
        `${names.length} inputs are needed (${names.join(", ")}), ${inputs.length} were given.`,
      );
    }
    const feeds: Record<string, Tensor> = {};
    declared.forEach((info, i) => {
      feeds[info.name] = checked(this.backend, info, inputs[i] as Input);
    });
    for (const name of parameters) {
      feeds[name] = await this.vectors.current(this.state.storeOf(name), name);
    }
    return feeds;
  }

  private bindGradients(fetches: Record<string, Tensor | null>): void {
    for (const name of this.training.trainable) {
      const { type, shape } = this.gradients.spec(name);
      const output = gradientOf(this.training, name);
      fetches[output] = this.backend.tensor(type, this.gradients.view(name), shape);
    }
  }

  private async takeGradients(results: Readonly<Record<string, Tensor>>): Promise<void> {
    const { gradients } = this;
    const waiting: { name: string; old: Tensor; fresh: Tensor }[] = [];
    for (const name of this.training.trainable) {
      const fresh = results[gradientOf(this.training, name)] as Tensor;
      const old = this.overwrite ? undefined : gradients.device(name);
      if (fresh.location === "gpu-buffer") {
        if (old === undefined) gradients.place(name, fresh);
        else waiting.push({ name, old, fresh });
      } else if (this.overwrite) {
        copy(gradients.view(name), fresh.data as Data);
      } else {
        addTo(gradients.view(name) as Float32Array, fresh.data as Float32Array);
      }
    }
    if (waiting.length === 0) return;
    const sums = await this.vectors.add(waiting.map(({ old, fresh }) => [old, fresh] as const));
    waiting.forEach(({ name, fresh }, i) => {
      gradients.place(name, sums[i] as Tensor);
      fresh.dispose();
    });
  }

  private takeStates(results: Readonly<Record<string, Tensor>>): void {
    for (const [name, updated] of this.training.states) {
      const fresh = results[updated] as Tensor;
      if (fresh.location === "gpu-buffer") this.state.frozen.place(name, fresh);
      else copy(this.state.frozen.view(name), fresh.data as Data);
    }
  }

  private async evaluate(
    declared: readonly ValueInfo[],
    inputs: readonly Input[],
    outputs: readonly string[],
  ): Promise<Readonly<Record<string, Tensor>>> {
    this.state.needValues();
    const used = this.needed(outputs);
    const { specs } = this.needEval();
    const parameters = [...specs.keys()].filter((n) => used.has(n));
    const feeds = await this.feeds(declared.filter((v) => used.has(v.name)), inputs.filter(
      (_, i) => used.has((declared[i] as ValueInfo | undefined)?.name ?? ""),
    ), parameters);
    const key = outputs.join("\n");
    let session = this.evaluations.get(key);
    if (session === undefined) {
      session = this.backend.session(this.reduced(outputs).encode());
      this.evaluations.set(key, session);
    }
    const fetches = Object.fromEntries(outputs.map((n) => [n, null]));
    return (await session).run(feeds, fetches);
  }

  private readonly neededNames = new Map<string, Set<string>>();

  /** Inputs of the eval model that these outputs depend on. */
  private needed(outputs: readonly string[]): Set<string> {
    const key = outputs.join("\n");
    let found = this.neededNames.get(key);
    if (found === undefined) {
      found = new Set(this.reduced(outputs).inputs.map((v) => v.name));
      this.neededNames.set(key, found);
    }
    return found;
  }

  private reduced(outputs: readonly string[]): ModelFile {
    this.needEval();
    const model = ModelFile.load(this.evalModel as Uint8Array, "The eval model");
    model.setOutputs(outputs);
    model.prune();
    const used = model.usedNames();
    model.keepInputs((n) => used.has(n));
    return model;
  }

  private chosen(trainableOnly: boolean): string[] {
    const trainable = new Set(this.training.trainable);
    return [...this.training.specs.keys()].filter((n) => trainable.has(n) || !trainableOnly);
  }

  private needFloats(names: readonly string[]): void {
    const wrong = names.filter((n) => this.training.specs.get(n)?.type.code !== "F32");
    if (wrong.length > 0) {
      throw new InputError(`A contiguous buffer holds float32 only; ${wrong.join(", ")} are not.`);
    }
  }

  private needEval(): Artifact {
    if (this.evaluation === undefined) {
      throw new StateError("Eval model was not provided. Give evalModel to Module.create.");
    }
    return this.evaluation;
  }
}

/** A user's value as a tensor, if type and shape are what the model declares. */
function checked(backend: Backend, info: ValueInfo, input: Input): Tensor {
  const type = BY_ONNX.get(info.elemType ?? 0);
  if (type === undefined) throw new InputError(`Input "${info.name}" has a type that is not usable.`);
  const size = input.dims.reduce((a, b) => a * b, 1);
  if (!("getData" in input)) {
    if (!(input.data instanceof type.array)) {
      throw new InputError(
        `Input "${info.name}" is ${type.ort ?? type.code}: give its data in a ${type.array.name}, ` +
          `not in a ${input.data.constructor.name}.`,
      );
    }
    if (input.data.length !== size) {
      throw new InputError(
        `Input "${info.name}" has ${input.data.length} values for the shape [${input.dims.join()}].`,
      );
    }
  }
  const { shape } = info;
  const fits = shape === null || (shape.length === input.dims.length &&
    shape.every((d, i) => typeof d !== "number" || d === input.dims[i]));
  if (!fits) {
    throw new InputError(
      `Input "${info.name}" has the shape [${input.dims.join()}], the model takes ` +
        `[${shape.map((d) => d ?? "?").join()}].`,
    );
  }
  return backend.fromUser(input, type);
}

async function stepResult(
  names: readonly string[],
  results: Readonly<Record<string, Tensor>>,
): Promise<StepResult> {
  const outputs = names.map((n) => results[n] as Tensor);
  const first = (await outputs[0]?.getData()) as Data | undefined;
  return { loss: Number(first?.[0]), outputs };
}

function addTo(target: Float32Array, source: Float32Array): void {
  for (let i = 0; i < target.length; i++) target[i] = (target[i] as number) + (source[i] as number);
}

function nonFinite(loss: number): NonFiniteError {
  return new NonFiniteError(
    `The loss is ${loss}. The gradients of this step are not usable: call lazyResetGrad() before ` +
      "going on, and look at the batch, the learning rate and the initial values.",
  );
}
