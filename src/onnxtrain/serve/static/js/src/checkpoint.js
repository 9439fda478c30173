import { check, CheckpointError } from "./errors.js";
import { hasForm, isListOf, isRecord, isText, isWhole } from "./facts.js";
import { arrayOf, hostValue, joined, sizeOf, TYPES } from "./ort.js";
const IS_OPTIMIZER = hasForm({ name: isText, step: isWhole, learning_rate: Number.isFinite });
/** Everything a training run has to remember, to and from a safetensors file. */
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
        this.texts = members(this.metadata["properties"]);
        this.properties = new Map(Array.from(this.texts, ([name, text]) => [name, property(text)]));
        /** From which random numbers follow; `counter` counts training passes, `generation` sessions. */
        this.random = {
            seed: this.whole("seed"),
            generation: this.whole("generation"),
            counter: this.whole("counter"),
        };
        this.queue = Promise.resolve();
    }
    /** Read the bytes of a checkpoint; a damaged or foreign one is a `CheckpointError`. */
    static loadCheckpoint(file) {
        const { values, metadata } = decode(file);
        const { format, version, nominal } = metadata;
        const found = `format "${format}", version "${version}", nominal: ${nominal}`;
        const isOurs = format === "onnxtrain" && version === "1" && nominal !== "true";
        check(isOurs, `No checkpoint of onnxtrain, version 1, with values: ${found}.`, CheckpointError);
        const state = CheckpointState.described(values, metadata);
        const missing = [...state.trainable, ...state.frozen].find((n) => !values.has(`param/${n}`));
        check(missing === undefined, `The checkpoint has no values of "${missing}".`, CheckpointError);
        return state;
    }
    /** The state that metadata describe, which are JSON of somebody's. */
    static described(values, metadata) {
        const damaged = (why) => new CheckpointError(`The checkpoint is damaged: ${why}. Take the one before it.`);
        let state;
        try {
            state = new CheckpointState(values, metadata);
        }
        catch (error) {
            throw damaged(error.message);
        }
        const { optimizer, scheduler, trainable, frozen } = state;
        if (!isListOf(isText)(trainable) || !isListOf(isText)(frozen))
            throw damaged("its names");
        if (!isRecord(scheduler))
            throw damaged("its schedule");
        const isFine = optimizer === undefined || IS_OPTIMIZER(optimizer);
        if (!isFine)
            throw damaged("its optimizer");
        return state;
    }
    /** The bytes of a checkpoint that every onnxtrain reads. */
    static saveCheckpoint(state, withOptimizer = false) {
        return state.exclusive(async () => {
            const values = new Map();
            for (const [key, value] of state.values) {
                const isSaved = key.startsWith("param/") || (withOptimizer && key.startsWith("optim/"));
                if (isSaved)
                    values.set(key, await hostValue(value));
            }
            return encode({ values, metadata: state.metadataNow(withOptimizer) });
        });
    }
    /** A copy of a parameter's values, flat. */
    getParameter(name) {
        return this.exclusive(async () => (await hostValue(this.parameter(name))).data.slice());
    }
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
    /** The seed of a random node as in Python, below 2**24: a float holds it exactly. */
    async seedOf(node) {
        const text = new TextEncoder().encode(`${this.random.seed}/${this.random.generation}/${node}`);
        const hash = await crypto.subtle?.digest("SHA-256", text);
        // browsers offer no hash on a page that came over plain http
        const bytes = hash ?? crypto.getRandomValues(new Uint8Array(4)).buffer;
        return new DataView(bytes).getUint32(0, true) % 2 ** 24;
    }
    read(key) {
        return JSON.parse(this.metadata[key] ?? "null") ?? undefined;
    }
    whole(key) {
        return BigInt(members(this.metadata["random"]).get(key) ?? 0);
    }
    metadataNow(withOptimizer) {
        const { optimizer: _, scheduler: __, trainer, ...rest } = this.metadata;
        const numbers = Object.entries(this.random).map(([name, n]) => `"${name}": ${n}`);
        const random = `{${numbers.join(", ")}}`;
        const properties = Array.from(this.properties, ([name, value]) => {
            const old = this.texts.get(name);
            const isOld = old !== undefined && Object.is(property(old), value); // 1.0 stays 1.0
            return `${JSON.stringify(name)}: ${isOld ? old : propertyText(name, value)}`;
        });
        const always = { ...rest, random, properties: `{${properties.join(", ")}}` };
        if (!withOptimizer)
            return always;
        const optimizer = this.optimizer && { optimizer: JSON.stringify(this.optimizer) };
        const scheduler = JSON.stringify(this.scheduler);
        return { ...always, scheduler, ...(trainer && { trainer }), ...optimizer };
    }
}
/** The members of an object in JSON as text: in JavaScript 1 is 1.0, and 2**63 + 1 is 2**63. */
function members(json = "{}") {
    const member = /("(?:[^"\\]|\\.)*")\s*:\s*("(?:[^"\\]|\\.)*"|\{[^{}]*\}|[^\s,{}"]+)/g;
    const found = [...json.matchAll(member)];
    return new Map(found.map(([, name = "", text = ""]) => [JSON.parse(name), text]));
}
/** A property from its text; what JSON has no number for is `{"float": "nan"}`. */
function property(text) {
    if (/^-?\d{16,}$/.test(text))
        return BigInt(text);
    const value = JSON.parse(text);
    return typeof value === "object" ? Number(value.float.replace("inf", "Infinity")) : value;
}
function propertyText(name, value) {
    if (typeof value === "bigint")
        return String(value);
    if (typeof value === "string" || Number.isFinite(value))
        return JSON.stringify(value);
    check(typeof value === "number", `Property "${name}" must be a number or a string.`);
    return `{"float": "${String(value).toLowerCase().replace("infinity", "inf")}"}`;
}
/** float32 is F32, bfloat16 BF16, int64 I64, uint8 U8, bool BOOL. */
const codeOf = (type) => type.replace("float", "f").replace("uint", "u").replace("int", "i").toUpperCase();
/** The length of the header in eight bytes, the header in JSON, the data, which it must fill. */
export function decode(file) {
    try {
        const start = 8 + Number(new DataView(file.buffer, file.byteOffset, 8).getBigUint64(0, true));
        const header = JSON.parse(new TextDecoder().decode(file.subarray(8, start)));
        const { __metadata__: metadata = {}, ...entries } = header;
        const isFine = isRecord(metadata) && Object.values(metadata).every(isText);
        check(isFine, "Its metadata are not strings.");
        const values = new Map();
        let end = start;
        for (const [name, { dtype, shape, data_offsets: at }] of Object.entries(entries)) {
            const type = TYPES.find((t) => codeOf(t) === dtype) ?? dtype;
            const array = arrayOf(type);
            const bytes = new Uint8Array(file.subarray(start + at[0], start + at[1]));
            const size = sizeOf(shape) * array.BYTES_PER_ELEMENT;
            check(at[1] - at[0] === size && bytes.length === size, `"${name}" has another size.`);
            values.set(name, { type, dims: shape, data: new array(bytes.buffer) });
            end += size;
        }
        check(end === file.length, `It has ${file.length} bytes, its header says ${end}.`);
        return { metadata: metadata, values };
    }
    catch (error) {
        const why = error.message;
        throw new CheckpointError(`The checkpoint is damaged, truncated or none at all: ${why}`);
    }
}
/** Write a safetensors file: tensors (wide types first, so that all stay aligned) and metadata. */
export function encode({ values, metadata }) {
    const width = ({ data }) => data.BYTES_PER_ELEMENT;
    const order = [...values].sort(([, a], [, b]) => width(b) - width(a));
    const header = { __metadata__: metadata };
    let at = 0;
    for (const [name, { type, dims, data }] of order) {
        const offsets = [at, (at += data.byteLength)];
        header[name] = { dtype: codeOf(type), shape: dims, data_offsets: offsets };
    }
    const text = new TextEncoder().encode(JSON.stringify(header));
    const padding = new Uint8Array(-text.length & 7).fill(0x20);
    const length = BigUint64Array.of(BigInt(text.length + padding.length));
    return joined([length, text, padding, ...order.map(([, { data }]) => data)]);
}
