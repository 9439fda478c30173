/** Language models in the page: text of the user's own, and what the model writes. */
import {
  byteTokenizer, causalLmRows, checkVocabulary, generate, languageArrays, languageInputs, loadTokenizer,
  type Module, type Tokenizer,
} from "../src/index.js";
import { button, bytesOf, element, field, filesOf, number, type Desk } from "./dom.js";
import { Dataset } from "./dataset.js";

const NAME = "tokenizer.json";
const CONFIG = "tokenizer_config.json";
/** Bytes of a text file: more is refused before it is read. */
const MAX_FILE = 2 ** 24;
/** Tokens of a prompt that is taken from the text. */
const PROMPT = 8;
/** Characters of the text's first line that the prompt is taken from. */
const BEGINNING = 200;

export type Moment = "before" | "after";

export class Writing {
  private module: Module | undefined;
  private tokenizer: Tokenizer | undefined;
  private readonly text = element<HTMLTextAreaElement>("text");

  /** @param served - names of the tokenizer's files that the server has. */
  constructor(
    private readonly desk: Desk,
    private readonly served: readonly string[],
    private readonly changed: () => void,
  ) {
    this.text.oninput = () => this.changed();
    field("text-file").onchange = () => desk.guard(() => this.readText());
    field("tokenizer").onchange = () => desk.guard(() => this.readTokenizer());
    button("write").onclick = () => desk.guard(() => this.sample("after"));
  }

  /** Show the cards for a language model; hide them for any other model. */
  async use(module: Module): Promise<boolean> {
    const inputs = languageInputs(module);
    const isLanguage = inputs !== undefined;
    for (const node of document.querySelectorAll<HTMLElement>(".language")) node.hidden = !isLanguage;
    for (const node of document.querySelectorAll<HTMLElement>(".arrays")) node.hidden = isLanguage;
    this.module = isLanguage ? module : undefined;
    if (!isLanguage) return false;
    if (inputs.length !== undefined) {
      field("context").value = String(inputs.length);
      field("context").disabled = true;
    }
    if (this.tokenizer === undefined && this.served.includes(NAME)) {
      const has = async (name: string): Promise<Uint8Array | undefined> =>
        this.served.includes(name)
          ? bytesOf(await (await fetch(`artifacts/${name}`)).blob())
          : undefined;
      this.tokenizer = loadTokenizer((await has(NAME)) as Uint8Array, await has(CONFIG));
    } else if (this.tokenizer === undefined && inputs.vocabulary === byteTokenizer.size) {
      this.tokenizer = byteTokenizer;
    }
    this.describe();
    return true;
  }

  get isUsed(): boolean {
    return this.module !== undefined;
  }

  /** The text as rows of tokens. */
  dataset(): Dataset {
    const [module, tokenizer] = this.ready();
    const text = this.text.value;
    if (text.trim() === "") throw new Error("Write or paste a text to learn from.");
    const rows = causalLmRows(module, [text], tokenizer, { maxLength: number("context") });
    const columns = languageArrays(module, rows).map(({ type, data }) => {
      return { type, data, shape: [rows.length], size: rows.length };
    });
    const data = new Dataset("Your text", columns, rows.count);
    const tokens = rows.mask.reduce((a, b) => a + b, 0).toLocaleString("en");
    element("text-summary").textContent =
      `${text.length.toLocaleString("en")} characters, ${tokens} tokens: ${data.training.length} ` +
      `rows of ${rows.length} to train on, ${data.held.length} held out.`;
    if (field("prompt").value === "") field("prompt").value = this.usualPrompt(tokenizer);
    return data;
  }

  /** Let the model write on, and show it. */
  async sample(moment: Moment): Promise<void> {
    const [module, tokenizer] = this.ready();
    const prompt = field("prompt").value || this.usualPrompt(tokenizer);
    field("prompt").value = prompt;
    const options = { maxNewTokens: number("sample-tokens"), context: number("context") };
    const written = await generate(module, tokenizer, prompt, options);
    const strong = document.createElement("b");
    strong.textContent = prompt;
    element(moment).replaceChildren(strong, written);
    element(moment).closest<HTMLElement>(".sample")!.hidden = false;
  }

  /** Whether there is a sample from before the training. */
  get hasBefore(): boolean {
    return element("before").textContent !== "";
  }

  forget(): void {
    for (const moment of ["before", "after"] as const) {
      element(moment).replaceChildren();
      element(moment).closest<HTMLElement>(".sample")!.hidden = true;
    }
  }

  private ready(): [Module, Tokenizer] {
    const { module, tokenizer } = this;
    if (module === undefined) throw new Error("The model is no language model.");
    if (tokenizer === undefined) throw new Error(`Choose the ${NAME} that belongs to the model first.`);
    return [module, tokenizer];
  }

  private usualPrompt(tokenizer: Tokenizer): string {
    const [line = ""] = this.text.value.trimStart().split("\n", 1);
    const start = line.slice(0, BEGINNING);
    return tokenizer.decode(tokenizer.encode(start).slice(0, PROMPT)).trimEnd();
  }

  private describe(): void {
    const { tokenizer } = this;
    const isBytes = tokenizer === byteTokenizer;
    element("tokenizer-summary").textContent =
      tokenizer === undefined
        ? `The artifacts have no ${NAME}: choose the one that belongs to the model.`
        : isBytes
          ? "Each byte of the text is a token."
          : `Tokenizer: ${tokenizer.size.toLocaleString("en")} tokens.`;
  }

  private async readText(): Promise<void> {
    const [file] = filesOf(field("text-file"));
    if (file === undefined) return;
    if (file.size > MAX_FILE) {
      throw new Error(
        `${file.name} has ${(file.size / 1e6).toFixed(0)} MB; the page takes ` +
          `${MAX_FILE / 2 ** 20} MB. Take a part of it, or train with \`onnxtrain lora\` in Python.`,
      );
    }
    this.text.value = await file.text();
    this.changed();
  }

  private async readTokenizer(): Promise<void> {
    const files = filesOf(field("tokenizer"));
    const config = files.find(({ name }) => name === CONFIG);
    const file = files.find((one) => one !== config);
    if (file === undefined) return;
    const tokenizer = loadTokenizer(await bytesOf(file), config && (await bytesOf(config)));
    const inputs = this.module && languageInputs(this.module);
    if (inputs !== undefined) checkVocabulary(tokenizer, inputs);
    this.tokenizer = tokenizer;
    this.describe();
    this.changed();
    this.desk.say(`${file.name}: ready.`);
  }
}
