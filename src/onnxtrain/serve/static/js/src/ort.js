/**
 * What is used of onnxruntime: the library itself is handed in, so that the same code runs on
 * onnxruntime-node, onnxruntime-web (WASM) and onnxruntime-web (WebGPU).
 */
import { InputError } from "./errors.js";
const kind = (code, onnx, ort, bytes, array) => ({ code, onnx, ort, bytes, array });
const TYPES = [
    kind("F64", 11, "float64", 8, Float64Array),
    kind("F32", 1, "float32", 4, Float32Array),
    kind("F16", 10, "float16", 2, Uint16Array),
    kind("BF16", 16, null, 2, Uint16Array),
    kind("F8_E4M3", 17, null, 1, Uint8Array),
    kind("F8_E5M2", 19, null, 1, Uint8Array),
    kind("I64", 7, "int64", 8, BigInt64Array),
    kind("I32", 6, "int32", 4, Int32Array),
    kind("I16", 5, "int16", 2, Int16Array),
    kind("I8", 3, "int8", 1, Int8Array),
    kind("U64", 13, "uint64", 8, BigUint64Array),
    kind("U32", 12, "uint32", 4, Uint32Array),
    kind("U16", 4, "uint16", 2, Uint16Array),
    kind("U8", 2, "uint8", 1, Uint8Array),
    kind("BOOL", 9, "bool", 1, Uint8Array),
];
export const BY_CODE = new Map(TYPES.map((t) => [t.code, t]));
export const BY_ONNX = new Map(TYPES.map((t) => [t.onnx, t]));
export const BY_ORT = new Map(TYPES.filter((t) => t.ort !== null).map((t) => [t.ort, t]));
export const F32 = BY_CODE.get("F32");
export const I64 = BY_CODE.get("I64");
const asObject = (p) => (typeof p === "string" ? { name: p } : p);
const providerName = (p) => asObject(p).name;
/** Where sessions run and how their outputs come back. */
export class Backend {
    ort;
    options;
    /** Whether outputs can be written straight into our arrays (the Node binding can). */
    inPlace;
    /** Whether parameters, gradients and moments stay in the device's own buffers. */
    onDevice;
    providers;
    constructor(ort, options = {}) {
        this.ort = ort;
        this.options = options;
        const given = options["executionProviders"];
        this.providers = Array.isArray(given) ? given : [];
        this.onDevice = this.providers.some((p) => providerName(p) === "webgpu");
        this.inPlace = !this.onDevice && ort.env.versions.node !== undefined;
    }
    /**
     * Make a session.
     *
     * @param kept - outputs that stay on the device, if there is one.
     * @param onHost - names of nodes that the device claims and cannot run.
     */
    async session(model, kept = [], onHost = []) {
        const options = { ...this.options };
        if (this.onDevice && kept.length > 0) {
            const locations = kept.map((name) => [name, "gpu-buffer"]);
            options["preferredOutputLocation"] = Object.fromEntries(locations);
        }
        if (this.onDevice && onHost.length > 0) {
            options["executionProviders"] = this.providers.map((p) => providerName(p) === "webgpu" ? { preferredLayout: "NCHW", ...asObject(p), forceCpuNodeNames: onHost } : p);
        }
        return (await this.ort.InferenceSession.create(model, options));
    }
    tensor(type, data, dims) {
        if (type.ort === null) {
            throw new InputError(`onnxruntime's JavaScript interface has no tensors of type ${type.code}.`);
        }
        return new this.ort.Tensor(type.ort, data, dims);
    }
    /** A tensor from what a user gave: a tensor, or `{ data, dims }`. */
    fromUser(value, type) {
        if ("getData" in value)
            return value;
        return this.tensor(type, value.data, value.dims);
    }
}
