// node names.mjs MODULES CHROMIUM URL NAME ROWS BROKEN: use a page whose every name is hostile.
import { launch } from "./chromium.mjs";
import { print } from "./print.mjs";

const [modules, executable, url, name, rows, broken] = process.argv.slice(2);
const browser = await launch(modules, executable);
const page = await (await browser.newContext()).newPage();
page.setDefaultTimeout(240_000); // on a machine that is busy otherwise
const problems = [];
page.on("pageerror", (error) => problems.push(String(error)));
page.on("dialog", async (dialog) => {
  problems.push(`a dialog: ${dialog.message()}`);
  await dialog.dismiss();
});
const text = (selector) => page.textContent(selector);
const status = (part) =>
  page.waitForFunction((p) => document.querySelector("#status").textContent.includes(p), part);
const report = {};

await page.goto(url);
await status("Drop a data set");
report.title = await page.title();
report.summary = await text("#summary");
await drop(`${name}.csv`, broken);
await status("a row for");
report.complaint = await text("#status");
await drop(`${name}.csv`, rows);
await status("ready to train");
report.data = await text("#data-summary");
await page.fill("#epochs", "1");
await page.click("#start");
await status("Stopped after");
await page.click("#random");
await page.waitForSelector("#bars li");
report.answer = await text("#answer");
report.bars = await text("#bars");
report.classes = await page.locator("#label option").allTextContents();
report.owned = await page.evaluate(() => globalThis.owned ?? null);
report.strange = await page.evaluate(() => {
  const own = new Set(document.querySelectorAll("head script[src^='js/page/']"));
  const all = [...document.querySelectorAll("img, iframe, object, script, [onerror], [onload]")];
  return all.filter((element) => !own.has(element)).map((element) => element.outerHTML);
});
const [event] = await Promise.all([page.waitForEvent("download"), page.click("#download")]);
report.download = event.suggestedFilename();
await print({ ...report, problems });
await browser.close();
process.exit(0);

async function drop(file, content) {
  const transfer = await page.evaluateHandle(({ file, content }) => {
    const made = new DataTransfer();
    made.items.add(new File([content], file));
    return made;
  }, { file, content });
  await page.dispatchEvent("#drop", "drop", { dataTransfer: transfer });
}
