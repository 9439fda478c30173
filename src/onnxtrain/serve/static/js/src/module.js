/** Module: the forward and backward pass of a training artifact, and the eval model. */
import { Backend } from "./backend.js";
import { CheckpointError, InputError, ModelFileError } from "./errors.js";
import { Model } from "./onnx.js";
import { hostValue, sizeOf, typeNamed, } from "./ort.js";
const KEY = "onnxtrain.artifact";
/** Computes loss and gradients with the training model, or outputs with the eval model. */
export class Module {
    backend;
    state;
    training;
    metadata;
    evalModel;
    /** The gradients of the trainable parameters, after the first step. */
    gradients = new Map();
    overwrite = true;
    programs = new Map();
    constructor(backend, state, training, metadata, evalModel) {
        this.backend = backend;
        this.state = state;
        this.training = training;
        this.metadata = metadata;
        this.evalModel = evalModel;
    }
    static async create(options) {
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
    trainStep(...inputs) {
        return this.state.exclusive(async () => {
            const { gradients, states, user_outputs: names } = this.metadata;
            const results = await this.run(this.training, inputs);
            for (const [name, gradient] of Object.entries(gradients)) {
                await this.takeGradient(name, results[gradient]);
            }
            this.overwrite = false;
            for (const [name, updated] of Object.entries(states)) {
                this.state.replace(`param/${name}`, results[updated]);
            }
            return stepResult(names, results);
        });
    }
    /** The eval model's outputs. */
    evalStep(...inputs) {
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
    predict(inputs, outputs) {
        return this.state.exclusive(async () => {
            const names = outputs ?? this.evaluation()[1].model_outputs;
            const results = await this.run(await this.program(names), inputs);
            return names.map((name) => results[name]);
        });
    }
    /** Let the next training step overwrite the gradients; until then they stay readable. */
    lazyResetGrad() {
        this.overwrite = true;
    }
    /** The user's inputs of the training model. */
    inputs() {
        return this.training.inputs;
    }
    /** The original model's own inputs: those that its outputs depend on. */
    async modelInputs() {
        return (await this.program(this.evaluation()[1].model_outputs)).inputs;
    }
    /** Number of elements of the (trainable) parameters. */
    getParametersSize(trainableOnly = true) {
        const all = this.names(trainableOnly).map((name) => sizeOf(this.state.parameter(name).dims));
        return all.reduce((a, b) => a + b, 0);
    }
    /** A copy of all parameters as one vector, in the order of the training model's inputs. */
    getContiguousParameters(trainableOnly = false) {
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
    copyBufferToParameters(buffer, trainableOnly = true) {
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
    exportModelForInferencing(outputs) {
        return this.state.exclusive(async () => {
            const [model, { model_outputs: all }] = this.evaluation();
            const { session, parameters } = await this.program(outputs ?? all);
            model.toInference(outputs ?? all);
            const values = new Map();
            for (const name of parameters)
                values.set(name, await hostValue(this.state.parameter(name)));
            model.complete(values, session.outputMetadata);
            return model.encode();
        });
    }
    /** Free the sessions. */
    async release() {
        await this.training.session.release();
        for (const program of this.programs.values())
            await (await program).session.release();
        await this.backend.release();
    }
    /** The current tensor of a value in the state, on the device if there is one. */
    async current(key) {
        const tensor = await this.backend.upload(this.state.values.get(key));
        this.state.replace(key, tensor);
        return tensor;
    }
    async run(program, given) {
        const { session, inputs, parameters } = program;
        const feeds = {};
        if (given.length !== inputs.length) {
            const names = inputs.map((info) => info.name).join(", ");
            throw new InputError(`${inputs.length} inputs are needed (${names}), ${given.length} were given.`);
        }
        inputs.forEach((info, i) => {
            const input = given[i];
            checkInput(info, input);
            const { data, dims } = input;
            feeds[info.name] = "getData" in input ? input : this.backend.tensor(info.type, data, dims);
        });
        for (const name of parameters)
            feeds[name] = await this.current(`param/${name}`);
        return session.run(feeds);
    }
    async takeGradient(name, b) {
        const a = this.gradients.get(name);
        const sum = a && !this.overwrite ? await this.backend.compute("Add", { a, b }) : b;
        a?.dispose();
        if (sum !== b)
            b.dispose();
        this.gradients.set(name, sum);
    }
    /** The eval model, or what of it these outputs need, ready to run. */
    program(outputs) {
        const key = JSON.stringify(outputs ?? null);
        const known = this.programs.get(key) ?? this.makeProgram(outputs);
        this.programs.set(key, known);
        return known;
    }
    async makeProgram(outputs) {
        const [model, metadata] = this.evaluation();
        if (outputs !== undefined)
            model.toInference(outputs);
        return programOf(await this.backend.session(model.encode()), metadata, this.state);
    }
    evaluation() {
        if (this.evalModel !== undefined)
            return readArtifact(this.evalModel, "eval");
        throw new InputError("Eval model was not provided. Give evalModel to Module.create.");
    }
    names(trainableOnly) {
        const { trainable } = this.state;
        return this.training.parameters.filter((name) => !trainableOnly || trainable.includes(name));
    }
}
function readArtifact(bytes, kind) {
    const model = new Model(bytes, `The ${kind} model`);
    const metadata = model.described(KEY);
    if (metadata?.kind === kind)
        return [model, metadata];
    throw new ModelFileError(`The ${kind} model is not one that this release of onnxtrain reads (its metadata say ` +
        `"${metadata?.kind}"). Generate the artifacts with onnxtrain.artifacts.generate_artifacts.`);
}
/** Tell the user's inputs from the parameters, which must be as in the checkpoint. */
function programOf(session, metadata, state) {
    const misfit = (text) => {
        throw new CheckpointError(`The checkpoint does not fit: the ${metadata.kind} model ${text}. Use the checkpoint that ` +
            "was generated with this model.");
    };
    const isUsers = ({ name }) => metadata.user_inputs.includes(name);
    const parameters = session.inputMetadata.filter((info) => !isUsers(info));
    for (const { name, type, shape } of parameters) {
        const found = state.values.get(`param/${name}`) ?? misfit(`has a parameter "${name}"`);
        if (found.type !== type || `${found.dims}` !== `${shape}`) {
            misfit(`has "${name}" as ${type}[${shape}], the checkpoint as ${found.type}[${found.dims}]`);
        }
    }
    const idle = state.trainable.find((name) => metadata.gradients && !(name in metadata.gradients));
    if (idle !== undefined)
        misfit(`does not train "${idle}"`);
    const inputs = session.inputMetadata.filter(isUsers);
    return { session, inputs, parameters: parameters.map((info) => info.name) };
}
/** Type and shape must be what the model declares (an unknown rank has no dimensions there). */
function checkInput({ name, type, shape }, { data, dims }) {
    const wrong = (text) => {
        throw new InputError(`Input "${name}" ${text}.`);
    };
    const { array } = typeNamed(type);
    if (!(data instanceof array)) {
        wrong(`is ${type}: give its data in a ${array.name}, not in a ${data.constructor.name}`);
    }
    if (data.length !== sizeOf(dims))
        wrong(`has ${data.length} values for the shape [${dims}]`);
    const same = shape.length === dims.length &&
        shape.every((size, i) => typeof size === "string" || size === dims[i]);
    if (shape.length > 0 && !same)
        wrong(`has the shape [${dims}], the model takes [${shape}]`);
}
function floats(data, name) {
    if (data instanceof Float32Array)
        return data;
    throw new InputError(`A contiguous buffer holds float32 only; ${name} is not.`);
}
async function stepResult(names, results) {
    const outputs = names.map((name) => results[name]);
    const [loss] = (await outputs[0]?.getData());
    return { loss: Number(loss), outputs };
}
