// node cards.mjs MODULES CHROMIUM IMAGES-URL LANGUAGE-URL FOLDER: pictures, camera, text and adapters in the page.
import { readFile } from "node:fs/promises";
import { launch } from "./chromium.mjs";
import { print } from "./print.mjs";

const [modules, executable, imagesUrl, languageUrl, folder] = process.argv.slice(2);
const browser = await launch(modules, executable, false, [
  "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream",
]);
const phone = { width: 390, height: 844 };
const problems = [];

async function open(url, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1180, height: 940 }, ...options });
  const page = await context.newPage();
  page.setDefaultTimeout(240_000); // on a machine that is busy otherwise
  page.on("pageerror", (error) => problems.push(String(error)));
  page.on("console", (message) => message.type() === "error" && problems.push(message.text()));
  await page.goto(url);
  return page;
}
const text = (page, selector) => page.textContent(selector);
const status = (page, part) =>
  page.waitForFunction((p) => document.querySelector("#status").textContent.includes(p), part);
const download = async (page, selector, name) => {
  const [event] = await Promise.all([page.waitForEvent("download"), page.click(selector)]);
  if (event.suggestedFilename() !== name) throw new Error(event.suggestedFilename());
  await event.saveAs(`${folder}/${name}`);
};
const ground = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
/** What sticks out of the page on the right. */
const tooWide = (page) =>
  page.evaluate(() => {
    const room = document.documentElement.clientWidth;
    const wide = [...document.querySelectorAll("body *")].filter(
      (node) => node.getClientRects().length > 0 && node.getBoundingClientRect().right > room + 0.5,
    );
    return { scroll: document.documentElement.scrollWidth - room, wide: wide.map((n) => n.id || n.className) };
  });

// --- pictures of one's own ------------------------------------------------------------------------

const images = {};
{
  const page = await open(imagesUrl, { viewport: phone, colorScheme: "dark", permissions: ["camera"] });
  await status(page, "Drop a data set");
  images.provider = await text(page, "#provider");
  images.reason = await text(page, "#reason");
  images.dark = await ground(page);
  images.narrow = await tooWide(page);
  images.names = await page.locator("#groups .name").evaluateAll((nodes) => nodes.map((n) => n.value));
  images.dropLoose = await dropped(page, "#data", ["red/0.png"]);

  // a folder of folders, one class that is known by name and one that is not
  await page.setInputFiles("#folder", `${folder}/pictures`);
  await status(page, "pictures added");
  images.added = await text(page, "#status");
  images.counts = await page.locator("#groups .count").allTextContents();
  images.renamed = await page.locator("#groups .name").evaluateAll((nodes) => nodes.map((n) => n.value));
  await page.setInputFiles("#groups .group:nth-child(1) input[type=file]", `${folder}/notes.png`);
  await status(page, "cannot be read");
  images.unreadable = await text(page, "#status");

  await page.fill("#rate", "0.05");
  await page.fill("#epochs", "8");
  await page.fill("#batch", "8");
  await page.click("#tune-own");
  await status(page, "Stopped after");
  images.accuracy = await text(page, "#accuracy");
  images.data = await text(page, "#data-summary");

  // the camera is Chromium's green picture that beeps; three of it for the third class
  await page.click("#camera");
  await page.waitForFunction(() => document.querySelector("#video").videoWidth > 0);
  for (let i = 0; i < 3; i++) await page.click("#groups .group:nth-child(3) .capture");
  images.captured = await text(page, "#groups .group:nth-child(3) .count");
  await page.waitForSelector("#seen li");
  images.sees = await text(page, "#sees");
  images.narrowAgain = await tooWide(page);
  await page.screenshot({ path: `${folder}/phone.png`, fullPage: true });
  await page.click("#camera");
  images.cameraOff = await page.evaluate(() => document.querySelector("#video").srcObject === null);

  // the other colours, and they are remembered
  await page.click("#theme");
  images.light = await ground(page);
  await page.reload();
  await status(page, "Drop a data set");
  images.remembered = await ground(page);
  await page.context().close();
}

// --- a language model -----------------------------------------------------------------------------

const language = {};
{
  const page = await open(languageUrl);
  await status(page, "Paste a text");
  language.summary = await text(page, "#summary");
  language.tokenizer = await text(page, "#tokenizer-summary");
  language.adapter = await text(page, "#adapter-summary");
  language.hidden = await page.evaluate(() =>
    ["data", "drawing", "own"].filter((id) => !document.getElementById(id).hidden),
  );
  await page.click("#start");
  await status(page, "Write or paste a text");
  const lines = await readFile(`${folder}/own.txt`, "utf8");
  await page.fill("#text", lines);
  await page.fill("#context", "16");
  await page.fill("#sample-tokens", "8");
  await page.fill("#rate", "0.05");
  await page.fill("#epochs", "3");
  await page.click("#start");
  await status(page, "Stopped after");
  await page.waitForFunction(() => document.querySelector("#after").textContent !== "");
  language.text = await text(page, "#text-summary");
  language.curve = await page.getAttribute("#chart", "aria-label");
  language.quality = [await text(page, "#quality"), await text(page, "#accuracy")];
  language.prompt = await page.inputValue("#prompt");
  language.before = await text(page, "#before");
  language.after = await text(page, "#after");
  await download(page, "#save-adapter", "adapter.onnx_adapter");
  await download(page, "#save-peft", "adapter.zip");

  // junk, another base; then its own adapter
  const load = async (name, part) => {
    await page.setInputFiles("#load-adapter", `${folder}/${name}`);
    await status(page, part);
    return text(page, "#status");
  };
  language.other = await load("other.onnx_adapter", "another base");
  await page.setInputFiles("#tokenizer", `${folder}/wordlevel.json`);
  await status(page, "WordLevel");
  language.words = await text(page, "#status");
  await page.setInputFiles("#text-file", `${folder}/huge.txt`);
  await status(page, "huge.txt has");
  language.huge = await text(page, "#status");
  language.loaded = await load("adapter.zip", "goes on from this adapter");
  await page.click("#write");
  await page.waitForFunction(() => document.querySelector("#after").textContent !== "");
  language.again = await text(page, "#after");
  await page.setViewportSize(phone);
  language.narrow = await tooWide(page);
  await page.screenshot({ path: `${folder}/language.png`, fullPage: true });
}
await print({ images, language, problems });
await browser.close();
process.exit(0);

/** Drop files of the test's folder on an element, without their folder. */
async function dropped(page, selector, names) {
  const files = await Promise.all(
    names.map(async (name) => [name, (await readFile(`${folder}/pictures/${name}`)).toString("base64")]),
  );
  const transfer = await page.evaluateHandle((listed) => {
    const made = new DataTransfer();
    for (const [name, base64] of listed) {
      const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
      made.items.add(new File([bytes], name.split("/").at(-1), { type: "image/png" }));
    }
    return made;
  }, files);
  await page.dispatchEvent(selector, "drop", { dataTransfer: transfer });
  await page.waitForFunction(() => document.querySelector("#status").classList.contains("bad"));
  return page.textContent("#status");
}
