// Starts Chromium as the tests need it: no sandbox (root), nothing fetched, a profile of its own.
import { createRequire } from "node:module";

const QUIET = [
  "--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];
const SOFTWARE_GPU = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"];

export async function launch(modules, executablePath, gpu = false, more = []) {
  const { chromium } = createRequire(`${modules}/x.js`)("playwright-core");
  const args = [...QUIET, ...(gpu ? SOFTWARE_GPU : ["--disable-gpu"]), ...more];
  return chromium.launch({ executablePath, headless: true, args, timeout: 240_000 });
}
