/** Where the page computes: on the processor by WebAssembly, or on a GPU by WebGPU. */
import type { Ort } from "../src/index.js";

export type Provider = "wasm" | "webgpu";

interface OrtWeb extends Ort {
  env: { wasm: { wasmPaths?: string; numThreads?: number }; logLevel?: string };
}

const MAX_THREADS = 4;

/** What this browser and this server have of WebGPU. */
export interface Gpu {
  /** The name of the device; undefined if WebGPU cannot be used. */
  readonly name: string | undefined;
  /** Whether the device is the processor in disguise. */
  readonly isSoftware: boolean;
  /** Why WebGPU is not used by itself; "" if it is. */
  readonly reason: string;
}

interface Adapter {
  readonly isFallbackAdapter?: boolean;
  readonly info?: {
    readonly vendor?: string;
    readonly architecture?: string;
    readonly description?: string;
    readonly isFallbackAdapter?: boolean;
  };
}

/** Ask the browser for a GPU. */
export async function findGpu(isServed: boolean): Promise<Gpu> {
  const none = (reason: string): Gpu => ({ name: undefined, isSoftware: false, reason });
  const { gpu } = navigator as { gpu?: { requestAdapter(): Promise<Adapter | null> } };
  if (!isServed) return none("No WebGPU: this server has no build of it (--ort-dir)");
  if (gpu === undefined) return none("No WebGPU in this browser");
  const adapter = await gpu.requestAdapter().catch(() => null);
  if (adapter === null) return none("WebGPU finds no graphics device");
  const { vendor = "", architecture = "", description = "", isFallbackAdapter } = adapter.info ?? {};
  const name = description || [vendor, architecture].filter(Boolean).join(" ") || "a graphics device";
  const isSoftware =
    isFallbackAdapter === true ||
    adapter.isFallbackAdapter === true ||
    /swiftshader|llvmpipe|software/i.test(`${name} ${architecture}`);
  const reason = isSoftware ? `WebGPU has only a software device (${name})` : "";
  return { name, isSoftware, reason };
}

/** What to tell of the provider in use, and why it is not a better one. */
export function note(provider: Provider, ort: Ort, gpu: Gpu): { text: string; reason: string } {
  if (provider === "webgpu") {
    const kind = gpu.isSoftware ? "WebGPU on a software device" : "GPU (WebGPU)";
    return { text: `Runs on: ${kind}, ${gpu.name}`, reason: "" };
  }
  const threads = (ort as OrtWeb).env.wasm.numThreads ?? 1;
  const count = threads === 1 ? "1 thread" : `${threads} threads`;
  return { text: `Runs on: CPU (WebAssembly), ${count}`, reason: gpu.reason };
}

/** onnxruntime-web from this server, never from elsewhere. */
export async function library(provider: Provider): Promise<Ort> {
  const file = provider === "webgpu" ? "ort.webgpu.min.mjs" : "ort.wasm.min.mjs";
  const folder = new URL("ort/", document.baseURI).href;
  const ort = (await import(folder + file)) as OrtWeb;
  ort.env.wasm.wasmPaths = folder;
  const cores = Math.min(MAX_THREADS, navigator.hardwareConcurrency || 1);
  ort.env.wasm.numThreads = globalThis.crossOriginIsolated ? cores : 1;
  ort.env.logLevel = "error";
  return ort;
}
