import { CheckpointState } from "./checkpoint.js";
import { check, InputError, ModelFileError } from "./errors.js";
import { readFacts } from "./facts.js";
import { readBytes } from "./files.js";
import { Module } from "./module.js";
import { Optimizer } from "./optimizer.js";
export * from "./adapter.js";
export { CheckpointState } from "./checkpoint.js";
export * from "./errors.js";
export { readBytes, writeBytes } from "./files.js";
export * from "./language.js";
export * from "./module.js";
export * from "./optimizer.js";
export { byteTokenizer, loadTokenizer, MAX_TEXT } from "./tokenizer.js";
/** Load the artifacts in a directory (a URL, or a path in Node) and make them ready to train. */
export async function loadArtifacts(directory, options) {
    const usage = "Name the onnxruntime to run on: loadArtifacts(directory, { ort }), with " +
        'import * as ort from "onnxruntime-web" (or "onnxruntime-node").';
    check(options?.ort?.InferenceSession, usage, InputError);
    const { ort, sessionOptions, prefix = "", checkpoint } = options;
    const remedy = "If an older onnxtrain wrote the artifacts, run `python -m onnxtrain.artifacts.device " +
        "DIRECTORY [PREFIX]`; it also says if they are for Python only.";
    const read = async (name) => {
        check(!/[/\\\0]|^\.*$/.test(name), `"${name}" is not the name of a file.`, ModelFileError);
        const location = `${directory.replace(/\/+$/, "")}/${prefix}${name}`;
        const bytes = await readBytes(location, directory);
        check(bytes, `There is no file "${location}". ${remedy}`, ModelFileError);
        return bytes;
    };
    const state = CheckpointState.loadCheckpoint(checkpoint ?? (await read("checkpoint")));
    const facts = readFacts(await read("device.json"), remedy);
    const files = new Map();
    for (const [name, size] of Object.entries(facts.files)) {
        const bytes = await read(name);
        check(bytes.length === size, `device.json is not the one of this "${name}". ${remedy}`, ModelFileError);
        files.set(name, bytes);
    }
    const module = new Module(facts, files, state, ort, sessionOptions);
    await module.session("train");
    return { state, module, optimizer: facts.optimizer ? new Optimizer(module) : undefined };
}
