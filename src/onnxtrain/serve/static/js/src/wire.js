/** The protobuf wire format, as far as a model has to be read before onnxruntime gets it. */
import { check, ModelFileError } from "./errors.js";
const DECODER = new TextDecoder();
const SIGN = 2 ** 63;
export const text = (value) => typeof value === "number" ? "" : DECODER.decode(value);
/** The numbers of a field that has one, or many of them packed. */
export function* numbers(value) {
    if (typeof value === "number")
        return yield value;
    for (let at = 0; at < value.length;) {
        const [number, behind] = varint(value, at);
        at = behind;
        yield number;
    }
}
/** A whole number of 64 bits with its sign, and the place behind it. */
function varint(bytes, at) {
    let [value, complement] = [0, 0];
    for (let scale = 1;; scale *= 128) {
        const byte = bytes[at++];
        check(byte !== undefined && scale < 2 ** 70, "The model is damaged.", ModelFileError);
        value += (byte & 127) * scale;
        if (scale < SIGN)
            complement += (127 - (byte & 127)) * scale;
        if (byte < 128)
            return [scale === SIGN && byte % 2 === 1 ? -1 - complement : value, at];
    }
}
/** The fields of a protobuf message: whole numbers, 0 for others, the bytes of all else. */
export function* fields(bytes) {
    let at = 0;
    const next = () => {
        const [value, behind] = varint(bytes, at);
        at = behind;
        return value;
    };
    while (at < bytes.length) {
        const key = next();
        const [number, wire] = [Math.floor(key / 8), key % 8];
        if (wire === 0) {
            yield { number, value: next() };
            continue;
        }
        const size = wire === 2 ? next() : { 1: 8, 5: 4 }[wire];
        const fits = size !== undefined && size >= 0 && size <= bytes.length - at;
        check(fits, "The model is damaged.", ModelFileError);
        yield { number, value: wire === 2 ? bytes.subarray(at, at + size) : 0 };
        at += size;
    }
}
