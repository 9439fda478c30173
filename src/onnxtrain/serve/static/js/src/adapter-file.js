/** onnxruntime's .onnx_adapter: tensors by name in a FlatBuffer, written and read without a library. */
import { AdapterError, check } from "./errors.js";
import { sizeOf } from "./ort.js";
const IDENTIFIER = "TORT";
const FORMAT_VERSION = 1;
const FLOAT = 1;
/**
 * Both kinds of table have four fields of four bytes. The file: versions of the format, the adapter
 * and the model, and its parameters; a parameter: name, dimensions, type and bytes.
 */
const VTABLE = [12, 20, 4, 8, 12, 16];
const TABLE = 20;
const ALIGNMENT = 8;
const MAX_RANK = 16;
// --- writing --------------------------------------------------------------------------------------
/** Where the parts of a file go, one behind the other: offsets in the format point forwards only. */
class Layout {
    constructor() {
        this.end = 0;
    }
    /** Room for a part; what is `ahead` of its start is aligned. */
    place(size, alignment = 4, ahead = 0) {
        this.end += (alignment - ((this.end + ahead) % alignment)) % alignment;
        const at = this.end;
        this.end += size;
        return at;
    }
}
export function encodeAdapterFile({ adapterVersion, modelVersion, tensors }) {
    const layout = new Layout();
    layout.place(8);
    const vtable = layout.place(2 * VTABLE.length);
    const root = layout.place(TABLE);
    const list = layout.place(4 + 4 * tensors.size);
    const parts = Array.from(tensors, ([key, { type, dims, data }]) => {
        check(type === "float32", `"${key}" is of the type ${type}: float32 is needed.`, AdapterError);
        const name = new TextEncoder().encode(key);
        const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
        return {
            name,
            dims,
            bytes,
            table: layout.place(TABLE),
            nameAt: layout.place(4 + name.length + 1),
            dimsAt: layout.place(4 + 8 * dims.length, ALIGNMENT, 4),
            bytesAt: layout.place(4 + bytes.length, ALIGNMENT, 4),
        };
    });
    const file = new Uint8Array(layout.end);
    const view = new DataView(file.buffer);
    const int = (at, value) => view.setInt32(at, value, true);
    const pointer = (at, to) => view.setUint32(at, to - at, true);
    const table = (at) => int(at, at - vtable);
    const vector = (at, count) => (int(at, count), at + 4);
    pointer(0, root);
    file.set(new TextEncoder().encode(IDENTIFIER), 4);
    VTABLE.forEach((entry, i) => view.setUint16(vtable + 2 * i, entry, true));
    table(root);
    [FORMAT_VERSION, adapterVersion, modelVersion].forEach((v, i) => int(root + 4 + 4 * i, v));
    pointer(root + 16, list);
    const first = vector(list, parts.length);
    parts.forEach((part, i) => {
        pointer(first + 4 * i, part.table);
        table(part.table);
        pointer(part.table + 4, part.nameAt);
        pointer(part.table + 8, part.dimsAt);
        int(part.table + 12, FLOAT);
        pointer(part.table + 16, part.bytesAt);
        file.set(part.name, vector(part.nameAt, part.name.length));
        const sizes = vector(part.dimsAt, part.dims.length);
        part.dims.forEach((dim, k) => view.setBigInt64(sizes + 8 * k, BigInt(dim), true));
        file.set(part.bytes, vector(part.bytesAt, part.bytes.length));
    });
    return file;
}
// --- reading --------------------------------------------------------------------------------------
/** A damaged or foreign file is an `AdapterError`. */
export function decodeAdapterFile(file) {
    const isAdapter = new TextDecoder().decode(file.subarray(4, 8)) === IDENTIFIER;
    check(isAdapter, "The file is no .onnx_adapter of onnxruntime.", AdapterError);
    try {
        return new Reader(file).read();
    }
    catch (error) {
        if (error instanceof AdapterError)
            throw error;
        throw new AdapterError(`The .onnx_adapter is damaged: ${error.message}.`);
    }
}
/** Follows the offsets; what lies outside the file is a RangeError of the view. */
class Reader {
    constructor(file) {
        this.file = file;
        /** Bytes read so far: parts that share their bytes must not make a small file large. */
        this.total = 0;
        this.view = new DataView(file.buffer, file.byteOffset, file.byteLength);
    }
    read() {
        const root = this.pointer(0);
        const version = this.int(root, 0);
        const text = `The .onnx_adapter has format version ${version}; ${FORMAT_VERSION} is known.`;
        check(version === FORMAT_VERSION, text, AdapterError);
        const list = this.field(root, 3);
        const tensors = new Map();
        if (list !== undefined) {
            const { at, count } = this.vector(this.pointer(list), 4);
            for (let i = 0; i < count; i++) {
                const [name, value] = this.parameter(this.pointer(at + 4 * i));
                check(!tensors.has(name), `"${name}" is in the .onnx_adapter twice.`, AdapterError);
                tensors.set(name, value);
            }
        }
        return { adapterVersion: this.int(root, 1), modelVersion: this.int(root, 2), tensors };
    }
    parameter(table) {
        const [name, dims, bytes] = [0, 1, 3].map((field) => this.field(table, field));
        const isWhole = name !== undefined && dims !== undefined && bytes !== undefined;
        check(isWhole, "A parameter of the .onnx_adapter has no name, shape or data.", AdapterError);
        const key = new TextDecoder().decode(this.bytes(this.pointer(name)));
        const type = this.int(table, 2);
        check(type === FLOAT, `"${key}" is not of float32, and nothing else trains here.`, AdapterError);
        const sizes = this.vector(this.pointer(dims), 8);
        const shape = Array.from({ length: sizes.count }, (_, i) => Number(this.view.getBigInt64(sizes.at + 8 * i, true)));
        const content = this.bytes(this.pointer(bytes)).slice();
        const isShape = shape.length <= MAX_RANK && shape.every((dim) => dim >= 0);
        const fits = isShape && content.length === 4 * sizeOf(shape);
        check(fits, `"${key}" has ${content.length} bytes and the shape [${shape}].`, AdapterError);
        return [key, { type: "float32", dims: shape, data: new Float32Array(content.buffer) }];
    }
    pointer(at) {
        return at + this.view.getUint32(at, true);
    }
    /** Where a table has a field; undefined if it leaves it out. */
    field(table, index) {
        const vtable = table - this.view.getInt32(table, true);
        const size = this.view.getUint16(vtable, true);
        const entry = 4 + 2 * index;
        const offset = entry + 2 <= size ? this.view.getUint16(vtable + entry, true) : 0;
        return offset ? table + offset : undefined;
    }
    int(table, index) {
        const at = this.field(table, index);
        return at === undefined ? 0 : this.view.getInt32(at, true);
    }
    vector(at, width) {
        const count = this.view.getUint32(at, true);
        this.total += count * width;
        const fits = at + 4 + count * width <= this.file.length && this.total <= this.file.length;
        check(fits, "The .onnx_adapter is damaged: a part is larger than the file.", AdapterError);
        return { at: at + 4, count };
    }
    bytes(at) {
        const { at: start, count } = this.vector(at, 1);
        return this.file.subarray(start, start + count);
    }
}
