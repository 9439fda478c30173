/** CheckpointState: everything a training run has to remember, to and from a file. */
import { check, CheckpointError } from "./errors.js";
import { arrayOf, hostValue, sizeOf } from "./ort.js";
import { decode, encode } from "./safetensors.js";
/**
 * Numbers and strings of the user's own. JavaScript does not tell 1 from 1.0, other languages do,
 * so a property that nobody sets is written back as the text it was.
 */
export class Properties {
    /** From a JSON object of numbers, strings and `{"float": "nan"}`. */
    constructor(json) {
        this.texts = new Map();
        const member = /("(?:[^"\\]|\\.)*")\s*:\s*("(?:[^"\\]|\\.)*"|\{[^{}]*\}|[^\s,{}"]+)/g;
        for (const [, name = "", text = ""] of json.matchAll(member)) {
            this.texts.set(JSON.parse(name), text);
        }
    }
    names() {
        return [...this.texts.keys()].sort();
    }
    get(name) {
        const text = this.texts.get(name);
        if (text === undefined || /^-?\d{16,}$/.test(text))
            return text && BigInt(text);
        const value = JSON.parse(text);
        return typeof value === "object" ? Number(value.float.replace("inf", "Infinity")) : value;
    }
    set(name, value) {
        const isSpecial = typeof value === "number" && !Number.isFinite(value);
        const float = String(value).toLowerCase().replace("infinity", "inf");
        const text = typeof value === "bigint" ? String(value) : JSON.stringify(value);
        this.texts.set(name, isSpecial ? `{"float": "${float}"}` : text);
    }
    encode() {
        const entries = [...this.texts].map(([name, text]) => `${JSON.stringify(name)}: ${text}`);
        return `{${entries.join(", ")}}`;
    }
}
/** Parameters, optimizer state, properties and random state of a training run. */
export class CheckpointState {
    constructor(
    /** The current values, wherever they live: "param/<name>", "optim/<state>/<name>", "grad/…". */
    values, metadata) {
        this.values = values;
        this.metadata = metadata;
        this.trainable = this.read("trainable") ?? [];
        this.frozen = this.read("frozen") ?? [];
        /** What the optimizer remembers besides its moments. */
        this.optimizer = this.read("optimizer");
        this.scheduler = this.read("scheduler") ?? {};
        this.properties = new Properties(this.metadata["properties"] ?? "{}");
        /** From which the seeds of random nodes follow; `generation` counts the sessions started. */
        this.random = { seed: this.digits("seed"), generation: this.digits("generation") };
        this.queue = Promise.resolve();
    }
    /** Read the bytes of a checkpoint; a damaged or foreign one is a `CheckpointError`. */
    static loadCheckpoint(file) {
        const { values, metadata } = decode(file);
        const { format, version, nominal } = metadata;
        const isOurs = format === "onnxtrain" && version === "1" && nominal !== "true";
        const found = `format "${format}", version "${version}", nominal: ${nominal}`;
        check(isOurs, `No checkpoint of onnxtrain, version 1, with values: ${found}.`, CheckpointError);
        const state = new CheckpointState(values, metadata);
        const missing = [...state.trainable, ...state.frozen].find((n) => !values.has(`param/${n}`));
        check(missing === undefined, `The checkpoint has no values of "${missing}".`, CheckpointError);
        return state;
    }
    /** The bytes of a checkpoint that every onnxtrain reads. */
    static saveCheckpoint(state, withOptimizer = false) {
        const saved = withOptimizer ? /^(param|optim)\// : /^param\//;
        return state.exclusive(async () => {
            const values = new Map();
            for (const [key, value] of state.values) {
                if (saved.test(key))
                    values.set(key, await hostValue(value));
            }
            return encode({ values, metadata: state.described(withOptimizer) });
        });
    }
    /** A copy of a parameter's values, flat. */
    getParameter(name) {
        return this.exclusive(async () => (await hostValue(this.parameter(name))).data.slice());
    }
    /** Set a parameter's values. */
    setParameter(name, data) {
        return this.exclusive(async () => {
            const { type, dims } = this.parameter(name);
            const fits = data instanceof arrayOf(type) && data.length === sizeOf(dims);
            check(fits, `Parameter "${name}" holds ${sizeOf(dims)} values of the type ${type}.`);
            this.replace(`param/${name}`, { type, dims, data: data.slice() });
        });
    }
    /** Do one thing after the other: a step must not meet a half-written update or save. */
    exclusive(work) {
        const result = this.queue.then(work);
        this.queue = result.catch(() => undefined);
        return result;
    }
    parameter(name) {
        const found = this.values.get(`param/${name}`);
        check(found, `No parameter "${name}"; there are ${[...this.trainable, ...this.frozen]}.`);
        return found;
    }
    /** Let another value be the current one; a device's buffer is freed. */
    replace(key, value) {
        const old = this.values.get(key);
        if (old !== undefined && old !== value && "dispose" in old)
            old.dispose();
        this.values.set(key, value);
    }
    /**
     * The seed of a random node, below 2**24 (a float holds it exactly). It is that of Python, so
     * that the same checkpoint draws the same masks; on a page that came over plain http, where
     * browsers offer no hash, it is random.
     */
    async seedOf(node) {
        const text = new TextEncoder().encode(`${this.random.seed}/${this.random.generation}/${node}`);
        const hash = await crypto.subtle?.digest("SHA-256", text);
        const bytes = hash ?? crypto.getRandomValues(new Uint8Array(4)).buffer;
        return new DataView(bytes).getUint32(0, true) % 2 ** 24;
    }
    read(key) {
        return JSON.parse(this.metadata[key] ?? "null") ?? undefined;
    }
    /** A number in "random", which may be larger than JSON in JavaScript can tell. */
    digits(key) {
        const found = new RegExp(`"${key}"\\s*:\\s*(\\d+)`).exec(this.metadata["random"] ?? "");
        return BigInt(found?.[1] ?? 0);
    }
    described(withOptimizer) {
        const { optimizer: _, scheduler: __, trainer, ...rest } = this.metadata;
        const random = `{"seed": ${this.random.seed}, "generation": ${this.random.generation}}`;
        const always = { ...rest, random, properties: this.properties.encode() };
        if (!withOptimizer)
            return always;
        const optimizer = this.optimizer && { optimizer: JSON.stringify(this.optimizer) };
        const scheduler = JSON.stringify(this.scheduler);
        return { ...always, scheduler, ...(trainer && { trainer }), ...optimizer };
    }
}
