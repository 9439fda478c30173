// node growth.mjs LIBRARY MODEL...: what the check of a model says to each, empty where it is fine.
import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";
import { print } from "./print.mjs";

const [library, ...models] = process.argv.slice(2);
const { checkModel } = await import(pathToFileURL(`${library}/sound.js`));
const { OnnxTrainError } = await import(pathToFileURL(`${library}/errors.js`));
for (const path of models) {
  let message = "";
  try {
    checkModel(await readFile(path));
  } catch (error) {
    if (!(error instanceof OnnxTrainError)) throw error;
    message = error.message;
  }
  await print({ message });
}
