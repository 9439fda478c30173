/** Train ONNX artifacts in the browser and in Node with the stock onnxruntime. */
export * from "./errors.js";
export { loadArtifacts, readBytes, writeBytes } from "./load.js";
export { Module } from "./module.js";
export { ModelFile } from "./onnxfile.js";
export { Optimizer } from "./optimizer.js";
export * from "./schedulers.js";
export { CheckpointState, Properties } from "./state.js";
