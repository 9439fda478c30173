/** The page: wires the run, the data, the curves and the cards together. */
import {
  CheckpointState, loadArtifacts, Optimizer, type Artifacts, type ClassLabels, type ValueInfo,
} from "../src/index.js";
import { Adapters } from "./adapters.js";
import { readArrays, type NdArray } from "./arrays.js";
import { Chart } from "./chart.js";
import { imageDataset, makeDataset, type Dataset } from "./dataset.js";
import { button, bytesOf, element, field, filesOf, number, offer, showBars } from "./dom.js";
import { Drawing } from "./drawing.js";
import { droppedFiles, isPicture, type Dropped } from "./drops.js";
import { classNames, imageForm, paint, type ImageForm, type Metadata } from "./images.js";
import { OwnImages, type Example } from "./own.js";
import { findGpu, library, note, type Gpu, type Provider } from "./providers.js";
import { best, classes, Run, softmax } from "./run.js";
import { Writing } from "./writing.js";

/** What the server says about itself. */
interface Info {
  readonly name: string;
  readonly prefix: string;
  readonly webgpu: boolean;
  readonly tokenizer: readonly string[];
  readonly metadata: Metadata;
}

const DIGITS_SCALE = 1 / 16;
const SAMPLES = 24;
const OWN_WEIGHT = 8;
/** Rows of text cost their length times the vocabulary. */
const TEXT_BATCH = "8";
const SEEN = 5;

class App {
  private readonly chart = new Chart(document.querySelector("#chart") as SVGSVGElement);
  private readonly drawing = new Drawing(this, this, () => this.allow());
  private readonly own = new OwnImages(this, () => this.allow(), (image) => this.see(image));
  private readonly writing: Writing;
  private readonly adapters = new Adapters(this, (name) => this.restart(name));
  private artifacts: Artifacts | undefined;
  private dataset: Dataset | undefined;
  private run: Run | undefined;
  private checkpoint: Uint8Array | undefined;
  private gpu: Gpu = { name: undefined, isSoftware: false, reason: "" };
  private newest: { step: number; epoch: number; loss: number } | undefined;
  private clock = { time: 0, step: 0 };
  /** Whether the text is another than the one that the rows were made of. */
  private isTextNew = true;

  constructor(private readonly info: Info) {
    this.writing = new Writing(this, info.tokenizer, () => (this.isTextNew = true));
    button("start").onclick = () => this.guard(() => this.startOrPause());
    button("reset").onclick = () => this.guard(() => this.startOver());
    button("digits").onclick = () => this.guard(() => this.useDigits());
    button("save").onclick = () => this.guard(() => this.saveCheckpoint());
    button("download").onclick = () => this.guard(() => this.downloadModel());
    button("tune").onclick = () => this.guard(() => this.fineTune(this.drawing.examples));
    button("tune-own").onclick = () => this.guard(() => this.trainOwn());
    field("context").onchange = () => (this.isTextNew = true);
    element<HTMLSelectElement>("backend").onchange = () => this.guard(() => this.changeBackend());
    element("settings").onsubmit = (event) => event.preventDefault();
    field("files").onchange = () =>
      this.guard(() => this.useFiles(filesOf(field("files")).map((file) => ({ file, folder: "" }))));
    field("load").onchange = () => this.guard(() => this.loadCheckpoint());
    this.makeDropZone();
  }

  async start(): Promise<void> {
    this.gpu = await findGpu(this.info.webgpu);
    if (this.gpu.name !== undefined) {
      const isUsed = !this.gpu.isSoftware;
      element("backend").append(new Option("GPU (WebGPU)", "webgpu", isUsed, isUsed));
    }
    await this.load();
    if (this.writing.isUsed) {
      field("batch").value = TEXT_BATCH;
      this.say("Paste a text to learn from.");
    } else if (this.digitsFit) await this.useDigits();
    else this.say("Drop a data set to train on.");
  }

  // --- artifacts --------------------------------------------------------------------------------

  private async load(): Promise<void> {
    const select = element<HTMLSelectElement>("backend");
    try {
      await this.loadOn(select.value as Provider);
    } catch (error) {
      if (select.value !== "webgpu" || this.artifacts !== undefined) throw error;
      // a GPU that was chosen for the user and cannot run this model
      this.gpu = { ...this.gpu, reason: `WebGPU cannot load this model (${(error as Error).message})` };
      select.value = "wasm";
      await this.loadOn("wasm");
    }
    const { module, optimizer } = this.artifacts as unknown as Artifacts;
    const count = module.getParametersSize(true).toLocaleString("en");
    element("summary").textContent =
      `${this.info.name}: ${count} trainable numbers, ${optimizer?.name ?? "no optimizer"}`;
    if (this.checkpoint !== undefined && optimizer !== undefined) {
      field("rate").value = String(optimizer.getLearningRate());
    }
    button("digits").hidden = !this.digitsFit;
    for (const id of ["save", "download", "reset"]) button(id).disabled = false;
    element("step").textContent = String(optimizer?.stepCount ?? 0);
    this.adapters.use(module);
    if (await this.writing.use(module)) this.isTextNew = true;
    const form = this.writing.isUsed ? undefined : this.form;
    this.own.use(form, this.labels, classNames(this.info.metadata));
    this.prepare();
  }

  private async loadOn(provider: Provider): Promise<void> {
    const ort = await library(provider);
    const loaded = await loadArtifacts(new URL("artifacts", document.baseURI).href, {
      ort,
      prefix: this.info.prefix,
      checkpoint: this.checkpoint,
      sessionOptions: { executionProviders: [provider] },
    });
    await this.artifacts?.module.release();
    this.artifacts = loaded;
    const { text, reason } = note(provider, ort, this.gpu);
    element("provider").textContent = text;
    element("reason").textContent = reason;
  }

  private prepare(): void {
    this.allow();
    if (this.artifacts === undefined || this.dataset === undefined) return;
    this.run = Run.of(this.artifacts, this.dataset, {
      step: (step, epoch, loss) => {
        this.newest = { step, epoch, loss };
        this.chart.loss(step, loss);
      },
      measured: (step, { loss, accuracy }) => {
        this.showQuality(loss, accuracy);
        this.chart.measured(step, loss, accuracy);
      },
      breathe: () => this.redraw(),
    });
    this.allow();
    this.drawing.use(this.form, this.dataset);
  }

  /** Enable what can be done now. */
  private allow(): void {
    const isIdle = this.run?.running !== true;
    const hasModel = this.artifacts !== undefined;
    button("start").disabled = !hasModel || (this.dataset === undefined && !this.writing.isUsed);
    button("tune").disabled = !isIdle || this.drawing.examples.length === 0;
    button("tune-own").disabled = !isIdle || !hasModel || this.own.examples.length === 0;
  }

  private showQuality(loss: number, accuracy: number | undefined): void {
    const [name, value, legend] = this.writing.isUsed
      ? ["Perplexity", Math.exp(loss).toPrecision(3), "held-out loss"]
      : accuracy === undefined
        ? ["Held-out loss", loss.toFixed(4), "held-out loss"]
        : ["Accuracy", `${(accuracy * 100).toFixed(1)} %`, "held-out accuracy"];
    element("quality").textContent = name;
    element("accuracy").textContent = value;
    element("legend").textContent = legend;
  }

  private redraw(): void {
    this.chart.draw();
    if (this.newest === undefined) return;
    const { step, epoch, loss } = this.newest;
    element("step").textContent = String(step);
    element("epoch").textContent = String(epoch);
    element("loss").textContent = loss.toFixed(4);
    const now = performance.now();
    const steps = step - this.clock.step;
    if (steps > 0 && (now - this.clock.time > 500 || this.run?.running === false)) {
      element("speed").textContent = ((steps / (now - this.clock.time)) * 1000).toPrecision(2);
      this.clock = { time: now, step };
    }
  }

  // --- training ---------------------------------------------------------------------------------

  private async startOrPause(): Promise<void> {
    if (this.run?.running) {
      this.run.pause();
      return;
    }
    if (this.writing.isUsed) await this.prepareText();
    await this.train(number("epochs"));
    if (this.writing.isUsed) await this.writing.sample("after");
  }

  /** Rows of the text that is there now, and a sample from before it is learned. */
  private async prepareText(): Promise<void> {
    if (this.isTextNew) {
      this.dataset = this.writing.dataset();
      this.prepare();
      this.isTextNew = false;
    }
    if (!this.writing.hasBefore) {
      this.say("Writing a sample first…");
      button("start").disabled = true;
      await this.writing.sample("before").finally(() => this.allow());
    }
  }

  private async train(epochs: number): Promise<void> {
    const { run } = this;
    if (run === undefined) return;
    run.optimizer.setLearningRate(number("rate"));
    run.batchSize = number("batch");
    this.clock = { time: performance.now(), step: run.optimizer.stepCount };
    const start = button("start");
    const before = run.optimizer.stepCount;
    start.textContent = "Pause";
    this.say("Training…");
    let finished = false;
    try {
      const training = run.train(epochs);
      this.allow();
      await training;
      finished = true;
    } finally {
      start.textContent = run.optimizer.stepCount > 0 ? "Resume" : "Train";
      this.allow();
      const steps = run.optimizer.stepCount - before;
      if (finished) this.say(`Stopped after ${steps} ${steps === 1 ? "step" : "steps"}.`);
    }
    await this.drawing.guess();
  }

  private async startOver(): Promise<void> {
    await this.pauseAndWait();
    this.checkpoint = undefined;
    this.clearProgress();
    await this.load();
    this.say("Back at the first checkpoint.");
  }

  private clearProgress(): void {
    this.chart.clear();
    this.newest = undefined;
    for (const id of ["loss", "accuracy", "speed"]) element(id).textContent = "–";
    for (const id of ["epoch", "step"]) element(id).textContent = "0";
    button("start").textContent = "Train";
    this.writing.forget();
  }

  /** Training begins anew from an adapter that was loaded, with fresh moments. */
  private restart(name: string): void {
    if (this.artifacts === undefined) return;
    this.run?.pause();
    if (this.artifacts.optimizer !== undefined) {
      this.artifacts.optimizer = new Optimizer(this.artifacts.module, true);
    }
    this.clearProgress();
    this.prepare();
    this.say(`${name}: goes on from this adapter.`);
  }

  private async changeBackend(): Promise<void> {
    await this.pauseAndWait();
    if (this.artifacts !== undefined) {
      this.checkpoint = await CheckpointState.saveCheckpoint(this.artifacts.state, true);
    }
    await this.load();
    this.say("Continues on the other processor from the same state.");
  }

  /** Let a step that is under way come to its end. */
  private async pauseAndWait(): Promise<void> {
    this.run?.pause();
    await this.artifacts?.state.exclusive(async () => undefined);
  }

  // --- data -------------------------------------------------------------------------------------

  /** How the first input takes pictures, if it does. */
  private get form(): ImageForm | undefined {
    return imageForm(this.artifacts?.module.inputs()[0], this.info.metadata);
  }

  private get target(): ValueInfo | undefined {
    const inputs = this.artifacts?.module.inputs() ?? [];
    return inputs.length === 2 ? inputs[1] : undefined;
  }

  /** What the labels may be, if pictures have one each. */
  private get labels(): ClassLabels | undefined {
    const listed = this.artifacts?.module.facts.models["train"]?.labels ?? [];
    return listed.find(({ input }) => input === this.target?.name);
  }

  private get digitsFit(): boolean {
    const { form } = this;
    return form?.height === 8 && form.width === 8 && form.channels === 1 && this.target !== undefined;
  }

  private async useDigits(): Promise<void> {
    const bytes = await bytesOf(await (await fetch("data/digits.npz")).blob());
    this.use("Handwritten digits", await readArrays("digits.npz", bytes), DIGITS_SCALE);
  }

  private async useFiles(dropped: readonly Dropped[]): Promise<void> {
    const files = dropped.map(({ file }) => file).sort((a, b) => a.name.localeCompare(b.name));
    if (files.length === 0) return;
    const arrays = new Map<string, NdArray>();
    for (const file of files) {
      const found = await readArrays(file.name, await bytesOf(file));
      for (const [name, array] of found) arrays.set(name, array);
    }
    this.use(files.map((f) => f.name).join(", "), arrays);
  }

  private use(name: string, arrays: ReadonlyMap<string, NdArray>, scale?: number): void {
    if (this.artifacts === undefined) throw new Error("The artifacts are not loaded.");
    const { module } = this.artifacts;
    const labels = module.facts.models["train"]?.labels;
    this.dataset = makeDataset(name, arrays, module.inputs(), labels, scale);
    this.drawing.examples = [];
    this.run?.pause();
    this.describeData(this.dataset);
    this.prepare();
    this.say(`${name}: ready to train.`);
  }

  private describeData(dataset: Dataset): void {
    const { form } = this;
    const { training, held } = dataset;
    element("data-summary").textContent =
      `${dataset.name}: ${training.length} examples to train on, ${held.length} held out.`;
    const canvases = form === undefined ? [] : training.slice(0, SAMPLES).map((row) => {
      const canvas = document.createElement("canvas");
      const image = dataset.example(row);
      if (image !== undefined) paint(canvas, image, form);
      return canvas;
    });
    element("samples").replaceChildren(...canvases);
  }

  private makeDropZone(): void {
    for (const kind of ["dragover", "dragleave", "drop"] as const) {
      document.addEventListener(kind, (event) => {
        if (event.target === element("text")) return; // a text field takes what is dropped by itself
        event.preventDefault();
        element("drop").classList.toggle("over", kind === "dragover");
        if (kind !== "drop" || event.dataTransfer === null) return;
        const files = droppedFiles(event.dataTransfer);
        const group = this.own.groupAt(event.target);
        void this.guard(async () => {
          const all = await files;
          const isOwn = all.some(({ file, folder }) => folder !== "" || isPicture(file));
          if (group !== undefined || isOwn) await this.own.addFiles(all, group);
          else await this.useFiles(all);
        });
      });
    }
  }

  // --- pictures ---------------------------------------------------------------------------------

  className(label: number): string {
    const names = this.dataset?.classes ?? [];
    return names[label] ?? this.own.classNames[label] ?? String(label);
  }

  async classify(image: Float32Array): Promise<Float32Array | undefined> {
    const { artifacts, form } = this;
    if (artifacts === undefined || form === undefined) return undefined;
    const input = { data: image.slice(), dims: [1, ...form.shape] };
    const [scores] = await classes(artifacts.module, [input]);
    return scores && softmax(scores);
  }

  /** What the model sees in the camera's picture; not while it is trained. */
  private async see(image: Float32Array): Promise<void> {
    if (this.run?.running === true) return;
    const shares = await this.classify(image);
    if (shares === undefined) return;
    const names = this.own.classNames;
    const order = Array.from(shares.keys()).sort((a, b) => (shares[b] ?? 0) - (shares[a] ?? 0));
    element("sees").textContent = `It sees ${names[best(shares)]}.`;
    showBars("seen", order.slice(0, SEEN).map((i) => [names[i] ?? String(i), shares[i] ?? 0]));
  }

  /** Train on examples, weighted up, among the others, so that those are not forgotten. */
  private async fineTune(examples: readonly Example[]): Promise<void> {
    const { dataset, run } = this;
    if (dataset === undefined || run === undefined) return;
    const weighted = Array.from({ length: OWN_WEIGHT }, () => examples).flat();
    run.use(dataset.with(weighted));
    await this.train(number("epochs"));
  }

  /** Train on the user's own pictures: alone, or among the data set that is loaded. */
  private async trainOwn(): Promise<void> {
    const { form, target } = this;
    const { examples, classNames: names } = this.own;
    if (form === undefined || target === undefined) return;
    if (field("among").checked && this.dataset !== undefined) return this.fineTune(examples);
    this.dataset = imageDataset("Your images", examples, form.shape, target, names);
    this.describeData(this.dataset);
    this.prepare();
    await this.train(number("epochs"));
  }

  // --- keeping ----------------------------------------------------------------------------------

  private async saveCheckpoint(): Promise<void> {
    if (this.artifacts === undefined) return;
    offer("checkpoint", await CheckpointState.saveCheckpoint(this.artifacts.state, true));
    this.say("Checkpoint saved, optimizer state included.");
  }

  private async loadCheckpoint(): Promise<void> {
    const [file] = filesOf(field("load"));
    if (file === undefined) return;
    await this.pauseAndWait();
    const before = this.checkpoint;
    this.checkpoint = await bytesOf(file);
    try {
      await this.load();
    } catch (error) {
      this.checkpoint = before;
      throw error;
    }
    button("start").textContent = "Resume";
    this.say(`${file.name}: continues at step ${this.artifacts?.optimizer?.stepCount ?? 0}.`);
  }

  private async downloadModel(): Promise<void> {
    if (this.artifacts === undefined) return;
    offer("trained.onnx", await this.artifacts.module.exportModelForInferencing());
    this.say("The trained model is in trained.onnx.");
  }

  // --- messages ---------------------------------------------------------------------------------

  say(text: string, bad = false): void {
    const status = element("status");
    status.textContent = text;
    status.classList.toggle("bad", bad);
  }

  async guard(work: () => Promise<void>): Promise<void> {
    try {
      await work();
    } catch (error) {
      this.say(error instanceof Error ? error.message : String(error), true);
    }
  }
}

async function main(): Promise<void> {
  try {
    const info = (await (await fetch("info.json")).json()) as Info;
    document.title = `onnxtrain: ${info.name}`;
    await new App(info).start();
  } catch (error) {
    const status = element("status");
    status.textContent = error instanceof Error ? error.message : String(error);
    status.classList.add("bad");
    element("summary").textContent = "The artifacts cannot be loaded.";
  }
}

await main();
