/**
 * Flat buffers: all tensors of one element type in one contiguous vector. A named tensor is a view.
 * The space between two tensors (each starts on a multiple of 64 bytes) is zero and stays zero.
 */
import type { Data, ElementType, Tensor } from "./ort.js";

const ALIGNMENT = 64;

export interface TensorSpec {
  readonly name: string;
  readonly type: ElementType;
  readonly shape: readonly number[];
}

export interface Slot extends TensorSpec {
  readonly start: number;
  readonly size: number;
}

export const sizeOf = (shape: readonly number[]): number => shape.reduce((a, b) => a * b, 1);

export const sameSpec = (a: TensorSpec, b: TensorSpec): boolean =>
  a.type === b.type && a.shape.join() === b.shape.join();

/** One vector that holds tensors of one element type. */
export class FlatBuffer {
  readonly data: Data;
  readonly slots: readonly Slot[];

  constructor(
    readonly type: ElementType,
    specs: readonly TensorSpec[],
  ) {
    const line = ALIGNMENT / type.bytes;
    let end = 0;
    this.slots = specs.map((spec) => {
      const size = sizeOf(spec.shape);
      const slot = { ...spec, start: end, size };
      end += Math.ceil(size / line) * line;
      return slot;
    });
    this.data = new type.array(new ArrayBuffer(end * type.bytes), 0, end);
  }
}

/** Named tensors in one flat buffer per element type, in a given order; perhaps on a device. */
export class TensorStore {
  readonly specs: ReadonlyMap<string, TensorSpec>;
  readonly buffers: ReadonlyMap<string, FlatBuffer>;
  private readonly slots = new Map<string, Slot>();
  private readonly onDevice = new Map<string, Tensor>();
  private readonly newer = new Set<string>();

  constructor(specs: Iterable<TensorSpec>) {
    const list = [...specs];
    this.specs = new Map(list.map((s) => [s.name, s]));
    const kinds = [...new Set(list.map((s) => s.type))];
    this.buffers = new Map(
      kinds.map((k) => [k.code, new FlatBuffer(k, list.filter((s) => s.type === k))]),
    );
    for (const buffer of this.buffers.values()) {
      for (const slot of buffer.slots) this.slots.set(slot.name, slot);
    }
  }

  get names(): string[] {
    return [...this.specs.keys()];
  }

  has(name: string): boolean {
    return this.specs.has(name);
  }

  /** A new store of zeros with the same layout, on the host. */
  like(): TensorStore {
    return new TensorStore(this.specs.values());
  }

  spec(name: string): Slot {
    const slot = this.slots.get(name);
    if (slot === undefined) throw new RangeError(`no tensor "${name}"`);
    return slot;
  }

  /** The named tensor, flat, without a copy. */
  view(name: string): Data {
    const { type, start, size } = this.spec(name);
    const { data } = this.buffers.get(type.code) as FlatBuffer;
    return data.subarray(start, start + size);
  }

  bytes(name: string): Uint8Array {
    const view = this.view(name);
    return new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
  }

  /** The float32 buffer as one vector, padding included. */
  flat(): Float32Array {
    return (this.buffers.get("F32")?.data ?? new Float32Array(0)) as Float32Array;
  }

  // --- a device ---------------------------------------------------------------------------------

  device(name: string): Tensor | undefined {
    return this.onDevice.get(name);
  }

  /** Let `tensor` be the current value; `newer` says that the host does not have it. */
  place(name: string, tensor: Tensor, newer = true): void {
    this.onDevice.get(name)?.dispose();
    this.onDevice.set(name, tensor);
    if (newer) this.newer.add(name);
  }

  /** Bring values that changed on the device back to the host; reading takes them off the device. */
  async pull(): Promise<void> {
    for (const name of this.newer) {
      const tensor = this.onDevice.get(name) as Tensor;
      copy(this.view(name), (await tensor.getData(true)) as Data);
      this.onDevice.delete(name);
    }
    this.newer.clear();
  }

  /** Note that the host's values changed: those on the device are stale and are dropped. */
  push(): void {
    for (const tensor of this.onDevice.values()) tensor.dispose();
    this.onDevice.clear();
    this.newer.clear();
  }
}

/** Copy between arrays of one kind. */
export function copy(target: Data, source: Data): void {
  (target as Float32Array).set(source as Float32Array);
}
