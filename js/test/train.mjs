// One training run as Python's tests do it; runs unchanged in Node and in a page.
export async function train(lib, checkpoint, ort, directory, sessionOptions) {
  const bytes = async (name) => lib.readBytes(`${directory}/${name}`);
  const plan = JSON.parse(new TextDecoder().decode(await bytes("plan.json")));
  const { values } = checkpoint.decode(await bytes("batches"));
  const batch = (i) => [0, 1].map((k) => values.get(`${i}/${k}`));
  const { state, module, optimizer } = await lib.loadArtifacts(directory, { ort, sessionOptions });
  optimizer.setLearningRate(plan.rate);
  const losses = [];
  for (let step = 0; step < plan.steps; step++) {
    for (let k = 0; k < plan.accumulate; k++) {
      const inputs = batch((step * plan.accumulate + k) % plan.distinct);
      losses.push((await module.trainStep(...inputs)).loss);
    }
    await optimizer.apply(1 / plan.accumulate);
    module.lazyResetGrad();
  }
  const { location } = state.values.get(`param/${state.trainable[0]}`);
  const first = batch(0);
  const evaluated = (await module.evalStep(...first)).loss;
  const [scores] = await module.predict([first[0]]);
  return {
    losses,
    eval: evaluated,
    scores: Array.from(await scores.getData()),
    parameters: Array.from(await module.getContiguousParameters()),
    model: base64(await module.exportModelForInferencing()),
    checkpoint: base64(await lib.CheckpointState.saveCheckpoint(state, true)),
    location,
  };
}

function base64(bytes) {
  let text = "";
  for (const byte of bytes) text += String.fromCharCode(byte);
  return btoa(text);
}
