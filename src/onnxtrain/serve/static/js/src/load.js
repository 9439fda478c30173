/** Artifacts from a directory: a URL, or a path in Node. */
import { OnnxTrainError } from "./errors.js";
import { Module } from "./module.js";
import { Optimizer } from "./optimizer.js";
import { CheckpointState } from "./state.js";
/**
 * Load the artifacts in a directory and make them ready to train.
 *
 * @example
 * const { state, module, optimizer } = await loadArtifacts("https://host/artifacts", { ort });
 * const { loss } = await module.trainStep({ data, dims }, { data: labels, dims: [n] });
 * await optimizer?.step();
 * module.lazyResetGrad();
 */
export async function loadArtifacts(directory, options) {
    const base = `${directory.replace(/\/+$/, "")}/${options.prefix ?? ""}`;
    const [trainModel, evalModel, optimizerModel, checkpoint] = await Promise.all([
        need(`${base}training_model.onnx`),
        readBytes(`${base}eval_model.onnx`),
        readBytes(`${base}optimizer_model.onnx`),
        options.checkpoint ?? need(`${base}checkpoint`),
    ]);
    const state = CheckpointState.loadCheckpoint(checkpoint, `Checkpoint "${base}checkpoint"`);
    const { ort, sessionOptions, checkFinite } = options;
    const module = await Module.create({
        ort, trainModel, state, evalModel, sessionOptions, checkFinite,
    });
    const optimizer = optimizerModel && (await Optimizer.create(optimizerModel, module));
    return { state, module, optimizer };
}
async function need(location) {
    const bytes = await readBytes(location);
    if (bytes === undefined)
        throw new OnnxTrainError(`There is no file "${location}".`);
    return bytes;
}
/** The bytes of a file by URL, or by path in Node; undefined if there is none. */
export async function readBytes(location) {
    if (/^https?:/.test(location) || "document" in globalThis) {
        const response = await fetch(location);
        if (response.status === 404)
            return undefined;
        if (!response.ok)
            throw new OnnxTrainError(`"${location}" cannot be read: ${response.status}.`);
        return new Uint8Array(await response.arrayBuffer());
    }
    try {
        const { readFile } = await nodeModule("node:fs/promises");
        return new Uint8Array(await readFile(location));
    }
    catch (error) {
        if (error.code === "ENOENT")
            return undefined;
        throw error;
    }
}
/** Write a file in Node so that at every moment the old or the new one is complete. */
export async function writeBytes(path, bytes) {
    const { open, rename, unlink } = await nodeModule("node:fs/promises");
    const temporary = `${path}.${Math.random().toString(36).slice(2)}.tmp`;
    const file = await open(temporary, "wx");
    try {
        await file.writeFile(bytes);
        await file.sync();
        await file.close();
        await rename(temporary, path);
    }
    catch (error) {
        await file.close().catch(() => undefined);
        await unlink(temporary).catch(() => undefined);
        throw error;
    }
}
/** A module of Node, looked up when it is used: browsers must be able to load this file. */
async function nodeModule(name) {
    return (await import(/* @vite-ignore */ name));
}
