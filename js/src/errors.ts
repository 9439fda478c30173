/** Every error of this package; the message names the thing and the remedy. */
export class OnnxTrainError extends Error {
  override name = this.constructor.name;
}

/** Artifacts that cannot be read, or are not what they should be. */
export class ModelFileError extends OnnxTrainError {}
/** A checkpoint that is damaged, foreign, or does not fit the model. */
export class CheckpointError extends OnnxTrainError {}
/** A value that cannot be taken, or a call at the wrong time. */
export class InputError extends OnnxTrainError {}
/** A label that is neither a class nor the one to ignore. */
export class LabelError extends InputError {}
/** Adapters that there are none of, that are damaged, or that were made for another base. */
export class AdapterError extends OnnxTrainError {}
/** A text or a tokenizer that cannot be used. */
export class TextError extends OnnxTrainError {}
/** A loss or a gradient that is NaN or infinite; see `Module.checkFinite`. */
export class NonFiniteError extends OnnxTrainError {}

export function check(isFine: unknown, text: string, Kind = InputError): asserts isFine {
  if (!isFine) throw new Kind(text);
}

/** The error for a batch that is no good, after everything was left as it was. */
export function notFinite(reason: string, updates = 0): NonFiniteError {
  return new NonFiniteError(
    `${reason}, in update ${updates + 1}. Nothing was changed, and gradients gathered for the same ` +
      "update are dropped: go on with the next batch. Look at this one and at the learning rate.",
  );
}
