/** Train ONNX artifacts in the browser and in Node with the stock onnxruntime. */
import type { InferenceSession } from "onnxruntime-common";
import { CheckpointState } from "./checkpoint.js";
import { check, InputError, ModelFileError } from "./errors.js";
import { readFacts } from "./facts.js";
import { readBytes } from "./files.js";
import { Module } from "./module.js";
import { Optimizer } from "./optimizer.js";
import type { Ort } from "./ort.js";

export * from "./adapter.js";
export { CheckpointState, type Property } from "./checkpoint.js";
export * from "./errors.js";
export { readBytes, writeBytes } from "./files.js";
export type { ClassLabels } from "./labels.js";
export * from "./language.js";
export * from "./module.js";
export * from "./optimizer.js";
export type { Data, Ort, Tensor, Value } from "./ort.js";
export { byteTokenizer, loadTokenizer, MAX_TEXT, type Tokenizer } from "./tokenizer.js";

export interface LoadOptions {
  ort: Ort;
  sessionOptions?: InferenceSession.SessionOptions;
  /** Put before every file name, as in `generate_artifacts`. */
  prefix?: string;
  /** Another checkpoint than the directory's own: its bytes. */
  checkpoint?: Uint8Array | undefined;
}

/** There is no optimizer if the artifacts have none that JavaScript can run. */
export type Artifacts = { state: CheckpointState; module: Module; optimizer?: Optimizer };

/** Load the artifacts in a directory (a URL, or a path in Node) and make them ready to train. */
export async function loadArtifacts(directory: string, options: LoadOptions): Promise<Artifacts> {
  const usage =
    "Name the onnxruntime to run on: loadArtifacts(directory, { ort }), with " +
    'import * as ort from "onnxruntime-web" (or "onnxruntime-node").';
  check((options as Partial<LoadOptions> | undefined)?.ort?.InferenceSession, usage, InputError);
  const { ort, sessionOptions, prefix = "", checkpoint } = options;
  const remedy =
    "If an older onnxtrain wrote the artifacts, run `python -m onnxtrain.artifacts.device " +
    "DIRECTORY [PREFIX]`; it also says if they are for Python only.";
  const read = async (name: string): Promise<Uint8Array> => {
    check(!/[/\\\0]|^\.*$/.test(name), `"${name}" is not the name of a file.`, ModelFileError);
    const location = `${directory.replace(/\/+$/, "")}/${prefix}${name}`;
    const bytes = await readBytes(location, directory);
    check(bytes, `There is no file "${location}". ${remedy}`, ModelFileError);
    return bytes;
  };
  const state = CheckpointState.loadCheckpoint(checkpoint ?? (await read("checkpoint")));
  const facts = readFacts(await read("device.json"), remedy);
  const files = new Map<string, Uint8Array>();
  for (const [name, size] of Object.entries(facts.files)) {
    const bytes = await read(name);
    check(bytes.length === size, `device.json is not the one of this "${name}". ${remedy}`, ModelFileError);
    files.set(name, bytes);
  }
  const module = new Module(facts, files, state, ort, sessionOptions);
  await module.session("train");
  return { state, module, optimizer: facts.optimizer ? new Optimizer(module) : undefined };
}
