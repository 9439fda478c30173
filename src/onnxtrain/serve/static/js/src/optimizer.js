/** Optimizer: update the parameters from the gradients with an optimizer artifact. */
import { CheckpointError, InputError, ModelFileError } from "./errors.js";
import { Model } from "./onnx.js";
import { sizeOf } from "./ort.js";
const DEFAULT_RATE = 0.001;
/** Applies an optimizer model to the parameters of a `Module`. */
export class Optimizer {
    module;
    metadata;
    session;
    /** Limit of the global gradient norm, instead of the optimizer model's own. */
    clipNorm;
    constructor(module, metadata, session) {
        this.module = module;
        this.metadata = metadata;
        this.session = session;
        this.clipNorm = metadata.clip?.norm;
    }
    /**
     * @param bytes - of optimizer_model.onnx.
     * @param module - whose parameters are updated.
     * @param reset - start with fresh moments even if the checkpoint has some.
     */
    static async create(bytes, module, reset = false) {
        const outer = new Model(bytes, "The optimizer model");
        const metadata = outer.described("onnxtrain.optimizer");
        if (metadata?.flat === undefined) {
            throw new ModelFileError("The optimizer model has no update of single tensors in its metadata (an optimizer of " +
                "your own, or one of onnxruntime-training): those run in Python only, because " +
                "onnxruntime's JavaScript interface has no sequences.");
        }
        attach(module, metadata, reset);
        const flat = Uint8Array.from(atob(metadata.flat), (c) => c.charCodeAt(0));
        const model = new Model(flat, "The update in the optimizer model");
        model.forgetShapes();
        if (module.backend.onDevice)
            model.dropDoubles();
        const kept = ["params", ...metadata.states].map((kind) => `${kind}.updated`);
        return new Optimizer(module, metadata, await module.backend.session(model.encode(), kept));
    }
    /** Update every trainable parameter from its gradient. Gradients are kept. */
    step() {
        return this.apply(1);
    }
    /** Update as `step` does, with all gradients times `scale` (1/k averages k batches). */
    apply(scale) {
        const { state } = this.module;
        return state.exclusive(async () => {
            const { gradients } = this.module;
            if (gradients.size === 0)
                throw new InputError("No gradients: call trainStep first.");
            const coefficient = scale * (await this.clipCoefficient(scale));
            for (const [name, gradient] of gradients) {
                const feeds = this.numbers(name, coefficient);
                feeds["gradients"] = gradient;
                for (const [kind, key] of this.keys(name))
                    feeds[kind] = await this.module.current(key);
                const results = await this.session.run(feeds);
                for (const [kind, key] of this.keys(name)) {
                    state.replace(key, results[`${kind}.updated`]);
                }
            }
            this.memory.step += 1;
        });
    }
    setLearningRate(rate) {
        if (!Number.isFinite(rate)) {
            throw new InputError(`The learning rate must be a finite number, not ${rate}.`);
        }
        this.memory.learningRate = rate;
    }
    getLearningRate() {
        return this.memory.learningRate;
    }
    /** Number of updates so far, those before a resume included. */
    get stepCount() {
        return this.memory.step;
    }
    get name() {
        return this.metadata.name;
    }
    release() {
        return this.session.release();
    }
    get memory() {
        return this.module.state.optimizer;
    }
    /** What of a parameter is updated: its name in the graph and its key in the state. */
    keys(name) {
        const moments = this.metadata.states.map((s) => [s, `optim/${s}/${name}`]);
        return [["params", `param/${name}`], ...moments];
    }
    /** Learning rate, step and so on, as the parameter's group has them. */
    numbers(name, scale) {
        const { groups = [], hyper } = this.metadata;
        const group = groups.find((g) => g.params.includes(name));
        const numbers = {
            learning_rate: this.memory.learningRate * (group?.lr_scale ?? 1),
            weight_decay: group?.weight_decay ?? hyper?.weight_decay ?? 0,
            grad_scale: scale,
            step: this.memory.step + 1,
        };
        const feeds = {};
        for (const { name: input, type } of this.session.inputMetadata) {
            const value = numbers[input];
            if (value === undefined)
                continue;
            const data = type === "int64" ? BigInt64Array.of(BigInt(value)) : Float32Array.of(value);
            feeds[input] = this.module.backend.tensor(type, data, [1]);
        }
        return feeds;
    }
    /** min(1, limit / (‖scale·g‖₂ + 1e-6)) over all gradients. */
    async clipCoefficient(scale) {
        if (this.clipNorm === undefined)
            return 1;
        const { backend, gradients } = this.module;
        const squares = [];
        for (const a of gradients.values()) {
            squares.push(await backend.compute("ReduceSumSquare", { a }));
        }
        let total = 0;
        for (const square of squares)
            total += Number((await square.getData(true))[0]);
        return Math.min(1, this.clipNorm / (scale * Math.sqrt(total) + 1e-6));
    }
}
/** Make the state remember what this optimizer needs: what the checkpoint has, else zeros. */
function attach({ state }, metadata, reset) {
    const old = reset ? undefined : state.optimizer;
    if (old?.name && old.name !== metadata.name) {
        throw new CheckpointError(`The checkpoint has the state of ${old.name}, the optimizer is ${metadata.name}. Use the ` +
            "optimizer model it was trained with, or reset = true to start with fresh moments.");
    }
    for (const kind of metadata.states) {
        for (const name of state.trainable) {
            const dims = metadata.state_shapes?.[kind]?.[name] ?? state.parameter(name).dims;
            const key = `optim/${kind}/${name}`;
            const found = reset ? undefined : state.values.get(key);
            if (found !== undefined && `${found.dims}` !== `${dims}`) {
                throw new CheckpointError(`The checkpoint has "${key}" as [${found.dims}], the optimizer needs [${dims}]. Use ` +
                    "reset = true to start with fresh moments.");
            }
            const zeros = { type: "float32", dims, data: new Float32Array(sizeOf(dims)) };
            state.replace(key, found ?? zeros);
        }
    }
    const { step = 0, learningRate = DEFAULT_RATE } = old ?? {};
    state.optimizer = { name: metadata.name, step, learningRate };
}
