/** Arrays from files: NumPy's .npy and .npz, and CSV. */
import { orDamaged, unzip } from "./zip.js";

export interface NdArray {
  readonly data: ArrayLike<number | bigint>;
  readonly shape: readonly number[];
  /** NumPy's letter and width, e.g. "f4". */
  readonly kind: string;
  /** The elements, if they are text; `data` is empty then. */
  readonly texts?: readonly string[];
}

const READERS: Record<string, (buffer: ArrayBuffer) => ArrayLike<number | bigint>> = {
  f4: (b) => new Float32Array(b),
  f8: (b) => new Float64Array(b),
  i1: (b) => new Int8Array(b),
  i2: (b) => new Int16Array(b),
  i4: (b) => new Int32Array(b),
  i8: (b) => new BigInt64Array(b),
  u1: (b) => new Uint8Array(b),
  u2: (b) => new Uint16Array(b),
  u4: (b) => new Uint32Array(b),
  u8: (b) => new BigUint64Array(b),
  b1: (b) => new Uint8Array(b),
};

/** All arrays in a file, by name; the kind of file is told by its name's ending. */
export async function readArrays(name: string, bytes: Uint8Array): Promise<Map<string, NdArray>> {
  return orDamaged(name, () => read(name, bytes));
}

async function read(name: string, bytes: Uint8Array): Promise<Map<string, NdArray>> {
  const stem = name.replace(/\.[^.]*$/, "");
  if (name.endsWith(".npz")) return readNpz(bytes, name);
  if (name.endsWith(".npy")) return new Map([[stem, readNpy(bytes, name)]]);
  if (/\.(csv|tsv|txt)$/.test(name)) return readCsv(new TextDecoder().decode(bytes), name);
  throw new Error(`${name}: only .npz, .npy and .csv files can be read.`);
}

export function readNpy(bytes: Uint8Array, name: string): NdArray {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (bytes.length < 12 || String.fromCharCode(...bytes.subarray(1, 6)) !== "NUMPY") {
    throw new Error(`${name} is not a .npy file.`);
  }
  const short = bytes[6] === 1;
  const start = short ? 10 : 12;
  const length = short ? view.getUint16(8, true) : view.getUint32(8, true);
  const header = new TextDecoder().decode(bytes.subarray(start, start + length));
  const descr = /'descr':\s*'([<>|=]?)(\w+)'/.exec(header);
  const shape = /'shape':\s*\(([^)]*)\)/.exec(header)?.[1];
  const kind = descr?.[2] ?? "";
  const read = READERS[kind];
  const letters = /^U(\d+)$/.exec(kind)?.[1];
  const isKnown = read !== undefined || letters !== undefined;
  if (!isKnown || shape === undefined || descr?.[1] === ">") {
    throw new Error(`${name}: its type cannot be read. Save it as float32, integers or text.`);
  }
  if (header.includes("'fortran_order': True")) {
    throw new Error(`${name} is stored by columns. Save numpy.ascontiguousarray(x) instead.`);
  }
  const dims = shape.split(",").map((s) => s.trim()).filter((s) => s !== "").map(Number);
  const width = letters === undefined ? Number(kind.slice(1)) : 4 * Number(letters);
  const size = dims.reduce((a, b) => a * b, 1) * width;
  const data = bytes.slice(start + length, start + length + size);
  if (data.length !== size) throw new Error(`${name} is truncated.`);
  if (read !== undefined) return { data: read(data.buffer), shape: dims, kind };
  return { data: [], shape: dims, kind, texts: readTexts(data.buffer, Number(letters)) };
}

/** NumPy's text: a fixed number of code points per element, zeros at the end. */
function readTexts(buffer: ArrayBuffer, letters: number): string[] {
  const points = new Uint32Array(buffer);
  const count = letters === 0 ? 0 : points.length / letters;
  return Array.from({ length: count }, (_, i) => {
    const own = [...points.subarray(i * letters, (i + 1) * letters)].filter((p) => p !== 0);
    return own.map((p) => (p <= 0x10ffff ? String.fromCodePoint(p) : "\ufffd")).join("");
  });
}

async function readNpz(bytes: Uint8Array, name: string): Promise<Map<string, NdArray>> {
  const found = new Map<string, NdArray>();
  for (const [member, content] of await unzip(bytes, name)) {
    if (member.endsWith(".npy")) found.set(member.slice(0, -4), readNpy(content, `${name}/${member}`));
  }
  return found;
}

const TARGETS = ["label", "labels", "target", "class", "y"];

/** Numbers in a table; the target is the column called so, else the last one, and may be text. */
function readCsv(text: string, name: string): Map<string, NdArray> {
  const rows = text.split(/\r?\n/).filter((l) => l.trim() !== "").map((l) => l.split(/[,;\t]/));
  const first = rows[0] ?? [];
  // a text above a number is a name; a text above another one is a label like it
  const isName = (cell: string, column: number): boolean =>
    Number.isNaN(Number(cell)) && !Number.isNaN(Number(rows[1]?.[column] ?? 0));
  const hasHeader = first.some(isName);
  const columns = hasHeader ? first.map((c) => c.trim().toLowerCase()) : [];
  const body = hasHeader ? rows.slice(1) : rows;
  const named = columns.findIndex((c) => TARGETS.includes(c));
  const target = named >= 0 ? named : first.length - 1;
  const x = new Float64Array(body.length * (first.length - 1));
  const y: string[] = [];
  body.forEach((row, r) => {
    const line = `${name}, line ${r + (hasHeader ? 2 : 1)}`;
    if (row.length !== first.length) {
      throw new Error(`${line}: ${row.length} cells instead of ${first.length}.`);
    }
    let at = r * (first.length - 1);
    row.forEach((cell, c) => {
      if (cell.trim() === "") throw new Error(`${line}: a cell is empty. Fill it in.`);
      if (c === target) y.push(cell.trim());
      else x[at++] = finite(cell, line);
    });
  });
  const isText = y.some((cell) => Number.isNaN(Number(cell)));
  const shape = [body.length];
  return new Map<string, NdArray>([
    ["x", { data: x, shape: [body.length, first.length - 1], kind: "f8" }],
    ["y", isText ? { data: [], shape, kind: "U", texts: y } : { data: y.map(Number), shape, kind: "f8" }],
  ]);
}

function finite(cell: string, line: string): number {
  const value = Number(cell);
  if (!Number.isFinite(value)) throw new Error(`${line}: "${cell}" is not a number.`);
  return value;
}
