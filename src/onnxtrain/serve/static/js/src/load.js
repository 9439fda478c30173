/** Artifacts from a directory: a URL, or a path in Node. */
import { CheckpointState } from "./checkpoint.js";
import { OnnxTrainError } from "./errors.js";
import { Module } from "./module.js";
import { Optimizer } from "./optimizer.js";
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
    const { prefix = "", checkpoint, ...rest } = options;
    const at = (name) => `${directory.replace(/\/+$/, "")}/${prefix}${name}`;
    const need = async (name) => {
        const bytes = await readBytes(at(name));
        if (bytes === undefined)
            throw new OnnxTrainError(`There is no file "${at(name)}".`);
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
export async function readBytes(location) {
    if (/^https?:/.test(location) || "document" in globalThis) {
        const response = await fetch(location);
        if (response.status === 404)
            return undefined;
        if (!response.ok)
            throw new OnnxTrainError(`"${location}" cannot be read: ${response.status}.`);
        return new Uint8Array(await response.arrayBuffer());
    }
    const files = "node:fs/promises"; // a name that bundlers for browsers do not follow
    const { readFile } = (await import(/* @vite-ignore */ files));
    try {
        return new Uint8Array(await readFile(location));
    }
    catch (error) {
        if (error.code === "ENOENT")
            return undefined;
        throw error;
    }
}
