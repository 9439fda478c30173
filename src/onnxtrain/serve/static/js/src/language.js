/** Causal language models: rows of tokens to train with, and a sample of what the model writes. */
import { check, TextError } from "./errors.js";
import { arrayOf } from "./ort.js";
const TOKENS = ["input_ids", "tokens", "token_ids", "ids", "input"];
const MASKS = ["attention_mask"];
const POSITIONS = ["position_ids"];
const TYPES = ["token_type_ids", "segment_ids"];
const INTEGERS = ["int64", "int32"];
/** The inputs of artifacts with the loss of a causal language model; undefined for all others. */
export function languageInputs(module) {
    const labels = module.facts.models["train"]?.labels?.find(isShifted);
    if (labels === undefined || labels.ignore_index === null)
        return undefined;
    const infos = module.inputs().filter(({ name }) => name !== labels.input);
    const named = (names) => names.find((name) => infos.some((info) => info.name === name));
    const [mask, positions, types] = [named(MASKS), named(POSITIONS), named(TYPES)];
    const rest = infos.filter(({ name }) => ![mask, positions, types].includes(name));
    const only = rest.length === 1 ? rest[0] : undefined;
    const tokens = rest.find(({ name }) => TOKENS.includes(name)) ?? only;
    const names = infos.map(({ name }) => name).join(", ");
    const isTokens = tokens !== undefined && INTEGERS.includes(tokens.type);
    check(isTokens, `The model has no input for tokens among ${names}.`, TextError);
    const strange = rest.find((info) => info !== tokens);
    const text = `The model takes "${strange?.name}", and what to feed there is not known.`;
    check(strange === undefined, `${text} Give arrays of your own instead of text.`, TextError);
    const flat = infos.find(({ shape }) => shape.length !== 2);
    const rank = `"${flat?.name}" has ${flat?.shape.length} dimensions; rows of tokens have two.`;
    check(flat === undefined, rank, TextError);
    const last = tokens.shape[1];
    return {
        tokens: tokens.name,
        mask, positions, types,
        labels: labels.input,
        ignored: labels.ignore_index,
        vocabulary: labels.classes ?? undefined,
        length: typeof last === "number" ? last : undefined,
    };
}
const isShifted = ({ skip }) => skip === 1;
function inputsOf(module) {
    const inputs = languageInputs(module);
    const remedy = "Make them with losses.CausalLMLoss().";
    check(inputs, `The artifacts are not those of a causal language model. ${remedy}`, TextError);
    return inputs;
}
/** Refuse a tokenizer that has numbers which the model does not know. */
export function checkVocabulary(tokenizer, { vocabulary }) {
    const text = `The tokenizer has ${tokenizer.size} tokens, and the model knows ${vocabulary}`;
    const fits = vocabulary === undefined || tokenizer.size <= vocabulary;
    check(fits, `${text}: they do not belong together. Use the one that came with the model.`, TextError);
}
/** Rows to train a causal language model with, as Python's `causal_lm_rows` makes them. */
export function causalLmRows(module, texts, tokenizer, { maxLength = 256, packing = true } = {}) {
    const inputs = inputsOf(module);
    checkVocabulary(tokenizer, inputs);
    const most = inputs.length ?? maxLength;
    check(most >= 2, `A row has ${most} tokens; two are the least.`, TextError);
    const encoded = texts.map((text) => encodedText(text, tokenizer));
    const rows = (packing ? cut(joinedTexts(encoded), most) : encoded.map((one) => cut(one, most)[0]))
        .filter((row) => row !== undefined)
        .filter(({ begins }) => begins.some((begin, i) => i > 0 && !begin)); // else nothing is learned
    check(rows.length > 0, "The text has nothing to learn: two tokens are the least.", TextError);
    const length = inputs.length ?? rows.reduce((a, { ids }) => Math.max(a, ids.length), 0);
    const size = rows.length * length;
    const tokens = new Int32Array(size).fill(tokenizer.padId);
    const [mask, learned] = [new Uint8Array(size), new Uint8Array(size)];
    rows.forEach(({ ids, begins }, row) => {
        tokens.set(ids, row * length);
        mask.fill(1, row * length, row * length + ids.length);
        begins.forEach((begin, i) => (learned[row * length + i] = begin ? 0 : 1));
    });
    return { count: rows.length, length, tokens, mask, learned };
}
/** A text between the tokens that begin and end one; the first is not learned. */
function encodedText(text, tokenizer) {
    const start = tokenizer.bosId === undefined ? [] : [tokenizer.bosId];
    const end = tokenizer.eosId === undefined ? [] : [tokenizer.eosId];
    const ids = start.concat(tokenizer.encode(text), end);
    return { ids, begins: ids.map((_, i) => i < start.length) };
}
const joinedTexts = (texts) => ({
    ids: texts.flatMap(({ ids }) => ids),
    begins: texts.flatMap(({ begins }) => begins),
});
function cut({ ids, begins }, length) {
    const count = Math.ceil(ids.length / length);
    return Array.from({ length: count }, (_, i) => {
        const part = [i * length, (i + 1) * length];
        return { ids: ids.slice(...part), begins: begins.slice(...part) };
    });
}
/** What `trainStep` takes for rows: a value of [count, length] for each input, in order. */
export function languageArrays(module, rows) {
    return valuesFor(module.inputs(), inputsOf(module), rows);
}
function valuesFor(infos, inputs, rows) {
    const { tokens, mask, learned, count, length } = rows;
    const positions = new Int32Array(tokens.length);
    for (let row = 0; row < count; row++) {
        let seen = 0;
        for (let i = row * length; i < (row + 1) * length; i++) {
            seen += mask[i];
            positions[i] = Math.max(0, seen - 1);
        }
    }
    const labels = tokens.map((token, i) => (learned[i] ? token : inputs.ignored));
    const roles = new Map([
        [inputs.tokens, tokens], [inputs.mask, mask], [inputs.positions, positions],
        [inputs.types, new Uint8Array(tokens.length)], [inputs.labels, labels],
    ]);
    return infos.map(({ name, type }) => {
        const source = roles.get(name);
        return { type, dims: [count, length], data: converted(source, type) };
    });
}
function converted(source, type) {
    const array = arrayOf(type);
    const data = new array(new ArrayBuffer(source.length * array.BYTES_PER_ELEMENT));
    if (data instanceof BigInt64Array || data instanceof BigUint64Array) {
        for (let i = 0; i < source.length; i++)
            data[i] = BigInt(source[i]);
    }
    else
        data.set(source);
    return data;
}
/** The continuation of a prompt. Each token computes the whole text again: it is for a look. */
export async function generate(module, tokenizer, prompt, { maxNewTokens = 40, context = Infinity, temperature = 0, topK = 0, seed = 0 } = {}) {
    const inputs = inputsOf(module);
    checkVocabulary(tokenizer, inputs);
    const isFine = temperature >= 0 && topK >= 0 && context >= 1;
    check(isFine, "temperature and topK are at least 0, and context at least 1.", TextError);
    const random = randomNumbers(seed);
    const begin = tokenizer.bosId === undefined ? [] : [tokenizer.bosId];
    const tokens = begin.concat(tokenizer.encode(prompt));
    if (tokens.length === 0)
        tokens.push(tokenizer.eosId ?? tokenizer.padId);
    const start = tokens.length;
    const window = Math.min(context, inputs.length ?? Infinity);
    while (tokens.length < start + maxNewTokens) {
        const seen = tokens.slice(-window);
        const scores = await scoresAfter(module, inputs, seen, tokenizer.padId);
        const token = choose(scores, temperature, topK, random);
        if (token === tokenizer.eosId || token >= tokenizer.size)
            break;
        tokens.push(token);
    }
    return tokenizer.decode(tokens.slice(start));
}
/** The model's scores for what follows some tokens. */
async function scoresAfter(module, inputs, seen, pad) {
    const length = inputs.length ?? seen.length;
    const tokens = new Int32Array(length).fill(pad);
    tokens.set(seen);
    const mask = new Uint8Array(length).fill(1, 0, seen.length);
    const rows = { count: 1, length, tokens, mask, learned: mask };
    const outputs = await module.predict(valuesFor(module.inputs("predict"), inputs, rows));
    const scored = outputs.find(({ dims }) => dims.length === 3 && dims[1] === length);
    check(scored, "The model gives no scores [rows, length, vocabulary].", TextError);
    const data = (await scored.getData());
    const width = scored.dims[2];
    return data.slice((seen.length - 1) * width, seen.length * width);
}
function choose(scores, temperature, topK, random) {
    const order = Array.from(scores.keys());
    const likeliest = order.reduce((a, b) => (scores[b] > scores[a] ? b : a), 0);
    if (temperature === 0)
        return likeliest;
    order.sort((a, b) => scores[b] - scores[a]);
    const drawn = topK > 0 ? order.slice(0, topK) : order;
    const top = scores[likeliest];
    const shares = drawn.map((i) => Math.exp((scores[i] - top) / temperature));
    let left = random() * shares.reduce((a, b) => a + b, 0);
    const place = shares.findIndex((share) => (left -= share) < 0);
    return drawn[place] ?? likeliest;
}
/** Numbers from 0 to below 1 that follow from a seed. */
function randomNumbers(seed) {
    let state = seed >>> 0;
    return () => {
        state = (state + 0x9e3779b9) >>> 0;
        let mixed = Math.imul(state ^ (state >>> 16), 0x21f0aaad);
        mixed = Math.imul(mixed ^ (mixed >>> 15), 0x735a2d97);
        return ((mixed ^ (mixed >>> 15)) >>> 0) / 2 ** 32;
    };
}
