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

type Integer = number | bigint;
type Value = Integer | Uint8Array | Message;
interface Field {
  number: number;
  wire: number;
  value: Value;
}

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true });

/** One protobuf message. */
export class Message {
  constructor(public fields: Field[] = []) {}

  /** Read a message; a truncated or impossible field is a `ModelFileError`. */
  static parse(data: Uint8Array): Message {
    const reader = new Reader(data);
    const fields: Field[] = [];
    while (!reader.done) {
      const key = Number(reader.varint());
      const number = Math.floor(key / 8);
      const wire = key % 8;
      if (number === 0) throw new ModelFileError("damaged protobuf data: a field with the number 0");
      fields.push({ number, wire, value: reader.value(wire) });
    }
    return new Message(fields);
  }

  /** Every submessage with this number, opened in place: changes to it are kept. */
  messages(number: number): Message[] {
    const found: Message[] = [];
    for (const field of this.fields) {
      if (field.number !== number) continue;
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
  message(number: number): Message | undefined {
    return this.messages(number).at(-1);
  }

  strings(number: number): string[] {
    return this.fields.filter((f) => f.number === number).map((f) => text(f.value));
  }

  string(number: number): string {
    return this.strings(number).at(-1) ?? "";
  }

  /** The last field with this number, as bytes that have not been opened. */
  bytes(number: number): Uint8Array | undefined {
    const value = this.fields.filter((f) => f.number === number).at(-1)?.value;
    return value instanceof Uint8Array ? value : undefined;
  }

  /** The last integer with this number, signed; beyond 2**53 it is rounded (no such is used). */
  integer(number: number, otherwise = 0): number {
    const field = this.fields.filter((f) => f.number === number).at(-1);
    if (field === undefined) return otherwise;
    const { value } = field;
    if (typeof value === "number") return value;
    if (typeof value === "bigint") return Number(BigInt.asIntN(64, value));
    throw new ModelFileError(`damaged protobuf data: field ${number} is no integer`);
  }

  has(number: number): boolean {
    return this.fields.some((f) => f.number === number);
  }

  drop(number: number): this {
    this.fields = this.fields.filter((f) => f.number !== number);
    return this;
  }

  /** Append a field: an integer, a string, raw bytes or a submessage. */
  add(number: number, value: Integer | string | Uint8Array | Message): this {
    this.fields.push(made(number, value));
    return this;
  }

  /** Append a four-byte float. */
  addFloat(number: number, value: number): this {
    const bytes = new Uint8Array(4);
    new DataView(bytes.buffer).setFloat32(0, value, true);
    this.fields.push({ number, wire: FIXED32, value: bytes });
    return this;
  }

  /** Put `values` where the fields with this number were (at the end if there were none). */
  replace(number: number, values: readonly (Integer | string | Uint8Array | Message)[]): void {
    const first = this.fields.findIndex((f) => f.number === number);
    const at = first < 0 ? this.fields.length : first;
    const after = this.fields.slice(at).filter((f) => f.number !== number);
    this.fields = [...this.fields.slice(0, at), ...values.map((v) => made(number, v)), ...after];
  }

  encode(): Uint8Array {
    const chunks: Uint8Array[] = [];
    const size = this.collect(chunks);
    const out = new Uint8Array(size);
    let at = 0;
    for (const chunk of chunks) {
      out.set(chunk, at);
      at += chunk.length;
    }
    return out;
  }

  private collect(chunks: Uint8Array[]): number {
    let size = 0;
    const push = (chunk: Uint8Array): void => {
      chunks.push(chunk);
      size += chunk.length;
    };
    for (const { number, wire, value } of this.fields) {
      push(varint(number * 8 + wire));
      if (value instanceof Message) {
        const inner: Uint8Array[] = [];
        const length = value.collect(inner);
        push(varint(length));
        for (const chunk of inner) push(chunk);
      } else if (value instanceof Uint8Array) {
        if (wire === BYTES) push(varint(value.length));
        push(value);
      } else {
        push(varint(value));
      }
    }
    return size;
  }
}

class Reader {
  private at = 0;

  constructor(private readonly data: Uint8Array) {}

  get done(): boolean {
    return this.at >= this.data.length;
  }

  value(wire: number): Integer | Uint8Array {
    if (wire === VARINT) return this.varint();
    if (wire === BYTES) return this.take(Number(this.varint()));
    if (wire === FIXED32) return this.take(4);
    if (wire === FIXED64) return this.take(8);
    throw new ModelFileError(`damaged protobuf data: unknown wire type ${wire}`);
  }

  varint(): Integer {
    let low = 0;
    for (let shift = 0; shift < 28; shift += 7) {
      const byte = this.byte();
      low |= (byte & 0x7f) << shift;
      if (byte < 0x80) return low;
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

  private byte(): number {
    const byte = this.data[this.at++];
    if (byte === undefined) {
      throw new ModelFileError("truncated protobuf data: the file ends inside a number");
    }
    return byte;
  }

  private take(size: number): Uint8Array {
    const left = this.data.length - this.at;
    if (size > left) {
      throw new ModelFileError(
        `truncated protobuf data: a field of ${size} bytes where ${left} are left`,
      );
    }
    this.at += size;
    return this.data.subarray(this.at - size, this.at);
  }
}

function made(number: number, value: Integer | string | Uint8Array | Message): Field {
  if (typeof value === "number" || typeof value === "bigint") {
    return { number, wire: VARINT, value };
  }
  return { number, wire: BYTES, value: typeof value === "string" ? encoder.encode(value) : value };
}

function varint(value: Integer): Uint8Array {
  const out: number[] = [];
  if (typeof value === "bigint" || value < 0) {
    let rest = BigInt.asUintN(64, BigInt(value));
    for (; rest > 0x7fn; rest >>= 7n) out.push(Number(rest & 0x7fn) | 0x80);
    out.push(Number(rest));
  } else {
    let rest = value;
    for (; rest > 0x7f; rest = Math.floor(rest / 128)) out.push((rest % 128) | 0x80);
    out.push(rest);
  }
  return Uint8Array.from(out);
}

function text(value: Value): string {
  if (!(value instanceof Uint8Array)) {
    throw new ModelFileError("damaged protobuf data: text was expected");
  }
  try {
    return decoder.decode(value);
  } catch {
    throw new ModelFileError("damaged protobuf data: a name is not UTF-8");
  }
}
