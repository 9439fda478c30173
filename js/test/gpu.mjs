// node gpu.mjs MODULES CHROMIUM URL DATA: WebGPU is offered, told and used; here on a software device.
import { launch } from "./chromium.mjs";
import { print } from "./print.mjs";

const [modules, executable, url, data] = process.argv.slice(2);
const browser = await launch(modules, executable, true);
const page = await browser.newPage();
page.setDefaultTimeout(240_000); // on a machine that is busy otherwise
const text = (selector) => page.textContent(selector);
const status = (part) =>
  page.waitForFunction((p) => document.querySelector("#status").textContent.includes(p), part);
const report = {};
await page.goto(url);
await status("Drop a data set");
report.first = [await text("#provider"), await text("#reason")];
report.offered = await page.locator("#backend option").allTextContents();
if (report.offered.length > 1) {
  await page.selectOption("#backend", "webgpu");
  await status("Continues on the other processor");
  report.second = await text("#provider");
  await page.setInputFiles("#files", data);
  await status("ready to train");
  await page.fill("#epochs", "1");
  await page.click("#start");
  await status("Stopped after");
  report.stopped = await text("#status");
  report.loss = Number(await text("#loss"));
}
await print(report);
await browser.close();
process.exit(0);
