/** What an artifact's metadata say, checked against its graph and against the checkpoint. */
import { CheckpointError, ModelFileError } from "./errors.js";
import { ModelFile } from "./onnxfile.js";
import { BY_ONNX } from "./ort.js";
import { isObject } from "./safetensors.js";
import { sameSpec } from "./store.js";
export const KEY = "onnxtrain.artifact";
const ACCUMULATION = "onnxtrain.accumulate/";
const RESET = "lazy_reset_grad";
/** Read an artifact and check that it is of the kind expected. */
export function loadArtifact(data, kind, state, where = `The ${kind} model`) {
    const model = ModelFile.load(data, where);
    const described = model.described(KEY);
    if (described === undefined) {
        throw new ModelFileError(`${where} was not made by onnxtrain (files of onnxruntime-training can be read in Python ` +
            "only). Generate the artifacts with onnxtrain.artifacts.generate_artifacts.");
    }
    if (described["kind"] !== kind) {
        throw new ModelFileError(`${where} is the "${String(described["kind"])}" model; the "${kind}" model is needed.`);
    }
    if (model.hasExternalData) {
        throw new ModelFileError(`${where} keeps constants in a file beside it, which is read in Python only. Save it as one ` +
            "file.");
    }
    const names = (key) => {
        const found = described[key] ?? [];
        if (!Array.isArray(found) || !found.every((n) => typeof n === "string")) {
            throw new ModelFileError(`${where}: its metadata name no "${key}".`);
        }
        return found;
    };
    const inputs = new Map(model.inputs.map((v) => [v.name, v]));
    let [trainable, frozen] = [names("trainable"), names("frozen")];
    if (kind === "eval" && trainable.length + frozen.length === 0) {
        trainable = state.names.trainable.filter((n) => inputs.has(n));
        frozen = state.names.frozen.filter((n) => inputs.has(n));
    }
    const known = new Set([...trainable, ...frozen]);
    const parameters = [...inputs.values()].filter((v) => known.has(v.name));
    return {
        model,
        userInputs: names("user_inputs").map((n) => inputs.get(n) ?? missing(where, n)),
        userOutputs: names("user_outputs"),
        modelOutputs: names("model_outputs"),
        trainable,
        frozen,
        gradients: mapping(described, "gradients", where),
        states: mapping(described, "states", where),
        randomNodes: names("random_nodes"),
        specs: new Map(parameters.map((v) => [v.name, specOf(v, where)])),
    };
}
/** The checkpoint and the model must speak of the same parameters. */
export function checkState(artifact, state, training) {
    const { model, specs } = artifact;
    const misfit = (text) => {
        throw new CheckpointError(`The checkpoint does not fit: ${model.where} ${text}. Use the checkpoint that was generated ` +
            "with this model.");
    };
    for (const kind of ["trainable", "frozen"]) {
        const present = new Set(state.names[kind]);
        const absent = artifact[kind].filter((n) => !present.has(n));
        if (absent.length > 0)
            misfit(`needs the ${kind} parameter ${absent.slice(0, 8).join(", ")}`);
    }
    const extra = state.names.trainable.filter((n) => !artifact.trainable.includes(n));
    if (training && extra.length > 0)
        misfit(`does not train ${extra.slice(0, 8).join(", ")}`);
    state.allocate(specs);
    for (const [name, spec] of specs) {
        const found = state.storeOf(name).spec(name);
        if (!sameSpec(found, spec)) {
            misfit(`has "${name}" as ${spec.type.code}[${spec.shape.join()}], the checkpoint as ` +
                `${found.type.code}[${found.shape.join()}]`);
        }
    }
}
/** The training model with this step's gradients as outputs and nothing accumulated. */
export function withoutAccumulation(artifact) {
    const { model, trainable, states } = artifact;
    const buffers = new Set([...trainable.map((p) => `${p}_grad.accumulation.buffer`), RESET]);
    model.dropNodes((n) => n.name.startsWith(ACCUMULATION));
    const gradients = trainable.map((p) => gradientOf(artifact, p));
    const like = new Map(trainable.map((p, i) => [gradients[i], p]));
    for (const [state, updated] of states)
        like.set(updated, state);
    model.setOutputs([...artifact.userOutputs, ...gradients, ...states.values()], like);
    model.keepInputs((name) => !buffers.has(name));
    model.prune();
    return model.encode();
}
/**
 * Names of nodes that onnxruntime-web's WebGPU provider claims and cannot run: MaxPool with its
 * second output, which tells the gradient where the maxima were.
 */
export function hostNodes(model) {
    const found = model.nodes.filter((n) => n.opType === "MaxPool" && (n.outputs[1] ?? "") !== "");
    return found.map((n) => n.name).filter((name) => name !== "");
}
/** The name of a parameter's gradient in the graph. */
export function gradientOf(artifact, parameter) {
    return artifact.gradients.get(parameter) ?? `${parameter}_grad`;
}
function specOf({ name, elemType, shape }, where) {
    const type = BY_ONNX.get(elemType ?? 0);
    if (type === undefined || shape === null || !shape.every((d) => typeof d === "number")) {
        throw new ModelFileError(`${where}: parameter "${name}" has no type or no fixed shape.`);
    }
    return { name, type, shape: shape };
}
function mapping(described, key, where) {
    const found = described[key] ?? {};
    if (!isObject(found) || !Object.values(found).every((v) => typeof v === "string")) {
        throw new ModelFileError(`${where}: its metadata name no "${key}".`);
    }
    return new Map(Object.entries(found));
}
function missing(where, name) {
    throw new ModelFileError(`${where} has no input "${name}", which its metadata name.`);
}
