// node fuzz.mjs STATIC: for every line "KIND PATH" of the input, read that file and say what came of it.
import { readFile } from "node:fs/promises";
import { createInterface } from "node:readline";
import { print } from "./print.mjs";

const root = `file://${process.argv[2]}/js`;
const { CheckpointState } = await import(`${root}/src/checkpoint.js`);
const { OnnxTrainError } = await import(`${root}/src/errors.js`);
const { readFacts } = await import(`${root}/src/facts.js`);
const { checkModel } = await import(`${root}/src/sound.js`);
const { readArrays } = await import(`${root}/page/arrays.js`);
const READERS = {
  checkpoint: (bytes) => CheckpointState.loadCheckpoint(bytes),
  facts: (bytes) => readFacts(bytes, ""),
  model: (bytes) => checkModel(bytes),
  data: (bytes, path) => readArrays(path.split("/").at(-1), bytes),
};
/** The page has errors of no class of its own. */
const isOurs = (kind, error) =>
  error instanceof OnnxTrainError || (kind === "data" && error.constructor === Error);

for await (const line of createInterface({ input: process.stdin })) {
  const [kind, path] = line.split(" ");
  try {
    await READERS[kind](new Uint8Array(await readFile(path)), path);
    await print({ outcome: "ok" });
  } catch (error) {
    await print({ outcome: isOurs(kind, error) ? "refused" : "raw", message: String(error.stack) });
  }
}
