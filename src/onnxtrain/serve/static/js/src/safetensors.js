/**
 * The container of a checkpoint: a safetensors file. Eight bytes with the length of the header
 * (little endian), the header in JSON, the data; tensors follow each other without gaps.
 */
import { CheckpointError } from "./errors.js";
import { BY_CODE } from "./ort.js";
import { sizeOf } from "./store.js";
const MAX_HEADER = 100_000_000;
/** Read and check a file; every offset is checked against its size. */
export function decode(file, where) {
    const fail = (text) => {
        throw new CheckpointError(`${where} ${text}`);
    };
    if (file.length < 8)
        fail(`is not a checkpoint: it has only ${file.length} bytes.`);
    const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
    const length = Number(view.getBigUint64(0, true));
    if (length > MAX_HEADER || length < 2) {
        fail(`is not a checkpoint: its header would have ${length} bytes.`);
    }
    if (length > file.length - 8)
        fail(`is truncated: the header has ${length} bytes.`);
    const header = parse(file.subarray(8, 8 + length), where);
    const data = file.subarray(8 + length);
    const { __metadata__: metadata = {}, ...tensors } = header;
    if (!isObject(metadata) || !Object.values(metadata).every((v) => typeof v === "string")) {
        fail("is damaged: the metadata are not strings.");
    }
    const found = Object.entries(tensors).map(([name, value]) => entry(name, value, where));
    let at = 0;
    for (const { spec, begin, end } of [...found].sort((a, b) => a.begin - b.begin || a.end - b.end)) {
        if (begin !== at)
            fail(`is damaged: tensors overlap or leave a gap at "${spec.name}".`);
        at = end;
    }
    if (at !== data.length) {
        fail(`is ${at > data.length ? "truncated" : "damaged"}: the header describes ${at} bytes of ` +
            `data, there are ${data.length}.`);
    }
    return {
        metadata: new Map(Object.entries(metadata)),
        entries: new Map(found.map(({ spec, begin, end }) => [spec.name, { spec, bytes: data.subarray(begin, end) }])),
    };
}
/** Write tensors (wide types first, so that all stay aligned) and metadata. */
export function encode(entries, metadata) {
    const order = [...entries].sort(([, a], [, b]) => b.spec.type.bytes - a.spec.type.bytes);
    let at = 0;
    const described = order.map(([name, { spec, bytes }]) => {
        const begin = at;
        at += bytes.length;
        const value = { dtype: spec.type.code, shape: spec.shape, data_offsets: [begin, at] };
        return [name, value];
    });
    const header = { __metadata__: Object.fromEntries(metadata), ...Object.fromEntries(described) };
    let text = new TextEncoder().encode(JSON.stringify(header));
    const padded = Math.ceil(text.length / 8) * 8;
    text = Uint8Array.from({ length: padded }, (_, i) => text[i] ?? 0x20);
    const file = new Uint8Array(8 + padded + at);
    new DataView(file.buffer).setBigUint64(0, BigInt(padded), true);
    file.set(text, 8);
    let position = 8 + padded;
    for (const [, { bytes }] of order) {
        file.set(bytes, position);
        position += bytes.length;
    }
    return file;
}
function parse(text, where) {
    let header;
    try {
        header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(text));
    }
    catch {
        header = undefined;
    }
    if (!isObject(header)) {
        throw new CheckpointError(`${where} is not a checkpoint: its header is not a JSON object.`);
    }
    return header;
}
function entry(name, value, where) {
    const { dtype, shape, data_offsets: offsets } = isObject(value) ? value : {};
    const type = BY_CODE.get(String(dtype));
    if (type === undefined || !naturals(shape) || !naturals(offsets) || offsets.length !== 2) {
        throw new CheckpointError(`${where} is damaged: the description of "${name}" is not usable.`);
    }
    const [begin, end] = offsets;
    if (end - begin !== sizeOf(shape) * type.bytes) {
        throw new CheckpointError(`${where} is damaged: "${name}" has ${end - begin} bytes for ${type.code}[${shape.join()}].`);
    }
    return { spec: { name, type, shape }, begin, end };
}
function naturals(value) {
    return Array.isArray(value) && value.every((v) => Number.isSafeInteger(v) && v >= 0);
}
export function isObject(value) {
    return typeof value === "object" && value !== null && !Array.isArray(value);
}
