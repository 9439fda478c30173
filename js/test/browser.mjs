// node browser.mjs MODULES CHROMIUM URL BACKEND DIRECTORY...: train in a page, print JSON lines.
import { readFile } from "node:fs/promises";
import { launch } from "./chromium.mjs";
import { print } from "./print.mjs";

const [modules, executable, url, backend, ...directories] = process.argv.slice(2);
const browser = await launch(modules, executable, backend === "webgpu");
const context = await browser.newContext({ bypassCSP: true }); // the test's own script is a blob
const page = await context.newPage();
page.setDefaultTimeout(240_000); // on a machine that is busy otherwise
await page.route("**/case/**", (route) => {
  const [index, name] = new URL(route.request().url()).pathname.split("/").slice(-2);
  return route.fulfill({ path: `${directories[Number(index)]}/${name}` });
});
await page.goto(`${url}info.json`);
const source = await readFile(new URL("train.mjs", import.meta.url), "utf8");
const problem = await page.evaluate(async ({ source, backend }) => {
  if (backend === "webgpu" && !(await navigator.gpu?.requestAdapter())) {
    return "Chromium offers no WebGPU adapter";
  }
  const file = backend === "webgpu" ? "ort.webgpu.min.mjs" : "ort.wasm.min.mjs";
  const script = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  const [lib, checkpoint, ort, { train }] = await Promise.all(
    ["/js/src/index.js", "/js/src/checkpoint.js", `/ort/${file}`, script].map((u) => import(u)),
  );
  ort.env.wasm.wasmPaths = `${location.origin}/ort/`;
  ort.env.wasm.numThreads = backend === "webgpu" ? 1 : 2;
  ort.env.logLevel = "error";
  const options = { executionProviders: [backend] };
  window.trainCase = async (index) => {
    const result = await train(lib, checkpoint, ort, `${location.origin}/case/${index}`, options);
    return { ...result, isolated: crossOriginIsolated };
  };
  return undefined;
}, { source, backend });
if (problem === undefined) {
  for (const index of directories.keys()) {
    await print(await page.evaluate((i) => window.trainCase(i), index));
  }
} else {
  await print({ skip: problem });
}
await browser.close();
process.exit(0);
