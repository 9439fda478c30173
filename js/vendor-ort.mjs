// node vendor-ort.mjs DIST: copy what the page needs of onnxruntime-web into the Python package.
import { copyFile, readFile, writeFile } from "node:fs/promises";
import { gzipSync } from "node:zlib";

const [dist] = process.argv.slice(2);
if (dist === undefined) throw new Error("usage: node vendor-ort.mjs node_modules/onnxruntime-web/dist");
const target = new URL("../src/onnxtrain/serve/static/ort/", import.meta.url).pathname;
for (const name of ["ort.wasm.min.mjs", "ort-wasm-simd-threaded.mjs"]) {
  await copyFile(`${dist}/${name}`, target + name);
}
const wasm = await readFile(`${dist}/ort-wasm-simd-threaded.wasm`);
await writeFile(`${target}ort-wasm-simd-threaded.wasm.gz`, gzipSync(wasm, { level: 9 }));
