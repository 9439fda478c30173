/** The changes that a trainer makes to ONNX files. Field numbers are those of onnx.proto. */
import { ModelFileError } from "./errors.js";
import { bytesOf, typeNamed } from "./ort.js";
import { Message } from "./protobuf.js";
const [IR, GRAPH, OPSETS, METADATA] = [1, 7, 8, 14];
const [NODE, INITIALIZER, INPUT, OUTPUT, VALUE_INFO] = [1, 5, 11, 12, 13];
const [READS, MAKES, NAME, OPERATOR, ATTRIBUTE] = [1, 2, 3, 4, 5];
const [DIMS, TYPE, TENSOR_NAME, RAW_DATA] = [1, 2, 8, 9];
const [FLOAT, INT, DOUBLE] = [1, 2, 11];
/** An ONNX model that can be edited. */
export class Model {
    where;
    message;
    graph;
    constructor(data, where) {
        this.where = where;
        try {
            this.message = Message.parse(data);
            const [graph] = this.message.messages(GRAPH);
            if (graph === undefined)
                throw new ModelFileError("there is no graph");
            this.graph = graph;
        }
        catch (error) {
            throw new ModelFileError(`${where} is not an ONNX model: ${error.message}.`);
        }
    }
    /** The JSON under a metadata key; undefined if there is none of a version that is known. */
    described(key) {
        const text = this.message.messages(METADATA).find((m) => m.string(1) === key)?.string(2);
        const value = JSON.parse(text ?? "{}");
        return value.version === 1 ? value : undefined;
    }
    /** Names of the nodes of an operator that make at least so many values. */
    nodes(operator, makes) {
        const found = this.graph.messages(NODE).filter((n) => n.string(OPERATOR) === operator);
        return found.filter((n) => n.strings(MAKES).length >= makes).map((n) => n.string(NAME));
    }
    /** Give random nodes their seeds: Dropout takes a whole number, the others a float. */
    setSeeds(seeds) {
        for (const node of allNodes(this.graph)) {
            const seed = seeds.get(node.string(NAME));
            if (seed === undefined)
                continue;
            const isWhole = node.string(OPERATOR) === "Dropout";
            setAttribute(node, "seed", isWhole ? seed : Float32Array.of(seed));
        }
    }
    /** Make this step's gradients the outputs, instead of the accumulated ones. */
    dropAccumulation(gradients) {
        const { graph } = this;
        const extra = /(^lazy_reset_grad|_grad\.accumulation\.buffer)$/;
        keep(graph, NODE, (n) => !n.string(NAME).startsWith("onnxtrain.accumulate/"));
        keep(graph, INPUT, (m) => !extra.test(m.string(1)));
        for (const m of graph.messages(OUTPUT)) {
            const parameter = m.string(1).replace(/_grad\.accumulation\.out$/, "");
            m.set(1, [gradients[parameter] ?? m.string(1)]);
        }
        const read = new Set(graph.messages(NODE).flatMap(reads));
        keep(graph, INITIALIZER, (t) => read.has(t.string(TENSOR_NAME)));
        graph.set(VALUE_INFO, []);
    }
    /** Keep what these outputs need, without Dropout and with BatchNormalization at rest. */
    toInference(outputs) {
        const { graph } = this;
        const nodes = graph.messages(NODE);
        const missing = outputs.find((name) => !nodes.some((n) => n.strings(MAKES).includes(name)));
        if (missing !== undefined) {
            throw new ModelFileError(`${this.where} computes no value "${missing}".`);
        }
        const needed = new Set(outputs);
        const kept = nodes.reverse().filter((node) => {
            if (!node.strings(MAKES).some((name) => needed.has(name)))
                return false;
            const read = new Set([...needed, ...reads(node)]);
            for (const inner of [node, ...subgraphs(node).flatMap(allNodes)])
                atRest(inner, read);
            for (const name of reads(node))
                needed.add(name);
            return true;
        });
        graph.set(NODE, kept.reverse()).set(VALUE_INFO, []);
        graph.set(OUTPUT, outputs.map((name) => Message.of({ 1: name })));
        keep(graph, INPUT, (m) => needed.has(m.string(1)));
        keep(graph, INITIALIZER, (t) => needed.has(t.string(TENSOR_NAME)));
    }
    /** Put values in the place of inputs, declare the outputs, and drop our own metadata. */
    complete(values, outputs) {
        const { graph } = this;
        const constants = [...values].map(([name, { type, dims, data }]) => Message.of({
            [DIMS]: dims, [TYPE]: typeNamed(type).onnx, [TENSOR_NAME]: name, [RAW_DATA]: bytesOf(data),
        }));
        graph.set(INITIALIZER, [...graph.messages(INITIALIZER), ...constants]);
        graph.set(OUTPUT, outputs.map((o) => declared(o.name, typeNamed(o.type).onnx, o.shape)));
        // before version 4 of the format a constant had to be an input too
        if (this.message.integer(IR) >= 4)
            keep(graph, INPUT, (m) => !values.has(m.string(1)));
        keep(this.message, METADATA, (m) => !m.string(1).startsWith("onnxtrain."));
    }
    /** Let all inputs and outputs have any rank. */
    forgetShapes() {
        const values = [INPUT, OUTPUT].flatMap((field) => this.graph.messages(field));
        for (const type of values.flatMap((m) => m.messages(2)).flatMap((t) => t.messages(1))) {
            type.set(2, []);
        }
        this.graph.set(VALUE_INFO, []);
    }
    /** Compute in float32 what is double: the WebGPU build has no kernels for double. */
    dropDoubles() {
        for (const constant of this.graph.messages(INITIALIZER)) {
            if (constant.integer(TYPE) !== DOUBLE)
                continue;
            const doubles = new Float64Array(Uint8Array.from(constant.bytes(RAW_DATA)).buffer);
            constant.set(TYPE, [FLOAT]).set(RAW_DATA, [bytesOf(Float32Array.from(doubles))]);
        }
        for (const node of this.graph.messages(NODE)) {
            const to = node.messages(ATTRIBUTE).find((a) => a.string(1) === "to");
            if (to?.integer(3) === DOUBLE)
                to.set(3, [FLOAT]);
        }
    }
    encode() {
        return this.message.encode();
    }
}
/** The bytes of a model that is one operator over float32 tensors of any rank. */
export function oneOperator(operator, inputs, output) {
    const graph = Message.of({
        [NODE]: Message.of({ [READS]: inputs, [MAKES]: output, [OPERATOR]: operator }),
        2: operator,
        [INPUT]: inputs.map((name) => declared(name, FLOAT)),
        [OUTPUT]: declared(output, FLOAT),
    });
    return Message.of({ [IR]: 8, [GRAPH]: graph, [OPSETS]: Message.of({ 2: 18 }) }).encode();
}
/** An input or output; without dimensions it may have any rank. */
function declared(name, type, shape = []) {
    const dims = shape.map((d) => Message.of(typeof d === "number" ? { 1: d } : { 2: d }));
    const tensor = Message.of({ 1: type, 2: dims.length > 0 ? Message.of({ 1: dims }) : [] });
    return Message.of({ 1: name, 2: Message.of({ 1: tensor }) });
}
function keep(message, field, wanted) {
    message.set(field, message.messages(field).filter(wanted));
}
/** The graphs among a node's attributes: branches, loop bodies. */
function subgraphs(node) {
    return node.messages(ATTRIBUTE).flatMap((a) => [...a.messages(6), ...a.messages(11)]);
}
/** Nodes of a graph and of the graphs inside them. */
function allNodes(graph) {
    return graph.messages(NODE).flatMap((n) => [n, ...subgraphs(n).flatMap(allNodes)]);
}
/** Names a node reads; all names in its subgraphs count, rather too many than too few. */
function reads(node) {
    const inner = subgraphs(node).flatMap((g) => [
        ...g.messages(OUTPUT).map((m) => m.string(1)), ...g.messages(NODE).flatMap(reads),
    ]);
    return [...node.strings(READS), ...inner];
}
/** Stop a node from behaving as in training; `read` has the names that someone needs. */
function atRest(node, read) {
    const [operator, inputs] = [node.string(OPERATOR), node.strings(READS)];
    const [output = "", ...others] = node.strings(MAKES);
    const isTraining = node.messages(ATTRIBUTE).some((a) => a.string(1) === "training_mode");
    if (operator === "BatchNormalization" && isTraining) {
        setAttribute(node.set(MAKES, [output]), "training_mode", 0);
    }
    else if (operator === "Dropout" && others.some((mask) => read.has(mask))) {
        node.set(READS, inputs.slice(0, 2));
    }
    else if (operator === "Dropout") {
        node.set(OPERATOR, ["Identity"]).set(ATTRIBUTE, []);
        node.set(READS, inputs.slice(0, 1)).set(MAKES, [output]);
    }
}
function setAttribute(node, name, value) {
    const others = node.messages(ATTRIBUTE).filter((a) => a.string(1) !== name);
    const made = Message.of({ 1: name }).set(typeof value === "number" ? 3 : 2, [value]);
    node.set(ATTRIBUTE, [...others, made.set(20, [typeof value === "number" ? INT : FLOAT])]);
}
