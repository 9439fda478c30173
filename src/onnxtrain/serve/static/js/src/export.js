/** From the eval model and a checkpoint to an inference model. */
import { KEY } from "./artifact.js";
import { ModelFileError } from "./errors.js";
import { captures, ModelFile } from "./onnxfile.js";
import { BY_ORT } from "./ort.js";
const LIMIT = 2 ** 31 - 2 ** 20;
const FIRST_IR_WITHOUT_INPUTS = 4;
/** The inference model; see `Module.exportModelForInferencing`. */
export async function exportModel(evalModel, state, outputs, backend) {
    const model = ModelFile.load(evalModel, "The eval model");
    model.setOutputs(outputs);
    toInference(model);
    model.prune();
    const metadata = model.metadata;
    metadata.delete(KEY);
    model.setMetadata(metadata);
    const used = model.usedNames();
    const known = new Set([...state.names.trainable, ...state.names.frozen]);
    const parameters = model.inputs.map((v) => v.name).filter((n) => known.has(n) && used.has(n));
    const alsoInputs = model.message.integer(1) < FIRST_IR_WITHOUT_INPUTS;
    const constants = new Set(alsoInputs ? [] : parameters);
    model.keepInputs((n) => used.has(n) && !constants.has(n));
    const size = parameters.reduce((n, p) => n + state.storeOf(p).bytes(p).length, 0);
    if (size > LIMIT) {
        throw new ModelFileError("The weights have more than 2 GB, which one file cannot hold. Save the checkpoint and export " +
            'it in Python: "onnxtrain export".');
    }
    for (const name of parameters) {
        const store = state.storeOf(name);
        const { type, shape } = store.spec(name);
        model.addInitializer(name, type.onnx, shape, store.bytes(name));
    }
    await addOutputTypes(model, backend);
    return model.encode();
}
/** Give outputs that the file says nothing about the type that onnxruntime infers. */
async function addOutputTypes(model, backend) {
    const bare = new Set(model.outputs.filter((v) => v.elemType === null).map((v) => v.name));
    if (bare.size === 0)
        return;
    const session = await backend.session(model.encode());
    for (const found of session.outputMetadata ?? []) {
        if (!bare.has(found.name) || !found.isTensor)
            continue;
        const type = BY_ORT.get(found.type ?? "");
        if (type !== undefined)
            model.setOutputType(found.name, type.onnx, found.shape ?? null);
    }
    await session.release();
}
/** Take Dropout out and put BatchNormalization into inference mode. */
function toInference(model) {
    const outputs = new Set(model.outputs.map((v) => v.name));
    const captured = new Set(model.nodes.flatMap((n) => n.subgraphs().flatMap((g) => [...captures(g)])));
    const used = model.usedNames();
    const identities = new Set();
    for (const node of model.allNodes()) {
        if (node.domain !== "" && node.domain !== "ai.onnx")
            continue;
        if (node.opType === "BatchNormalization" && node.integer("training_mode", 0) !== 0) {
            node.setAttribute("training_mode", 0, "int");
            node.outputs = node.outputs.slice(0, 1);
        }
        else if (node.opType === "Dropout" && toIdentity(node, used)) {
            identities.add(node.message);
        }
    }
    const instead = new Map();
    for (const node of model.nodes) {
        const [out = ""] = node.outputs;
        if (identities.has(node.message) && !outputs.has(out) && !captured.has(out)) {
            instead.set(out, node.inputs[0]);
        }
    }
    model.dropNodes((n) => instead.has(n.outputs[0] ?? ""));
    model.renameUses(instead);
}
/** Make a Dropout an Identity; if someone reads its mask it only stops dropping. */
function toIdentity(node, used) {
    const { inputs, outputs } = node;
    const mask = outputs[1];
    if (mask !== undefined && used.has(mask)) {
        node.inputs = inputs.slice(0, 2);
        return false;
    }
    node.message.replace(4, ["Identity"]);
    node.message.drop(5);
    node.inputs = inputs.slice(0, 1);
    node.outputs = outputs.slice(0, 1);
    return true;
}
