import { check, CheckpointError, InputError, ModelFileError, notFinite } from "./errors.js";
import { checkLabels, explained } from "./labels.js";
import { hostValue, joined, sizeOf, widened } from "./ort.js";
import { checkModel } from "./sound.js";
/** The models that device.json describes: put together, and run on the values of the state. */
export class Module {
    constructor(facts, files, state, ort, options = {}) {
        this.facts = facts;
        this.files = files;
        this.state = state;
        this.ort = ort;
        this.options = options;
        /**
         * Whether a loss, or in `Optimizer.step` a gradient, that is NaN or infinite is an error. Nothing
         * is changed then, gathered gradients are dropped, and the next batch may follow. On WebGPU the
         * gradients come to the host for it.
         */
        this.checkFinite = false;
        /** With `checkFinite`: running statistics from before the batches since the last update. */
        this.before = new Map();
        this.overwrite = true;
        /** Training passes since the last update that have drawn random numbers. */
        this.passes = 0n;
        this.sessions = new Map();
        this.providers = (this.options.executionProviders ?? []).map((provider) => typeof provider === "string" ? { name: provider } : provider);
        /** Whether parameters, gradients and moments stay in the device's own buffers. */
        this.isGpu = this.providers.some(({ name }) => name === "webgpu");
        const need = (isFine, text) => check(isFine, `The checkpoint does not fit the model: ${text}.`, CheckpointError);
        for (const { name, type, shape } of facts.parameters) {
            const found = state.values.get(`param/${name}`);
            const has = found && `${found.type}[${found.dims}]`;
            need(has === `${type}[${shape}]`, `"${name}" is ${has}, not ${type}[${shape}]`);
        }
        const idle = state.trainable.find((name) => !facts.trainable.includes(name));
        need(idle === undefined, `"${idle}" is not trained`);
        const seeded = facts.models["train"]?.pieces.some((p) => typeof p === "object" && "seed" in p);
        if (seeded)
            state.random.generation += 1n;
    }
    /** One forward and backward pass; gradients are added unless `lazyResetGrad` was called. */
    trainStep(...inputs) {
        return this.state.exclusive(async () => {
            const result = await this.step("train", inputs, (loss) => {
                if (!this.checkFinite || Number.isFinite(loss))
                    return;
                if (this.overwrite)
                    this.acceptStep(); // what was given up without an update stays
                this.discardStep();
                throw notFinite(`The training loss is ${loss}`, this.state.optimizer?.step);
            });
            if (!this.overwrite)
                await this.run("accumulate");
            for (const name of this.state.trainable) {
                this.state.replace(`grad/${name}`, this.state.values.get(`fresh/${name}`));
                this.state.values.delete(`fresh/${name}`);
            }
            this.overwrite = false;
            return result;
        });
    }
    /** The eval model's outputs. */
    evalStep(...inputs) {
        return this.state.exclusive(() => this.step("evaluate", inputs));
    }
    /** Outputs of the original model: no loss, no targets. */
    predict(inputs) {
        return this.state.exclusive(async () => (await this.step("predict", inputs)).outputs);
    }
    /** Let the next training step overwrite the gradients; until then they stay readable. */
    lazyResetGrad() {
        this.overwrite = true;
    }
    /** Drop the batches since the last update: they drew nothing, and leave no statistics behind. */
    discardStep() {
        for (const [key, value] of this.before)
            this.state.replace(key, value);
        this.before.clear();
        this.overwrite = true;
        this.state.random.counter -= this.passes;
        this.passes = 0n;
    }
    /** The batches so far count: the optimizer has made its update. */
    acceptStep() {
        for (const value of this.before.values())
            if ("dispose" in value)
                value.dispose();
        this.before.clear();
        this.passes = 0n;
    }
    /** What `trainStep` takes, or `predict`: the inputs that the original outputs depend on. */
    inputs(model = "train") {
        return this.model(model).inputs;
    }
    /** Number of elements of the (trainable) parameters. */
    getParametersSize(trainableOnly = true) {
        return this.parameters(trainableOnly).reduce((sum, { shape }) => sum + sizeOf(shape), 0);
    }
    /** A copy of all parameters as one vector, in the order of the training model's inputs. */
    async getContiguousParameters(trainableOnly = false) {
        // all are asked for, or set, at once: no step comes between one and the next
        const asked = this.parameters(trainableOnly).map(({ name }) => this.state.getParameter(name));
        const parts = await Promise.all(asked);
        const isFine = parts.every((part) => part instanceof Float32Array);
        check(isFine, "A vector holds float32 only, and some parameters are not.");
        return new Float32Array((await joined(parts)).buffer);
    }
    async copyBufferToParameters(buffer, trainableOnly = true) {
        const size = this.getParametersSize(trainableOnly);
        check(buffer.length === size, `The buffer must have ${size} values, not ${buffer.length}.`);
        let end = 0;
        const set = this.parameters(trainableOnly).map(({ name, shape }) => this.state.setParameter(name, buffer.subarray(end, (end += sizeOf(shape)))));
        await Promise.all(set);
    }
    /** The bytes of the original model, without Dropout, the current parameters as constants. */
    exportModelForInferencing() {
        return this.state.exclusive(() => this.bytes("export"));
    }
    /** Free the sessions, the optimizer's too. */
    async release() {
        for (const session of this.sessions.values())
            await (await session).release();
        this.sessions.clear();
    }
    /** The session of a model, made when it is first needed. */
    session(name) {
        const session = this.sessions.get(name) ?? this.create(name);
        this.sessions.set(name, session);
        return session;
    }
    /** Run a model: what it needs of the state is fed, what it changes there is kept. */
    async run(name, given = {}) {
        const results = await this.compute(name, given);
        this.keep(name, results);
        return results;
    }
    /** Run a model on what it needs of the state; `keep`, or `drop`, is for what it would change. */
    async compute(name, given) {
        const { feeds } = this.model(name);
        const all = { ...given };
        for (const [input, key] of Object.entries(feeds)) {
            all[input] = await this.upload(this.state.values.get(key));
            this.state.replace(key, all[input]);
        }
        return (await (await this.session(name)).run(all));
    }
    /** Let what a model has computed be the state. */
    keep(name, results) {
        if (name === "train" && this.overwrite)
            this.acceptStep();
        for (const [output, key] of Object.entries(this.model(name).updates)) {
            const old = this.state.values.get(key);
            const isStatistic = name === "train" && this.checkFinite && key.startsWith("param/");
            if (isStatistic && old !== undefined && !this.before.has(key)) {
                this.before.set(key, old);
                this.state.values.delete(key); // `replace` would free it
            }
            this.state.replace(key, results[output]);
        }
    }
    /** Free what a model has computed and nobody shall see. */
    drop(name, results) {
        for (const output of Object.keys(this.model(name).updates))
            results[output]?.dispose();
    }
    tensor(type, data, dims) {
        return new this.ort.Tensor(type, data, dims);
    }
    async step(model, given, inspect = (_loss) => undefined) {
        const { inputs, outputs: wanted, random, labels = [] } = this.model(model);
        const names = inputs.map(({ name }) => name).join(", ");
        const counts = `${inputs.length} inputs are needed (${names}), ${given.length} were given.`;
        check(given.length === inputs.length, counts);
        const tensors = {};
        for (const [i, { name, type }] of inputs.entries()) {
            const input = given[i];
            try {
                tensors[name] =
                    "getData" in input ? input : this.tensor(type, widened(type, input.data), input.dims);
            }
            catch (error) {
                // onnxruntime checks data and dimensions itself, but does not say which input is wrong
                throw new InputError(`Input "${name}": ${error.message}`);
            }
        }
        for (const expected of labels)
            checkLabels(expected, tensors[expected.input]);
        const { seed, counter } = this.state.random;
        // BigInt64Array keeps the lowest 64 bits of a seed, as Python does
        if (random)
            tensors[random] = this.tensor("int64", BigInt64Array.of(seed, counter), [2]);
        const results = await this.compute(model, tensors).catch((error) => {
            throw explained(error, labels, tensors);
        });
        const outputs = wanted.map((name) => results[name]);
        const [loss] = (await outputs[0]?.getData());
        try {
            inspect(Number(loss));
        }
        catch (error) {
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
    parameters(trainableOnly) {
        const { parameters, trainable } = this.facts;
        return parameters.filter(({ name }) => !trainableOnly || trainable.includes(name));
    }
    model(name) {
        const found = this.facts.models[name];
        check(found, `The artifacts have no model to ${name} with.`, ModelFileError);
        return found;
    }
    async create(name) {
        const { session, provider } = this.model(name).webgpu;
        const executionProviders = this.providers.map((p) => ({ ...provider, ...p }));
        const options = this.isGpu ? { ...this.options, ...session, executionProviders } : this.options;
        const bytes = await this.bytes(name);
        try {
            return (await this.ort.InferenceSession.create(bytes, options));
        }
        catch (error) {
            throw new ModelFileError(`onnxruntime cannot load the model to ${name} with: ${error.message}`);
        }
    }
    /** The bytes of a model: pieces of an artifact, with seeds and values put in. */
    async bytes(name) {
        const { file, pieces } = this.model(name);
        const bytes = this.files.get(file ?? "") ?? new Uint8Array();
        const model = await joined(await Promise.all(pieces.map((piece) => this.part(bytes, piece))));
        checkModel(model);
        return model;
    }
    async part(file, piece) {
        if (typeof piece === "string")
            return Uint8Array.from(atob(piece), (c) => c.charCodeAt(0));
        if ("value" in piece)
            return (await hostValue(this.state.parameter(piece.value))).data;
        if (!("seed" in piece))
            return file.subarray(...piece);
        const seed = await this.state.seedOf(piece.seed);
        if (piece.float)
            return Float32Array.of(seed);
        // protobuf's form of a whole number, as long as the place that is left for it
        return Uint8Array.of(seed | 128, (seed >> 7) | 128, (seed >> 14) | 128, seed >> 21);
    }
    /** The tensor to feed for a value; floats are brought to the device if there is one. */
    async upload(value) {
        const a = "getData" in value ? value : this.tensor(value.type, value.data, value.dims);
        const stays = !this.isGpu || a.type !== "float32" || a.location !== "cpu";
        return stays ? a : (await this.run("copy", { a }))["y"];
    }
}
