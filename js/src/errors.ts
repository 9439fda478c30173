/** Every error of this package; the message names the thing and the remedy. */
export class OnnxTrainError extends Error {
  constructor(message: string) {
    super(message);
    this.name = new.target.name;
  }
}

/** A model file that cannot be read, or is not what it should be. */
export class ModelFileError extends OnnxTrainError {}

/** A checkpoint that is damaged, foreign, or does not fit the model. */
export class CheckpointError extends OnnxTrainError {}

/** A value that cannot be taken, or a call at the wrong time. */
export class InputError extends OnnxTrainError {}
