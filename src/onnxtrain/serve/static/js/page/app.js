/** The page: wires the run, the data, the curves and the cards together. */
import { CheckpointState, loadArtifacts, Optimizer, } from "../src/index.js";
import { Adapters } from "./adapters.js";
import { readArrays } from "./arrays.js";
import { Chart } from "./chart.js";
import { imageDataset, makeDataset } from "./dataset.js";
import { button, bytesOf, element, field, filesOf, number, offer, showBars } from "./dom.js";
import { Drawing } from "./drawing.js";
import { droppedFiles, isPicture } from "./drops.js";
import { classNames, imageForm, paint } from "./images.js";
import { OwnImages } from "./own.js";
import { findGpu, library, note } from "./providers.js";
import { best, classes, Run, softmax } from "./run.js";
import { Writing } from "./writing.js";
const DIGITS_SCALE = 1 / 16;
const SAMPLES = 24;
const OWN_WEIGHT = 8;
/** Rows of text cost their length times the vocabulary. */
const TEXT_BATCH = "8";
const SEEN = 5;
class App {
    constructor(info) {
        this.info = info;
        this.chart = new Chart(document.querySelector("#chart"));
        this.drawing = new Drawing(this, this, () => this.allow());
        this.own = new OwnImages(this, () => this.allow(), (image) => this.see(image));
        this.adapters = new Adapters(this, (name) => this.restart(name));
        this.gpu = { name: undefined, isSoftware: false, reason: "" };
        this.clock = { time: 0, step: 0 };
        /** Whether the text is another than the one that the rows were made of. */
        this.isTextNew = true;
        this.writing = new Writing(this, info.tokenizer, () => (this.isTextNew = true));
        button("start").onclick = () => this.guard(() => this.startOrPause());
        button("reset").onclick = () => this.guard(() => this.startOver());
        button("digits").onclick = () => this.guard(() => this.useDigits());
        button("save").onclick = () => this.guard(() => this.saveCheckpoint());
        button("download").onclick = () => this.guard(() => this.downloadModel());
        button("tune").onclick = () => this.guard(() => this.fineTune(this.drawing.examples));
        button("tune-own").onclick = () => this.guard(() => this.trainOwn());
        field("context").onchange = () => (this.isTextNew = true);
        element("backend").onchange = () => this.guard(() => this.changeBackend());
        element("settings").onsubmit = (event) => event.preventDefault();
        field("files").onchange = () => this.guard(() => this.useFiles(filesOf(field("files")).map((file) => ({ file, folder: "" }))));
        field("load").onchange = () => this.guard(() => this.loadCheckpoint());
        this.makeDropZone();
    }
    async start() {
        this.gpu = await findGpu(this.info.webgpu);
        if (this.gpu.name !== undefined) {
            const isUsed = !this.gpu.isSoftware;
            element("backend").append(new Option("GPU (WebGPU)", "webgpu", isUsed, isUsed));
        }
        await this.load();
        if (this.writing.isUsed) {
            field("batch").value = TEXT_BATCH;
            this.say("Paste a text to learn from.");
        }
        else if (this.digitsFit)
            await this.useDigits();
        else
            this.say("Drop a data set to train on.");
    }
    // --- artifacts --------------------------------------------------------------------------------
    async load() {
        const select = element("backend");
        try {
            await this.loadOn(select.value);
        }
        catch (error) {
            if (select.value !== "webgpu" || this.artifacts !== undefined)
                throw error;
            // a GPU that was chosen for the user and cannot run this model
            this.gpu = { ...this.gpu, reason: `WebGPU cannot load this model (${error.message})` };
            select.value = "wasm";
            await this.loadOn("wasm");
        }
        const { module, optimizer } = this.artifacts;
        const count = module.getParametersSize(true).toLocaleString("en");
        element("summary").textContent =
            `${this.info.name}: ${count} trainable numbers, ${optimizer?.name ?? "no optimizer"}`;
        if (this.checkpoint !== undefined && optimizer !== undefined) {
            field("rate").value = String(optimizer.getLearningRate());
        }
        button("digits").hidden = !this.digitsFit;
        for (const id of ["save", "download", "reset"])
            button(id).disabled = false;
        element("step").textContent = String(optimizer?.stepCount ?? 0);
        this.adapters.use(module);
        if (await this.writing.use(module))
            this.isTextNew = true;
        const form = this.writing.isUsed ? undefined : this.form;
        this.own.use(form, this.labels, classNames(this.info.metadata));
        this.prepare();
    }
    async loadOn(provider) {
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
    prepare() {
        this.allow();
        if (this.artifacts === undefined || this.dataset === undefined)
            return;
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
    allow() {
        const isIdle = this.run?.running !== true;
        const hasModel = this.artifacts !== undefined;
        button("start").disabled = !hasModel || (this.dataset === undefined && !this.writing.isUsed);
        button("tune").disabled = !isIdle || this.drawing.examples.length === 0;
        button("tune-own").disabled = !isIdle || !hasModel || this.own.examples.length === 0;
    }
    showQuality(loss, accuracy) {
        const [name, value, legend] = this.writing.isUsed
            ? ["Perplexity", Math.exp(loss).toPrecision(3), "held-out loss"]
            : accuracy === undefined
                ? ["Held-out loss", loss.toFixed(4), "held-out loss"]
                : ["Accuracy", `${(accuracy * 100).toFixed(1)} %`, "held-out accuracy"];
        element("quality").textContent = name;
        element("accuracy").textContent = value;
        element("legend").textContent = legend;
    }
    redraw() {
        this.chart.draw();
        if (this.newest === undefined)
            return;
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
    async startOrPause() {
        if (this.run?.running) {
            this.run.pause();
            return;
        }
        if (this.writing.isUsed)
            await this.prepareText();
        await this.train(number("epochs"));
        if (this.writing.isUsed)
            await this.writing.sample("after");
    }
    /** Rows of the text that is there now, and a sample from before it is learned. */
    async prepareText() {
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
    async train(epochs) {
        const { run } = this;
        if (run === undefined)
            return;
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
        }
        finally {
            start.textContent = run.optimizer.stepCount > 0 ? "Resume" : "Train";
            this.allow();
            const steps = run.optimizer.stepCount - before;
            if (finished)
                this.say(`Stopped after ${steps} ${steps === 1 ? "step" : "steps"}.`);
        }
        await this.drawing.guess();
    }
    async startOver() {
        await this.pauseAndWait();
        this.checkpoint = undefined;
        this.clearProgress();
        await this.load();
        this.say("Back at the first checkpoint.");
    }
    clearProgress() {
        this.chart.clear();
        this.newest = undefined;
        for (const id of ["loss", "accuracy", "speed"])
            element(id).textContent = "–";
        for (const id of ["epoch", "step"])
            element(id).textContent = "0";
        button("start").textContent = "Train";
        this.writing.forget();
    }
    /** Training begins anew from an adapter that was loaded, with fresh moments. */
    restart(name) {
        if (this.artifacts === undefined)
            return;
        this.run?.pause();
        if (this.artifacts.optimizer !== undefined) {
            this.artifacts.optimizer = new Optimizer(this.artifacts.module, true);
        }
        this.clearProgress();
        this.prepare();
        this.say(`${name}: goes on from this adapter.`);
    }
    async changeBackend() {
        await this.pauseAndWait();
        if (this.artifacts !== undefined) {
            this.checkpoint = await CheckpointState.saveCheckpoint(this.artifacts.state, true);
        }
        await this.load();
        this.say("Continues on the other processor from the same state.");
    }
    /** Let a step that is under way come to its end. */
    async pauseAndWait() {
        this.run?.pause();
        await this.artifacts?.state.exclusive(async () => undefined);
    }
    // --- data -------------------------------------------------------------------------------------
    /** How the first input takes pictures, if it does. */
    get form() {
        return imageForm(this.artifacts?.module.inputs()[0], this.info.metadata);
    }
    get target() {
        const inputs = this.artifacts?.module.inputs() ?? [];
        return inputs.length === 2 ? inputs[1] : undefined;
    }
    /** What the labels may be, if pictures have one each. */
    get labels() {
        const listed = this.artifacts?.module.facts.models["train"]?.labels ?? [];
        return listed.find(({ input }) => input === this.target?.name);
    }
    get digitsFit() {
        const { form } = this;
        return form?.height === 8 && form.width === 8 && form.channels === 1 && this.target !== undefined;
    }
    async useDigits() {
        const bytes = await bytesOf(await (await fetch("data/digits.npz")).blob());
        this.use("Handwritten digits", await readArrays("digits.npz", bytes), DIGITS_SCALE);
    }
    async useFiles(dropped) {
        const files = dropped.map(({ file }) => file).sort((a, b) => a.name.localeCompare(b.name));
        if (files.length === 0)
            return;
        const arrays = new Map();
        for (const file of files) {
            const found = await readArrays(file.name, await bytesOf(file));
            for (const [name, array] of found)
                arrays.set(name, array);
        }
        this.use(files.map((f) => f.name).join(", "), arrays);
    }
    use(name, arrays, scale) {
        if (this.artifacts === undefined)
            throw new Error("The artifacts are not loaded.");
        const { module } = this.artifacts;
        const labels = module.facts.models["train"]?.labels;
        this.dataset = makeDataset(name, arrays, module.inputs(), labels, scale);
        this.drawing.examples = [];
        this.run?.pause();
        this.describeData(this.dataset);
        this.prepare();
        this.say(`${name}: ready to train.`);
    }
    describeData(dataset) {
        const { form } = this;
        const { training, held } = dataset;
        element("data-summary").textContent =
            `${dataset.name}: ${training.length} examples to train on, ${held.length} held out.`;
        const canvases = form === undefined ? [] : training.slice(0, SAMPLES).map((row) => {
            const canvas = document.createElement("canvas");
            const image = dataset.example(row);
            if (image !== undefined)
                paint(canvas, image, form);
            return canvas;
        });
        element("samples").replaceChildren(...canvases);
    }
    makeDropZone() {
        for (const kind of ["dragover", "dragleave", "drop"]) {
            document.addEventListener(kind, (event) => {
                if (event.target === element("text"))
                    return; // a text field takes what is dropped by itself
                event.preventDefault();
                element("drop").classList.toggle("over", kind === "dragover");
                if (kind !== "drop" || event.dataTransfer === null)
                    return;
                const files = droppedFiles(event.dataTransfer);
                const group = this.own.groupAt(event.target);
                void this.guard(async () => {
                    const all = await files;
                    const isOwn = all.some(({ file, folder }) => folder !== "" || isPicture(file));
                    if (group !== undefined || isOwn)
                        await this.own.addFiles(all, group);
                    else
                        await this.useFiles(all);
                });
            });
        }
    }
    // --- pictures ---------------------------------------------------------------------------------
    className(label) {
        const names = this.dataset?.classes ?? [];
        return names[label] ?? this.own.classNames[label] ?? String(label);
    }
    async classify(image) {
        const { artifacts, form } = this;
        if (artifacts === undefined || form === undefined)
            return undefined;
        const input = { data: image.slice(), dims: [1, ...form.shape] };
        const [scores] = await classes(artifacts.module, [input]);
        return scores && softmax(scores);
    }
    /** What the model sees in the camera's picture; not while it is trained. */
    async see(image) {
        if (this.run?.running === true)
            return;
        const shares = await this.classify(image);
        if (shares === undefined)
            return;
        const names = this.own.classNames;
        const order = Array.from(shares.keys()).sort((a, b) => (shares[b] ?? 0) - (shares[a] ?? 0));
        element("sees").textContent = `It sees ${names[best(shares)]}.`;
        showBars("seen", order.slice(0, SEEN).map((i) => [names[i] ?? String(i), shares[i] ?? 0]));
    }
    /** Train on examples, weighted up, among the others, so that those are not forgotten. */
    async fineTune(examples) {
        const { dataset, run } = this;
        if (dataset === undefined || run === undefined)
            return;
        const weighted = Array.from({ length: OWN_WEIGHT }, () => examples).flat();
        run.use(dataset.with(weighted));
        await this.train(number("epochs"));
    }
    /** Train on the user's own pictures: alone, or among the data set that is loaded. */
    async trainOwn() {
        const { form, target } = this;
        const { examples, classNames: names } = this.own;
        if (form === undefined || target === undefined)
            return;
        if (field("among").checked && this.dataset !== undefined)
            return this.fineTune(examples);
        this.dataset = imageDataset("Your images", examples, form.shape, target, names);
        this.describeData(this.dataset);
        this.prepare();
        await this.train(number("epochs"));
    }
    // --- keeping ----------------------------------------------------------------------------------
    async saveCheckpoint() {
        if (this.artifacts === undefined)
            return;
        offer("checkpoint", await CheckpointState.saveCheckpoint(this.artifacts.state, true));
        this.say("Checkpoint saved, optimizer state included.");
    }
    async loadCheckpoint() {
        const [file] = filesOf(field("load"));
        if (file === undefined)
            return;
        await this.pauseAndWait();
        const before = this.checkpoint;
        this.checkpoint = await bytesOf(file);
        try {
            await this.load();
        }
        catch (error) {
            this.checkpoint = before;
            throw error;
        }
        button("start").textContent = "Resume";
        this.say(`${file.name}: continues at step ${this.artifacts?.optimizer?.stepCount ?? 0}.`);
    }
    async downloadModel() {
        if (this.artifacts === undefined)
            return;
        offer("trained.onnx", await this.artifacts.module.exportModelForInferencing());
        this.say("The trained model is in trained.onnx.");
    }
    // --- messages ---------------------------------------------------------------------------------
    say(text, bad = false) {
        const status = element("status");
        status.textContent = text;
        status.classList.toggle("bad", bad);
    }
    async guard(work) {
        try {
            await work();
        }
        catch (error) {
            this.say(error instanceof Error ? error.message : String(error), true);
        }
    }
}
async function main() {
    try {
        const info = (await (await fetch("info.json")).json());
        document.title = `onnxtrain: ${info.name}`;
        await new App(info).start();
    }
    catch (error) {
        const status = element("status");
        status.textContent = error instanceof Error ? error.message : String(error);
        status.classList.add("bad");
        element("summary").textContent = "The artifacts cannot be loaded.";
    }
}
await main();
