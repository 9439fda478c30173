import { shuffled } from "./dataset.js";
const MEASURE_ROWS = 512;
const BREATH = 30;
export class Run {
    constructor(module, optimizer, dataset, progress) {
        this.module = module;
        this.optimizer = optimizer;
        this.dataset = dataset;
        this.progress = progress;
        this.batchSize = 32;
        this.paused = true;
        this.position = 0;
        this.epoch = 0;
        this.order = [];
        module.checkFinite = true;
    }
    static of({ module, optimizer }, dataset, progress) {
        if (optimizer === undefined) {
            throw new Error("The artifacts have no optimizer that the page can run: generate one with them.");
        }
        return new Run(module, optimizer, dataset, progress);
    }
    get running() {
        return !this.paused;
    }
    use(dataset) {
        this.dataset = dataset;
        this.order = [];
        this.position = 0;
    }
    pause() {
        this.paused = true;
    }
    /** Train until paused, or for a number of epochs. */
    async train(epochs) {
        this.paused = false;
        let last = performance.now();
        try {
            for (let left = epochs; left > 0 && !this.paused;) {
                const { loss, ended } = await this.step();
                this.progress.step(this.optimizer.stepCount, this.epoch, loss);
                if (ended) {
                    left -= 1;
                    this.progress.measured(this.optimizer.stepCount, await this.measure());
                }
                if (performance.now() - last > BREATH) {
                    this.progress.breathe();
                    await new Promise((resume) => setTimeout(resume));
                    last = performance.now();
                }
            }
        }
        finally {
            this.paused = true;
            this.progress.breathe();
        }
    }
    async step() {
        const { training } = this.dataset;
        if (this.position >= this.order.length) {
            this.epoch += 1;
            this.position = 0;
            const order = shuffled(training.length, this.epoch);
            this.order = order.map((i) => training[i]);
        }
        const rows = this.order.slice(this.position, this.position + this.batchSize);
        this.position += rows.length;
        const { loss } = await this.module.trainStep(...this.dataset.batch(rows));
        await this.optimizer.step();
        this.module.lazyResetGrad();
        return { loss, ended: this.position >= this.order.length };
    }
    /** Loss and accuracy over held-out rows (training rows when nothing is held out). */
    async measure() {
        const { held, training } = this.dataset;
        const rows = (held.length > 0 ? held : training).slice(0, MEASURE_ROWS);
        const inputs = this.dataset.batch(rows);
        const { loss } = await this.module.evalStep(...inputs);
        const labels = this.dataset.labels(rows);
        if (labels === undefined)
            return { loss, accuracy: undefined };
        const own = this.module.inputs("predict");
        const found = await classes(this.module, inputs.slice(0, own.length));
        const right = found.filter((scores, i) => best(scores) === labels[i]).length;
        return { loss, accuracy: right / rows.length };
    }
}
/** The scores of each row, from the model's first output. */
export async function classes(module, inputs) {
    const [output] = await module.predict(inputs);
    if (output === undefined)
        return [];
    const data = (await output.getData());
    const width = output.dims.at(-1) ?? 1;
    const rows = data.length / width;
    return Array.from({ length: rows }, (_, i) => data.subarray(i * width, (i + 1) * width));
}
/** Index of the largest score. */
export function best(scores) {
    return scores.reduce((at, value, i) => (value > scores[at] ? i : at), 0);
}
/** exp(s) / Σ exp(s). */
export function softmax(scores) {
    const top = Math.max(...scores);
    const powers = scores.map((s) => Math.exp(s - top));
    const total = powers.reduce((a, b) => a + b, 0);
    return powers.map((p) => p / total);
}
