/** Train ONNX artifacts in the browser and in Node with the stock onnxruntime. */
export { CheckpointState, type Properties } from "./checkpoint.js";
export type { ValueInfo } from "./device.js";
export * from "./errors.js";
export * from "./load.js";
export { Module, type Input, type StepResult } from "./module.js";
export { Optimizer } from "./optimizer.js";
export type { Data, Ort, Tensor, Value } from "./ort.js";
export * from "./schedulers.js";
