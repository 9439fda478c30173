/** Train ONNX artifacts in the browser and in Node with the stock onnxruntime. */
import type { InferenceSession } from "onnxruntime-common";
import { CheckpointState } from "./checkpoint.js";
import { check, ModelFileError, OnnxTrainError } from "./errors.js";
import { Module } from "./module.js";
import { Optimizer } from "./optimizer.js";
import type { Ort } from "./ort.js";

export { CheckpointState, type Property } from "./checkpoint.js";
export * from "./errors.js";
export type { ClassLabels } from "./labels.js";
export * from "./module.js";
export * from "./optimizer.js";
export type { Data, Ort, Tensor, Value } from "./ort.js";

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
  const { ort, sessionOptions, prefix = "", checkpoint } = options;
  const remedy =
    "If an older onnxtrain wrote the artifacts, run `python -m onnxtrain.artifacts.device " +
    "DIRECTORY [PREFIX]`; it also says if they are for Python only.";
  const read = async (name: string): Promise<Uint8Array> => {
    const location = `${directory.replace(/\/+$/, "")}/${prefix}${name}`;
    const bytes = await readBytes(location);
    check(bytes, `There is no file "${location}". ${remedy}`, ModelFileError);
    return bytes;
  };
  const state = CheckpointState.loadCheckpoint(checkpoint ?? (await read("checkpoint")));
  const facts = JSON.parse(new TextDecoder().decode(await read("device.json")));
  const files = new Map<string, Uint8Array>();
  for (const [name, size] of Object.entries(facts.files)) {
    const bytes = await read(name);
    const fits = facts.version === 1 && bytes.length === size;
    check(fits, `device.json is not the one of this "${name}". ${remedy}`, ModelFileError);
    files.set(name, bytes);
  }
  const module = new Module(facts, files, state, ort, sessionOptions);
  await module.session("train");
  return { state, module, optimizer: facts.optimizer ? new Optimizer(module) : undefined };
}

/** Node's own module for files; bundlers for browsers do not follow a name in a variable. */
const nodeFiles = (name = "node:fs/promises") => import(/* @vite-ignore */ name);

/** The bytes of a file by URL, or by path in Node; undefined if there is none. */
export async function readBytes(location: string): Promise<Uint8Array | undefined> {
  if (/^https?:/.test(location) || "document" in globalThis) {
    const response = await fetch(location);
    if (response.status === 404) return undefined;
    check(response.ok, `"${location}" cannot be read: ${response.status}.`, OnnxTrainError);
    return new Uint8Array(await response.arrayBuffer());
  }
  const { readFile } = await nodeFiles();
  return readFile(location).catch((error: { code?: string }) => {
    if (error.code !== "ENOENT") throw error;
  });
}

/** Write a file in Node; the old one stays complete until the new one is. */
export async function writeBytes(path: string, bytes: Uint8Array): Promise<void> {
  const { rename, rm, writeFile } = await nodeFiles();
  const unfinished = `${path}.${crypto.randomUUID()}`;
  try {
    await writeFile(unfinished, bytes, { flush: true });
    await rename(unfinished, path);
  } finally {
    await rm(unfinished, { force: true });
  }
}
