/** Train ONNX artifacts in the browser and in Node with the stock onnxruntime. */
export { CheckpointState } from "./checkpoint.js";
export * from "./errors.js";
export * from "./load.js";
export { Module } from "./module.js";
export { Optimizer } from "./optimizer.js";
export * from "./schedulers.js";
