/** CheckpointState: everything a training run has to remember, to and from a file. */
import { CheckpointError, InputError } from "./errors.js";
import { hostValue, sizeOf, typeNamed } from "./ort.js";
import { Properties } from "./properties.js";
import { decode, encode } from "./safetensors.js";
/** Parameters, optimizer state, properties and random state of a training run. */
export class CheckpointState {
    values;
    metadata;
    /** What the optimizer remembers besides its moments. */
    optimizer;
    scheduler;
    /** The schedule's position as it was loaded, until a schedule takes it back. */
    resumableScheduler;
    properties;
    /** From which the seeds of random nodes follow; `generation` counts the sessions started. */
    random;
    trainable;
    frozen;
    queue = Promise.resolve();
    constructor(
    /** The current values, wherever they live: "param/<name>" and "optim/<state>/<name>". */
    values, metadata) {
        this.values = values;
        this.metadata = metadata;
        const read = (key, none) => JSON.parse(metadata[key] ?? none);
        const digits = (key) => BigInt(new RegExp(`"${key}"\\s*:\\s*(\\d+)`).exec(metadata["random"] ?? "")?.[1] ?? 0);
        this.trainable = read("trainable", "[]");
        this.frozen = read("frozen", "[]");
        this.scheduler = read("scheduler", "{}");
        this.random = { seed: digits("seed"), generation: digits("generation") };
        this.properties = new Properties(metadata["properties"] ?? "{}");
        const saved = read("optimizer", "null");
        this.optimizer = saved === null ? undefined : {
            name: String(saved["name"] ?? ""),
            step: Number(saved["step"] ?? 0),
            learningRate: Number(saved["learning_rate"] ?? 0.001),
        };
    }
    /** Read the bytes of a checkpoint; a damaged or foreign one is a `CheckpointError`. */
    static loadCheckpoint(file, where = "The checkpoint") {
        const { values, metadata } = decode(file, where);
        const wrong = (text) => {
            throw new CheckpointError(`${where} cannot be used: ${text}.`);
        };
        const { format, version, nominal } = metadata;
        if (format !== "onnxtrain" || version !== "1") {
            wrong(`it has format "${format}", version "${version}"; needed is "onnxtrain", version "1"`);
        }
        if (nominal === "true")
            wrong("it is nominal and has no values");
        const state = new CheckpointState(values, metadata);
        const listed = new Set([...state.trainable, ...state.frozen].map((name) => `param/${name}`));
        const found = [...values.keys()].filter((key) => !key.startsWith("optim/"));
        for (const key of [...listed, ...found]) {
            if (!values.has(key) || !listed.has(key))
                wrong(`"${key}" is listed or there, not both`);
        }
        return state;
    }
    /** The bytes of a checkpoint that every onnxtrain reads. */
    static saveCheckpoint(state, withOptimizer = false) {
        return state.exclusive(async () => {
            const values = new Map();
            for (const [key, value] of state.values) {
                if (withOptimizer || !key.startsWith("optim/"))
                    values.set(key, await hostValue(value));
            }
            return encode(values, state.described(withOptimizer));
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
            const { array } = typeNamed(type);
            if (!(data instanceof array) || data.length !== sizeOf(dims)) {
                throw new InputError(`Parameter "${name}" holds ${sizeOf(dims)} values in a ${array.name}, the new value ` +
                    `${data.length} in a ${data.constructor.name}.`);
            }
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
        if (found !== undefined)
            return found;
        const names = [...this.trainable, ...this.frozen].join(", ");
        throw new InputError(`No parameter "${name}"; there are ${names}.`);
    }
    /** Let another value be the current one; a device's buffer is freed. */
    replace(key, value) {
        const old = this.values.get(key);
        if (old !== undefined && old !== value && "dispose" in old)
            old.dispose();
        this.values.set(key, value);
    }
    /**
     * Seeds for the random nodes of a new session, below 2**24 (a float holds them exactly). They
     * are those of Python, so that the same checkpoint draws the same masks; on a page that came
     * over plain http, where browsers offer no hash, they are random.
     */
    async nextSeeds(nodes) {
        this.random.generation += 1n;
        const { seed, generation } = this.random;
        const seeds = new Map();
        for (const node of nodes) {
            const text = new TextEncoder().encode(`${seed}/${generation}/${node}`);
            const hash = await globalThis.crypto.subtle?.digest("SHA-256", text);
            const [a = 0, b = 0, c = 0] = hash ? new Uint8Array(hash)
                : globalThis.crypto.getRandomValues(new Uint8Array(3));
            seeds.set(node, a + b * 2 ** 8 + c * 2 ** 16);
        }
        return seeds;
    }
    described(withOptimizer) {
        const { optimizer: _, scheduler: __, trainer, ...rest } = this.metadata;
        const { seed, generation } = this.random;
        const described = {
            ...rest,
            random: `{"seed": ${seed}, "generation": ${generation}}`,
            properties: this.properties.encode(),
        };
        if (!withOptimizer)
            return described;
        if (trainer !== undefined)
            described["trainer"] = trainer;
        described["scheduler"] = JSON.stringify(this.scheduler);
        if (this.optimizer !== undefined) {
            const { name, step, learningRate } = this.optimizer;
            described["optimizer"] = JSON.stringify({ name, step, learning_rate: learningRate });
        }
        return described;
    }
}
