/**
 * How large the constants become that a model computes from its constants: onnxruntime computes
 * them when it loads the model, whatever they take. `files/growth.py` does the same.
 */
import { check, ModelFileError } from "./errors.js";
import { fields, numbers, text } from "./wire.js";

const MAX_ELEMENTS = 2 ** 31;
/** Whole numbers of a constant that are looked at: shapes, axes and repeats are shorter. */
const MAX_VALUES = 64;
const MAX_RANK = 64;
const SHOWN = 200;
const FLOAT = 1;
const INT32 = 6;
const INT64 = 7;

type Shape = readonly number[];
/** A constant's shape, and its values if they are few: whole numbers, or the scales of an image. */
interface Constant {
  readonly shape: Shape;
  readonly values?: readonly number[];
  readonly scales?: readonly number[];
}
type Scope = Map<string, Constant>;
type Made = Constant | undefined;
type Rule = (node: Node, inputs: readonly Constant[]) => Made;

/** What is read of a node. */
class Node {
  readonly inputs: string[] = [];
  readonly outputs: string[] = [];
  name = "";
  operator = "";
  domain = "";
  overload = "";
  private readonly attributes: Uint8Array[] = [];

  constructor(bytes: Uint8Array) {
    for (const { number, value } of fields(bytes)) {
      if (number === 1) this.inputs.push(text(value));
      else if (number === 2) this.outputs.push(text(value));
      else if (number === 3) this.name = text(value);
      else if (number === 4) this.operator = text(value);
      else if (number === 7) this.domain = text(value) === "ai.onnx" ? "" : text(value);
      else if (number === 8) this.overload = text(value);
      else if (number === 5 && typeof value !== "number") this.attributes.push(value);
    }
  }

  get key(): string {
    return JSON.stringify([this.domain, this.operator, this.overload]);
  }

  /** What fields of an attribute hold, in their order. */
  attribute(name: string, wanted: readonly number[]): (number | Uint8Array)[] {
    const own = this.attributes.find((bytes) => parts(bytes, 1).some((part) => text(part) === name));
    return own === undefined ? [] : values(own, wanted);
  }

  graphs(): Uint8Array[] {
    return this.attributes.flatMap((bytes) => [...parts(bytes, 6), ...parts(bytes, 11)]);
  }
}

/** Refuse constants of more than 2³¹ numbers; nesting and calls have been checked before. */
export function checkGrowth(
  graphs: readonly Uint8Array[],
  functions: ReadonlyMap<string, Uint8Array>,
): void {
  const results = new Map<string, Made[]>();

  const follow = (nodes: readonly Uint8Array[], known: Scope): void => {
    for (const bytes of nodes) {
      const node = new Node(bytes);
      const called = functions.get(node.key);
      if (WITH_GRAPHS.has(node.operator)) node.graphs().forEach((graph) => inside(graph, known));
      else if (called !== undefined) call(node, called, known);
      else if (node.domain === "") compute(node, known);
    }
  };
  const inside = (graph: Uint8Array, outer: Scope): void => {
    const known = new Map(outer);
    for (const tensor of parts(graph, 5)) known.set(nameOf(tensor), stored(tensor));
    follow(parts(graph, 1), known);
  };
  const call = (node: Node, bytes: Uint8Array, known: Scope): void => {
    const inputs = node.inputs.map((name) => known.get(name));
    const key = JSON.stringify([node.key, inputs.map((c) => c ?? null)]);
    let made = results.get(key);
    if (made === undefined) {
      const own: Scope = new Map();
      parts(bytes, 4).forEach((formal, i) => {
        const value = inputs[i];
        if (value !== undefined) own.set(text(formal), value);
      });
      follow(parts(bytes, 7), own);
      made = parts(bytes, 5).map((formal) => own.get(text(formal)));
      results.set(key, made);
    }
    made.forEach((value, i) => put(known, node.outputs[i], value));
  };
  graphs.forEach((graph) => inside(graph, new Map()));
}

function compute(node: Node, known: Scope): void {
  const rule = RULES.get(node.operator);
  const names = node.inputs.filter((name) => name !== "");
  const inputs = names.flatMap((name) => known.get(name) ?? []);
  if (rule === undefined || inputs.length < names.length) return;
  const made = rule(node, inputs);
  if (made === undefined || made.shape.length > MAX_RANK) return;
  const size = Math.max(product(made.shape), ...made.shape, 0);
  const name = (node.name || node.outputs[0] || "").slice(0, SHOWN);
  check(
    size <= MAX_ELEMENTS,
    `The node "${name}" (${node.operator}) makes a constant of ${made.shape.join(" × ")} numbers ` +
      `out of other constants, and ${MAX_ELEMENTS} are the most.`,
    ModelFileError,
  );
  put(known, node.outputs[0], made);
}

function put(known: Scope, name: string | undefined, value: Made): void {
  if (name !== undefined && value !== undefined) known.set(name, value);
}

const product = (shape: Shape): number => shape.reduce((a, b) => a * b, 1);

/** What is in some fields, in their order. */
function values(bytes: Uint8Array, wanted: readonly number[]): (number | Uint8Array)[] {
  const own = [];
  for (const { number, value } of fields(bytes)) if (wanted.includes(number)) own.push(value);
  return own;
}

/** The submessages, or texts, of a field. */
function parts(bytes: Uint8Array, number: number): Uint8Array[] {
  return values(bytes, [number]).flatMap((value) => (typeof value === "number" ? [] : [value]));
}

const nameOf = (tensor: Uint8Array): string => parts(tensor, 8).map(text).at(-1) ?? "";

/** An initializer, or the tensor of a Constant. */
function stored(tensor: Uint8Array): Constant {
  const shape = values(tensor, [1]).flatMap((value) => [...numbers(value)]);
  const [kind] = values(tensor, [2]);
  const count = product(shape);
  if (typeof kind !== "number" || shape.length > 1 || count > MAX_VALUES) return { shape };
  const [raw] = parts(tensor, 9);
  const held = raw === undefined ? listed(tensor, kind) : unpacked(raw, kind, count);
  if (held.length !== count) return { shape };
  if (kind === FLOAT) return { shape, scales: held };
  return kind === INT32 || kind === INT64 ? { shape, values: held } : { shape };
}

function listed(tensor: Uint8Array, kind: number): number[] {
  const field = { [INT32]: 5, [INT64]: 7 }[kind];
  return field === undefined ? [] : values(tensor, [field]).flatMap((v) => [...numbers(v)]);
}

function unpacked(raw: Uint8Array, kind: number, count: number): number[] {
  const width = kind === INT64 ? 8 : 4;
  if (raw.length !== count * width) return [];
  const view = new DataView(raw.buffer, raw.byteOffset, raw.byteLength);
  const read = (at: number): number => {
    if (kind === INT64) return Number(view.getBigInt64(at, true));
    return kind === FLOAT ? view.getFloat32(at, true) : view.getInt32(at, true);
  };
  return Array.from({ length: count }, (_, i) => read(i * width));
}

// --- what operators make of constants -----------------------------------------------------------

const integers = (node: Node, name: string): number[] =>
  node.attribute(name, [3, 8]).flatMap((value) => [...numbers(value)]);

/** The shape that two shapes are broadcast to. */
function together(one: Shape, other: Shape): number[] {
  const rank = Math.max(one.length, other.length);
  const at = (shape: Shape, i: number): number => shape[i - rank + shape.length] ?? 1;
  return Array.from({ length: rank }, (_, i) => (at(one, i) === 1 ? at(other, i) : at(one, i)));
}

const shapeOnly: Rule = (_, [x]) => x && { shape: x.shape };
const broadcast: Rule = (_, inputs) => ({
  shape: inputs.reduce<Shape>((shape, x) => together(shape, x.shape), []),
});

const constant: Rule = (node) => {
  const [tensor] = node.attribute("value", [5]);
  if (typeof tensor === "object") return stored(tensor);
  const one = integers(node, "value_int");
  if (one.length === 1) return { shape: [], values: one };
  const many = integers(node, "value_ints");
  const isShort = many.length > 0 && many.length <= MAX_VALUES;
  return isShort ? { shape: [many.length], values: many } : undefined;
};

const cast: Rule = (node, [x]) =>
  [INT32, INT64].includes(integers(node, "to")[0] ?? 0) ? x : x && { shape: x.shape };

const concat: Rule = (node, inputs) => {
  const first = inputs[0]?.shape ?? [];
  const axis = integers(node, "axis")[0] ?? 0;
  const place = axis < 0 ? axis + first.length : axis;
  const fits = inputs.every((x) => x.shape.length === first.length);
  if (!fits || !(place >= 0 && place < first.length)) return undefined;
  const total = inputs.reduce((sum, x) => sum + (x.shape[place] ?? 0), 0);
  const shape = first.map((size, i) => (i === place ? total : size));
  const isKnown = total <= MAX_VALUES && inputs.every((x) => x.values !== undefined);
  return isKnown ? { shape, values: inputs.flatMap((x) => x.values ?? []) } : { shape };
};

const tile: Rule = (_, [x, repeats]) =>
  x && repeats?.values?.length === x.shape.length
    ? { shape: x.shape.map((size, i) => size * Math.max(repeats.values?.[i] ?? 1, 0)) }
    : undefined;

const expand: Rule = (_, [x, target]) =>
  x && target?.values && { shape: together(x.shape, target.values) };

const filled: Rule = (_, [x]) => x?.values && { shape: x.values.map((size) => Math.max(size, 0)) };

const range: Rule = (_, inputs) => {
  const ends = inputs.flatMap((x) => (x.values?.length === 1 ? x.values : []));
  const [start, limit, delta] = ends;
  if (ends.length !== 3 || start === undefined || limit === undefined || !delta) return undefined;
  return { shape: [Math.max(Math.ceil((limit - start) / delta), 0)] };
};

/** By its last input: the new sizes, or what the old ones are multiplied by. */
const resize: Rule = (node, inputs) => {
  const [x, last] = [inputs[0], inputs.at(-1)];
  if (!x || !last || inputs.length < 2 || integers(node, "axes").length > 0) return undefined;
  if (last.values) return { shape: last.values };
  const fits = last.scales?.length === x.shape.length && last.scales.every(Number.isFinite);
  return fits ? { shape: x.shape.map((d, i) => Math.trunc(d * (last.scales?.[i] ?? 1))) } : undefined;
};

const einsum: Rule = (node, inputs) => {
  const equation = node.attribute("equation", [4]).map(text).join("").replaceAll(" ", "");
  const [terms = "", result] = equation.split("->");
  const operands = terms.split(",");
  const fits = inputs.every((x, i) => operands[i]?.length === x.shape.length);
  if (!fits || operands.length !== inputs.length || result === undefined) return undefined;
  const sizes = new Map<string, number>();
  operands.forEach((o, i) => [...o].forEach((n, k) => sizes.set(n, inputs[i]?.shape[k] ?? 1)));
  const isPlain = /^[A-Za-z,]*$/.test(terms) && [...result].every((n) => sizes.has(n));
  return isPlain ? { shape: [...result].map((n) => sizes.get(n) ?? 1) } : undefined;
};

const matMul: Rule = (_, [a, b]) => {
  if (!a || !b || Math.min(a.shape.length, b.shape.length) < 2) return undefined;
  const outer = together(a.shape.slice(0, -2), b.shape.slice(0, -2));
  return { shape: [...outer, a.shape.at(-2) ?? 1, b.shape.at(-1) ?? 1] };
};

const transpose: Rule = (node, [x]) => {
  if (!x) return undefined;
  const given = integers(node, "perm");
  const order = given.length > 0 ? given : x.shape.map((_, i) => x.shape.length - 1 - i);
  const isOrder = new Set(order).size === x.shape.length && order.length === x.shape.length;
  const shape = order.flatMap((axis) => x.shape[axis] ?? []);
  return isOrder && shape.length === order.length ? { shape } : undefined;
};

const reshape: Rule = (_, [x, target]) => {
  if (!x || !target?.values) return undefined;
  const shape = target.values.map((size, i) => (size === 0 ? x.shape[i] ?? 0 : size));
  const known = product(shape.filter((size) => size !== -1));
  const filledIn = shape.map((size) => (size === -1 ? product(x.shape) / known : size));
  return product(filledIn) === product(x.shape) ? { shape: filledIn } : undefined;
};

const unsqueeze: Rule = (node, [x, axes]) => {
  const places = axes?.values ?? integers(node, "axes");
  if (!x || places.length === 0) return undefined;
  const rank = x.shape.length + places.length;
  const shape = [...x.shape];
  for (const place of places.map((a) => (a < 0 ? a + rank : a)).sort((a, b) => a - b)) {
    shape.splice(place, 0, 1);
  }
  return x.values && shape.length < 2 ? { shape, values: x.values } : { shape };
};

const WITH_GRAPHS = new Set(["If", "Loop", "Scan", "SequenceMap"]);
const ELEMENTWISE = [
  "Abs", "Ceil", "Cos", "Erf", "Exp", "Floor", "Log", "Neg", "Not", "Reciprocal", "Relu", "Round",
  "Sigmoid", "Sign", "Sin", "Softmax", "Sqrt", "Tanh", "CumSum", "Trilu",
];
const BROADCAST = [
  "Add", "And", "BitShift", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual",
  "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor",
];
/** Operator → the constant that it makes of constants, undefined where that is not known. */
const RULES = new Map<string, Rule>(Object.entries({
  ...Object.fromEntries(ELEMENTWISE.map((name) => [name, shapeOnly])),
  ...Object.fromEntries(BROADCAST.map((name) => [name, broadcast])),
  Cast: cast,
  Identity: (_, [x]) => x,
  Constant: constant,
  Concat: concat,
  Tile: tile,
  Expand: expand,
  ConstantOfShape: filled,
  Range: range,
  Resize: resize,
  Einsum: einsum,
  MatMul: matMul,
  Transpose: transpose,
  Reshape: reshape,
  Unsqueeze: unsqueeze,
}));
