/** Where sessions run, and the little arithmetic that no artifact does. */
import { oneOperator } from "./onnx.js";
import type { Data, Ort, Session, Tensor, Tensors, Value } from "./ort.js";

type Provider = { readonly name: string };

export class Backend {
  /** Whether parameters, gradients and moments stay in the device's own buffers. */
  readonly onDevice: boolean;
  private readonly providers: readonly Provider[];
  private readonly operators = new Map<string, Promise<Session>>();

  constructor(private readonly ort: Ort, private readonly options: Record<string, unknown> = {}) {
    const given = (options["executionProviders"] ?? []) as readonly (Provider | string)[];
    this.providers = given.map((p) => (typeof p === "string" ? { name: p } : p));
    this.onDevice = this.providers.some((p) => p.name === "webgpu");
  }

  /**
   * @param kept - outputs that stay on the device, if there is one.
   * @param onHost - names of nodes that the device claims and cannot run.
   */
  async session(model: Uint8Array, kept: string[] = [], onHost: string[] = []): Promise<Session> {
    const options = { ...this.options };
    if (this.onDevice) {
      const locations = kept.map((name) => [name, "gpu-buffer"]);
      options["preferredOutputLocation"] = Object.fromEntries(locations);
    }
    if (this.onDevice && onHost.length > 0) {
      options["executionProviders"] = this.providers.map((p) =>
        p.name === "webgpu" ? { preferredLayout: "NCHW", ...p, forceCpuNodeNames: onHost } : p);
    }
    return (await this.ort.InferenceSession.create(model, options)) as Session;
  }

  tensor(type: string, data: Data, dims: readonly number[]): Tensor {
    return new this.ort.Tensor(type as never, data as never, dims) as Tensor;
  }

  /** The tensor to feed for a value; floats are brought to the device if there is one. */
  async upload(value: Value | Tensor): Promise<Tensor> {
    const a = "getData" in value ? value : this.tensor(value.type, value.data, value.dims);
    const stays = !this.onDevice || a.type !== "float32" || a.location !== "cpu";
    return stays ? a : this.compute("Identity", { a });
  }

  /** One operator over float32 tensors; the result stays on the device. */
  async compute(operator: string, feeds: Tensors): Promise<Tensor> {
    const model = (): Uint8Array => oneOperator(operator, Object.keys(feeds), "y");
    const session = this.operators.get(operator) ?? this.session(model(), ["y"]);
    this.operators.set(operator, session);
    return (await (await session).run(feeds))["y"] as Tensor;
  }

  async release(): Promise<void> {
    for (const session of this.operators.values()) await (await session).release();
  }
}
