/**
 * The container of a checkpoint: a safetensors file. Eight bytes with the length of the header
 * (little endian), the header in JSON, the data; tensors follow each other without gaps.
 */
import { check, CheckpointError } from "./errors.js";
import { arrayOf, joined, sizeOf } from "./ort.js";
/** Read a file; what its header says of the tensors must fill it exactly. */
export function decode(file) {
    try {
        const start = 8 + Number(new DataView(file.buffer, file.byteOffset, 8).getBigUint64(0, true));
        const header = JSON.parse(new TextDecoder().decode(file.subarray(8, start)));
        const { __metadata__: metadata = {}, ...entries } = header;
        const values = new Map();
        let end = start;
        for (const [name, { dtype, shape, data_offsets: at }] of Object.entries(entries)) {
            const type = typeOf(dtype);
            const array = arrayOf(type);
            const bytes = new Uint8Array(file.subarray(start + at[0], start + at[1]));
            const size = sizeOf(shape) * array.BYTES_PER_ELEMENT;
            check(at[1] - at[0] === size && bytes.length === size, `"${name}" has another size.`);
            values.set(name, { type, dims: shape, data: new array(bytes.buffer) });
            end += size;
        }
        check(end === file.length, `It has ${file.length} bytes, its header says ${end}.`);
        return { metadata, values };
    }
    catch (error) {
        const why = error.message;
        throw new CheckpointError(`The checkpoint is damaged, truncated or none at all: ${why}`);
    }
}
/** Write tensors (wide types first, so that all stay aligned) and metadata. */
export function encode({ values, metadata }) {
    const width = ({ data }) => data.BYTES_PER_ELEMENT;
    const order = [...values].sort(([, a], [, b]) => width(b) - width(a));
    const header = { __metadata__: metadata };
    let at = 0;
    for (const [name, { type, dims, data }] of order) {
        const offsets = [at, (at += data.byteLength)];
        header[name] = { dtype: codeOf(type), shape: dims, data_offsets: offsets };
    }
    const text = new TextEncoder().encode(JSON.stringify(header));
    const padding = new Uint8Array(-text.length & 7).fill(0x20);
    const length = BigUint64Array.of(BigInt(text.length + padding.length));
    return joined([length, text, padding, ...order.map(([, { data }]) => data)]);
}
/** float32 is F32, bfloat16 BF16, int64 I64, uint8 U8, bool BOOL. */
const codeOf = (type) => type.replace("float", "f").replace("uint", "u").replace("int", "i").toUpperCase();
const typeOf = (code) => code
    .toLowerCase()
    .replace(/f(?=\d)/, "float")
    .replace(/^i/, "int")
    .replace(/^u/, "uint");
