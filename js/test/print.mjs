// One JSON object per line; waits until it is written, because process.exit does not.
export function print(value) {
  return new Promise((written) => process.stdout.write(`${JSON.stringify(value)}\n`, written));
}
