/** Reading device.json, which comes with the artifacts and may be anyone's. */
import { check, ModelFileError } from "./errors.js";
import type { Facts } from "./module.js";
import { sizeOf } from "./ort.js";

type Test = (value: unknown) => boolean;

export const isText = (value: unknown): value is string => typeof value === "string";
export const isWhole: Test = (value) => Number.isSafeInteger(value) && (value as number) >= 0;
const isPositive: Test = (value) => isWhole(value) && (value as number) > 0;
const isFlag: Test = (value) => typeof value === "boolean";
const isNumber: Test = (value) => typeof value === "number";
export const isRecord = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

const either =
  (...tests: Test[]): Test =>
  (value) =>
    tests.some((test) => test(value));
export const isListOf =
  (test: Test): Test =>
  (value) =>
    Array.isArray(value) && value.every(test);
const isMapOf =
  (test: Test): Test =>
  (value) =>
    isRecord(value) && Object.values(value).every(test);
export const hasForm =
  (form: Record<string, Test>): Test =>
  (value) =>
    isRecord(value) && Object.entries(form).every(([key, test]) => test(value[key]));
const isNothing: Test = (value) => value === null;
const isMissing: Test = (value) => value === undefined;
const isBase64: Test = (value) => isText(value) && /^[A-Za-z0-9+/]*={0,2}$/.test(value);
const isRange: Test = (value) => {
  const [from, to] = isListOf(isWhole)(value) ? (value as number[]) : [];
  return from !== undefined && to !== undefined && from <= to && (value as unknown[]).length === 2;
};

const isShape = isListOf(isWhole);
const isSeed = hasForm({ seed: isText, float: isFlag });
const isPiece = either(isRange, isBase64, isSeed, hasForm({ value: isText }));
const isLabels = hasForm({
  input: isText,
  classes: either(isWhole, isNothing),
  ignore_index: either(Number.isSafeInteger, isNothing),
  skip: either(isMissing, isWhole),
});
const isModel = hasForm({
  file: either(isText, isNothing),
  pieces: isListOf(isPiece),
  inputs: isListOf(
    hasForm({ name: isText, type: isText, shape: isListOf(either(isWhole, isText)) }),
  ),
  outputs: isListOf(isText),
  labels: either(isMissing, isListOf(isLabels)),
  feeds: isMapOf(isText),
  updates: isMapOf(isText),
  webgpu: hasForm({ session: isRecord, provider: isRecord }),
});
const isAdapter = hasForm({
  config: hasForm({
    rank: isPositive,
    alpha: Number.isFinite,
    dropout: Number.isFinite,
    use_rslora: isFlag,
    use_dora: isFlag,
  }),
  base: isText,
  places: isListOf(hasForm({ layer: isText, a: isText, b: isText, magnitude: isText })),
  saved: isListOf(isText),
});
const FORM: Record<keyof Facts, Test> = {
  version: (value) => value === 1,
  files: isMapOf(isWhole),
  models: isMapOf(isModel),
  parameters: isListOf(hasForm({ name: isText, type: isText, shape: isShape })),
  trainable: isListOf(isText),
  optimizer: either(
    isNothing,
    hasForm({ name: isText, clip_norm: either(isNumber, isNothing), moments: isMapOf(isShape) }),
  ),
  adapter: either(isMissing, isNothing, isAdapter),
};
const LIMIT = 2 ** 31;

/** device.json, or a `ModelFileError` that names what is wrong in it. */
export function readFacts(bytes: Uint8Array, remedy: string): Facts {
  const need = (isFine: boolean, text: string): void =>
    check(isFine, `device.json is damaged: ${text}. ${remedy}`, ModelFileError);
  let facts: Facts;
  try {
    facts = JSON.parse(new TextDecoder().decode(bytes));
  } catch (error) {
    throw new ModelFileError(`device.json is not JSON: ${(error as Error).message}. ${remedy}`);
  }
  need(isRecord(facts), "it is not an object");
  for (const [key, test] of Object.entries(FORM)) need(test(facts[key as keyof Facts]), `"${key}"`);
  for (const [name, { file, pieces }] of Object.entries(facts.models)) {
    const size = facts.files[file ?? ""] ?? 0;
    const ranges = pieces.filter(Array.isArray) as [number, number][];
    const total = ranges.reduce((sum, [from, to]) => sum + to - from, 0);
    const fits = ranges.every(([, to]) => to <= size) && total <= LIMIT;
    need(fits, `the pieces of "${name}" are not in its file`);
  }
  const largest = Math.max(1, ...facts.parameters.map(({ shape }) => sizeOf(shape)));
  const moments = Object.values(facts.optimizer?.moments ?? {});
  need(moments.every((dims) => sizeOf(dims) <= largest), "moments larger than any parameter");
  return facts;
}
