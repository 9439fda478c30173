/**
 * What is used of onnxruntime. The library itself is handed in, so that the same code runs on
 * onnxruntime-node, onnxruntime-web (WASM) and onnxruntime-web (WebGPU).
 */
import { InputError } from "./errors.js";
const table = [
    ["float32", "F32", 1, Float32Array], ["float64", "F64", 11, Float64Array],
    ["float16", "F16", 10, Uint16Array], ["bfloat16", "BF16", 16, Uint16Array],
    ["int64", "I64", 7, BigInt64Array], ["uint64", "U64", 13, BigUint64Array],
    ["int32", "I32", 6, Int32Array], ["uint32", "U32", 12, Uint32Array],
    ["int16", "I16", 5, Int16Array], ["uint16", "U16", 4, Uint16Array],
    ["int8", "I8", 3, Int8Array], ["uint8", "U8", 2, Uint8Array], ["bool", "BOOL", 9, Uint8Array],
];
export const TYPES = table.map(([name, code, onnx, array]) => ({ name, code, onnx, array }));
export function typeNamed(name) {
    const found = TYPES.find((type) => type.name === name);
    if (found === undefined)
        throw new InputError(`Tensors of type "${name}" cannot be used here.`);
    return found;
}
export const sizeOf = (dims) => dims.reduce((a, b) => a * b, 1);
export const bytesOf = (data) => new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
/** The numbers of a value; those of a device are brought to the host and stay there. */
export async function hostValue(value) {
    const data = "getData" in value ? (await value.getData(true)) : value.data;
    return { type: value.type, dims: value.dims, data };
}
