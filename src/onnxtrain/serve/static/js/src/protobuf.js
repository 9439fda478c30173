/**
 * Protobuf messages: read, change, write back. A field keeps its bytes until someone opens it, so
 * what is not understood or not changed is written back byte for byte.
 */
import { ModelFileError } from "./errors.js";
const [VARINT, FIXED64, BYTES, FIXED32] = [0, 1, 2, 5];
export class Message {
    fields;
    constructor(fields) {
        this.fields = fields;
    }
    /** A new message with these contents, by field number. */
    static of(contents) {
        const made = new Message([]);
        for (const [number, content] of Object.entries(contents)) {
            made.set(Number(number), Array.isArray(content) ? content : [content]);
        }
        return made;
    }
    /** Read a message; a truncated or impossible field is a `ModelFileError`. */
    static parse(data) {
        const fields = [];
        for (let at = 0; at < data.length;) {
            const [key, start] = readVarint(data, at);
            const wire = key % 8;
            const [size, begin] = wire === BYTES ? readVarint(data, start)
                : [wire === FIXED32 ? 4 : wire === FIXED64 ? 8 : readVarint(data, start)[1] - start, start];
            at = begin + size;
            if (key < 8 || at > data.length || ![VARINT, FIXED64, BYTES, FIXED32].includes(wire)) {
                throw new ModelFileError(`protobuf data are damaged or truncated at byte ${start}`);
            }
            fields.push({ number: Math.floor(key / 8), wire, value: data.subarray(begin, at) });
        }
        return new Message(fields);
    }
    /** Every submessage with this number, opened in place: changes to it are kept. */
    messages(number) {
        return this.fields.filter((f) => f.number === number).map((field) => {
            if (!(field.value instanceof Message))
                field.value = Message.parse(field.value);
            return field.value;
        });
    }
    strings(number) {
        const found = this.fields.filter((f) => f.number === number);
        return found.map(({ value }) => new TextDecoder().decode(value));
    }
    string(number) {
        return this.strings(number).at(-1) ?? "";
    }
    /** The last field with this number, as it is in the file. */
    bytes(number) {
        const found = this.fields.filter((f) => f.number === number).at(-1);
        return found?.value ?? new Uint8Array(1);
    }
    integer(number) {
        return readVarint(this.bytes(number), 0)[0];
    }
    /** Put `contents` where the fields with this number were, or at the end. */
    set(number, contents) {
        const first = this.fields.findIndex((f) => f.number === number);
        const at = first < 0 ? this.fields.length : first;
        const after = this.fields.slice(at).filter((f) => f.number !== number);
        this.fields = [...this.fields.slice(0, at), ...contents.map((c) => field(number, c)), ...after];
        return this;
    }
    encode() {
        const chunks = this.chunks();
        const out = new Uint8Array(total(chunks));
        let at = 0;
        for (const chunk of chunks) {
            out.set(chunk, at);
            at += chunk.length;
        }
        return out;
    }
    chunks() {
        return this.fields.flatMap(({ number, wire, value }) => {
            const key = varint(number * 8 + wire);
            const content = value instanceof Message ? value.chunks() : [value];
            return wire === BYTES ? [key, varint(total(content)), ...content] : [key, ...content];
        });
    }
}
const total = (chunks) => chunks.reduce((n, c) => n + c.length, 0);
function field(number, content) {
    if (typeof content === "number")
        return { number, wire: VARINT, value: varint(content) };
    if (content instanceof Float32Array) {
        return { number, wire: FIXED32, value: new Uint8Array(content.buffer) };
    }
    const value = typeof content === "string" ? new TextEncoder().encode(content) : content;
    return { number, wire: BYTES, value };
}
function varint(value) {
    const bytes = [];
    for (; value > 0x7f; value = Math.floor(value / 128))
        bytes.push((value % 128) | 0x80);
    return Uint8Array.of(...bytes, value);
}
/** A number and the place after it; exact to 2**53, which keys and sizes do not reach. */
function readVarint(data, start) {
    let value = 0;
    for (let at = start; at < Math.min(start + 10, data.length); at++) {
        const byte = data[at];
        value += (byte & 0x7f) * 2 ** (7 * (at - start));
        if (byte < 0x80)
            return [value, at + 1];
    }
    throw new ModelFileError(`protobuf data are damaged or truncated at byte ${start}`);
}
