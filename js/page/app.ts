/** The page: wires the run, the data, the curves and the drawing pad together. */
import {
  CheckpointState, loadArtifacts, type Artifacts, type Ort,
} from "../src/index.js";
import { readArrays, type NdArray } from "./arrays.js";
import { Chart } from "./chart.js";
import { makeDataset, type Dataset } from "./dataset.js";
import { Pad, paint } from "./pad.js";
import { best, classes, Run, softmax } from "./run.js";

/** What the server says about itself. */
interface Info {
  name: string;
  prefix: string;
  webgpu: boolean;
}

interface OrtWeb extends Ort {
  env: { wasm: { wasmPaths?: string; numThreads?: number }; logLevel?: string };
}

const DIGITS_SCALE = 1 / 16;
const SAMPLES = 24;
const MAX_THREADS = 4;
const OWN_WEIGHT = 8;

function element<T extends HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (found === null) throw new Error(`the page has no #${id}`);
  return found as T;
}

const button = (id: string): HTMLButtonElement => element<HTMLButtonElement>(id);
const field = (id: string): HTMLInputElement => element<HTMLInputElement>(id);

class App {
  private readonly chart = new Chart(document.querySelector("#chart") as SVGSVGElement);
  private readonly pad = new Pad(element<HTMLCanvasElement>("pad"), () => this.guard(() => this.guess()));
  private artifacts: Artifacts | undefined;
  private dataset: Dataset | undefined;
  private run: Run | undefined;
  private checkpoint: Uint8Array | undefined;
  private own: { image: Float32Array; label: number }[] = [];
  private newest: { step: number; epoch: number; loss: number } | undefined;
  private clock = { time: 0, step: 0 };

  constructor(private readonly info: Info) {
    button("start").onclick = () => this.guard(() => this.startOrPause());
    button("reset").onclick = () => this.guard(() => this.startOver());
    button("digits").onclick = () => this.guard(() => this.useDigits());
    button("save").onclick = () => this.guard(() => this.saveCheckpoint());
    button("download").onclick = () => this.guard(() => this.downloadModel());
    button("clear").onclick = () => this.clearPad();
    button("random").onclick = () => this.guard(() => this.showRandom());
    button("add").onclick = () => this.guard(() => this.addExample());
    button("tune").onclick = () => this.guard(() => this.fineTune());
    element<HTMLSelectElement>("backend").onchange = () => this.guard(() => this.changeBackend());
    element("settings").onsubmit = (event) => event.preventDefault();
    field("files").onchange = () => this.guard(() => this.useFiles(field("files")));
    field("load").onchange = () => this.guard(() => this.loadCheckpoint());
    this.makeDropZone();
  }

  async start(): Promise<void> {
    if (this.info.webgpu && "gpu" in navigator) {
      element("backend").append(new Option("GPU (WebGPU)", "webgpu"));
    }
    await this.load();
    if (this.digitsFit) await this.useDigits();
    else this.say("Drop a data set to train on.");
  }

  // --- artifacts --------------------------------------------------------------------------------

  private async load(): Promise<void> {
    const provider = element<HTMLSelectElement>("backend").value;
    const ort = await library(provider);
    await this.artifacts?.module.release();
    this.artifacts = await loadArtifacts(new URL("artifacts", document.baseURI).href, {
      ort,
      prefix: this.info.prefix,
      checkpoint: this.checkpoint,
      sessionOptions: { executionProviders: [provider] },
    });
    const { module, optimizer } = this.artifacts;
    const count = module.getParametersSize(true).toLocaleString("en");
    const threads = provider === "wasm" ? `, ${(ort as OrtWeb).env.wasm.numThreads} threads` : "";
    element("summary").textContent =
      `${this.info.name}: ${count} trainable numbers, ${optimizer?.name ?? "no optimizer"}${threads}`;
    if (this.checkpoint !== undefined && optimizer !== undefined) {
      field("rate").value = String(optimizer.getLearningRate());
    }
    button("digits").hidden = !this.digitsFit;
    for (const id of ["save", "download", "reset"]) button(id).disabled = false;
    element("step").textContent = String(optimizer?.stepCount ?? 0);
    this.prepare();
  }

  private prepare(): void {
    if (this.artifacts === undefined || this.dataset === undefined) return;
    this.run = Run.of(this.artifacts, this.dataset, {
      step: (step, epoch, loss) => {
        this.newest = { step, epoch, loss };
        this.chart.loss(step, loss);
      },
      measured: (step, { loss, accuracy }) => {
        element("accuracy").textContent =
          accuracy === undefined ? `loss ${loss.toFixed(3)}` : `${(accuracy * 100).toFixed(1)} %`;
        if (accuracy !== undefined) this.chart.accuracy(step, accuracy);
      },
      breathe: () => this.redraw(),
    });
    button("start").disabled = false;
    this.prepareDrawing();
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
      element("speed").textContent = ((steps / (now - this.clock.time)) * 1000).toFixed(0);
      this.clock = { time: now, step };
    }
  }

  // --- training ---------------------------------------------------------------------------------

  private async startOrPause(): Promise<void> {
    if (this.run?.running) {
      this.run.pause();
      return;
    }
    await this.train(number("epochs"));
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
    button("tune").disabled = true;
    this.say("Training…");
    let finished = false;
    try {
      await run.train(epochs);
      finished = true;
    } finally {
      start.textContent = run.optimizer.stepCount > 0 ? "Resume" : "Train";
      button("tune").disabled = this.own.length === 0;
      if (finished) this.say(`Stopped after ${run.optimizer.stepCount - before} steps.`);
    }
    await this.guess();
  }

  private async startOver(): Promise<void> {
    await this.pauseAndWait();
    this.checkpoint = undefined;
    this.chart.clear();
    this.newest = undefined;
    for (const id of ["loss", "accuracy", "speed"]) element(id).textContent = "–";
    element("epoch").textContent = "0";
    button("start").textContent = "Train";
    await this.load();
    this.say("Back at the first checkpoint.");
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

  /** The first input as an image: height and width, if it is one of a single channel. */
  private get imageSize(): { height: number; width: number } | undefined {
    const info = this.artifacts?.module.inputs()[0];
    if (info?.type !== "float32") return undefined;
    const dims = info.shape.slice(1).filter((d) => typeof d === "number");
    if (dims.length !== info.shape.length - 1) return undefined;
    const size = dims.reduce((a, b) => a * b, 1);
    const side = Math.sqrt(size);
    const flat = dims.length === 1 || dims.slice(-2).every((d) => d === side);
    return Number.isInteger(side) && side >= 6 && flat ? { height: side, width: side } : undefined;
  }

  private get digitsFit(): boolean {
    return this.imageSize?.height === 8 && this.artifacts?.module.inputs().length === 2;
  }

  private async useDigits(): Promise<void> {
    const response = await fetch("data/digits.npz");
    const bytes = new Uint8Array(await response.arrayBuffer());
    this.use("Handwritten digits", await readArrays("digits.npz", bytes), DIGITS_SCALE);
  }

  private async useFiles(input: { files: FileList | null; value?: string }): Promise<void> {
    const files = [...(input.files ?? [])].sort((a, b) => a.name.localeCompare(b.name));
    if (files.length === 0) return;
    const arrays = new Map<string, NdArray>();
    for (const file of files) {
      const bytes = new Uint8Array(await file.arrayBuffer());
      for (const [name, array] of await readArrays(file.name, bytes)) arrays.set(name, array);
    }
    if (input.value !== undefined) input.value = "";
    this.use(files.map((f) => f.name).join(", "), arrays);
  }

  private use(name: string, arrays: ReadonlyMap<string, NdArray>, scale?: number): void {
    if (this.artifacts === undefined) throw new Error("The artifacts are not loaded.");
    const { module } = this.artifacts;
    const labels = module.facts.models["train"]?.labels;
    this.dataset = makeDataset(name, arrays, module.inputs(), labels, scale);
    this.own = [];
    this.run?.pause();
    this.describeData();
    this.prepare();
    this.say(`${name}: ready to train.`);
  }

  private describeData(): void {
    const { dataset, imageSize } = this;
    if (dataset === undefined) return;
    const { training, held } = dataset;
    element("data-summary").textContent =
      `${dataset.name}: ${training.length} examples to train on, ${held.length} held out.`;
    const canvases = imageSize === undefined ? [] : training.slice(0, SAMPLES).map((row) => {
      const canvas = document.createElement("canvas");
      const image = dataset.example(row);
      if (image !== undefined) paint(canvas, image, imageSize.height, imageSize.width);
      return canvas;
    });
    element("samples").replaceChildren(...canvases);
  }

  private makeDropZone(): void {
    const zone = element("drop");
    for (const kind of ["dragover", "dragleave", "drop"] as const) {
      document.addEventListener(kind, (event) => {
        event.preventDefault();
        zone.classList.toggle("over", kind === "dragover");
        if (kind === "drop" && event.dataTransfer !== null) {
          const { files } = event.dataTransfer;
          void this.guard(() => this.useFiles({ files }));
        }
      });
    }
  }

  // --- drawing ----------------------------------------------------------------------------------

  private prepareDrawing(): void {
    const { dataset, imageSize } = this;
    const labels = dataset?.labels(Array.from({ length: dataset.rows }, (_, i) => i));
    const usable = imageSize !== undefined && labels !== undefined && dataset?.columns.length === 2;
    element("drawing").hidden = !usable;
    if (!usable) return;
    const top = labels.reduce((a, b) => Math.max(a, b), 0);
    const select = element<HTMLSelectElement>("label");
    const names = Array.from({ length: top + 1 }, (_, i) => dataset?.className(i) ?? "");
    if ([...select.options].map((option) => option.text).join() !== names.join()) {
      select.replaceChildren(...names.map((text) => new Option(text)));
    }
  }

  private clearPad(): void {
    this.pad.clear();
    element("bars").replaceChildren();
    element("answer").textContent = "Draw, and see what the model thinks.";
  }

  private async showRandom(): Promise<void> {
    const { dataset, imageSize } = this;
    if (dataset === undefined || imageSize === undefined) return;
    const rows = dataset.held.length > 0 ? dataset.held : dataset.training;
    const row = rows[Math.floor(Math.random() * rows.length)] as number;
    const image = dataset.example(row);
    if (image === undefined) return;
    this.pad.show(image, imageSize.height, imageSize.width);
    const [label] = dataset.labels([row]) ?? [];
    if (label !== undefined) element<HTMLSelectElement>("label").selectedIndex = label;
    await this.guess(image);
  }

  private async guess(known?: Float32Array): Promise<void> {
    const { artifacts, imageSize, dataset } = this;
    if (artifacts === undefined || imageSize === undefined || dataset === undefined) return;
    const image = known ?? this.pad.image(imageSize.height, imageSize.width);
    if (image === undefined) return;
    paint(element<HTMLCanvasElement>("small"), image, imageSize.height, imageSize.width);
    const shape = dataset.columns[0]?.shape ?? [];
    const [scores] = await classes(artifacts.module, [{ data: image.slice(), dims: [1, ...shape] }]);
    if (scores === undefined) return;
    const shares = softmax(scores);
    const winner = best(scores);
    const percent = ((shares[winner] ?? 0) * 100).toFixed(0);
    const strong = document.createElement("b");
    strong.textContent = dataset.className(winner);
    element("answer").replaceChildren("It reads ", strong, ` (${percent} % sure)`);
    element("bars").replaceChildren(...[...shares].map((s, i) => bar(s, dataset.className(i))));
  }

  private async addExample(): Promise<void> {
    const { imageSize } = this;
    const image = imageSize && this.pad.image(imageSize.height, imageSize.width);
    if (image === undefined) throw new Error("Draw something first.");
    this.own.push({ image, label: element<HTMLSelectElement>("label").selectedIndex });
    element("examples").textContent = `${this.own.length} of your own.`;
    button("tune").disabled = this.run?.running ?? true;
    this.clearPad();
  }

  /** Train on the user's examples, weighted up, among the others, so that those are not forgotten. */
  private async fineTune(): Promise<void> {
    const { dataset, run } = this;
    if (dataset === undefined || run === undefined) return;
    const weighted = Array.from({ length: OWN_WEIGHT }, () => this.own).flat();
    run.use(dataset.with(weighted));
    await this.train(number("epochs"));
  }

  // --- keeping ----------------------------------------------------------------------------------

  private async saveCheckpoint(): Promise<void> {
    if (this.artifacts === undefined) return;
    offer("checkpoint", await CheckpointState.saveCheckpoint(this.artifacts.state, true));
    this.say("Checkpoint saved, optimizer state included.");
  }

  private async loadCheckpoint(): Promise<void> {
    const input = field("load");
    const file = input.files?.[0];
    if (file === undefined) return;
    await this.pauseAndWait();
    const before = this.checkpoint;
    this.checkpoint = new Uint8Array(await file.arrayBuffer());
    input.value = "";
    try {
      await this.load();
    } catch (error) {
      this.checkpoint = before;
      throw error;
    }
    button("start").textContent = "Resume";
    this.say(`${file.name}: continues at step ${this.run?.optimizer.stepCount ?? 0}.`);
  }

  private async downloadModel(): Promise<void> {
    if (this.artifacts === undefined) return;
    offer("trained.onnx", await this.artifacts.module.exportModelForInferencing());
    this.say("The trained model is in trained.onnx.");
  }

  // --- messages ---------------------------------------------------------------------------------

  private say(text: string, bad = false): void {
    const status = element("status");
    status.textContent = text;
    status.classList.toggle("bad", bad);
  }

  private async guard(work: () => Promise<void>): Promise<void> {
    try {
      await work();
    } catch (error) {
      this.say(error instanceof Error ? error.message : String(error), true);
    }
  }
}

function number(id: string): number {
  const input = field(id);
  if (!input.reportValidity()) throw new Error(`Check the field “${id}”.`);
  return Number(input.value);
}

function bar(share: number, label: string): HTMLLIElement {
  const item = document.createElement("li");
  const name = document.createElement("span");
  name.textContent = label;
  const progress = document.createElement("progress");
  progress.max = 1;
  progress.value = share;
  progress.setAttribute("aria-label", `Probability of ${label}`);
  const value = document.createElement("span");
  value.textContent = `${(share * 100).toFixed(0)} %`;
  item.append(name, progress, value);
  return item;
}

function offer(name: string, bytes: Uint8Array): void {
  const url = URL.createObjectURL(new Blob([bytes.slice()], { type: "application/octet-stream" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

/** onnxruntime-web from this server, never from elsewhere. */
async function library(provider: string): Promise<Ort> {
  const file = provider === "webgpu" ? "ort.webgpu.min.mjs" : "ort.wasm.min.mjs";
  const folder = new URL("ort/", document.baseURI).href;
  const ort = (await import(folder + file)) as OrtWeb;
  ort.env.wasm.wasmPaths = folder;
  const cores = Math.min(MAX_THREADS, navigator.hardwareConcurrency || 1);
  ort.env.wasm.numThreads = globalThis.crossOriginIsolated ? cores : 1;
  ort.env.logLevel = "error";
  return ort;
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
