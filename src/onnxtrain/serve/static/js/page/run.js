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
    /** Loss and accuracy over held-out rows (training rows when nothing is held out), batch by batch. */
    async measure() {
        const { held, training } = this.dataset;
        const rows = (held.length > 0 ? held : training).slice(0, MEASURE_ROWS);
        let [loss, weight, right] = [0, 0, 0];
        let isClassified = true;
        for (let at = 0; at < rows.length; at += this.batchSize) {
            const part = rows.slice(at, at + this.batchSize);
            const inputs = this.dataset.batch(part);
            const counted = this.counted(inputs, part.length);
            if (counted === 0)
                continue; // the mean of nothing is no number
            loss += counted * (await this.module.evalStep(...inputs)).loss;
            weight += counted;
            const labels = this.dataset.labels(part);
            isClassified &&= labels !== undefined;
            if (labels === undefined)
                continue;
            const own = this.module.inputs("predict");
            const found = await classes(this.module, inputs.slice(0, own.length));
            right += found.filter((scores, i) => best(scores) === labels[i]).length;
        }
        return { loss: loss / weight, accuracy: isClassified ? right / rows.length : undefined };
    }
    /** How much a batch weighs: its labels that count, or its rows. */
    counted(inputs, rows) {
        const [labels] = this.module.facts.models["train"]?.labels ?? [];
        const place = this.module.inputs().findIndex(({ name }) => name === labels?.input);
        const input = inputs[place];
        if (labels === undefined || input === undefined)
            return rows;
        const width = input.dims[1] ?? 1;
        let count = 0;
        for (const [i, label] of input.data.entries()) {
            if (i % width >= (labels.skip ?? 0) && Number(label) !== labels.ignore_index)
                count += 1;
        }
        return count;
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
