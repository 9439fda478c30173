import { check, ModelFileError } from "./errors.js";
import { hostValue, joined } from "./ort.js";
export class Device {
    constructor(facts, files, state, ort, options = {}) {
        this.facts = facts;
        this.files = files;
        this.state = state;
        this.ort = ort;
        this.options = options;
        this.providers = (this.options.executionProviders ?? []).map((provider) => typeof provider === "string" ? { name: provider } : provider);
        /** Whether parameters, gradients and moments stay in the device's own buffers. */
        this.isGpu = this.providers.some(({ name }) => name === "webgpu");
        this.sessions = new Map();
    }
    model(name) {
        const found = this.facts.models[name];
        check(found, `The artifacts have no model to ${name} with.`, ModelFileError);
        return found;
    }
    /** The bytes of a model: pieces of an artifact, with seeds and values put in. */
    async bytes(name) {
        return joined(await Promise.all(this.model(name).pieces.map((p) => this.part(name, p))));
    }
    /** The session of a model, made when it is first needed. */
    session(name) {
        const session = this.sessions.get(name) ?? this.create(name);
        this.sessions.set(name, session);
        return session;
    }
    /** Run a model: what it needs of the state is fed, what it changes there is kept. */
    async run(name, given = {}) {
        const { feeds, updates } = this.model(name);
        const all = { ...given };
        for (const [input, key] of Object.entries(feeds)) {
            all[input] = await this.upload(this.state.values.get(key));
            this.state.replace(key, all[input]);
        }
        const results = await (await this.session(name)).run(all);
        for (const [output, key] of Object.entries(updates)) {
            this.state.replace(key, results[output]);
        }
        return results;
    }
    tensor(type, data, dims) {
        return new this.ort.Tensor(type, data, dims);
    }
    async release() {
        for (const session of this.sessions.values())
            await (await session).release();
        this.sessions.clear();
    }
    async part(name, piece) {
        if (typeof piece === "string")
            return Uint8Array.from(atob(piece), (c) => c.charCodeAt(0));
        if ("value" in piece)
            return (await hostValue(this.state.parameter(piece.value))).data;
        const file = this.files.get(this.model(name).file ?? "") ?? new Uint8Array();
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
    async create(name) {
        const { session, provider } = this.model(name).webgpu;
        const executionProviders = this.providers.map((p) => ({ ...provider, ...p }));
        const options = this.isGpu ? { ...this.options, ...session, executionProviders } : this.options;
        return (await this.ort.InferenceSession.create(await this.bytes(name), options));
    }
}
