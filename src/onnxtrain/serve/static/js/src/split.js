/**
 * An update has a part that is about a few numbers (learning rate, step, bias correction, in int64
 * and double) and a part that is about vectors. For a device the first part is taken out of the
 * graph and computed here, once for all tensors: onnxruntime-web's WebGPU build has no kernels for
 * double, and each number would be a trip to the device of its own.
 */
import { uses } from "./onnxfile.js";
const FLOAT = 1;
const INT64 = 7;
const DOUBLE = 11;
const OPERATORS = {
    Add: (a, b) => a + b,
    Sub: (a, b) => a - b,
    Mul: (a, b) => a * b,
    Div: (a, b) => a / b,
    Pow: (a, b) => a ** b,
    Min: (a, b) => Math.min(a, b),
    Max: (a, b) => Math.max(a, b),
    Neg: (a) => -a,
    Abs: (a) => Math.abs(a),
    Sqrt: (a) => Math.sqrt(a),
    Exp: (a) => Math.exp(a),
    Log: (a) => Math.log(a),
    Reciprocal: (a) => 1 / a,
    Reshape: (a) => a,
    Identity: (a) => a,
    Cast: (a) => a,
};
const BINARY = new Set(["Add", "Sub", "Mul", "Div", "Pow", "Min", "Max"]);
/** The part of an update that is about single numbers. */
export class ScalarPart {
    nodes;
    constants;
    results;
    constructor(nodes, constants, 
    /** What the other part needs of it. */
    results) {
        this.nodes = nodes;
        this.constants = constants;
        this.results = results;
    }
    compute(inputs) {
        const values = new Map([...this.constants, ...inputs]);
        for (const node of this.nodes) {
            const [first = "", second = ""] = node.inputs;
            const a = values.get(first);
            const b = values.get(second) ?? a;
            const operator = OPERATORS[node.opType];
            const type = node.opType === "Cast" ? node.integer("to", FLOAT) : a.type;
            const value = rounded(operator(a.value, b.value), type);
            values.set(node.outputs[0], { value, type });
        }
        return new Map(this.results.map((n) => [n, values.get(n).value]));
    }
}
/**
 * Take the scalar part out of an update; what it computes becomes inputs.
 *
 * @param model - the update; changed.
 * @param scalarInputs - inputs that are single numbers.
 */
export function takeScalars(model, scalarInputs) {
    const constants = new Map();
    for (const tensor of model.graph.messages(5)) {
        const scalar = constant(tensor);
        if (scalar !== undefined)
            constants.set(tensor.string(8), scalar);
    }
    const known = new Set([...constants.keys(), ...scalarInputs]);
    const taken = [];
    for (const node of model.nodes) {
        const needed = node.inputs.slice(0, BINARY.has(node.opType) ? 2 : 1);
        const usable = node.opType in OPERATORS && node.inputs.length <= 2 && node.outputs.length === 1;
        if (!usable || !needed.every((n) => known.has(n)))
            continue;
        taken.push(node);
        known.add(node.outputs[0]);
    }
    const messages = new Set(taken.map((n) => n.message));
    const rest = model.nodes.filter((n) => !messages.has(n.message));
    const read = new Set(rest.flatMap((n) => [...uses(n)]));
    const results = taken.map((n) => n.outputs[0]).filter((n) => read.has(n));
    model.dropNodes((n) => messages.has(n.message));
    model.addInputs(results);
    model.prune();
    const used = model.usedNames();
    model.keepInputs((n) => used.has(n));
    return new ScalarPart(taken, constants, results);
}
function rounded(value, type) {
    return type === FLOAT ? Math.fround(value) : type === INT64 ? Math.trunc(value) : value;
}
/** A constant of one number. */
function constant(tensor) {
    const raw = tensor.bytes(9);
    const type = tensor.integer(2);
    if (raw === undefined)
        return undefined;
    const view = new DataView(raw.buffer, raw.byteOffset, raw.byteLength);
    if (type === FLOAT && raw.length === 4)
        return { value: view.getFloat32(0, true), type };
    if (type === DOUBLE && raw.length === 8)
        return { value: view.getFloat64(0, true), type };
    if (type === INT64 && raw.length === 8)
        return { value: Number(view.getBigInt64(0, true)), type };
    return undefined;
}
