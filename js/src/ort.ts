/**
 * What is used of onnxruntime: the library itself is handed in, so that the same code runs on
 * onnxruntime-node, onnxruntime-web (WASM) and onnxruntime-web (WebGPU).
 */
import { InputError } from "./errors.js";

export type Data =
  | Float32Array | Float64Array | BigInt64Array | BigUint64Array | Int32Array | Uint32Array
  | Int16Array | Uint16Array | Int8Array | Uint8Array;

/** A tensor of onnxruntime. */
export interface Tensor {
  readonly type: string;
  readonly dims: readonly number[];
  readonly location: string;
  readonly data: unknown;
  getData(releaseData?: boolean): Promise<unknown>;
  dispose(): void;
}

/** What a session says about an output; type and shape are there for tensors. */
export interface ValueMetadata {
  readonly name: string;
  readonly isTensor: boolean;
  readonly type?: string;
  readonly shape?: readonly (number | string)[];
}

export interface Session {
  readonly inputNames: readonly string[];
  readonly outputNames: readonly string[];
  /** Releases before 1.21 do not have it. */
  readonly outputMetadata?: readonly ValueMetadata[];
  run(
    feeds: Readonly<Record<string, Tensor>>,
    fetches: Readonly<Record<string, Tensor | null>>,
  ): Promise<Readonly<Record<string, Tensor>>>;
  release(): Promise<void>;
}

/** The library: `import * as ort from "onnxruntime-web"`, or `onnxruntime-node`. */
export interface Ort {
  readonly Tensor: new (type: never, data: never, dims?: readonly number[]) => unknown;
  readonly InferenceSession: { create(model: Uint8Array, options?: object): Promise<unknown> };
  readonly env: { readonly versions: { readonly node?: string } };
}

/** An element type under its names: checkpoint code, ONNX number, onnxruntime, array. */
export interface ElementType {
  readonly code: string;
  readonly onnx: number;
  readonly ort: string | null;
  readonly bytes: number;
  readonly array: new (buffer: ArrayBuffer, offset: number, length: number) => Data;
}

const kind = (
  code: string,
  onnx: number,
  ort: string | null,
  bytes: number,
  array: ElementType["array"],
): ElementType => ({ code, onnx, ort, bytes, array });

const TYPES: readonly ElementType[] = [
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
export const BY_CODE: ReadonlyMap<string, ElementType> = new Map(TYPES.map((t) => [t.code, t]));
export const BY_ONNX: ReadonlyMap<number, ElementType> = new Map(TYPES.map((t) => [t.onnx, t]));
export const BY_ORT: ReadonlyMap<string, ElementType> = new Map(
  TYPES.filter((t) => t.ort !== null).map((t) => [t.ort as string, t]),
);
export const F32 = BY_CODE.get("F32") as ElementType;
export const I64 = BY_CODE.get("I64") as ElementType;

type Provider = string | { readonly name: string };
const asObject = (p: Provider): { readonly name: string } => (typeof p === "string" ? { name: p } : p);
const providerName = (p: Provider): string => asObject(p).name;

/** Where sessions run and how their outputs come back. */
export class Backend {
  /** Whether outputs can be written straight into our arrays (the Node binding can). */
  readonly inPlace: boolean;
  /** Whether parameters, gradients and moments stay in the device's own buffers. */
  readonly onDevice: boolean;
  private readonly providers: readonly Provider[];

  constructor(
    private readonly ort: Ort,
    private readonly options: Readonly<Record<string, unknown>> = {},
  ) {
    const given = options["executionProviders"];
    this.providers = Array.isArray(given) ? (given as Provider[]) : [];
    this.onDevice = this.providers.some((p) => providerName(p) === "webgpu");
    this.inPlace = !this.onDevice && ort.env.versions.node !== undefined;
  }

  /**
   * Make a session.
   *
   * @param kept - outputs that stay on the device, if there is one.
   * @param onHost - names of nodes that the device claims and cannot run.
   */
  async session(
    model: Uint8Array,
    kept: readonly string[] = [],
    onHost: readonly string[] = [],
  ): Promise<Session> {
    const options: Record<string, unknown> = { ...this.options };
    if (this.onDevice && kept.length > 0) {
      const locations = kept.map((name) => [name, "gpu-buffer"]);
      options["preferredOutputLocation"] = Object.fromEntries(locations);
    }
    if (this.onDevice && onHost.length > 0) {
      options["executionProviders"] = this.providers.map((p) =>
        providerName(p) === "webgpu" ? { preferredLayout: "NCHW", ...asObject(p), forceCpuNodeNames: onHost } : p,
      );
    }
    return (await this.ort.InferenceSession.create(model, options)) as Session;
  }

  tensor(type: ElementType, data: Data, dims: readonly number[]): Tensor {
    if (type.ort === null) {
      throw new InputError(`onnxruntime's JavaScript interface has no tensors of type ${type.code}.`);
    }
    return new this.ort.Tensor(type.ort as never, data as never, dims) as Tensor;
  }

  /** A tensor from what a user gave: a tensor, or `{ data, dims }`. */
  fromUser(value: Tensor | { data: Data; dims: readonly number[] }, type: ElementType): Tensor {
    if ("getData" in value) return value;
    return this.tensor(type, value.data, value.dims);
  }
}
