/** Train ONNX artifacts in the browser and in Node with the stock onnxruntime. */
export { CheckpointState } from "./checkpoint.js";
export * from "./errors.js";
export { loadArtifacts, readBytes, type Artifacts, type LoadOptions } from "./load.js";
export { Module, type Input, type ModuleOptions, type StepResult } from "./module.js";
export { Optimizer } from "./optimizer.js";
export type { Data, Ort, Tensor, Value, ValueInfo } from "./ort.js";
export type { Properties } from "./properties.js";
export * from "./schedulers.js";
