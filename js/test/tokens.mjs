// node tokens.mjs LIBRARY FOLDER: encode and decode texts with each tokenizer that Python's test made.
import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";
import { print } from "./print.mjs";

const [library, folder] = process.argv.slice(2);
const lib = await import(pathToFileURL(`${library}/index.js`));
const { names, texts } = JSON.parse(await readFile(`${folder}/texts.json`, "utf8"));
const report = {};
for (const name of names) {
  const config = await lib.readBytes(`${folder}/${name}.config`);
  const tokenizer = lib.loadTokenizer(await lib.readBytes(`${folder}/${name}.json`), config);
  const { size, eosId = null, bosId = null, padId } = tokenizer;
  const ids = texts.map((text) => tokenizer.encode(text));
  const decoded = ids.map((one) => tokenizer.decode(one));
  report[name] = { size, eosId, bosId, padId, ids, decoded };
}
const { byteTokenizer } = lib;
report.bytes = { ids: texts.map((t) => byteTokenizer.encode(t)) };
report.bytes.decoded = report.bytes.ids.map((ids) => byteTokenizer.decode(ids));
await print(report);
process.exit(0);
