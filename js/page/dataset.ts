/** A data set in the form in which a model takes it: one array per input, rows shuffled and split. */
import type { Data, Input, ValueInfo } from "../src/index.js";
import type { ClassLabels } from "../src/labels.js";
import { arrayOf } from "../src/ort.js";
import type { NdArray } from "./arrays.js";

const FLOATS = new Set(["float32", "float64"]);
const INPUT_NAMES = ["x", "images", "image", "data", "features", "inputs", "input"];
const TARGET_NAMES = ["y", "labels", "label", "targets", "target", "classes"];
const HELD_OUT = 0.2;

export interface Column {
  readonly type: string;
  readonly data: Data;
  /** Shape of one row. */
  readonly shape: readonly number[];
  readonly size: number;
}

export class Dataset {
  /** Rows to train on, and rows held out to measure with. */
  readonly training: number[];
  readonly held: number[];

  constructor(
    readonly name: string,
    readonly columns: readonly Column[],
    readonly rows: number,
    /** Names of the classes, if the labels were text. */
    readonly classes: readonly string[] = [],
  ) {
    const order = shuffled(rows, 1);
    const held = rows < 10 ? 0 : Math.round(rows * HELD_OUT);
    this.held = order.slice(0, held);
    this.training = order.slice(held);
  }

  /** The inputs of a step for these rows. */
  batch(rows: readonly number[]): Input[] {
    return this.columns.map(({ type, data, shape, size }) => {
      const out = emptyLike({ type, size }, rows.length) as Float32Array;
      rows.forEach((row, i) => {
        out.set((data as Float32Array).subarray(row * size, (row + 1) * size), i * size);
      });
      return { data: out, dims: [rows.length, ...shape] };
    });
  }

  /** The class of each row, if the last input is one whole number per row. */
  labels(rows: readonly number[]): number[] | undefined {
    const column = this.columns.at(-1);
    if (column === undefined || column.size !== 1 || FLOATS.has(column.type)) return undefined;
    return rows.map((row) => Number(column.data[row]));
  }

  /** The name of a class; its number if it has none. */
  className(label: number): string {
    return this.classes[label] ?? String(label);
  }

  /** The first input of one row. */
  example(row: number): Float32Array | undefined {
    const column = this.columns[0];
    if (column === undefined || !(column.data instanceof Float32Array)) return undefined;
    return column.data.subarray(row * column.size, (row + 1) * column.size);
  }

  /** The same, with examples added to those that are trained on. */
  with(examples: readonly { image: Float32Array; label: number }[]): Dataset {
    const grown = new Dataset(this.name, this.columns, this.rows, this.classes);
    const [images, labels] = this.columns;
    if (images === undefined || labels === undefined) return grown;
    const pixels = new Float32Array(images.data.length + examples.length * images.size);
    pixels.set(images.data as Float32Array);
    examples.forEach(({ image }, i) => pixels.set(image, images.data.length + i * images.size));
    const classes = emptyLike(labels, this.rows + examples.length);
    (classes as Int32Array).set(labels.data as Int32Array);
    examples.forEach(({ label }, i) => setNumber(classes, this.rows + i, label));
    const columns = [{ ...images, data: pixels as Data }, { ...labels, data: classes }];
    const result = new Dataset(this.name, columns, this.rows, this.classes);
    examples.forEach((_, i) => result.training.push(this.rows + i));
    return result;
  }
}

/** Pictures and their classes as a data set of their own. */
export function imageDataset(
  name: string,
  examples: readonly { image: Float32Array; label: number }[],
  shape: readonly number[],
  labels: ValueInfo,
  classes: readonly string[],
): Dataset {
  const size = shape.reduce((a, b) => a * b, 1);
  const data = new Float32Array(examples.length * size);
  examples.forEach(({ image }, i) => data.set(image, i * size));
  const numbers = emptyLike({ type: labels.type, size: 1 }, examples.length);
  examples.forEach(({ label }, i) => setNumber(numbers, i, label));
  const images = { type: "float32", data: data as Data, shape, size };
  const own = labels.shape.slice(1).map(() => 1);
  return new Dataset(
    name, [images, { type: labels.type, data: numbers, shape: own, size: 1 }], examples.length, classes,
  );
}

/**
 * Find the array for each input, by name or by order, and bring it to the type it must have.
 * What cannot be trained on is refused here, with its row: `labels` says which inputs are classes.
 */
export function makeDataset(
  name: string,
  arrays: ReadonlyMap<string, NdArray>,
  inputs: readonly ValueInfo[],
  labels: readonly ClassLabels[] = [],
  scale?: number,
): Dataset {
  const names = [...arrays.keys()];
  if (names.length < inputs.length) {
    throw new Error(
      `${name} has ${names.length} arrays (${names.join(", ")}); the model takes ${inputs.length}: ` +
        `${inputs.map((v) => v.name).join(", ")}. Drop all files together.`,
    );
  }
  const chosen = inputs.map((info, i) => {
    const usual = i === 0 ? INPUT_NAMES : TARGET_NAMES;
    const found = arrays.get(info.name) ?? usual.map((n) => arrays.get(n)).find((a) => a);
    return found ?? (arrays.get(names[i] as string) as NdArray);
  });
  const rows = chosen[0]?.shape[0] ?? 0;
  if (rows === 0) throw new Error(`${name} has no rows.`);
  let classes: readonly string[] = [];
  const columns = inputs.map((info, i) => {
    const expected = labels.find(({ input }) => input === info.name);
    let array = chosen[i] as NdArray;
    if (array.texts !== undefined) {
      classes = classesIn(array.texts, expected, `${name}: "${info.name}"`);
      array = encoded(array, classes);
    }
    const made = column(info, array, rows, name, scale);
    if (expected !== undefined) checkClasses(made, expected, name);
    return made;
  });
  return new Dataset(name, columns, rows, classes);
}

/** The classes in alphabetical order, as the command line numbers them. */
function classesIn(
  texts: readonly string[],
  expected: ClassLabels | undefined,
  what: string,
): string[] {
  if (expected === undefined) {
    throw new Error(`${what} holds text ("${texts[0]}"), and the model takes numbers.`);
  }
  const names = [...new Set(texts)].sort();
  if (expected.classes !== null && names.length > expected.classes) {
    throw new Error(
      `${what} holds ${names.length} classes (${names.slice(0, 6).join(", ")} …), ` +
        `and the model has ${expected.classes}.`,
    );
  }
  return names;
}

function encoded(array: NdArray, classes: readonly string[]): NdArray {
  const number = new Map(classes.map((name, i) => [name, i]));
  const data = (array.texts ?? []).map((text) => number.get(text) as number);
  return { data, shape: array.shape, kind: "i8" };
}

/** Name the first row whose label is no class. */
function checkClasses({ data, size }: Column, expected: ClassLabels, name: string): void {
  const { input, classes, ignore_index: ignored } = expected;
  data.forEach((element: number | bigint, i: number) => {
    const label = Number(element);
    if (label === ignored || (label >= 0 && (classes === null || label < classes))) return;
    const most = classes === null ? "numbers from 0 on" : `classes 0 to ${classes - 1}`;
    throw new Error(
      `${name}: "${input}" has the label ${label} in row ${Math.floor(i / size)}, and labels are ` +
        `${most}. Correct the labels, or use a model with more classes.`,
    );
  });
}

function column(
  info: ValueInfo,
  array: NdArray,
  rows: number,
  name: string,
  scale: number | undefined,
): Column {
  const { type } = info;
  if (array.shape[0] !== rows) {
    throw new Error(`${name}: ${rows} rows for one input, ${array.shape[0]} for "${info.name}".`);
  }
  const size = array.data.length / rows;
  const declared = info.shape.slice(1);
  const known = declared.every((d) => typeof d === "number");
  const wanted = declared.reduce<number>((n, d) => n * (typeof d === "number" ? d : 1), 1);
  if (known && wanted !== size) {
    const shape = declared.length > 1 ? ` (${declared.join("×")})` : "";
    throw new Error(
      `${name}: a row for "${info.name}" has ${numbers(size)}, and the model takes ` +
        `${wanted === 1 ? "one" : wanted}${shape}.`,
    );
  }
  const shape = known ? (declared as number[]) : array.shape.slice(1);
  const isFloat = FLOATS.has(type);
  const factor = isFloat ? (scale ?? (array.kind === "u1" ? 1 / 255 : 1)) : 1;
  const data = emptyLike({ type, size }, rows);
  for (let i = 0; i < array.data.length; i++) {
    const value = Number(array.data[i]) * factor;
    const row = Math.floor(i / size);
    if (!Number.isFinite(value)) {
      throw new Error(
        `${name}: "${info.name}" holds ${value} in row ${row}. Remove such rows, or fill them in.`,
      );
    }
    if (!isFloat && !Number.isInteger(value)) {
      throw new Error(
        `${name}: "${info.name}" must hold whole numbers, not ${value} as in row ${row}.`,
      );
    }
    setNumber(data, i, value);
  }
  return { type, data, shape, size };
}

function numbers(count: number): string {
  return count === 1 ? "one number" : `${count} numbers`;
}

function emptyLike({ type, size }: { type: string; size: number }, rows: number): Data {
  const array = arrayOf(type);
  return new array(new ArrayBuffer(rows * size * array.BYTES_PER_ELEMENT));
}

function setNumber(data: Data, at: number, value: number): void {
  if (data instanceof BigInt64Array || data instanceof BigUint64Array) data[at] = BigInt(value);
  else data[at] = value;
}

/** 0…n−1 in an order that depends on the seed only. */
export function shuffled(n: number, seed: number): number[] {
  const order = Array.from({ length: n }, (_, i) => i);
  let state = seed >>> 0 || 1;
  for (let i = n - 1; i > 0; i--) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    const j = Math.floor((state / 2 ** 32) * (i + 1));
    [order[i], order[j]] = [order[j] as number, order[i] as number];
  }
  return order;
}
