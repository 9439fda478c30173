/** CheckpointState: everything a training run has to remember, to and from a file. */
import { CheckpointError, InputError, StateError } from "./errors.js";
import { decode, encode, isObject } from "./safetensors.js";
import { copy, TensorStore } from "./store.js";
/**
 * Parameters, optimizer state, properties and random state of a training run. `Module` and
 * `Optimizer` work on its buffers directly.
 */
export class CheckpointState {
    trainable;
    frozen;
    nominalNames;
    optimizer;
    scheduler = {};
    /** The schedule's position as it was loaded, until a schedule takes it back. */
    resumableScheduler;
    random = { seed: 0n, generation: 0n };
    gradients;
    properties = new Properties();
    /** Metadata of other front ends, kept as they are. */
    kept = new Map();
    queue = Promise.resolve();
    constructor(trainable, frozen, nominalNames) {
        this.trainable = trainable;
        this.frozen = frozen;
        this.nominalNames = nominalNames;
    }
    /** Read the bytes of a checkpoint; a damaged or foreign one is a `CheckpointError`. */
    static loadCheckpoint(file, where = "The checkpoint") {
        if (String.fromCharCode(...file.subarray(4, 8)) === "ODTC") {
            throw new CheckpointError(`${where} was written by onnxruntime-training. Convert it first: "onnxtrain convert".`);
        }
        return new Loader(decode(file, where), where).state();
    }
    /** The bytes of a checkpoint that every onnxtrain reads. */
    static async saveCheckpoint(state, includeOptimizerState = false) {
        return state.exclusive(async () => {
            await state.sync();
            return state.encode(includeOptimizerState);
        });
    }
    static make(trainable, frozen, nominal) {
        return new CheckpointState(new TensorStore(trainable), new TensorStore(frozen), nominal);
    }
    /** Names of the parameters, trainable and frozen. */
    get names() {
        return this.nominalNames ?? { trainable: this.trainable.names, frozen: this.frozen.names };
    }
    /** Whether the parameters have no values yet. */
    get isNominal() {
        return this.nominalNames !== undefined;
    }
    /** A copy of a parameter's values, flat. */
    async getParameter(name) {
        this.needValues();
        return this.exclusive(async () => {
            await this.sync();
            return this.storeOf(name).view(name).slice();
        });
    }
    /** Set a parameter's values. */
    async setParameter(name, values) {
        this.needValues();
        const view = this.storeOf(name).view(name);
        if (values.constructor !== view.constructor || values.length !== view.length) {
            throw new InputError(`Parameter "${name}" holds ${view.length} values in a ${view.constructor.name}, the new ` +
                `value ${values.length} in a ${values.constructor.name}.`);
        }
        await this.exclusive(async () => {
            await this.sync();
            copy(view, values);
            this.push();
        });
    }
    // --- what Module and Optimizer use ------------------------------------------------------------
    /** Do one thing after the other: a step must not meet a half-written update or save. */
    exclusive(work) {
        const result = this.queue.then(work);
        this.queue = result.catch(() => undefined);
        return result;
    }
    storeOf(name) {
        const store = this.trainable.has(name) ? this.trainable : this.frozen;
        if (!store.has(name)) {
            const { trainable, frozen } = this.names;
            throw new InputError(`No parameter "${name}"; there are ${[...trainable, ...frozen].join(", ")}.`);
        }
        return store;
    }
    /** Bring the host's buffers up to date before anyone reads or changes them. */
    async sync() {
        for (const store of this.stores())
            await store.pull();
    }
    push() {
        for (const store of this.stores())
            store.push();
    }
    needValues() {
        if (this.isNominal) {
            throw new StateError("Please load the model parameters first. The checkpoint is nominal (names only): call " +
                "module.copyBufferToParameters(buffer, false).");
        }
    }
    /** Give a nominal state room for its values, shapes taken from the training model. */
    allocate(specs) {
        if (this.nominalNames === undefined || this.trainable.names.length > 0)
            return;
        const pick = (names) => names.map((n) => specs.get(n)).filter((s) => s !== undefined);
        this.trainable = new TensorStore(pick(this.nominalNames.trainable));
        this.frozen = new TensorStore(pick(this.nominalNames.frozen));
    }
    /** The values are there now. */
    filled() {
        this.nominalNames = undefined;
    }
    stores() {
        return [this.trainable, this.frozen, ...(this.optimizer?.states.values() ?? [])];
    }
    encode(includeOptimizerState) {
        const entries = new Map();
        const collect = (prefix, store) => {
            for (const [name, spec] of store.specs) {
                entries.set(prefix + name, { spec, bytes: store.bytes(name) });
            }
        };
        if (!this.isNominal) {
            collect("param/", this.trainable);
            collect("param/", this.frozen);
            if (includeOptimizerState) {
                for (const [kind, store] of this.optimizer?.states ?? [])
                    collect(`optim/${kind}/`, store);
            }
        }
        return encode(entries, this.metadata(includeOptimizerState));
    }
    metadata(includeOptimizerState) {
        const { trainable, frozen } = this.names;
        const { seed, generation } = this.random;
        const values = new Map([
            ["format", "onnxtrain"],
            ["version", "1"],
            ["trainable", JSON.stringify(trainable)],
            ["frozen", JSON.stringify(frozen)],
            ["random", `{"seed": ${seed}, "generation": ${generation}}`],
            ["properties", this.properties.encode()],
            ["nominal", JSON.stringify(this.isNominal)],
        ]);
        if (!includeOptimizerState)
            return values;
        if (this.optimizer !== undefined) {
            const { step, learningRate, name } = this.optimizer;
            values.set("optimizer", JSON.stringify({ step, learning_rate: learningRate, name }));
        }
        if (Object.keys(this.scheduler).length > 0) {
            values.set("scheduler", JSON.stringify(this.scheduler));
        }
        for (const [key, text] of this.kept)
            values.set(key, text);
        return values;
    }
}
/**
 * Numbers and strings of the user's own. Kept as JSON text: JavaScript does not tell 1 from 1.0,
 * other languages do, and a property that nobody changed must come back as it was.
 */
export class Properties {
    texts = new Map();
    get(name) {
        const text = this.texts.get(name);
        if (text === undefined)
            return undefined;
        if (/^-?\d+$/.test(text)) {
            const number = Number(text);
            return Number.isSafeInteger(number) ? number : BigInt(text);
        }
        const value = JSON.parse(text);
        return typeof value === "object" ? Number(value.float.replace("inf", "Infinity")) : value;
    }
    set(name, value) {
        if (typeof value === "number" && !Number.isFinite(value)) {
            const text = Number.isNaN(value) ? "nan" : value > 0 ? "inf" : "-inf";
            this.texts.set(name, `{"float": "${text}"}`);
        }
        else {
            this.texts.set(name, typeof value === "bigint" ? String(value) : JSON.stringify(value));
        }
    }
    delete(name) {
        return this.texts.delete(name);
    }
    names() {
        return [...this.texts.keys()].sort();
    }
    encode() {
        const entries = [...this.texts].map(([name, text]) => `${JSON.stringify(name)}: ${text}`);
        return `{${entries.join(", ")}}`;
    }
    /** Take over a JSON object of numbers, strings and `{"float": "nan"}`. */
    decode(text) {
        const member = /("(?:[^"\\]|\\.)*")\s*:\s*("(?:[^"\\]|\\.)*"|\{[^{}]*\}|[^\s,{}"]+)/g;
        for (const [, name = "", value = ""] of text.matchAll(member)) {
            this.texts.set(JSON.parse(name), value);
        }
    }
}
/** From a file to a state; everything is checked first. */
class Loader {
    file;
    where;
    constructor(file, where) {
        this.file = file;
        this.where = where;
    }
    state() {
        const { metadata } = this.file;
        if (metadata.get("format") !== "onnxtrain") {
            throw new CheckpointError(`${this.where} is a safetensors file, but no onnxtrain checkpoint.`);
        }
        if (metadata.get("version") !== "1") {
            throw new CheckpointError(`${this.where} has version ${metadata.get("version")}, this release reads 1. Install a ` +
                "newer onnxtrain.");
        }
        const trainable = this.names("trainable");
        const frozen = this.names("frozen");
        if (new Set([...trainable, ...frozen]).size !== trainable.length + frozen.length) {
            this.damaged("a parameter is listed twice");
        }
        const state = this.json("nominal") === true
            ? CheckpointState.make([], [], { trainable, frozen })
            : this.filled(trainable, frozen);
        state.random = this.random();
        const scheduler = this.json("scheduler");
        if (isObject(scheduler))
            state.scheduler = scheduler;
        if (!isObject(this.json("properties") ?? {}))
            this.damaged("properties");
        state.properties.decode(metadata.get("properties") ?? "{}");
        const trainer = metadata.get("trainer");
        if (trainer !== undefined)
            state.kept.set("trainer", trainer);
        return state;
    }
    filled(trainable, frozen) {
        const specs = (names) => names.map((name) => ({ ...this.entry(`param/${name}`).spec, name }));
        const state = CheckpointState.make(specs(trainable), specs(frozen));
        for (const name of trainable)
            this.read(state.trainable, name, `param/${name}`);
        for (const name of frozen)
            this.read(state.frozen, name, `param/${name}`);
        state.optimizer = this.optimizer(trainable);
        const known = new Set([...trainable, ...frozen].map((n) => `param/${n}`));
        for (const key of this.file.entries.keys()) {
            if (!known.has(key) && !key.startsWith("optim/")) {
                this.damaged(`tensor "${key}" belongs to no parameter`);
            }
        }
        return state;
    }
    optimizer(trainable) {
        const moments = [...this.file.entries.keys()].filter((key) => key.startsWith("optim/"));
        const described = this.json("optimizer");
        if (described === undefined) {
            return moments.length > 0 ? this.damaged("optimizer tensors that nothing describes") : undefined;
        }
        const { step = 0, learning_rate: learningRate = 0.001, name = "" } = isObject(described)
            ? described
            : {};
        if (!Number.isSafeInteger(step) || !Number.isFinite(learningRate) || typeof name !== "string") {
            this.damaged(`optimizer ${JSON.stringify(described)}`);
        }
        const kinds = [...new Set(moments.map((key) => key.split("/")[1]))];
        const states = new Map();
        for (const kind of kinds) {
            const key = (parameter) => `optim/${kind}/${parameter}`;
            if (moments.filter((m) => m.startsWith(key(""))).length !== trainable.length) {
                this.damaged(`optimizer state "${kind}" does not fit the trainable parameters`);
            }
            const store = new TensorStore(trainable.map((n) => ({ ...this.entry(key(n)).spec, name: n })));
            for (const parameter of trainable)
                this.read(store, parameter, key(parameter));
            states.set(kind, store);
        }
        return {
            name: name,
            step: step,
            learningRate: learningRate,
            states,
        };
    }
    random() {
        const text = this.file.metadata.get("random") ?? "{}";
        const digits = (key) => BigInt(new RegExp(`"${key}"\\s*:\\s*(\\d+)`).exec(text)?.[1] ?? 0);
        return { seed: digits("seed"), generation: digits("generation") };
    }
    entry(key) {
        return this.file.entries.get(key) ?? this.damaged(`"${key}" is listed and not there`);
    }
    read(store, name, key) {
        store.bytes(name).set(this.entry(key).bytes);
    }
    json(key) {
        const text = this.file.metadata.get(key);
        if (text === undefined)
            return undefined;
        try {
            return JSON.parse(text);
        }
        catch {
            return this.damaged(`metadata "${key}" are not JSON`);
        }
    }
    names(key) {
        const found = this.json(key) ?? [];
        if (!Array.isArray(found) || !found.every((n) => typeof n === "string")) {
            return this.damaged(`"${key}" are not names`);
        }
        return found;
    }
    damaged(what) {
        throw new CheckpointError(`${this.where} is damaged: ${what}.`);
    }
}
