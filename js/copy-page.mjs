// Puts what tsc does not write beside its output: the page, its style, and the mark for Node.
import { copyFile, writeFile } from "node:fs/promises";

const target = process.argv[2] ?? new URL("../src/onnxtrain/serve/static/", import.meta.url).pathname;
for (const name of ["index.html", "style.css", "icon.svg"]) {
  await copyFile(new URL(`page/${name}`, import.meta.url), `${target}/${name}`);
}
await writeFile(`${target}/js/package.json`, '{ "type": "module" }\n');
