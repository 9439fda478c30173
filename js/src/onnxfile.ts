/**
 * Read and edit an ONNX file. Field numbers are those of the ONNX schema (onnx.proto); only what a
 * trainer needs is here.
 */
import { ModelFileError } from "./errors.js";
import { Message } from "./wire.js";

export type Dim = number | string | null;

/** Name, element type (ONNX number, null if not a tensor) and shape (null if unknown). */
export interface ValueInfo {
  readonly name: string;
  readonly elemType: number | null;
  readonly shape: readonly Dim[] | null;
}

const GRAPH = 7;
const OPSETS = 8;
const METADATA = 14;
const NODE = 1;
const INITIALIZER = 5;
const INPUT = 11;
const OUTPUT = 12;
const VALUE_INFO = 13;
const SPARSE = 15;
const MAX_NESTING = 64;
const ATTRIBUTE_FLOAT = 1;
const ATTRIBUTE_INT = 2;

/** A view of one node; changes go to the file. */
export class Node {
  constructor(readonly message: Message) {}

  get name(): string {
    return this.message.string(3);
  }

  get opType(): string {
    return this.message.string(4);
  }

  get domain(): string {
    return this.message.string(7);
  }

  /** Input names; an empty string is an input left out. */
  get inputs(): string[] {
    return this.message.strings(1);
  }

  set inputs(names: readonly string[]) {
    this.message.replace(1, names);
  }

  get outputs(): string[] {
    return this.message.strings(2);
  }

  set outputs(names: readonly string[]) {
    this.message.replace(2, names);
  }

  /** The graphs among the attributes (branches, loop bodies). */
  subgraphs(): Message[] {
    return this.message.messages(5).flatMap((a) => [...a.messages(6), ...a.messages(11)]);
  }

  integer(name: string, otherwise: number): number {
    const found = this.message.messages(5).find((a) => a.string(1) === name);
    return found === undefined ? otherwise : found.integer(3);
  }

  setAttribute(name: string, value: number, kind: "int" | "float"): void {
    const attribute = new Message().add(1, name);
    if (kind === "int") attribute.add(3, value).add(20, ATTRIBUTE_INT);
    else attribute.addFloat(2, value).add(20, ATTRIBUTE_FLOAT);
    const others = this.message.messages(5).filter((a) => a.string(1) !== name);
    this.message.replace(5, [...others, attribute]);
  }
}

/** An ONNX model that can be edited. */
export class ModelFile {
  readonly graph: Message;

  constructor(
    readonly message: Message,
    readonly where = "the model",
  ) {
    const graphs = message.messages(GRAPH);
    const [graph] = graphs;
    if (graph === undefined || graphs.length > 1) {
      throw new ModelFileError(`${where} is not an ONNX model: it has ${graphs.length} graphs.`);
    }
    this.graph = graph;
    if (!message.has(OPSETS)) {
      throw new ModelFileError(`${where} is not an ONNX model: it imports no operator set.`);
    }
  }

  static load(data: Uint8Array, where = "the model"): ModelFile {
    try {
      return new ModelFile(Message.parse(data), where);
    } catch (error) {
      if (!(error instanceof ModelFileError)) throw error;
      throw new ModelFileError(`${where} cannot be read as an ONNX model: ${error.message}`);
    }
  }

  get inputs(): ValueInfo[] {
    return this.graph.messages(INPUT).map(valueInfo);
  }

  get outputs(): ValueInfo[] {
    return this.graph.messages(OUTPUT).map(valueInfo);
  }

  get nodes(): Node[] {
    return this.graph.messages(NODE).map((m) => new Node(m));
  }

  /** Nodes of the graph and of all its subgraphs. */
  allNodes(): Node[] {
    return walk(this.graph, 0);
  }

  get initializerNames(): string[] {
    const sparse = this.graph.messages(SPARSE).map((s) => (s.message(1) ?? s).string(8));
    return [...this.graph.messages(INITIALIZER).map((t) => t.string(8)), ...sparse];
  }

  /** Whether constants lie in a file beside the model. */
  get hasExternalData(): boolean {
    return this.graph.messages(INITIALIZER).some((t) => t.integer(14) === 1);
  }

  get metadata(): Map<string, string> {
    return new Map(this.message.messages(METADATA).map((m) => [m.string(1), m.string(2)]));
  }

  /** The JSON object under a metadata key, undefined if there is no such key. */
  described(key: string): Record<string, unknown> | undefined {
    const text = this.metadata.get(key);
    if (text === undefined) return undefined;
    let value: unknown;
    try {
      value = JSON.parse(text);
    } catch {
      value = undefined;
    }
    if (typeof value !== "object" || value === null || Array.isArray(value)) {
      throw new ModelFileError(`${this.where}: metadata "${key}" is not a JSON object.`);
    }
    const { version } = value as { version?: unknown };
    if (version !== 1) {
      throw new ModelFileError(
        `${this.where}: metadata "${key}" has version ${String(version)}, this release reads 1. ` +
          "Generate the artifacts again, or install a newer onnxtrain.",
      );
    }
    return value as Record<string, unknown>;
  }

  setMetadata(values: Map<string, string>): void {
    const entries = [...values].map(([k, v]) => new Message().add(1, k).add(2, v));
    this.message.replace(METADATA, entries);
  }

  keepInputs(keep: (name: string) => boolean): void {
    this.graph.replace(INPUT, this.graph.messages(INPUT).filter((m) => keep(m.string(1))));
  }

  /** Make exactly `names` the outputs; `like` names a value that has the same type. */
  setOutputs(names: readonly string[], like: ReadonlyMap<string, string> = new Map()): void {
    const known = new Map<string, Message>();
    for (const number of [VALUE_INFO, OUTPUT, INPUT]) {
      for (const m of this.graph.messages(number)) known.set(m.string(1), m);
    }
    const produced = new Set(this.nodes.flatMap((n) => n.outputs));
    for (const name of this.initializerNames) produced.add(name);
    for (const { name } of this.inputs) produced.add(name);
    const outputs = names.map((name) => {
      if (name === "" || !produced.has(name)) {
        throw new ModelFileError(`${this.where} computes no value "${name}".`);
      }
      const kind = known.get(like.get(name) ?? name)?.message(2);
      const output = new Message().add(1, name);
      return kind === undefined ? output : output.add(2, kind);
    });
    this.graph.replace(OUTPUT, outputs);
    const chosen = new Set(names);
    const others = this.graph.messages(VALUE_INFO).filter((m) => !chosen.has(m.string(1)));
    this.graph.replace(VALUE_INFO, others);
  }

  /** Declare an output as a tensor. */
  setOutputType(name: string, elemType: number, shape: readonly Dim[] | null): void {
    const tensor = new Message().add(1, elemType);
    if (shape !== null) {
      const dims = new Message();
      for (const size of shape) {
        const dim = new Message();
        if (typeof size === "number" && size >= 0) dim.add(1, size);
        else if (typeof size === "string" && size !== "") dim.add(2, size);
        dims.add(1, dim);
      }
      tensor.add(2, dims);
    }
    const output = this.graph.messages(OUTPUT).find((m) => m.string(1) === name);
    output?.drop(2).add(2, new Message().add(1, tensor));
  }

  /** Make inner values inputs, of the type the file says they have (float32 if it says nothing). */
  addInputs(names: readonly string[]): void {
    const known = new Map(this.graph.messages(VALUE_INFO).map((m) => [m.string(1), m]));
    for (const name of names) this.graph.add(INPUT, known.get(name) ?? floatValue(name));
    const chosen = new Set(names);
    const others = this.graph.messages(VALUE_INFO).filter((m) => !chosen.has(m.string(1)));
    this.graph.replace(VALUE_INFO, others);
  }

  /** Forget all declared shapes, so that tensors of any rank may be passed. */
  forgetShapes(): void {
    this.graph.drop(VALUE_INFO);
    for (const number of [INPUT, OUTPUT]) {
      for (const m of this.graph.messages(number)) m.message(2)?.message(1)?.drop(2);
    }
  }

  dropNodes(drop: (node: Node) => boolean): void {
    this.graph.replace(NODE, this.nodes.filter((n) => !drop(n)).map((n) => n.message));
  }

  /** Let readers of a renamed value, subgraphs included, read the other one; chains are followed. */
  renameUses(newNames: ReadonlyMap<string, string>): void {
    const final = (name: string): string => {
      let at = name;
      for (let next = newNames.get(at); next !== undefined; next = newNames.get(at)) at = next;
      return at;
    };
    for (const node of this.allNodes()) {
      const { inputs } = node;
      if (inputs.some((n) => newNames.has(n))) node.inputs = inputs.map(final);
    }
  }

  /** Drop nodes and constants that no output depends on; inputs stay. */
  prune(): void {
    const needed = new Set(this.outputs.map((v) => v.name));
    const kept: Node[] = [];
    for (const node of this.nodes.reverse()) {
      if (!node.outputs.some((o) => o !== "" && needed.has(o))) continue;
      kept.push(node);
      for (const name of uses(node)) needed.add(name);
    }
    kept.reverse();
    const made = new Set(kept.flatMap((n) => n.outputs));
    const { graph } = this;
    graph.replace(NODE, kept.map((n) => n.message));
    graph.replace(INITIALIZER, graph.messages(INITIALIZER).filter((t) => needed.has(t.string(8))));
    const sparse = graph.messages(SPARSE);
    graph.replace(SPARSE, sparse.filter((s) => needed.has((s.message(1) ?? s).string(8))));
    graph.replace(VALUE_INFO, graph.messages(VALUE_INFO).filter((m) => made.has(m.string(1))));
  }

  /** Names that a node reads or that are outputs. */
  usedNames(): Set<string> {
    const found = new Set(this.outputs.map((v) => v.name));
    for (const node of this.nodes) for (const name of uses(node)) found.add(name);
    return found;
  }

  /** Add a constant with little-endian raw data. */
  addInitializer(name: string, elemType: number, shape: readonly number[], raw: Uint8Array): void {
    const tensor = new Message();
    for (const size of shape) tensor.add(1, size);
    this.graph.add(INITIALIZER, tensor.add(2, elemType).add(8, name).add(9, raw));
  }

  /**
   * Put copies of the graph side by side, so that one run does the work of many.
   *
   * @param copies - for each copy, the new name of each value; constants are shared.
   */
  replicate(copies: readonly ((name: string) => string)[]): void {
    const { graph, nodes } = this;
    if (nodes.some((n) => n.subgraphs().length > 0)) {
      throw new ModelFileError(`${this.where} has branches or loops, which no device runs here.`);
    }
    const constants = new Set(["", ...this.initializerNames]);
    const values = (number: number): Message[] => {
      const made = new Map<string, Message>();
      for (const rename of copies) {
        for (const m of graph.messages(number)) {
          const name = rename(m.string(1));
          made.set(name, new Message([...m.fields]).drop(1).add(1, name));
        }
      }
      return [...made.values()];
    };
    const [inputs, outputs] = [values(INPUT), values(OUTPUT)];
    const copied = copies.flatMap((rename) => nodes.map((node) => {
      const copy = new Node(new Message([...node.message.fields]));
      copy.inputs = node.inputs.map((n) => (constants.has(n) ? n : rename(n)));
      copy.outputs = node.outputs.map(rename);
      copy.message.replace(3, [rename(node.name)]);
      return copy.message;
    }));
    graph.replace(NODE, copied);
    graph.replace(INPUT, inputs);
    graph.replace(OUTPUT, outputs);
    graph.drop(VALUE_INFO);
  }

  encode(): Uint8Array {
    return this.message.encode();
  }
}

/** A new node. */
export function makeNode(opType: string, inputs: readonly string[], output: string): Node {
  const node = new Node(new Message());
  node.inputs = inputs;
  node.outputs = [output];
  node.message.add(4, opType);
  return node;
}

/** The bytes of a model of these nodes, over float32 tensors of any rank. */
export function floatModel(
  nodes: readonly Node[],
  inputs: readonly string[],
  outputs: readonly string[],
): Uint8Array {
  const graph = new Message();
  for (const node of nodes) graph.add(NODE, node.message);
  graph.add(2, "vectors");
  for (const name of inputs) graph.add(INPUT, floatValue(name));
  for (const name of outputs) graph.add(OUTPUT, floatValue(name));
  return new Message().add(1, 8).add(GRAPH, graph).add(OPSETS, new Message().add(2, 18)).encode();
}

/** A float32 tensor of any rank. */
function floatValue(name: string): Message {
  return new Message().add(1, name).add(2, new Message().add(1, new Message().add(1, 1)));
}

/** Names a node reads: its inputs, and what its subgraphs take from outside. */
export function uses(node: Node): Set<string> {
  const found = new Set(node.inputs.filter((n) => n !== ""));
  for (const graph of node.subgraphs()) for (const name of captures(graph)) found.add(name);
  return found;
}

/** Names a subgraph reads from the graphs around it. */
export function captures(graph: Message, depth = 0): Set<string> {
  checkDepth(depth);
  const inside = new Set([
    "",
    ...graph.messages(INPUT).map((m) => m.string(1)),
    ...graph.messages(INITIALIZER).map((t) => t.string(8)),
  ]);
  const read = new Set(graph.messages(OUTPUT).map((m) => m.string(1)));
  for (const node of graph.messages(NODE).map((m) => new Node(m))) {
    for (const name of node.outputs) inside.add(name);
    for (const name of node.inputs) read.add(name);
    for (const inner of node.subgraphs()) {
      for (const name of captures(inner, depth + 1)) read.add(name);
    }
  }
  for (const name of inside) read.delete(name);
  return read;
}

function walk(graph: Message, depth: number): Node[] {
  checkDepth(depth);
  return graph.messages(NODE).flatMap((m) => {
    const node = new Node(m);
    return [node, ...node.subgraphs().flatMap((g) => walk(g, depth + 1))];
  });
}

function checkDepth(depth: number): void {
  if (depth > MAX_NESTING) {
    throw new ModelFileError(`graphs are nested more than ${MAX_NESTING} deep`);
  }
}

function valueInfo(message: Message): ValueInfo {
  const tensor = message.message(2)?.message(1);
  const shape = tensor?.message(2);
  return {
    name: message.string(1),
    elemType: tensor?.integer(1) || null,
    shape: shape === undefined ? null : shape.messages(1).map(dim),
  };
}

function dim(message: Message): Dim {
  return message.has(1) ? message.integer(1) : message.string(2) || null;
}
