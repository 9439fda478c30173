// node page.mjs MODULES CHROMIUM URL FOLDER: use the page as a person would.
import { readFile } from "node:fs/promises";
import { launch } from "./chromium.mjs";
import { print } from "./print.mjs";

const [modules, executable, url, folder] = process.argv.slice(2);
const data = (await readFile(`${folder}/mine.npz`)).toString("base64");
const browser = await launch(modules, executable);
const context = await browser.newContext({ viewport: { width: 1180, height: 940 } });
const page = await context.newPage();
page.setDefaultTimeout(240_000); // on a machine that is busy otherwise
const problems = [];
const hosts = new Set();
page.on("pageerror", (error) => problems.push(String(error)));
page.on("console", (message) => {
  if (message.type() === "error") problems.push(message.text());
});
page.on("request", (request) => hosts.add(new URL(request.url()).host));

const text = (selector) => page.textContent(selector);
const status = (part) =>
  page.waitForFunction((p) => document.querySelector("#status").textContent.includes(p), part);
const report = {};

await page.goto(url);
await status("ready to train");
report.summary = await text("#summary");
report.isolated = await page.evaluate(() => globalThis.crossOriginIsolated);

// a file that cannot be used says why
await drop("notes.txt", Buffer.from("a,b\nhello,1\n").toString("base64"));
await status("is not a number");
report.complaint = await text("#status");

// drop a data set, as from a file manager
await drop("mine.npz", data);
await status("mine.npz: ready to train");
report.data = await text("#data-summary");

// train, pause in the middle, resume
await page.fill("#epochs", "1000"); // more than it gets: a short run could end before the click
await page.fill("#rate", "0.002");
await page.click("#start");
await page.waitForFunction(() => Number(document.querySelector("#step").textContent) > 5);
await page.click("#start");
await status("Stopped after");
report.paused = Number(await text("#step"));
report.button = await text("#start");
report.first = await page.getAttribute("#chart", "aria-label");
await page.fill("#epochs", "3");
await forget();
await page.click("#start");
await status("Stopped after");
report.steps = Number(await text("#step"));
report.accuracy = await text("#accuracy");
report.curve = await page.getAttribute("#chart", "aria-label");
report.points = await page.evaluate(
  () => document.querySelector("#chart .smooth").getAttribute("points").split(" ").length,
);

// keep: checkpoint, start over, load it again
const saved = await download("#save", "checkpoint");
await page.click("#reset");
await status("Back at the first checkpoint");
report.reset = Number(await text("#step"));
await page.setInputFiles("#load", saved);
await status("continues at step");
report.loaded = Number(await text("#step"));

// draw a one, see an answer, teach it
await draw([[0.5, 0.15], [0.5, 0.85]]);
await page.waitForSelector("#bars li");
report.answer = await text("#answer");
report.bars = await page.locator("#bars li").count();
await page.selectOption("#label", "1");
await page.click("#add");
report.examples = await text("#examples");
await page.fill("#epochs", "1");
await forget();
await page.click("#tune");
await status("Stopped after");
await draw([[0.5, 0.15], [0.5, 0.85]]);
await page.waitForSelector("#bars li");
report.taught = await text("#answer");
await page.screenshot({ path: `${folder}/page.png`, fullPage: true });

await download("#download", "trained.onnx");
report.problems = problems;
report.hosts = [...hosts];
await print(report);
await browser.close();
process.exit(0);

/** So that the next message cannot be taken for the last one. */
async function forget() {
  await page.evaluate(() => {
    document.querySelector("#status").textContent = "";
  });
}

async function drop(name, base64) {
  const transfer = await page.evaluateHandle(({ name, base64 }) => {
    const made = new DataTransfer();
    made.items.add(new File([Uint8Array.from(atob(base64), (c) => c.charCodeAt(0))], name));
    return made;
  }, { name, base64 });
  await page.dispatchEvent("#drop", "drop", { dataTransfer: transfer });
}

async function download(selector, name) {
  const [event] = await Promise.all([page.waitForEvent("download"), page.click(selector)]);
  const path = `${folder}/${name}`;
  await event.saveAs(path);
  if (event.suggestedFilename() !== name) throw new Error(event.suggestedFilename());
  return path;
}

async function draw(points) {
  await page.click("#clear");
  await page.locator("#pad").scrollIntoViewIfNeeded();
  const box = await page.locator("#pad").boundingBox();
  const at = ([x, y]) => [box.x + box.width * x, box.y + box.height * y];
  await page.mouse.move(...at(points[0]));
  await page.mouse.down();
  for (const point of points.slice(1)) await page.mouse.move(...at(point), { steps: 10 });
  await page.mouse.up();
}
