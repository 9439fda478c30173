/** Train ONNX artifacts in the browser and in Node with the stock onnxruntime. */
export * from "./errors.js";
export { loadArtifacts, readBytes, writeBytes, type Artifacts, type LoadOptions } from "./load.js";
export { Module, type Input, type ModuleOptions, type StepResult } from "./module.js";
export { ModelFile, type Dim, type ValueInfo } from "./onnxfile.js";
export { Optimizer } from "./optimizer.js";
export type { Data, Ort, Session, Tensor } from "./ort.js";
export * from "./schedulers.js";
export { CheckpointState, Properties, type Property } from "./state.js";
