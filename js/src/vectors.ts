/** Arithmetic on tensors that live on a device, as models of one node. */
import { singleNode } from "./onnxfile.js";
import type { Backend, Session, Tensor } from "./ort.js";
import type { TensorStore } from "./store.js";

export class Vectors {
  private readonly sessions = new Map<string, Promise<Session>>();

  constructor(private readonly backend: Backend) {}

  /** a + b, on the device. */
  add(a: Tensor, b: Tensor): Promise<Tensor> {
    return this.run("Add", { a, b }, true);
  }

  /** Σx², on the host. */
  async sumOfSquares(a: Tensor): Promise<number> {
    const result = await this.run("ReduceSumSquare", { a }, false);
    return ((await result.getData(true)) as Float32Array)[0] ?? 0;
  }

  /** The tensor to feed for a stored one: on the device, uploaded if need be, or on the host. */
  async current(store: TensorStore, name: string): Promise<Tensor> {
    const { type, shape } = store.spec(name);
    const host = (): Tensor => this.backend.tensor(type, store.view(name), shape);
    if (!this.backend.onDevice || type.code !== "F32") return host();
    const there = store.device(name);
    if (there !== undefined) return there;
    const uploaded = await this.run("Identity", { a: host() }, true);
    store.place(name, uploaded, false);
    return uploaded;
  }

  private async run(op: string, feeds: Record<string, Tensor>, keep: boolean): Promise<Tensor> {
    let session = this.sessions.get(op);
    if (session === undefined) {
      const model = singleNode(op, Object.keys(feeds), op.startsWith("Reduce") ? 0 : undefined);
      session = this.backend.session(model, keep ? ["result"] : []);
      this.sessions.set(op, session);
    }
    const results = await (await session).run(feeds, { result: null });
    return results["result"] as Tensor;
  }
}
