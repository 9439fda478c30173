const ALIGNMENT = 64;
export const sizeOf = (shape) => shape.reduce((a, b) => a * b, 1);
export const sameSpec = (a, b) => a.type === b.type && a.shape.join() === b.shape.join();
/** One vector that holds tensors of one element type. */
export class FlatBuffer {
    type;
    data;
    slots;
    constructor(type, specs) {
        this.type = type;
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
    specs;
    buffers;
    slots = new Map();
    onDevice = new Map();
    newer = new Set();
    constructor(specs) {
        const list = [...specs];
        this.specs = new Map(list.map((s) => [s.name, s]));
        const kinds = [...new Set(list.map((s) => s.type))];
        this.buffers = new Map(kinds.map((k) => [k.code, new FlatBuffer(k, list.filter((s) => s.type === k))]));
        for (const buffer of this.buffers.values()) {
            for (const slot of buffer.slots)
                this.slots.set(slot.name, slot);
        }
    }
    get names() {
        return [...this.specs.keys()];
    }
    has(name) {
        return this.specs.has(name);
    }
    /** A new store of zeros with the same layout, on the host. */
    like() {
        return new TensorStore(this.specs.values());
    }
    spec(name) {
        const slot = this.slots.get(name);
        if (slot === undefined)
            throw new RangeError(`no tensor "${name}"`);
        return slot;
    }
    /** The named tensor, flat, without a copy. */
    view(name) {
        const { type, start, size } = this.spec(name);
        const { data } = this.buffers.get(type.code);
        return data.subarray(start, start + size);
    }
    bytes(name) {
        const view = this.view(name);
        return new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
    }
    /** The float32 buffer as one vector, padding included. */
    flat() {
        return (this.buffers.get("F32")?.data ?? new Float32Array(0));
    }
    // --- a device ---------------------------------------------------------------------------------
    device(name) {
        return this.onDevice.get(name);
    }
    /** Let `tensor` be the current value; `newer` says that the host does not have it. */
    place(name, tensor, newer = true) {
        this.onDevice.get(name)?.dispose();
        this.onDevice.set(name, tensor);
        if (newer)
            this.newer.add(name);
    }
    /** Bring values that changed on the device back to the host; reading takes them off the device. */
    async pull() {
        for (const name of this.newer) {
            const tensor = this.onDevice.get(name);
            copy(this.view(name), (await tensor.getData(true)));
            this.onDevice.delete(name);
        }
        this.newer.clear();
    }
    /** Note that the host's values changed: those on the device are stale and are dropped. */
    push() {
        for (const tensor of this.onDevice.values())
            tensor.dispose();
        this.onDevice.clear();
        this.newer.clear();
    }
}
/** Copy between arrays of one kind. */
export function copy(target, source) {
    target.set(source);
}
