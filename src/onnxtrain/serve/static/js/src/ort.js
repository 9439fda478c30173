import { check } from "./errors.js";
/** Element types by onnxruntime's names, and the arrays that hold them. */
// prettier-ignore
const ARRAYS = {
    float32: Float32Array, float64: Float64Array, float16: Uint16Array, bfloat16: Uint16Array,
    int64: BigInt64Array, int32: Int32Array, int16: Int16Array, int8: Int8Array,
    uint64: BigUint64Array, uint32: Uint32Array, uint16: Uint16Array, uint8: Uint8Array,
    bool: Uint8Array,
};
export const TYPES = Object.keys(ARRAYS);
export function arrayOf(type) {
    const found = Object.hasOwn(ARRAYS, type) && ARRAYS[type];
    check(found, `Tensors of type "${type}" cannot be used here.`);
    return found;
}
/** Whole numbers of 8 to 32 bits as those of 64 bits, where a model takes these. */
export function widened(type, data) {
    const isNarrow = /^(Ui|I)nt(8|16|32)Array$/.test(data.constructor.name);
    if (!isNarrow || (type !== "int64" && type !== "uint64"))
        return data;
    const Wide = type === "int64" ? BigInt64Array : BigUint64Array;
    return new Wide(Array.from(data, BigInt));
}
export const sizeOf = (dims) => dims.reduce((a, b) => a * b, 1);
/** The bytes of several arrays, one after the other. */
export const joined = async (parts) => new Uint8Array(await new Blob(parts).arrayBuffer());
/** The numbers of a value; those of a device are brought to the host and stay there. */
export async function hostValue(value) {
    const data = "getData" in value ? (await value.getData(true)) : value.data;
    return { type: value.type, dims: value.dims, data };
}
