// node data.mjs STATIC NPZ NAN ONE-HOT BOMB CUT: what the page says of data that cannot be trained on, one line per case.
import { print } from "./print.mjs";

const [folder] = process.argv.slice(2);
const { readArrays } = await import(`file://${folder}/js/page/arrays.js`);
const { makeDataset } = await import(`file://${folder}/js/page/dataset.js`);

const inputs = [
  { name: "x", type: "float32", shape: ["N", 2] },
  { name: "labels", type: "int64", shape: ["N"] },
];
const labels = [{ input: "labels", classes: 3, ignore_index: -100 }];
const numbers = [inputs[0], { name: "target", type: "float32", shape: ["N", 1] }];

async function tried(name, text, ...model) {
  try {
    const bytes = typeof text === "string" ? new TextEncoder().encode(text) : text;
    const data = makeDataset(name, await readArrays(name, bytes), ...model);
    return { rows: data.rows, labels: [...data.columns[1].data].map(Number), classes: data.classes };
  } catch (error) {
    return { error: error.message };
  }
}

const head = "a,b,label\n";
const { argv } = process;
const { readFile } = await import("node:fs/promises");
await print({
  text: await tried("t.csv", `${head}1,2,dog\n3,4,cat\n`, inputs, labels),
  headless: await tried("t.csv", "1,2,dog\n3,4,cat\n", inputs, labels),
  numpy: await tried("t.npz", new Uint8Array(await readFile(argv[3])), inputs, labels),
  many: await tried("t.csv", `${head}1,2,a\n1,2,b\n1,2,c\n1,2,d\n`, inputs, labels),
  large: await tried("t.csv", `${head}1,2,0\n1,2,7\n`, inputs, labels),
  ignored: await tried("t.csv", `${head}1,2,0\n1,2,-100\n`, inputs, labels),
  nan: await tried("t.csv", `${head}1,2,0\nnan,2,1\n`, inputs, labels),
  nanNumpy: await tried("t.npz", new Uint8Array(await readFile(argv[4])), inputs, labels),
  empty: await tried("t.csv", "", inputs, labels),
  onlyHeader: await tried("t.csv", head, inputs, labels),
  negative: await tried("t.csv", `${head}1,2,-1\n`, inputs, labels),
  oneHot: await tried("t.npz", new Uint8Array(await readFile(argv[5])), inputs, labels),
  nanTarget: await tried("t.csv", `${head}1,2,0.5\n1,2,Infinity\n`, numbers, []),
  textTarget: await tried("t.csv", `${head}1,2,high\n1,2,low\n`, numbers, []),
  narrow: await tried("t.csv", "a,label\n1,0\n", inputs, labels),
  fraction: await tried("t.csv", `${head}1,2,0.5\n`, inputs, labels),
  bomb: await tried("t.npz", new Uint8Array(await readFile(argv[6])), inputs, labels),
  cut: await tried("t.npz", new Uint8Array(await readFile(argv[7])), inputs, labels),
});
