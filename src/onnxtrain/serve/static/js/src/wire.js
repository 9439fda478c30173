/**
 * The protobuf wire format: just enough to read a message, change it and write it back.
 *
 * A message is kept as the list of its fields, in file order. Bytes stay views into the file, and
 * what is not understood is kept, so a model is written back as it was but for the changes.
 */
import { ModelFileError } from "./errors.js";
const VARINT = 0;
const FIXED64 = 1;
const BYTES = 2;
const FIXED32 = 5;
const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true });
/** One protobuf message. */
export class Message {
    fields;
    constructor(fields = []) {
        this.fields = fields;
    }
    /** Read a message; a truncated or impossible field is a `ModelFileError`. */
    static parse(data) {
        const reader = new Reader(data);
        const fields = [];
        while (!reader.done) {
            const key = Number(reader.varint());
            const number = Math.floor(key / 8);
            const wire = key % 8;
            if (number === 0)
                throw new ModelFileError("damaged protobuf data: a field with the number 0");
            fields.push({ number, wire, value: reader.value(wire) });
        }
        return new Message(fields);
    }
    /** Every submessage with this number, opened in place: changes to it are kept. */
    messages(number) {
        const found = [];
        for (const field of this.fields) {
            if (field.number !== number)
                continue;
            if (field.value instanceof Uint8Array && field.wire === BYTES) {
                field.value = Message.parse(field.value);
            }
            if (!(field.value instanceof Message)) {
                throw new ModelFileError(`damaged protobuf data: field ${number} is not a message`);
            }
            found.push(field.value);
        }
        return found;
    }
    /** The last submessage with this number (the protobuf rule). */
    message(number) {
        return this.messages(number).at(-1);
    }
    strings(number) {
        return this.fields.filter((f) => f.number === number).map((f) => text(f.value));
    }
    string(number) {
        return this.strings(number).at(-1) ?? "";
    }
    /** The last field with this number, as bytes that have not been opened. */
    bytes(number) {
        const value = this.fields.filter((f) => f.number === number).at(-1)?.value;
        return value instanceof Uint8Array ? value : undefined;
    }
    /** The last integer with this number, signed; beyond 2**53 it is rounded (no such is used). */
    integer(number, otherwise = 0) {
        const field = this.fields.filter((f) => f.number === number).at(-1);
        if (field === undefined)
            return otherwise;
        const { value } = field;
        if (typeof value === "number")
            return value;
        if (typeof value === "bigint")
            return Number(BigInt.asIntN(64, value));
        throw new ModelFileError(`damaged protobuf data: field ${number} is no integer`);
    }
    has(number) {
        return this.fields.some((f) => f.number === number);
    }
    drop(number) {
        this.fields = this.fields.filter((f) => f.number !== number);
        return this;
    }
    /** Append a field: an integer, a string, raw bytes or a submessage. */
    add(number, value) {
        this.fields.push(made(number, value));
        return this;
    }
    /** Append a four-byte float. */
    addFloat(number, value) {
        const bytes = new Uint8Array(4);
        new DataView(bytes.buffer).setFloat32(0, value, true);
        this.fields.push({ number, wire: FIXED32, value: bytes });
        return this;
    }
    /** Put `values` where the fields with this number were (at the end if there were none). */
    replace(number, values) {
        const first = this.fields.findIndex((f) => f.number === number);
        const at = first < 0 ? this.fields.length : first;
        const after = this.fields.slice(at).filter((f) => f.number !== number);
        this.fields = [...this.fields.slice(0, at), ...values.map((v) => made(number, v)), ...after];
    }
    encode() {
        const chunks = [];
        const size = this.collect(chunks);
        const out = new Uint8Array(size);
        let at = 0;
        for (const chunk of chunks) {
            out.set(chunk, at);
            at += chunk.length;
        }
        return out;
    }
    collect(chunks) {
        let size = 0;
        const push = (chunk) => {
            chunks.push(chunk);
            size += chunk.length;
        };
        for (const { number, wire, value } of this.fields) {
            push(varint(number * 8 + wire));
            if (value instanceof Message) {
                const inner = [];
                const length = value.collect(inner);
                push(varint(length));
                for (const chunk of inner)
                    push(chunk);
            }
            else if (value instanceof Uint8Array) {
                if (wire === BYTES)
                    push(varint(value.length));
                push(value);
            }
            else {
                push(varint(value));
            }
        }
        return size;
    }
}
class Reader {
    data;
    at = 0;
    constructor(data) {
        this.data = data;
    }
    get done() {
        return this.at >= this.data.length;
    }
    value(wire) {
        if (wire === VARINT)
            return this.varint();
        if (wire === BYTES)
            return this.take(Number(this.varint()));
        if (wire === FIXED32)
            return this.take(4);
        if (wire === FIXED64)
            return this.take(8);
        throw new ModelFileError(`damaged protobuf data: unknown wire type ${wire}`);
    }
    varint() {
        let low = 0;
        for (let shift = 0; shift < 28; shift += 7) {
            const byte = this.byte();
            low |= (byte & 0x7f) << shift;
            if (byte < 0x80)
                return low;
        }
        let value = BigInt(low);
        for (let shift = 28n; shift < 70n; shift += 7n) {
            const byte = this.byte();
            value |= BigInt(byte & 0x7f) << shift;
            if (byte < 0x80) {
                value = BigInt.asUintN(64, value);
                return value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : value;
            }
        }
        throw new ModelFileError("damaged protobuf data: a number of more than 64 bits");
    }
    byte() {
        const byte = this.data[this.at++];
        if (byte === undefined) {
            throw new ModelFileError("truncated protobuf data: the file ends inside a number");
        }
        return byte;
    }
    take(size) {
        const left = this.data.length - this.at;
        if (size > left) {
            throw new ModelFileError(`truncated protobuf data: a field of ${size} bytes where ${left} are left`);
        }
        this.at += size;
        return this.data.subarray(this.at - size, this.at);
    }
}
function made(number, value) {
    if (typeof value === "number" || typeof value === "bigint") {
        return { number, wire: VARINT, value };
    }
    return { number, wire: BYTES, value: typeof value === "string" ? encoder.encode(value) : value };
}
function varint(value) {
    const out = [];
    if (typeof value === "bigint" || value < 0) {
        let rest = BigInt.asUintN(64, BigInt(value));
        for (; rest > 0x7fn; rest >>= 7n)
            out.push(Number(rest & 0x7fn) | 0x80);
        out.push(Number(rest));
    }
    else {
        let rest = value;
        for (; rest > 0x7f; rest = Math.floor(rest / 128))
            out.push((rest % 128) | 0x80);
        out.push(rest);
    }
    return Uint8Array.from(out);
}
function text(value) {
    if (!(value instanceof Uint8Array)) {
        throw new ModelFileError("damaged protobuf data: text was expected");
    }
    try {
        return decoder.decode(value);
    }
    catch {
        throw new ModelFileError("damaged protobuf data: a name is not UTF-8");
    }
}
