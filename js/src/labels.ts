import { LabelError } from "./errors.js";
import { sizeOf } from "./ort.js";
import type { Tensor } from "./ort.js";

/** What an input may hold: numbers below `classes` (null: any from 0 on), or `ignore_index`. */
export interface ClassLabels {
  input: string;
  classes: number | null;
  ignore_index: number | null;
  /** 1 if the label at t + 1 is compared with the scores at t: that of a language model. */
  skip?: number;
}

/** Name the first label that is no class and not ignored; those on a device are not looked at. */
export function checkLabels(expected: ClassLabels, labels: Tensor): void {
  if (labels.location !== "cpu") return;
  const { classes, ignore_index: ignored } = expected;
  let place = 0;
  for (const element of labels.data as Iterable<bigint | number>) {
    const label = Number(element);
    const isClass = label >= 0 && (classes === null || label < classes);
    if (!isClass && label !== ignored) {
      throw new LabelError(text(expected, element, place, labels.dims));
    }
    place++;
  }
}

/** The error of a run, with what may have caused it: labels whose classes nobody knew before. */
export function explained(
  error: Error,
  expected: readonly ClassLabels[],
  tensors: Readonly<Record<string, Tensor>>,
): Error {
  const unknown = expected.find(({ classes }) => classes === null);
  if (!unknown || !/out of range/i.test(error.message)) return error;
  const data = tensors[unknown.input]?.data as Iterable<bigint | number>;
  const most = Array.from(data, Number).reduce((a, b) => Math.max(a, b), 0);
  const why = `Input "${unknown.input}" has labels up to ${most}: are there as many classes?`;
  return new LabelError(`${why} (${error.message})`);
}

function text(
  { input, classes, ignore_index: ignored }: ClassLabels,
  label: bigint | number,
  place: number,
  dims: readonly number[],
): string {
  const row = Math.floor(place / sizeOf(dims.slice(1)));
  const most = classes === null ? "numbers from 0 on" : `classes 0 to ${classes - 1}`;
  const besides = ignored === null ? "" : `, or ${ignored} to be left out`;
  const remedy =
    label < 0
      ? "If such a row does not count, make the artifacts with this label as ignore_index."
      : "Correct the labels, or use a model with more classes.";
  return (
    `Input "${input}" has the label ${label} in row ${row}, and labels are ${most}${besides}. ` +
    remedy
  );
}
