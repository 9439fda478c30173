/** Models that name files: a model that trains here has all its data in itself. */
import { check, ModelFileError } from "./errors.js";
/** Where in an ONNX file tensors can be: for each message, its fields by number. */
const CHILDREN = {
    model: { 7: "graph", 20: "training", 25: "function" },
    training: { 1: "graph", 2: "graph" },
    graph: { 1: "node", 5: "tensor", 15: "sparse" },
    function: { 7: "node", 11: "attribute" },
    node: { 5: "attribute" },
    attribute: { 5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse" },
    sparse: { 1: "tensor", 2: "tensor" },
};
const DATA_LOCATION = 14;
const EXTERNAL = 1;
const MAX_NESTING = 64;
const KEY = new TextEncoder().encode("location");
/**
 * Refuse a model with data in other files: onnxruntime-node would open them, wherever they are,
 * and `generate_artifacts` writes no device.json for such a model.
 */
export function refuseExternalData(model) {
    if (mentionsLocation(model))
        walk(model, "model", 0);
}
/** A quick look, far faster than reading: external data are given with this key. */
function mentionsLocation(bytes) {
    const first = KEY[0];
    for (let at = bytes.indexOf(first); at >= 0; at = bytes.indexOf(first, at + 1)) {
        if (KEY.every((byte, i) => bytes[at + i] === byte))
            return true;
    }
    return false;
}
function walk(bytes, kind, depth) {
    check(depth <= MAX_NESTING, `Graphs are nested more than ${MAX_NESTING} deep.`, ModelFileError);
    for (const { number, value } of fields(bytes)) {
        if (typeof value !== "number") {
            const inner = CHILDREN[kind]?.[number];
            if (inner !== undefined)
                walk(value, inner, depth + Number(inner === "graph"));
        }
        else if (kind === "tensor" && number === DATA_LOCATION && value === EXTERNAL) {
            const text = "A tensor of the model has its data in another file: it trains in Python only.";
            check(false, text, ModelFileError);
        }
    }
}
/** The fields of a protobuf message: numbers, and the bytes of strings and messages. */
function* fields(bytes) {
    let at = 0;
    const varint = () => {
        let value = 0;
        for (let scale = 1;; scale *= 128) {
            const byte = bytes[at++];
            check(byte !== undefined && scale < 2 ** 70, "The model is damaged.", ModelFileError);
            value += (byte & 127) * scale;
            if (byte < 128)
                return value;
        }
    };
    while (at < bytes.length) {
        const key = varint();
        const [number, wire] = [Math.floor(key / 8), key % 8];
        if (wire === 0) {
            yield { number, value: varint() };
            continue;
        }
        const size = wire === 2 ? varint() : { 1: 8, 5: 4 }[wire];
        const fits = size !== undefined && size <= bytes.length - at;
        check(fits, "The model is damaged.", ModelFileError);
        if (wire === 2)
            yield { number, value: bytes.subarray(at, at + size) };
        at += size;
    }
}
