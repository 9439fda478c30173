import { check, CheckpointError, ModelFileError, notFinite } from "./errors.js";
import { sizeOf } from "./ort.js";
const LARGEST = 3.4028234663852886e38;
/** Gradients, or a rate, beyond which an update might overflow: it squares and adds them up. */
const HUGE = 1e15;
const isRate = (rate) => typeof rate === "number" && rate >= 0 && rate <= LARGEST;
/** Applies the artifacts' optimizer to the parameters of a `Module`. */
export class Optimizer {
    /** @param reset - start with fresh moments even if the checkpoint has some. */
    constructor(module, reset = false) {
        this.module = module;
        this.limit = this.module.facts.optimizer?.clip_norm;
        const { facts, state } = module;
        check(facts.optimizer, "The artifacts have no optimizer for JavaScript.", ModelFileError);
        const { name, moments } = facts.optimizer;
        const old = reset ? undefined : state.optimizer;
        const misfit = `does not fit ${name}. Use the optimizer it was trained with, or reset = true.`;
        const need = (isFine, has) => check(isFine, `The checkpoint has ${has}, which ${misfit}`, CheckpointError);
        need(!old?.name || old.name === name, `the state of ${old?.name}`);
        need(!old || isRate(old.learning_rate), `the learning rate ${old?.learning_rate}`);
        for (const [key, dims] of Object.entries(moments)) {
            const found = reset ? undefined : state.values.get(key);
            need(!found || `${found.dims}` === `${dims}`, `"${key}" as [${found?.dims}]`);
            const zeros = { type: "float32", dims, data: new Float32Array(sizeOf(dims)) };
            state.replace(key, found ?? zeros);
        }
        this.name = name;
        this.memory = state.optimizer = { step: 0, learning_rate: 0.001, ...old, name };
    }
    /** Update every trainable parameter from its gradient. Gradients are kept. */
    step() {
        return this.apply(1);
    }
    /** Update as `step` does, with all gradients times `scale` (1/k averages k batches). */
    apply(scale) {
        const { module, memory } = this;
        return module.state.exclusive(async () => {
            const { trainable, values } = module.state;
            check(values.has(`grad/${trainable[0]}`), "No gradients: call trainStep first.");
            const float = (x) => module.tensor("float32", Float32Array.of(x), [1]);
            const largest = module.checkFinite ? await this.largestGradient() : 0;
            const model = module.isGpu ? "update_float32" : "update";
            const results = await module.compute(model, {
                learning_rate: float(memory.learning_rate),
                step: module.tensor("int64", BigInt64Array.of(BigInt(memory.step + 1)), [1]),
                scale: float(scale),
                // as good as no limit, and finite: a GPU need not know infinity
                clip_norm: float(Math.min(this.limit ?? LARGEST, LARGEST)),
            });
            if (Math.max(largest * scale, memory.learning_rate) > HUGE && module.checkFinite) {
                await this.checkUpdate(model, results);
            }
            module.keep(model, results);
            module.acceptStep();
            memory.step += 1;
        });
    }
    /** The size of the largest gradient; one that is NaN or infinite is an error. */
    async largestGradient() {
        const { state } = this.module;
        let largest = 0;
        for (const name of state.trainable) {
            const size = await largestOf(state.values.get(`grad/${name}`));
            if (!Number.isFinite(size)) {
                this.module.discardStep();
                throw notFinite(`The gradient of "${name}" is NaN or infinite`, this.memory.step);
            }
            largest = Math.max(largest, size);
        }
        return largest;
    }
    /** Raise if what an update gives is not finite. */
    async checkUpdate(model, results) {
        for (const [name, value] of Object.entries(results)) {
            if (Number.isFinite(await largestOf(value)))
                continue;
            this.module.drop(model, results);
            this.module.discardStep();
            throw notFinite(`What the update makes of "${name}" is NaN or infinite`, this.memory.step);
        }
    }
    /** Limit of the global gradient norm, by default the optimizer's own; Infinity is none. */
    get clipNorm() {
        return this.limit;
    }
    set clipNorm(limit) {
        const isFine = limit === null || limit === undefined || limit > 0;
        check(isFine, `clipNorm must be a positive number, or Infinity for no limit, not ${limit}.`);
        this.limit = limit;
    }
    setLearningRate(rate) {
        check(isRate(rate), `The learning rate must be 0 or a positive finite number, not ${rate}.`);
        this.memory.learning_rate = rate;
    }
    getLearningRate() {
        return this.memory.learning_rate;
    }
    /** Number of updates so far, those before a resume included. */
    get stepCount() {
        return this.memory.step;
    }
}
/** The size of the largest number; NaN if one is. */
async function largestOf(value) {
    const data = "getData" in value ? (await value.getData()) : value.data;
    let largest = 0;
    for (let i = 0; i < data.length; i++)
        largest = Math.max(largest, Math.abs(Number(data[i])));
    return largest;
}
/**
 * Sets the optimizer's learning rate; `step()` comes after `optimizer.step()`. Saved as Python
 * saves it: under the name of one of its schedules, that schedule resumes there.
 */
export class LRScheduler {
    constructor(optimizer, scheduler, lrAt, initialLr = optimizer.getLearningRate()) {
        this.optimizer = optimizer;
        this.lrAt = lrAt;
        this.position = { scheduler, initial_lr: initialLr, count: 0 };
        this.apply();
    }
    step() {
        this.position.count += 1;
        this.apply();
    }
    /** Take over the position from the checkpoint; false if it has none of this schedule. */
    resume() {
        const saved = this.optimizer.module.state.resumableScheduler;
        if (saved?.["scheduler"] !== this.position.scheduler)
            return false;
        Object.assign(this.position, saved);
        this.apply();
        return true;
    }
    apply() {
        const { state } = this.optimizer.module;
        this.optimizer.setLearningRate(this.lrAt(this.position.initial_lr, this.position.count));
        // making a schedule must not lose the position that a loaded checkpoint holds
        state.resumableScheduler ??= state.scheduler;
        state.scheduler = { ...this.position };
    }
}
/** Linear warm-up from 0 to `initialLr`, then linear decay to 0. */
export class LinearLRScheduler extends LRScheduler {
    constructor(optimizer, warmup, total, initialLr) {
        const left = (t) => Math.max(0, (total - t) / Math.max(1, total - warmup));
        const factor = (t) => (t < warmup ? t / warmup : left(t));
        super(optimizer, "LinearLRScheduler", (lr, t) => lr * factor(t), initialLr);
    }
}
export class StepLR extends LRScheduler {
    constructor(optimizer, stepSize, gamma = 0.1) {
        super(optimizer, "StepLR", (lr, t) => lr * gamma ** Math.floor(t / stepSize));
    }
}
export class CosineAnnealingLR extends LRScheduler {
    constructor(optimizer, tMax, etaMin = 0) {
        const share = (t) => (1 + Math.cos((Math.PI * t) / tMax)) / 2;
        super(optimizer, "CosineAnnealingLR", (lr, t) => etaMin + (lr - etaMin) * share(t));
    }
}
