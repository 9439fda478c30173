/** Module: the forward and backward pass of a training artifact, and the eval model. */
import { Backend } from "./backend.js";
import type { CheckpointState } from "./checkpoint.js";
import { CheckpointError, InputError, ModelFileError } from "./errors.js";
import { Model } from "./onnx.js";
import {
  hostValue, sizeOf, typeNamed,
  type Data, type Ort, type Session, type Tensor, type Tensors, type Value, type ValueInfo,
} from "./ort.js";

const KEY = "onnxtrain.artifact";

/** What a user may pass: a tensor of onnxruntime, or data with dimensions. */
export type Input = Tensor | { readonly data: Data; readonly dims: readonly number[] };

export interface StepResult {
  /** The first output. */
  readonly loss: number;
  /** All outputs, the loss first. */
  readonly outputs: readonly Tensor[];
}

export interface ModuleOptions {
  ort: Ort;
  state: CheckpointState;
  /** Bytes of training_model.onnx. */
  trainModel: Uint8Array;
  /** Bytes of eval_model.onnx, for `evalStep`, `predict` and export. */
  evalModel?: Uint8Array | undefined;
  /** onnxruntime's options, e.g. `{ executionProviders: ["webgpu"] }`. */
  sessionOptions?: Record<string, unknown> | undefined;
}

/** What the metadata of an artifact say. */
interface Metadata {
  readonly kind: string;
  readonly user_inputs: readonly string[];
  readonly user_outputs: readonly string[];
  readonly model_outputs: readonly string[];
  readonly gradients: Readonly<Record<string, string>>;
  readonly states: Readonly<Record<string, string>>;
  readonly random_nodes: readonly string[];
}

/** A session, and which of its inputs are the user's and which the state's. */
interface Program {
  readonly session: Session;
  readonly inputs: readonly ValueInfo[];
  readonly parameters: readonly string[];
}

/** Computes loss and gradients with the training model, or outputs with the eval model. */
export class Module {
  /** The gradients of the trainable parameters, after the first step. */
  readonly gradients = new Map<string, Tensor>();
  private overwrite = true;
  private readonly programs = new Map<string, Promise<Program>>();

  private constructor(
    readonly backend: Backend,
    readonly state: CheckpointState,
    private readonly training: Program,
    private readonly metadata: Metadata,
    private readonly evalModel: Uint8Array | undefined,
  ) {}

  static async create(options: ModuleOptions): Promise<Module> {
    const { ort, state, trainModel, evalModel, sessionOptions } = options;
    const backend = new Backend(ort, sessionOptions);
    const [model, metadata] = readArtifact(trainModel, "training");
    model.setSeeds(await state.nextSeeds(metadata.random_nodes));
    model.dropAccumulation(metadata.gradients);
    const kept = [...Object.values(metadata.gradients), ...Object.values(metadata.states)];
    // WebGPU claims a MaxPool that gives indices, as the gradient needs, and cannot run it
    const session = await backend.session(model.encode(), kept, model.nodes("MaxPool", 2));
    const training = programOf(session, metadata, state);
    return new Module(backend, state, training, metadata, evalModel);
  }

  /** One forward and backward pass; gradients are added unless `lazyResetGrad` was called. */
  trainStep(...inputs: Input[]): Promise<StepResult> {
    return this.state.exclusive(async () => {
      const { gradients, states, user_outputs: names } = this.metadata;
      const results = await this.run(this.training, inputs);
      for (const [name, gradient] of Object.entries(gradients)) {
        await this.takeGradient(name, results[gradient] as Tensor);
      }
      this.overwrite = false;
      for (const [name, updated] of Object.entries(states)) {
        this.state.replace(`param/${name}`, results[updated] as Tensor);
      }
      return stepResult(names, results);
    });
  }

  /** The eval model's outputs. */
  evalStep(...inputs: Input[]): Promise<StepResult> {
    return this.state.exclusive(async () => {
      const [, { user_outputs: names }] = this.evaluation();
      return stepResult(names, await this.run(await this.program(), inputs));
    });
  }

  /**
   * Outputs of the original model: no loss, no targets.
   *
   * @param inputs - the model's own inputs, in order.
   * @param outputs - which of its values; all outputs of the original model by default.
   */
  predict(inputs: readonly Input[], outputs?: readonly string[]): Promise<Tensor[]> {
    return this.state.exclusive(async () => {
      const names = outputs ?? this.evaluation()[1].model_outputs;
      const results = await this.run(await this.program(names), inputs);
      return names.map((name) => results[name] as Tensor);
    });
  }

  /** Let the next training step overwrite the gradients; until then they stay readable. */
  lazyResetGrad(): void {
    this.overwrite = true;
  }

  /** The user's inputs of the training model. */
  inputs(): readonly ValueInfo[] {
    return this.training.inputs;
  }

  /** The original model's own inputs: those that its outputs depend on. */
  async modelInputs(): Promise<readonly ValueInfo[]> {
    return (await this.program(this.evaluation()[1].model_outputs)).inputs;
  }

  /** Number of elements of the (trainable) parameters. */
  getParametersSize(trainableOnly = true): number {
    const all = this.names(trainableOnly).map((name) => sizeOf(this.state.parameter(name).dims));
    return all.reduce((a, b) => a + b, 0);
  }

  /** A copy of all parameters as one vector, in the order of the training model's inputs. */
  getContiguousParameters(trainableOnly = false): Promise<Float32Array> {
    return this.state.exclusive(async () => {
      const vector = new Float32Array(this.getParametersSize(trainableOnly));
      let at = 0;
      for (const name of this.names(trainableOnly)) {
        const { data } = await hostValue(this.state.parameter(name));
        vector.set(floats(data, name), at);
        at += data.length;
      }
      return vector;
    });
  }

  /** Set the parameters from one vector. */
  copyBufferToParameters(buffer: Float32Array, trainableOnly = true): Promise<void> {
    return this.state.exclusive(async () => {
      const size = this.getParametersSize(trainableOnly);
      if (floats(buffer, "the buffer").length !== size) {
        throw new InputError(`The buffer must have ${size} values, not ${buffer.length}.`);
      }
      let at = 0;
      for (const name of this.names(trainableOnly)) {
        const { type, dims } = this.state.parameter(name);
        const data = buffer.slice(at, (at += sizeOf(dims)));
        this.state.replace(`param/${name}`, { type, dims, data });
      }
    });
  }

  /**
   * The bytes of a clean inference model with the current parameters: only the outputs asked for
   * and what they need, parameters as initializers, targets and Dropout gone.
   */
  exportModelForInferencing(outputs?: readonly string[]): Promise<Uint8Array> {
    return this.state.exclusive(async () => {
      const [model, { model_outputs: all }] = this.evaluation();
      const { session, parameters } = await this.program(outputs ?? all);
      model.toInference(outputs ?? all);
      const values = new Map<string, Value>();
      for (const name of parameters) values.set(name, await hostValue(this.state.parameter(name)));
      model.complete(values, session.outputMetadata);
      return model.encode();
    });
  }

  /** Free the sessions. */
  async release(): Promise<void> {
    await this.training.session.release();
    for (const program of this.programs.values()) await (await program).session.release();
    await this.backend.release();
  }

  /** The current tensor of a value in the state, on the device if there is one. */
  async current(key: string): Promise<Tensor> {
    const tensor = await this.backend.upload(this.state.values.get(key) as Value);
    this.state.replace(key, tensor);
    return tensor;
  }

  private async run(program: Program, given: readonly Input[]): Promise<Tensors> {
    const { session, inputs, parameters } = program;
    const feeds: Record<string, Tensor> = {};
    if (given.length !== inputs.length) {
      const names = inputs.map((info) => info.name).join(", ");
      throw new InputError(
        `${inputs.length} inputs are needed (${names}), ${given.length} were given.`,
      );
    }
    inputs.forEach((info, i) => {
      const input = given[i] as Input;
      checkInput(info, input);
      const { data, dims } = input;
      feeds[info.name] = "getData" in input ? input : this.backend.tensor(info.type, data, dims);
    });
    for (const name of parameters) feeds[name] = await this.current(`param/${name}`);
    return session.run(feeds);
  }

  private async takeGradient(name: string, b: Tensor): Promise<void> {
    const a = this.gradients.get(name);
    const sum = a && !this.overwrite ? await this.backend.compute("Add", { a, b }) : b;
    a?.dispose();
    if (sum !== b) b.dispose();
    this.gradients.set(name, sum);
  }

  /** The eval model, or what of it these outputs need, ready to run. */
  private program(outputs?: readonly string[]): Promise<Program> {
    const key = JSON.stringify(outputs ?? null);
    const known = this.programs.get(key) ?? this.makeProgram(outputs);
    this.programs.set(key, known);
    return known;
  }

  private async makeProgram(outputs?: readonly string[]): Promise<Program> {
    const [model, metadata] = this.evaluation();
    if (outputs !== undefined) model.toInference(outputs);
    return programOf(await this.backend.session(model.encode()), metadata, this.state);
  }

  private evaluation(): [Model, Metadata] {
    if (this.evalModel !== undefined) return readArtifact(this.evalModel, "eval");
    throw new InputError("Eval model was not provided. Give evalModel to Module.create.");
  }

  private names(trainableOnly: boolean): readonly string[] {
    const { trainable } = this.state;
    return this.training.parameters.filter((name) => !trainableOnly || trainable.includes(name));
  }
}

function readArtifact(bytes: Uint8Array, kind: "training" | "eval"): [Model, Metadata] {
  const model = new Model(bytes, `The ${kind} model`);
  const metadata = model.described<Metadata>(KEY);
  if (metadata?.kind === kind) return [model, metadata];
  throw new ModelFileError(
    `The ${kind} model is not one that this release of onnxtrain reads (its metadata say ` +
      `"${metadata?.kind}"). Generate the artifacts with onnxtrain.artifacts.generate_artifacts.`,
  );
}

/** Tell the user's inputs from the parameters, which must be as in the checkpoint. */
function programOf(session: Session, metadata: Metadata, state: CheckpointState): Program {
  const misfit = (text: string): never => {
    throw new CheckpointError(
      `The checkpoint does not fit: the ${metadata.kind} model ${text}. Use the checkpoint that ` +
        "was generated with this model.",
    );
  };
  const isUsers = ({ name }: ValueInfo): boolean => metadata.user_inputs.includes(name);
  const parameters = session.inputMetadata.filter((info) => !isUsers(info));
  for (const { name, type, shape } of parameters) {
    const found = state.values.get(`param/${name}`) ?? misfit(`has a parameter "${name}"`);
    if (found.type !== type || `${found.dims}` !== `${shape}`) {
      misfit(`has "${name}" as ${type}[${shape}], the checkpoint as ${found.type}[${found.dims}]`);
    }
  }
  const idle = state.trainable.find((name) => metadata.gradients && !(name in metadata.gradients));
  if (idle !== undefined) misfit(`does not train "${idle}"`);
  const inputs = session.inputMetadata.filter(isUsers);
  return { session, inputs, parameters: parameters.map((info) => info.name) };
}

/** Type and shape must be what the model declares (an unknown rank has no dimensions there). */
function checkInput({ name, type, shape }: ValueInfo, { data, dims }: Input): void {
  const wrong = (text: string): never => {
    throw new InputError(`Input "${name}" ${text}.`);
  };
  const { array } = typeNamed(type);
  if (!(data instanceof array)) {
    wrong(`is ${type}: give its data in a ${array.name}, not in a ${data.constructor.name}`);
  }
  if (data.length !== sizeOf(dims)) wrong(`has ${data.length} values for the shape [${dims}]`);
  const same = shape.length === dims.length &&
    shape.every((size, i) => typeof size === "string" || size === dims[i]);
  if (shape.length > 0 && !same) wrong(`has the shape [${dims}], the model takes [${shape}]`);
}

function floats(data: Data, name: string): Float32Array {
  if (data instanceof Float32Array) return data;
  throw new InputError(`A contiguous buffer holds float32 only; ${name} is not.`);
}

async function stepResult(names: readonly string[], results: Tensors): Promise<StepResult> {
  const outputs = names.map((name) => results[name] as Tensor);
  const [loss] = (await outputs[0]?.getData()) as Data;
  return { loss: Number(loss), outputs };
}
