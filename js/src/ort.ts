/**
 * What is used of onnxruntime. The library itself is handed in, so that the same code runs on
 * onnxruntime-node, onnxruntime-web (WASM) and onnxruntime-web (WebGPU).
 */
import { InputError } from "./errors.js";

export type Data =
  | Float32Array | Float64Array | BigInt64Array | BigUint64Array | Int32Array | Uint32Array
  | Int16Array | Uint16Array | Int8Array | Uint8Array;

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

/** An input or output; a dimension that is not fixed has a name. */
export interface ValueInfo {
  readonly name: string;
  readonly type: string;
  readonly shape: readonly (number | string)[];
}

export interface Session {
  readonly inputMetadata: readonly ValueInfo[];
  readonly outputMetadata: readonly ValueInfo[];
  run(feeds: Tensors): Promise<Tensors>;
  release(): Promise<void>;
}

/** The library: `import * as ort from "onnxruntime-web"`, or `onnxruntime-node`; 1.21 or newer. */
export interface Ort {
  readonly Tensor: new (type: never, data: never, dims?: readonly number[]) => unknown;
  readonly InferenceSession: { create(model: Uint8Array, options?: object): Promise<unknown> };
}

/** An element type under its names: onnxruntime's, the checkpoint's, ONNX's; and its array. */
export interface ElementType {
  readonly name: string;
  readonly code: string;
  readonly onnx: number;
  readonly array: { new (buffer: ArrayBuffer): Data; readonly BYTES_PER_ELEMENT: number };
}

const table: [name: string, code: string, onnx: number, array: ElementType["array"]][] = [
  ["float32", "F32", 1, Float32Array], ["float64", "F64", 11, Float64Array],
  ["float16", "F16", 10, Uint16Array], ["bfloat16", "BF16", 16, Uint16Array],
  ["int64", "I64", 7, BigInt64Array], ["uint64", "U64", 13, BigUint64Array],
  ["int32", "I32", 6, Int32Array], ["uint32", "U32", 12, Uint32Array],
  ["int16", "I16", 5, Int16Array], ["uint16", "U16", 4, Uint16Array],
  ["int8", "I8", 3, Int8Array], ["uint8", "U8", 2, Uint8Array], ["bool", "BOOL", 9, Uint8Array],
];
export const TYPES: readonly ElementType[] =
  table.map(([name, code, onnx, array]) => ({ name, code, onnx, array }));

export function typeNamed(name: string): ElementType {
  const found = TYPES.find((type) => type.name === name);
  if (found === undefined) throw new InputError(`Tensors of type "${name}" cannot be used here.`);
  return found;
}

export const sizeOf = (dims: readonly number[]): number => dims.reduce((a, b) => a * b, 1);

export const bytesOf = (data: Data): Uint8Array =>
  new Uint8Array(data.buffer, data.byteOffset, data.byteLength);

/** The numbers of a value; those of a device are brought to the host and stay there. */
export async function hostValue(value: Value | Tensor): Promise<Value> {
  const data = "getData" in value ? ((await value.getData(true)) as Data) : value.data;
  return { type: value.type, dims: value.dims, data };
}
