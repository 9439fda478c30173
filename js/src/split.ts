/**
 * An update has a part that is about a few numbers (learning rate, step, bias correction, in int64
 * and double) and a part that is about vectors. For a device the first part is taken out of the
 * graph and computed here, once for all tensors: onnxruntime-web's WebGPU build has no kernels for
 * double, and each number would be a trip to the device of its own.
 */
import { uses, type ModelFile, type Node } from "./onnxfile.js";
import type { Message } from "./wire.js";

const FLOAT = 1;
const INT64 = 7;
const DOUBLE = 11;

/** A number and its ONNX element type. */
export interface Scalar {
  readonly value: number;
  readonly type: number;
}

const OPERATORS: Record<string, (a: number, b: number) => number> = {
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
  constructor(
    private readonly nodes: readonly Node[],
    private readonly constants: ReadonlyMap<string, Scalar>,
    /** What the other part needs of it. */
    readonly results: readonly string[],
  ) {}

  compute(inputs: ReadonlyMap<string, Scalar>): Map<string, number> {
    const values = new Map([...this.constants, ...inputs]);
    for (const node of this.nodes) {
      const [first = "", second = ""] = node.inputs;
      const a = values.get(first) as Scalar;
      const b = values.get(second) ?? a;
      const operator = OPERATORS[node.opType] as (a: number, b: number) => number;
      const type = node.opType === "Cast" ? node.integer("to", FLOAT) : a.type;
      const value = rounded(operator(a.value, b.value), type);
      values.set(node.outputs[0] as string, { value, type });
    }
    return new Map(this.results.map((n) => [n, (values.get(n) as Scalar).value]));
  }
}

/**
 * Take the scalar part out of an update; what it computes becomes inputs.
 *
 * @param model - the update; changed.
 * @param scalarInputs - inputs that are single numbers.
 */
export function takeScalars(model: ModelFile, scalarInputs: readonly string[]): ScalarPart {
  const constants = new Map<string, Scalar>();
  for (const tensor of model.graph.messages(5)) {
    const scalar = constant(tensor);
    if (scalar !== undefined) constants.set(tensor.string(8), scalar);
  }
  const known = new Set([...constants.keys(), ...scalarInputs]);
  const taken: Node[] = [];
  for (const node of model.nodes) {
    const needed = node.inputs.slice(0, BINARY.has(node.opType) ? 2 : 1);
    const usable = node.opType in OPERATORS && node.inputs.length <= 2 && node.outputs.length === 1;
    if (!usable || !needed.every((n) => known.has(n))) continue;
    taken.push(node);
    known.add(node.outputs[0] as string);
  }
  const messages = new Set(taken.map((n) => n.message));
  const rest = model.nodes.filter((n) => !messages.has(n.message));
  const read = new Set(rest.flatMap((n) => [...uses(n)]));
  const results = taken.map((n) => n.outputs[0] as string).filter((n) => read.has(n));
  model.dropNodes((n) => messages.has(n.message));
  model.addInputs(results);
  model.prune();
  const used = model.usedNames();
  model.keepInputs((n) => used.has(n));
  return new ScalarPart(taken, constants, results);
}

function rounded(value: number, type: number): number {
  return type === FLOAT ? Math.fround(value) : type === INT64 ? Math.trunc(value) : value;
}

/** A constant of one number. */
function constant(tensor: Message): Scalar | undefined {
  const raw = tensor.bytes(9);
  const type = tensor.integer(2);
  if (raw === undefined) return undefined;
  const view = new DataView(raw.buffer, raw.byteOffset, raw.byteLength);
  if (type === FLOAT && raw.length === 4) return { value: view.getFloat32(0, true), type };
  if (type === DOUBLE && raw.length === 8) return { value: view.getFloat64(0, true), type };
  if (type === INT64 && raw.length === 8) return { value: Number(view.getBigInt64(0, true)), type };
  return undefined;
}
