/** Where sessions run, and the little arithmetic that no artifact does. */
import { oneOperator } from "./onnx.js";
export class Backend {
    ort;
    options;
    /** Whether parameters, gradients and moments stay in the device's own buffers. */
    onDevice;
    providers;
    operators = new Map();
    constructor(ort, options = {}) {
        this.ort = ort;
        this.options = options;
        const given = (options["executionProviders"] ?? []);
        this.providers = given.map((p) => (typeof p === "string" ? { name: p } : p));
        this.onDevice = this.providers.some((p) => p.name === "webgpu");
    }
    /**
     * @param kept - outputs that stay on the device, if there is one.
     * @param onHost - names of nodes that the device claims and cannot run.
     */
    async session(model, kept = [], onHost = []) {
        const options = { ...this.options };
        if (this.onDevice) {
            const locations = kept.map((name) => [name, "gpu-buffer"]);
            options["preferredOutputLocation"] = Object.fromEntries(locations);
        }
        if (this.onDevice && onHost.length > 0) {
            options["executionProviders"] = this.providers.map((p) => p.name === "webgpu" ? { preferredLayout: "NCHW", ...p, forceCpuNodeNames: onHost } : p);
        }
        return (await this.ort.InferenceSession.create(model, options));
    }
    tensor(type, data, dims) {
        return new this.ort.Tensor(type, data, dims);
    }
    /** The tensor to feed for a value; floats are brought to the device if there is one. */
    async upload(value) {
        const a = "getData" in value ? value : this.tensor(value.type, value.data, value.dims);
        const stays = !this.onDevice || a.type !== "float32" || a.location !== "cpu";
        return stays ? a : this.compute("Identity", { a });
    }
    /** One operator over float32 tensors; the result stays on the device. */
    async compute(operator, feeds) {
        const model = () => oneOperator(operator, Object.keys(feeds), "y");
        const session = this.operators.get(operator) ?? this.session(model(), ["y"]);
        this.operators.set(operator, session);
        return (await (await session).run(feeds))["y"];
    }
    async release() {
        for (const session of this.operators.values())
            await (await session).release();
    }
}
