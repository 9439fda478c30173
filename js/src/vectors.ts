/** Arithmetic on tensors that live on a device: small models, one run for all tensors. */
import { floatModel, makeNode } from "./onnxfile.js";
import type { Backend, Session, Tensor } from "./ort.js";
import type { TensorStore } from "./store.js";

export class Vectors {
  private readonly sessions = new Map<string, Promise<Session>>();

  constructor(private readonly backend: Backend) {}

  /** a + b for each pair, on the device. */
  async add(pairs: readonly (readonly [Tensor, Tensor])[]): Promise<Tensor[]> {
    const names = pairs.map((_, i) => [`a${i}`, `b${i}`] as const);
    const outputs = names.map((_, i) => `r${i}`);
    const session = await this.session(`Add${pairs.length}`, outputs, () =>
      floatModel(names.map((n, i) => makeNode("Add", n, `r${i}`)), names.flat(), outputs),
    );
    const feeds: Record<string, Tensor> = {};
    pairs.forEach(([a, b], i) => Object.assign(feeds, { [`a${i}`]: a, [`b${i}`]: b }));
    const results = await session.run(feeds, nothing(outputs));
    return outputs.map((n) => results[n] as Tensor);
  }

  /** Σx² over all tensors, on the host. */
  async sumOfSquares(tensors: readonly Tensor[]): Promise<number> {
    const names = tensors.map((_, i) => `a${i}`);
    const last = names.length - 1;
    const session = await this.session(`SumOfSquares${names.length}`, [], () => {
      const nodes = names.flatMap((name, i) => {
        const square = makeNode("ReduceSumSquare", [name], i === 0 ? "t0" : `s${i}`);
        square.setAttribute("keepdims", 0, "int");
        return i === 0 ? [square] : [square, makeNode("Add", [`t${i - 1}`, `s${i}`], `t${i}`)];
      });
      return floatModel(nodes, names, [`t${last}`]);
    });
    const feeds = Object.fromEntries(tensors.map((t, i) => [`a${i}`, t]));
    const results = await session.run(feeds, nothing([`t${last}`]));
    return ((await results[`t${last}`]?.getData(true)) as Float32Array)[0] ?? 0;
  }

  /** The tensor to feed for a stored one: on the device, uploaded if need be, or on the host. */
  async current(store: TensorStore, name: string): Promise<Tensor> {
    const { type, shape } = store.spec(name);
    const host = (): Tensor => this.backend.tensor(type, store.view(name), shape);
    if (!this.backend.onDevice || type.code !== "F32") return host();
    const there = store.device(name);
    if (there !== undefined) return there;
    const session = await this.session("Identity", ["r"], () =>
      floatModel([makeNode("Identity", ["a"], "r")], ["a"], ["r"]),
    );
    const uploaded = (await session.run({ a: host() }, nothing(["r"])))["r"] as Tensor;
    store.place(name, uploaded, false);
    return uploaded;
  }

  private session(
    key: string,
    kept: readonly string[],
    model: () => Uint8Array,
  ): Promise<Session> {
    const found = this.sessions.get(key) ?? this.backend.session(model(), kept);
    this.sessions.set(key, found);
    return found;
  }
}

const nothing = (names: readonly string[]): Record<string, null> =>
  Object.fromEntries(names.map((n) => [n, null]));
