/** Optimizer: update the parameters from the gradients with an optimizer artifact. */
import { CheckpointError, InputError, ModelFileError } from "./errors.js";
import { ModelFile, uses } from "./onnxfile.js";
import { F32, I64 } from "./ort.js";
import { isObject } from "./safetensors.js";
import { takeScalars } from "./split.js";
import { copy, sameSpec, TensorStore } from "./store.js";
const KEY = "onnxtrain.optimizer";
const DEFAULT_RATE = 0.001;
const SCALARS = ["learning_rate", "step", "grad_scale", "weight_decay"];
const ELEMENTWISE = new Set([
    "Abs", "Add", "And", "Cast", "Clip", "Div", "Equal", "Exp", "Greater", "Identity", "Less", "Log",
    "Max", "Min", "Mul", "Neg", "Not", "Or", "Pow", "Reciprocal", "Sign", "Sqrt", "Sub", "Sum",
    "Where",
]);
/** Applies an optimizer model to the parameters of a `Module`. */
export class Optimizer {
    module;
    file;
    session;
    inputs;
    scalars;
    memory;
    groups;
    pieces;
    inPlace;
    /** Limit of the global gradient norm, instead of the optimizer model's own. */
    clipNorm;
    known;
    constructor(module, file, session, inputs, scalars, memory, groups, pieces, inPlace) {
        this.module = module;
        this.file = file;
        this.session = session;
        this.inputs = inputs;
        this.scalars = scalars;
        this.memory = memory;
        this.groups = groups;
        this.pieces = pieces;
        this.inPlace = inPlace;
    }
    /**
     * @param model - bytes of optimizer_model.onnx.
     * @param module - whose parameters are updated.
     * @param reset - start with fresh moments even if the checkpoint has some.
     */
    static async create(model, module, reset = false) {
        module.state.needValues();
        const file = loadOptimizer(model);
        const memory = attach(module, file, reset);
        const groups = groupsOf(file, module.state.trainable.names);
        const byTensor = file.layout === "tensor" || module.backend.onDevice;
        const pieces = byTensor ? tensors(module, groups) : runs(module, groups);
        const kinds = ["params", ...file.states];
        const safe = kinds.filter((k) => safeInPlace(file.model, k, `${k}.updated`));
        const { backend } = module;
        const scalars = backend.onDevice ? takeScalars(file.model, SCALARS) : undefined;
        if (byTensor)
            file.model.forgetShapes();
        const inputs = new Set(file.model.inputs.map((v) => v.name));
        if (backend.onDevice) {
            const big = new Set(["gradients", ...kinds]);
            const numbers = new Set([...inputs].filter((n) => !big.has(n)));
            file.model.replicate(pieces.map(({ group }, i) => (name) => numbers.has(name) ? ofGroup(groups.indexOf(group), name) : ofPiece(i, name)));
        }
        const kept = file.model.outputs.map((v) => v.name);
        const session = await backend.session(file.model.encode(), kept);
        const inPlace = new Set(backend.inPlace ? safe : []);
        return new Optimizer(module, file, session, inputs, scalars, memory, groups, pieces, inPlace);
    }
    /** Update every trainable parameter from its gradient. Gradients are kept. */
    step() {
        return this.apply(1);
    }
    /** Update as `step` does, with all gradients times `scale` (1/k averages k batches). */
    apply(scale) {
        return this.module.state.exclusive(async () => {
            const coefficient = scale * (await this.clipCoefficient(scale));
            if (this.module.backend.onDevice)
                await this.updateTogether(coefficient);
            else
                for (const piece of this.pieces)
                    await this.update(piece, coefficient);
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
        return this.file.name;
    }
    release() {
        return this.session.release();
    }
    // --- inside -----------------------------------------------------------------------------------
    stores() {
        const states = this.file.states.map((kind) => [
            kind,
            this.memory.states.get(kind),
        ]);
        return [["params", this.module.state.trainable], ...states];
    }
    async update(piece, scale) {
        const gradients = await this.part(this.module.gradients, piece);
        const feeds = { ...this.numbers(piece.group, scale), gradients };
        const fetches = {};
        for (const [kind, store] of this.stores()) {
            const tensor = await this.part(store, piece);
            feeds[kind] = tensor;
            fetches[`${kind}.updated`] = this.inPlace.has(kind) ? tensor : null;
        }
        const results = await this.session.run(feeds, fetches);
        for (const [kind, store] of this.stores()) {
            if (this.inPlace.has(kind))
                continue;
            copy(host(store, piece), results[`${kind}.updated`].data);
        }
    }
    /** On a device: all tensors in one run; new buffers take the place of the old ones. */
    async updateTogether(scale) {
        const feeds = {};
        this.groups.forEach((group, g) => {
            for (const [name, tensor] of Object.entries(this.numbers(group, scale))) {
                feeds[ofGroup(g, name)] = tensor;
            }
        });
        const fetches = {};
        const stores = this.stores();
        for (const [i, piece] of this.pieces.entries()) {
            feeds[ofPiece(i, "gradients")] = await this.part(this.module.gradients, piece);
            for (const [kind, store] of stores) {
                feeds[ofPiece(i, kind)] = await this.part(store, piece);
                fetches[ofPiece(i, `${kind}.updated`)] = null;
            }
        }
        const results = await this.session.run(feeds, fetches);
        for (const [i, piece] of this.pieces.entries()) {
            for (const [kind, store] of stores) {
                store.place(piece.tensor, results[ofPiece(i, `${kind}.updated`)]);
            }
        }
    }
    /** Learning rate, step and so on, and what follows from them alone; the same within a step. */
    numbers(group, scale) {
        const { learningRate, step } = this.memory;
        const key = [group.lrScale, group.weightDecay, scale, learningRate, step].join();
        if (this.known?.key === key)
            return this.known.values;
        const { backend } = this.module;
        const single = (value) => ({ value: Math.fround(value), type: F32.onnx });
        const inputs = new Map([
            ["learning_rate", single(learningRate * group.lrScale)],
            ["weight_decay", single(group.weightDecay)],
            ["grad_scale", single(scale)],
            ["step", { value: step + 1, type: I64.onnx }],
        ]);
        const values = {};
        for (const [name, { value, type }] of inputs) {
            if (!this.inputs.has(name))
                continue;
            values[name] = type === F32.onnx
                ? backend.tensor(F32, Float32Array.of(value), [1])
                : backend.tensor(I64, BigInt64Array.of(BigInt(value)), [1]);
        }
        for (const [name, value] of this.scalars?.compute(inputs) ?? []) {
            values[name] = backend.tensor(F32, Float32Array.of(value), []);
        }
        this.known = { key, values };
        return values;
    }
    async part(store, piece) {
        if (piece.tensor !== undefined)
            return this.module.vectors.current(store, piece.tensor);
        return this.module.backend.tensor(F32, host(store, piece), [piece.stop - piece.start]);
    }
    /** min(1, limit / (‖scale·g‖₂ + 1e-6)) over all gradients. */
    async clipCoefficient(scale) {
        const limit = this.clipNorm ?? this.file.clipNorm;
        if (limit === undefined)
            return 1;
        const { gradients, vectors } = this.module;
        let total = 0;
        if (this.module.backend.onDevice) {
            const parts = this.pieces.map((piece) => vectors.current(gradients, piece.tensor));
            total = await vectors.sumOfSquares(await Promise.all(parts));
        }
        else {
            for (const g of gradients.flat())
                total += g * g;
        }
        return Math.min(1, limit / (scale * Math.sqrt(total) + 1e-6));
    }
}
function host(store, piece) {
    if (piece.tensor !== undefined)
        return store.view(piece.tensor);
    return store.flat().subarray(piece.start, piece.stop);
}
/** Read an optimizer model: the flat update inside it is what runs. */
function loadOptimizer(data) {
    let model = ModelFile.load(data, "The optimizer model");
    const { where } = model;
    const described = model.described(KEY);
    if (described === undefined) {
        throw new ModelFileError(`${where} has no flat update in its metadata (an optimizer of your own, or one of ` +
            "onnxruntime-training): those run in Python only, because onnxruntime's JavaScript " +
            "interface has no sequences.");
    }
    const { flat, states, layout, clip, hyper, groups } = described;
    if (typeof flat === "string") {
        try {
            model = ModelFile.load(Uint8Array.from(atob(flat), (c) => c.charCodeAt(0)), where);
        }
        catch {
            throw new ModelFileError(`${where}: the flat update in it is damaged.`);
        }
    }
    if (!Array.isArray(states) || (layout !== "elementwise" && layout !== "tensor")) {
        throw new ModelFileError(`${where}: its metadata name no states or no known layout.`);
    }
    const inputs = new Set(model.inputs.map((v) => v.name));
    const missing = ["params", "gradients", ...states].filter((n) => !inputs.has(n));
    if (missing.length > 0) {
        throw new ModelFileError(`${where}: the flat update has no ${missing.join(", ")}.`);
    }
    const norm = isObject(clip) ? clip["norm"] : undefined;
    const decay = isObject(hyper) ? hyper["weight_decay"] : undefined;
    return {
        model,
        name: String(described["name"] ?? ""),
        states: states,
        layout,
        clipNorm: typeof norm === "number" ? norm : undefined,
        weightDecay: Number(decay ?? 0),
        groups: Array.isArray(groups) ? groups : [],
        stateShapes: isObject(described["state_shapes"]) ? described["state_shapes"] : {},
    };
}
/** The optimizer state of the checkpoint, made to fit: taken over if there, else zeros. */
function attach(module, file, reset) {
    const { state } = module;
    const specs = [...state.trainable.specs.values()];
    const wrong = specs.filter((s) => s.type !== F32).map((s) => s.name);
    if (wrong.length > 0) {
        throw new InputError(`The optimizer updates float32 parameters; ${wrong.join(", ")} are not.`);
    }
    const old = reset ? undefined : state.optimizer;
    if (old?.name && file.name && old.name !== file.name) {
        throw new CheckpointError(`The checkpoint has the state of ${old.name}, the optimizer is ${file.name}. Use the ` +
            "optimizer model it was trained with, or reset = true to start with fresh moments.");
    }
    const memory = {
        name: file.name,
        step: old?.step ?? 0,
        learningRate: old?.learningRate ?? DEFAULT_RATE,
        states: new Map(),
    };
    for (const kind of file.states) {
        const shapes = file.stateShapes[kind];
        const wanted = specs.map((s) => {
            const own = isObject(shapes) ? shapes[s.name] : undefined;
            return Array.isArray(own) ? { ...s, shape: own } : s;
        });
        const found = old?.states.get(kind);
        if (old !== undefined && old.states.size > 0) {
            if (found === undefined || !wanted.every((s) => sameSpec(found.spec(s.name), s))) {
                throw new CheckpointError(`The checkpoint's optimizer state has no "${kind}" of the right shapes. Use reset = ` +
                    "true to start with fresh moments.");
            }
        }
        memory.states.set(kind, found ?? new TensorStore(wanted));
    }
    state.optimizer = memory;
    return memory;
}
function groupsOf(file, trainable) {
    const rest = new Set(trainable);
    const groups = file.groups.map((described) => {
        const params = new Set((described["params"] ?? []));
        for (const name of params) {
            if (!rest.delete(name)) {
                throw new ModelFileError(`The optimizer's parameter group names "${name}", which is not free.`);
            }
        }
        return {
            params,
            lrScale: Number(described["lr_scale"] ?? 1),
            weightDecay: Number(described["weight_decay"] ?? file.weightDecay),
        };
    });
    if (rest.size > 0)
        groups.push({ params: rest, lrScale: 1, weightDecay: file.weightDecay });
    return groups;
}
/** Names in the graph that updates all tensors in one run. */
const ofPiece = (index, name) => `${index}:${name}`;
const ofGroup = (index, name) => `group ${index}:${name}`;
const groupOf = (groups, name) => groups.find((g) => g.params.has(name));
/** The flat buffer cut where the group changes. */
function runs(module, groups) {
    const store = module.state.trainable;
    const names = store.names;
    const pieces = [];
    names.forEach((name, i) => {
        const next = names[i + 1];
        const stop = next === undefined ? store.flat().length : store.spec(next).start;
        const group = groupOf(groups, name);
        const last = pieces.at(-1);
        if (last?.group === group)
            pieces[pieces.length - 1] = { ...last, stop };
        else
            pieces.push({ group, start: store.spec(name).start, stop });
    });
    return pieces.filter((p) => p.stop > p.start);
}
function tensors(module, groups) {
    const store = module.state.trainable;
    return store.names
        .filter((name) => store.spec(name).size > 0)
        .map((name) => ({ group: groupOf(groups, name), start: 0, stop: 0, tensor: name }));
}
/**
 * Whether `result` may be written over `source`: every node that reads `source` must be needed for
 * `result`, so that it has run before, and the last one must work element by element.
 */
function safeInPlace(model, source, result) {
    const { nodes } = model;
    const producer = new Map(nodes.flatMap((n) => n.outputs.map((o) => [o, n])));
    const last = producer.get(result);
    if (last === undefined)
        return false;
    if (!ELEMENTWISE.has(last.opType) && last.inputs.includes(source))
        return false;
    const needed = new Set([last]);
    for (const node of needed) {
        for (const name of uses(node)) {
            const before = producer.get(name);
            if (before !== undefined)
                needed.add(before);
        }
    }
    return nodes.every((n) => needed.has(n) || !uses(n).has(source));
}
