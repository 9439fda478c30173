/** What a model may ask for, checked before onnxruntime gets it; `files/sound.py` does the same. */
import { check, ModelFileError } from "./errors.js";
import { checkGrowth } from "./growth.js";
import { fields, numbers, text } from "./wire.js";
/** Where in an ONNX file nodes and tensors can be: for each message, its fields by number. */
const CHILDREN = {
    training: { 1: "graph", 2: "graph" },
    graph: { 1: "node", 5: "tensor", 15: "sparse" },
    function: { 7: "node", 11: "attribute" },
    node: { 5: "attribute" },
    attribute: { 5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse" },
    sparse: { 1: "tensor", 2: "tensor" },
};
/** Fields of the model itself. */
const OF_MODEL = { 7: "graph", 20: "training", 25: "function" };
/** Domain, name and overload of what a node calls, and of a function. */
const NAMES = { node: [7, 4, 8], function: [10, 1, 13] };
const DIMS = 1;
/** Of a tensor: float_data, int32_data, string_data, int64_data, raw_data, double_data, uint64_data. */
const DATA = [4, 5, 6, 7, 9, 10, 11];
const DATA_LOCATION = 14;
const EXTERNAL = 1;
const MAX_NESTING = 64;
const MAX_CALLS = 200;
const MAX_NODES = 200_000;
const MAX_RANK = 64;
const need = (isFine, problem) => check(isFine, problem, ModelFileError);
/** What a graph or a function has: how many nodes, and how often it calls what. */
class Body {
    constructor() {
        this.nodes = 0;
        this.calls = new Map();
    }
    add(operator) {
        this.nodes += 1;
        need(this.nodes <= MAX_NODES, `The model has more than ${MAX_NODES} nodes.`);
        this.calls.set(operator, (this.calls.get(operator) ?? 0) + 1);
    }
}
/**
 * Refuse a model with data in other files, which onnxruntime-node would open wherever they are, one
 * that is small and grows without end, and tensors whose shape and values contradict each other.
 */
export function checkModel(model) {
    const main = new Body();
    const graphs = [];
    const functions = new Map();
    const bodies = new Map();
    for (const { number, value } of fields(model)) {
        const kind = OF_MODEL[number];
        if (typeof value === "number" || kind === undefined)
            continue;
        const body = kind === "function" ? new Body() : main;
        walk(value, kind, 0, body);
        if (kind === "graph")
            graphs.push(value);
        if (body === main)
            continue;
        const name = nameOf(value, kind);
        need(!functions.has(name), `The function "${shown(name)}" is defined twice.`);
        functions.set(name, body);
        bodies.set(name, value);
    }
    if (functions.size)
        checkCalls(main, functions);
    checkGrowth(graphs, bodies);
}
function walk(bytes, kind, depth, body) {
    need(depth <= MAX_NESTING, `Graphs are nested more than ${MAX_NESTING} deep.`);
    if (kind === "tensor")
        return checkTensor(bytes);
    if (kind === "node")
        body.add(nameOf(bytes, kind));
    for (const { number, value } of fields(bytes)) {
        const inner = CHILDREN[kind]?.[number];
        if (inner === undefined || typeof value === "number")
            continue;
        walk(value, inner, depth + Number(inner === "graph"), body);
    }
}
/** Nodes when every function is in the place of its calls: a few lines can make billions. */
function checkCalls(main, functions) {
    const sizes = new Map();
    const open = [];
    const sizeOf = (body) => {
        let size = body.nodes;
        for (const [name, times] of body.calls) {
            const called = functions.get(name);
            if (called !== undefined)
                size += times * sizeOfFunction(name, called);
        }
        return size;
    };
    const sizeOfFunction = (name, body) => {
        const known = sizes.get(name);
        if (known !== undefined)
            return known;
        need(!open.includes(name), `The function "${shown(name)}" calls itself.`);
        need(open.length < MAX_CALLS, `Functions call functions more than ${MAX_CALLS} deep.`);
        open.push(name);
        const size = sizeOf(body);
        open.pop();
        sizes.set(name, size);
        return size;
    };
    const total = sizeOf(main);
    const problem = `The model has ${total} nodes when functions are put in the place of their calls`;
    need(total <= MAX_NODES, `${problem}; ${MAX_NODES} are the most.`);
}
function checkTensor(bytes) {
    const kinds = new Set();
    let [rank, size] = [0, 1];
    for (const { number, value } of fields(bytes)) {
        if (DATA.includes(number))
            kinds.add(number);
        const isExternal = number === DATA_LOCATION && value === EXTERNAL;
        need(!isExternal, "A tensor of the model has its data in another file: it trains in Python only.");
        if (number !== DIMS)
            continue;
        for (const dim of numbers(value)) {
            size *= dim || 1;
            const isShape = dim >= 0 && ++rank <= MAX_RANK && size < 2 ** 60;
            need(isShape, "A tensor of the model has a shape that none can have: the file is damaged.");
        }
    }
    need(kinds.size < 2, "A tensor of the model has its values twice: save the model again.");
}
/** Domain, name and overload of a node's operator or of a function, in one text. */
function nameOf(bytes, kind) {
    const parts = ["", "", ""];
    for (const { number, value } of fields(bytes)) {
        const place = NAMES[kind]?.indexOf(number) ?? -1;
        if (place >= 0 && typeof value !== "number")
            parts[place] = text(value);
    }
    if (parts[0] === "ai.onnx")
        parts[0] = "";
    return JSON.stringify(parts);
}
const shown = (name) => JSON.parse(name)[1];
