/** What is used of onnxruntime, which is handed in: onnxruntime-node or -web (WASM, WebGPU). */
import type { Tensor } from "onnxruntime-common";
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

export type Data = (typeof ARRAYS)[keyof typeof ARRAYS]["prototype"];
type ArrayOf = { new (buffer: ArrayBuffer): Data; readonly BYTES_PER_ELEMENT: number };

export function arrayOf(type: string): ArrayOf {
  const found = Object.hasOwn(ARRAYS, type) && (ARRAYS as Record<string, ArrayOf>)[type];
  check(found, `Tensors of type "${type}" cannot be used here.`);
  return found;
}

/** Whole numbers of 8 to 32 bits as those of 64 bits, where a model takes these. */
export function widened(type: string, data: Data): Data {
  const isNarrow = /^(Ui|I)nt(8|16|32)Array$/.test(data.constructor.name);
  if (!isNarrow || (type !== "int64" && type !== "uint64")) return data;
  const Wide = type === "int64" ? BigInt64Array : BigUint64Array;
  return new Wide(Array.from(data as ArrayLike<number>, BigInt)) as Data;
}

/** Numbers in the host's memory; those of a `Tensor` may be in the device's (`location`). */
export type Value = { type: string; dims: readonly number[]; data: Data };
export type Tensors = Readonly<Record<string, Tensor>>;
export type { Tensor };

/** The library: `import * as ort from "onnxruntime-web"`, or `onnxruntime-node`. */
export interface Ort {
  readonly Tensor: new (type: never, data: never, dims?: readonly number[]) => unknown;
  readonly InferenceSession: { create(model: Uint8Array, options?: object): Promise<unknown> };
}

export const sizeOf = (dims: readonly number[]): number => dims.reduce((a, b) => a * b, 1);

/** The bytes of several arrays, one after the other. */
export const joined = async (parts: readonly Data[]): Promise<Uint8Array> =>
  new Uint8Array(await new Blob(parts as readonly unknown[] as BlobPart[]).arrayBuffer());

/** The numbers of a value; those of a device are brought to the host and stay there. */
export async function hostValue(value: Value | Tensor): Promise<Value> {
  const data = "getData" in value ? ((await value.getData(true)) as Data) : value.data;
  return { type: value.type, dims: value.dims, data };
}
