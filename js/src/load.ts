/** Artifacts from a directory: a URL, or a path in Node. */
import { CheckpointState } from "./checkpoint.js";
import { OnnxTrainError } from "./errors.js";
import { Module, type ModuleOptions } from "./module.js";
import { Optimizer } from "./optimizer.js";

export interface LoadOptions extends Pick<ModuleOptions, "ort" | "sessionOptions"> {
  /** Put before every file name, as in `generate_artifacts`. */
  prefix?: string;
  /** Another checkpoint than the directory's own: its bytes. */
  checkpoint?: Uint8Array | undefined;
}

export interface Artifacts {
  readonly state: CheckpointState;
  readonly module: Module;
  /** Undefined if the directory has no optimizer_model.onnx. */
  readonly optimizer: Optimizer | undefined;
}

/**
 * Load the artifacts in a directory and make them ready to train.
 *
 * @example
 * const { state, module, optimizer } = await loadArtifacts("https://host/artifacts", { ort });
 * const { loss } = await module.trainStep({ data, dims }, { data: labels, dims: [n] });
 * await optimizer?.step();
 * module.lazyResetGrad();
 */
export async function loadArtifacts(directory: string, options: LoadOptions): Promise<Artifacts> {
  const { prefix = "", checkpoint, ...rest } = options;
  const at = (name: string): string => `${directory.replace(/\/+$/, "")}/${prefix}${name}`;
  const need = async (name: string): Promise<Uint8Array> => {
    const bytes = await readBytes(at(name));
    if (bytes === undefined) throw new OnnxTrainError(`There is no file "${at(name)}".`);
    return bytes;
  };
  const saved = checkpoint ?? (await need("checkpoint"));
  const state = CheckpointState.loadCheckpoint(saved, `Checkpoint "${at("checkpoint")}"`);
  const trainModel = await need("training_model.onnx");
  const evalModel = await readBytes(at("eval_model.onnx"));
  const module = await Module.create({ ...rest, state, trainModel, evalModel });
  const update = await readBytes(at("optimizer_model.onnx"));
  return { state, module, optimizer: update && (await Optimizer.create(update, module)) };
}

/** The bytes of a file by URL, or by path in Node; undefined if there is none. */
export async function readBytes(location: string): Promise<Uint8Array | undefined> {
  if (/^https?:/.test(location) || "document" in globalThis) {
    const response = await fetch(location);
    if (response.status === 404) return undefined;
    if (!response.ok) throw new OnnxTrainError(`"${location}" cannot be read: ${response.status}.`);
    return new Uint8Array(await response.arrayBuffer());
  }
  const files = "node:fs/promises"; // a name that bundlers for browsers do not follow
  const { readFile } = (await import(/* @vite-ignore */ files)) as {
    readFile(path: string): Promise<Uint8Array>;
  };
  try {
    return new Uint8Array(await readFile(location));
  } catch (error) {
    if ((error as { code?: string }).code === "ENOENT") return undefined;
    throw error;
  }
}
