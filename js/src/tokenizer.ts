/** Text to numbers and back: bytes, or a tokenizer.json of byte-level byte-pair encoding. */
import { Merges } from "./bpe.js";
import { check, TextError } from "./errors.js";
import { isRecord, isText, isWhole } from "./facts.js";

export interface Tokenizer {
  /** One more than the largest number. */
  readonly size: number;
  /** The token that ends a text, and the one that begins it, if there are such. */
  readonly eosId: number | undefined;
  readonly bosId: number | undefined;
  /** What rows are filled up with: it is masked, so any number does. */
  readonly padId: number;
  /** The numbers of a text, without special tokens around it. */
  encode(text: string): number[];
  /** The text of some numbers, special tokens left out. */
  decode(numbers: readonly number[]): string;
}

/** Characters of a text: more would keep a page busy for minutes before the first step. */
export const MAX_TEXT = 2 ** 22;
/** Bytes of a tokenizer.json; the largest that are published have some thirty million. */
const MAX_FILE = 2 ** 26;
const MAX_TOKEN = 2 ** 24;
/** Words whose tokens are remembered. */
const REMEMBERED = 50_000;

/** Every byte of the text in UTF-8 is a token, for models that know 256 of them. */
export const byteTokenizer: Tokenizer = {
  size: 256,
  eosId: undefined,
  bosId: undefined,
  padId: 0,
  encode: (text) => [...new TextEncoder().encode(checkText(text))],
  decode: (numbers) => UTF8.decode(Uint8Array.from(numbers)),
};

/**
 * A tokenizer from the bytes of its tokenizer.json (and tokenizer_config.json, which names special
 * tokens). Byte-level byte-pair encoding is known, as GPT-2, Llama 3, Qwen and SmolLM have it and
 * the package tokenizers writes it; anything else is a `TextError` that names it.
 */
export function loadTokenizer(file: Uint8Array, config?: Uint8Array): Tokenizer {
  const name = "tokenizer.json";
  const size = `${name} has ${file.length} bytes; ${MAX_FILE} are the most.`;
  check(file.length <= MAX_FILE, size, TextError);
  return new BytePairs(parsed(file, name), specialNames(config));
}

/** A text that can be encoded: whole characters, and not too many. */
function checkText(text: string): string {
  const most = `${(MAX_TEXT / 1e6).toFixed(1)} million`;
  const long =
    `The text has ${(text.length / 1e6).toFixed(1)} million characters, and ${most} are the most ` +
    "here. Take a part of it, or train with `onnxtrain lora` in Python.";
  check(text.length <= MAX_TEXT, long, TextError);
  const half = text.search(/\p{Surrogate}/u);
  check(half < 0, `The text holds half of a character at place ${half}: remove it.`, TextError);
  return text;
}

function parsed(file: Uint8Array, name: string): Record<string, unknown> {
  let content: unknown;
  try {
    content = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(file));
  } catch (error) {
    throw new TextError(`${name} is not JSON: ${(error as Error).message}.`);
  }
  check(isRecord(content), `${name} is not an object in JSON.`, TextError);
  return content;
}

// --- special tokens -------------------------------------------------------------------------------

type Role = "eos" | "bos" | "pad";
/** What special tokens are called where nothing says so, as in Python. */
const USUAL: Record<Role, readonly string[]> = {
  // prettier-ignore
  eos: [
    "<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "[SEP]", "<|end|>",
  ],
  bos: ["<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>", "[CLS]"],
  pad: ["<pad>", "[PAD]", "<|pad|>", "<|finetune_right_pad_id|>"],
};

function specialNames(config: Uint8Array | undefined): Partial<Record<Role, string>> {
  if (config === undefined) return {};
  const content = parsed(config, "tokenizer_config.json");
  const names: Partial<Record<Role, string>> = {};
  for (const role of Object.keys(USUAL) as Role[]) {
    const token = content[`${role}_token`];
    const name = isRecord(token) ? token["content"] : token;
    if (isText(name)) names[role] = name;
  }
  return names;
}

interface Added {
  readonly id: number;
  readonly content: string;
  readonly special: boolean;
  readonly normalized: boolean;
}

function addedTokens(listed: unknown): Added[] {
  check(Array.isArray(listed), 'tokenizer.json: "added_tokens" is no list.', TextError);
  return listed.map((entry: unknown) => {
    const isFine = isRecord(entry) && isToken(entry["id"]) && isText(entry["content"]);
    check(isFine, "tokenizer.json: an added token has no number or no text.", TextError);
    const { id, content, special, normalized } = entry;
    for (const option of ["lstrip", "rstrip", "single_word"]) {
      const text = `tokenizer.json: the token "${content}" has ${option}, which is not supported.`;
      check(entry[option] !== true, text, TextError);
    }
    return {
      id: id as number,
      content: content as string,
      special: special === true,
      normalized: normalized === true,
    };
  });
}

const isToken = (id: unknown): boolean => isWhole(id) && (id as number) < MAX_TOKEN;

/** Finds tokens in a text: the first one, and of several that begin there the longest. */
class Finder {
  private readonly root: Branch = { next: new Map() };

  constructor(tokens: readonly Added[]) {
    for (const { content, id } of tokens) {
      let branch = this.root;
      for (const letter of content) {
        const next: Branch = branch.next.get(letter) ?? { next: new Map() };
        branch.next.set(letter, next);
        branch = next;
      }
      if (content !== "") branch.id = id;
    }
  }

  /** The text in parts: tokens as their numbers, what is between them as it is. */
  *split(text: string): Generator<string | number> {
    if (this.root.next.size === 0) return yield text;
    let start = 0;
    for (let at = 0; at < text.length; ) {
      const [id, end] = this.at(text, at);
      if (id === undefined) {
        at += 1;
        continue;
      }
      if (at > start) yield text.slice(start, at);
      yield id;
      start = at = end;
    }
    if (start < text.length) yield text.slice(start);
  }

  private at(text: string, start: number): [number | undefined, number] {
    let branch: Branch | undefined = this.root;
    let [id, end]: [number | undefined, number] = [undefined, start];
    for (let at = start; at < text.length; ) {
      const letter = String.fromCodePoint(text.codePointAt(at) as number);
      branch = branch.next.get(letter);
      if (branch === undefined) break;
      at += letter.length;
      if (branch.id !== undefined) [id, end] = [branch.id, at];
    }
    return [id, end];
  }
}

interface Branch {
  readonly next: Map<string, Branch>;
  id?: number;
}

// --- before the encoding --------------------------------------------------------------------------

type Step = (text: string) => string[];

const SPACE = "\\p{White_Space}";
const REST = `${SPACE}+(?!\\P{White_Space})|${SPACE}+`;
/** (?i:…) of the file: the letters in both cases, and the one that is a long s. */
const SHORT = "'[sSſtTmMdD]|'[rR][eE]|'[vV][eE]|'[lL][lL]";
/** GPT-2's words. */
const WORDS = new RegExp(
  `'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^${SPACE}\\p{L}\\p{N}]+|${REST}`, "gu",
);
const wordsOf = (digits: string): RegExp =>
  new RegExp(
    `${SHORT}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}${digits}| ?[^${SPACE}\\p{L}\\p{N}]+[\\r\\n]*|` +
      `${SPACE}*[\\r\\n]+|${REST}`,
    "gu",
  );
// prettier-ignore
/** Expressions that tokenizers split by. Others are refused: an expression can take forever. */
const SPLITS: Readonly<Record<string, RegExp>> = {
  "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+": WORDS,
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+":
    wordsOf("{1,3}"),
  "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+":
    wordsOf(""),
};

/** Matches, and what lies between them, each as a part. */
const isolated =
  (expression: RegExp): Step =>
  (text) => {
    const parts: string[] = [];
    let end = 0;
    for (const { 0: part, index } of text.matchAll(expression)) {
      if (index > end) parts.push(text.slice(end, index));
      parts.push(part);
      end = index + part.length;
    }
    if (end < text.length) parts.push(text.slice(end));
    return parts;
  };

function splitter(step: Record<string, unknown>): Step {
  const pattern = step["pattern"];
  const text = isRecord(pattern) ? pattern["Regex"] : undefined;
  const known = isText(text) && Object.hasOwn(SPLITS, text) ? SPLITS[text] : undefined;
  const isUsual = step["behavior"] === "Isolated" && step["invert"] !== true;
  check(known && isUsual, refusal("splits text by", text ?? pattern), TextError);
  return isolated(known);
}

/** What is done to a text before its bytes are looked up, ended by the bytes themselves. */
function stepsOf(described: unknown): Step[] {
  const sequence =
    isRecord(described) && described["type"] === "Sequence" ? described["pretokenizers"] : [described];
  check(Array.isArray(sequence), 'tokenizer.json: "pre_tokenizer" is damaged.', TextError);
  const steps: Step[] = [];
  sequence.forEach((step: unknown, i) => {
    const type = isRecord(step) ? step["type"] : step;
    const isLast = i === sequence.length - 1;
    const text = refusal("has the pre-tokenizer", type);
    check(isRecord(step) && (type === "ByteLevel") === isLast, text, TextError);
    if (type === "Split") return steps.push(splitter(step));
    if (type === "Digits") {
      return steps.push(isolated(step["individual_digits"] === true ? /\p{N}/gu : /\p{N}+/gu));
    }
    check(type === "ByteLevel", text, TextError);
    if (step["add_prefix_space"] === true) {
      steps.push((text) => [text.startsWith(" ") ? text : ` ${text}`]);
    }
    return step["use_regex"] === false ? 0 : steps.push(isolated(WORDS));
  });
  return steps;
}

const FORMS = ["NFC", "NFD", "NFKC", "NFKD"];

function normalizers(described: unknown): string[] {
  if (described === null || described === undefined) return [];
  const type = isRecord(described) ? described["type"] : described;
  if (isRecord(described) && type === "Sequence" && Array.isArray(described["normalizers"])) {
    return described["normalizers"].flatMap(normalizers);
  }
  check(FORMS.includes(type as string), refusal("has the normalizer", type), TextError);
  return [type as string];
}

function refusal(what: string, thing: unknown): string {
  const shown = (JSON.stringify(thing) ?? "none").slice(0, 200);
  return (
    `tokenizer.json ${what} ${shown}. JavaScript knows byte-level byte-pair encoding (GPT-2, ` +
    "Llama 3, Qwen, SmolLM): adapt such a model, or use `onnxtrain lora` in Python."
  );
}

// --- bytes as letters -----------------------------------------------------------------------------

const UTF8 = new TextDecoder("utf-8", { ignoreBOM: true });
/** The letter that stands for each byte: itself where it can be printed, else one from 256 on. */
const LETTERS: readonly string[] = (() => {
  const isPrinted = (b: number): boolean =>
    (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
  let next = 256;
  return Array.from({ length: 256 }, (_, b) => String.fromCharCode(isPrinted(b) ? b : next++));
})();
const BYTES: ReadonlyMap<string, number> = new Map(LETTERS.map((letter, byte) => [letter, byte]));

const lettersOf = (text: string): string =>
  Array.from(new TextEncoder().encode(text), (byte) => LETTERS[byte]).join("");

/** The bytes that a token stands for; one with other letters is its own text. */
function bytesOf(token: string): number[] {
  const bytes = Array.from(token, (letter) => BYTES.get(letter));
  return bytes.includes(undefined) ? [...new TextEncoder().encode(token)] : (bytes as number[]);
}

// --- the tokenizer --------------------------------------------------------------------------------

/** Options of a model that change its tokens and are not known here. */
const UNKNOWN_OPTIONS = [
  "byte_fallback", "dropout", "continuing_subword_prefix", "end_of_word_suffix",
];

class BytePairs implements Tokenizer {
  readonly size: number;
  readonly eosId: number | undefined;
  readonly bosId: number | undefined;
  readonly padId: number;
  private readonly vocabulary: ReadonlyMap<string, number>;
  private readonly names: ReadonlyMap<number, string>;
  private readonly skipped: ReadonlySet<number>;
  private readonly merges: Merges;
  private readonly forms: readonly string[];
  private readonly steps: readonly Step[];
  private readonly finders: { readonly raw: Finder; readonly normalized: Finder };
  private readonly unknown: number | undefined;
  private readonly takesWholeWords: boolean;
  private readonly remembered = new Map<string, readonly number[]>();

  constructor(file: Record<string, unknown>, special: Partial<Record<Role, string>>) {
    const { model, added_tokens: added = [], pre_tokenizer: before, normalizer, decoder } = file;
    const text = refusal("has the model", kindOf(model));
    check(isRecord(model) && model["type"] === "BPE", text, TextError);
    for (const option of UNKNOWN_OPTIONS) {
      check(!model[option], refusal(`has "${option}"`, model[option]), TextError);
    }
    check(kindOf(decoder) === "ByteLevel", refusal("has the decoder", kindOf(decoder)), TextError);
    this.forms = normalizers(normalizer);
    this.steps = stepsOf(before);
    this.vocabulary = vocabularyOf(model["vocab"]);
    this.merges = Merges.of(model["merges"], this.vocabulary);
    const tokens = addedTokens(added);
    this.finders = {
      raw: new Finder(tokens.filter((token) => !token.normalized)),
      normalized: new Finder(tokens.filter((token) => token.normalized)),
    };
    this.skipped = new Set(tokens.filter((token) => token.special).map((token) => token.id));
    const ids = new Map([...this.vocabulary, ...tokens.map((t) => [t.content, t.id] as const)]);
    this.names = new Map(Array.from(ids, ([token, id]) => [id, token]));
    this.takesWholeWords = model["ignore_merges"] === true;
    this.unknown = isText(model["unk_token"]) ? this.vocabulary.get(model["unk_token"]) : undefined;
    this.size = 1 + [...ids.values()].reduce((a, b) => Math.max(a, b), -1);
    check(this.size > 0, "tokenizer.json has no tokens at all.", TextError);
    const idOf = (role: Role): number | undefined => {
      const names = special[role] === undefined ? USUAL[role] : [special[role]];
      return names.map((name) => ids.get(name)).find((id) => id !== undefined);
    };
    this.eosId = idOf("eos");
    this.bosId = idOf("bos");
    this.padId = idOf("pad") ?? this.eosId ?? 0;
  }

  encode(text: string): number[] {
    const numbers: number[] = [];
    try {
      for (const part of this.parts(checkText(text))) {
        if (typeof part === "number") numbers.push(part);
        else for (const word of this.words(part)) for (const id of this.word(word)) numbers.push(id);
      }
    } catch (error) {
      if (!(error instanceof RangeError)) throw error;
      throw new TextError(`The text has a word that is too long to be split (${error.message}).`);
    }
    return numbers;
  }

  decode(numbers: readonly number[]): string {
    const tokens = numbers.filter((id) => !this.skipped.has(id)).map((id) => this.names.get(id) ?? "");
    return UTF8.decode(Uint8Array.from(tokens.flatMap(bytesOf)));
  }

  /** Added tokens as numbers, and the text between them, normalized. */
  private *parts(text: string): Generator<string | number> {
    for (const part of this.finders.raw.split(text)) {
      if (typeof part === "number") yield part;
      else {
        const plain = this.forms.reduce((t, form) => t.normalize(form), part);
        yield* this.finders.normalized.split(plain);
      }
    }
  }

  private words(text: string): string[] {
    return this.steps.reduce((parts, step) => parts.flatMap(step), [text]).filter((part) => part !== "");
  }

  private word(text: string): readonly number[] {
    const known = this.remembered.get(text);
    if (known !== undefined) return known;
    const letters = lettersOf(text);
    const whole = this.takesWholeWords ? this.vocabulary.get(letters) : undefined;
    const numbers = whole === undefined ? this.merges.apply(this.lookedUp(letters)) : [whole];
    if (this.remembered.size < REMEMBERED) this.remembered.set(text, numbers);
    return numbers;
  }

  private lookedUp(letters: string): number[] {
    const ids = Array.from(letters, (letter) => this.vocabulary.get(letter) ?? this.unknown);
    return ids.filter((id) => id !== undefined);
  }
}

const kindOf = (described: unknown): unknown =>
  isRecord(described) ? described["type"] : described;

function vocabularyOf(listed: unknown): Map<string, number> {
  check(isRecord(listed), 'tokenizer.json: "vocab" is no object.', TextError);
  const entries = Object.entries(listed);
  for (const [token, id] of entries) {
    check(isToken(id), `tokenizer.json: "${token}" has the number ${JSON.stringify(id)}.`, TextError);
  }
  return new Map(entries as [string, number][]);
}
