// node hostile.mjs LIBRARY MODULES DIRECTORY...: try to load and export each, print what happens.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { print } from "./print.mjs";

const [library, modules, ...directories] = process.argv.slice(2);
const lib = await import(pathToFileURL(`${library}/index.js`));
const ort = createRequire(`${modules}/x.js`)("onnxruntime-node");
/** What loading and exporting has cost so far: a bomb shows in the difference. */
const costs = () => {
  const { user, system } = process.cpuUsage();
  return { seconds: (user + system) / 1e6, megabytes: process.resourceUsage().maxRSS / 1024 };
};
for (const directory of directories) {
  const before = costs();
  const cost = () => {
    const { seconds, megabytes } = costs();
    return { seconds: seconds - before.seconds, megabytes: megabytes - before.megabytes };
  };
  try {
    const { module } = await lib.loadArtifacts(directory, { ort });
    const bytes = await module.exportModelForInferencing();
    await print({ ...cost(), directory, bytes: Buffer.from(bytes).toString("latin1") });
  } catch (error) {
    const { name, message } = error;
    const isOurs = error instanceof lib.OnnxTrainError;
    await print({ ...cost(), directory, name, message, isOurs });
  }
}
process.exit(0);
