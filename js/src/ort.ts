/** What is used of onnxruntime, which is handed in: onnxruntime-node or -web (WASM, WebGPU). */
import { check } from "./errors.js";

/** Element types by onnxruntime's names, and the arrays that hold them. */
// prettier-ignore
const ARRAYS: Readonly<Record<string, ArrayOf>> = {
  float32: Float32Array, float64: Float64Array, float16: Uint16Array, bfloat16: Uint16Array,
  int64: BigInt64Array, int32: Int32Array, int16: Int16Array, int8: Int8Array,
  uint64: BigUint64Array, uint32: Uint32Array, uint16: Uint16Array, uint8: Uint8Array,
  bool: Uint8Array,
};

// prettier-ignore
export type Data =
  | Float32Array | Float64Array | BigInt64Array | BigUint64Array | Int32Array | Uint32Array
  | Int16Array | Uint16Array | Int8Array | Uint8Array;
type ArrayOf = { new (buffer: ArrayBuffer): Data; readonly BYTES_PER_ELEMENT: number };

/** Numbers in the host's memory. A tensor of onnxruntime is one too, while it is there. */
export interface Value {
  readonly type: string;
  readonly dims: readonly number[];
  readonly data: Data;
}

/** A tensor of onnxruntime, in the host's memory or (`location`) in the device's. */
export interface Tensor extends Value {
  readonly location: string;
  getData(releaseData?: boolean): Promise<unknown>;
  dispose(): void;
}

export type Tensors = Readonly<Record<string, Tensor>>;

export interface Session {
  run(feeds: Tensors): Promise<Tensors>;
  release(): Promise<void>;
}

/** The library: `import * as ort from "onnxruntime-web"`, or `onnxruntime-node`. */
export interface Ort {
  readonly Tensor: new (type: never, data: never, dims?: readonly number[]) => unknown;
  readonly InferenceSession: { create(model: Uint8Array, options?: object): Promise<unknown> };
}

export function arrayOf(type: string): ArrayOf {
  const found = ARRAYS[type];
  check(found, `Tensors of type "${type}" cannot be used here.`);
  return found;
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
