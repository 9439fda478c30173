// node adapt.mjs MODULES CHROMIUM URL FOLDER: a language model adapts to FOLDER/own.txt in the page; its adapter is downloaded.
import { readFile } from "node:fs/promises";
import { launch } from "./chromium.mjs";
import { print } from "./print.mjs";

const [modules, executable, url, folder] = process.argv.slice(2);
const browser = await launch(modules, executable, false);
const page = await (await browser.newContext()).newPage();
const problems = [];
page.setDefaultTimeout(240_000); // on a machine that is busy otherwise
page.on("pageerror", (error) => problems.push(String(error)));
page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
const status = (part) =>
  page.waitForFunction((p) => document.querySelector("#status").textContent.includes(p), part);
await page.goto(url);
await status("Paste a text");
await page.fill("#text", await readFile(`${folder}/own.txt`, "utf8"));
await page.fill("#context", "32");
await page.fill("#sample-tokens", "8");
await page.fill("#rate", "0.005");
await page.fill("#epochs", "8");
await page.click("#start");
await status("Stopped after");
await page.waitForFunction(() => document.querySelector("#after").textContent !== "");
const found = { problems, prompt: await page.inputValue("#prompt") };
found.tokenizer = await page.textContent("#tokenizer-summary");
found.curve = await page.getAttribute("#chart", "aria-label");
found.after = await page.textContent("#after");
const [event] = await Promise.all([page.waitForEvent("download"), page.click("#save-adapter")]);
await event.saveAs(`${folder}/adapter.onnx_adapter`);
await print(found);
await browser.close();
process.exit(0);
