// Compiled only: the real library's types must fit what this package asks for.
import type * as common from "onnxruntime-common";
import { loadArtifacts, type Ort } from "../src/index.js";

type Library = Pick<typeof common, "Tensor" | "InferenceSession" | "env">;

export function fits(library: Library): Ort {
  void loadArtifacts("artifacts", { ort: library });
  return library;
}
