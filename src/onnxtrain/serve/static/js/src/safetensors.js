/**
 * The container of a checkpoint: a safetensors file. Eight bytes with the length of the header
 * (little endian), the header in JSON, the data; tensors follow each other without gaps.
 */
import { CheckpointError } from "./errors.js";
import { sizeOf, TYPES, typeNamed } from "./ort.js";
/** Read and check a file: the tensors must fill it exactly, in a row. */
export function decode(file, where) {
    const damaged = (what) => {
        throw new CheckpointError(`${where} is damaged, truncated or no checkpoint: ${what}.`);
    };
    if (file.length < 8)
        damaged(`it has only ${file.length} bytes`);
    const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
    const length = Number(view.getBigUint64(0, true));
    if (length > file.length - 8)
        damaged(`its header would have ${length} bytes`);
    const header = parseObject(new TextDecoder().decode(file.subarray(8, 8 + length)));
    const { __metadata__: metadata = {}, ...tensors } = header ?? damaged("its header is not JSON");
    const data = file.subarray(8 + length);
    const entries = Object.entries(tensors).map(([name, { dtype, shape, data_offsets: offsets }]) => {
        const type = TYPES.find((t) => t.code === dtype);
        if (type === undefined || !naturals(shape) || !naturals(offsets)) {
            return damaged(`the description of "${name}" is not usable`);
        }
        const [begin = 0, end = 0] = offsets;
        if (end - begin !== sizeOf(shape) * type.array.BYTES_PER_ELEMENT) {
            damaged(`"${name}" has ${end - begin} bytes for ${type.code}[${shape}]`);
        }
        return { name, type, shape, begin, end };
    });
    let at = 0;
    const values = new Map();
    entries.sort((a, b) => a.begin - b.begin || a.end - b.end);
    for (const { name, type, shape, begin, end } of entries) {
        if (begin !== at || end > data.length)
            damaged(`"${name}" is not where it should be`);
        const numbers = new type.array(Uint8Array.from(data.subarray(begin, end)).buffer);
        values.set(name, { type: type.name, dims: shape, data: numbers });
        at = end;
    }
    if (at !== data.length)
        damaged(`it has ${data.length} bytes of data, its header says ${at}`);
    return { metadata: metadata, values };
}
/** Write tensors (wide types first, so that all stay aligned) and metadata. */
export function encode(values, metadata) {
    const width = ({ data }) => data.BYTES_PER_ELEMENT;
    const order = [...values].sort(([, a], [, b]) => width(b) - width(a));
    const header = { __metadata__: metadata };
    let at = 0;
    for (const [name, { type, dims, data }] of order) {
        const offsets = [at, (at += data.byteLength)];
        header[name] = { dtype: typeNamed(type)?.code, shape: dims, data_offsets: offsets };
    }
    const text = new TextEncoder().encode(JSON.stringify(header));
    const padding = -text.length & 7;
    const start = 8 + text.length + padding;
    const file = new Uint8Array(start + at).fill(0x20, 0, start);
    new DataView(file.buffer).setBigUint64(0, BigInt(start - 8), true);
    file.set(text, 8);
    at = start;
    for (const [, { data }] of order) {
        file.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), at);
        at += data.byteLength;
    }
    return file;
}
function parseObject(text) {
    try {
        const value = JSON.parse(text);
        return typeof value === "object" && value !== null && !Array.isArray(value)
            ? value : undefined;
    }
    catch {
        return undefined;
    }
}
function naturals(value) {
    return Array.isArray(value) && value.every((v) => Number.isSafeInteger(v) && v >= 0);
}
