/**
 * Learning-rate schedules; the numbers are those of the PyTorch scheduler of the same name. `step()`
 * is called after `optimizer.step()`. The position is saved with the checkpoint, in the form in which
 * Python saves it.
 */
import { InputError, StateError } from "./errors.js";
/** Counts steps and sets `lrAt(count)`. */
export class LRScheduler {
    optimizer;
    count = 0;
    last;
    initialLr;
    constructor(optimizer, initialLr) {
        this.optimizer = optimizer;
        this.initialLr = initialLr ?? optimizer.getLearningRate();
        this.last = this.initialLr;
    }
    /** Set the first learning rate; subclasses call it when they are complete. */
    start() {
        this.apply();
    }
    /** Go one step further; only `ReduceLROnPlateau` looks at `metric`. */
    step(metric) {
        void metric;
        this.count += 1;
        this.apply();
    }
    getLastLr() {
        return [this.last];
    }
    stateDict() {
        return { scheduler: this.kind, initial_lr: this.initialLr, count: this.count };
    }
    loadStateDict(state) {
        const { scheduler, initial_lr: initialLr, count } = state;
        if (scheduler !== this.kind || typeof initialLr !== "number" || typeof count !== "number") {
            throw new StateError(`This is the state of ${String(scheduler)}, not of ${this.kind}.`);
        }
        this.initialLr = initialLr;
        this.count = count;
        this.apply();
    }
    /** Take over the position from the checkpoint; false if it has none. */
    resume() {
        const saved = this.optimizer.module.state.resumableScheduler;
        if (saved === undefined || Object.keys(saved).length === 0)
            return false;
        this.loadStateDict(saved);
        return true;
    }
    apply() {
        this.last = this.lrAt(this.count);
        this.optimizer.setLearningRate(this.last);
        const { state } = this.optimizer.module;
        // making a schedule must not lose the position that a loaded checkpoint holds
        state.resumableScheduler ??= state.scheduler;
        state.scheduler = this.stateDict();
    }
}
/** Linear warm-up from 0, then linear decay to 0. */
export class LinearLRScheduler extends LRScheduler {
    warmup;
    total;
    kind = "LinearLRScheduler";
    constructor(optimizer, warmup, total, initialLr) {
        super(optimizer, initialLr);
        this.warmup = warmup;
        this.total = total;
        natural({ warmup, total }, 0);
        this.start();
    }
    lrAt(count) {
        if (count < this.warmup)
            return (this.initialLr * count) / Math.max(1, this.warmup);
        const left = (this.total - count) / Math.max(1, this.total - this.warmup);
        return this.initialLr * Math.max(0, left);
    }
}
/** Times `gamma` every `stepSize` steps. */
export class StepLR extends LRScheduler {
    stepSize;
    gamma;
    kind = "StepLR";
    constructor(optimizer, stepSize, gamma = 0.1, initialLr) {
        super(optimizer, initialLr);
        this.stepSize = stepSize;
        this.gamma = gamma;
        natural({ stepSize }, 1);
        this.start();
    }
    lrAt(count) {
        return this.initialLr * this.gamma ** Math.floor(count / this.stepSize);
    }
}
/** Times `gamma` at each of the given step numbers. */
export class MultiStepLR extends LRScheduler {
    milestones;
    gamma;
    kind = "MultiStepLR";
    constructor(optimizer, milestones, gamma = 0.1, initialLr) {
        super(optimizer, initialLr);
        this.milestones = milestones;
        this.gamma = gamma;
        this.start();
    }
    lrAt(count) {
        return this.initialLr * this.gamma ** this.milestones.filter((m) => m <= count).length;
    }
}
/** Times `gamma` at every step. */
export class ExponentialLR extends LRScheduler {
    gamma;
    kind = "ExponentialLR";
    constructor(optimizer, gamma, initialLr) {
        super(optimizer, initialLr);
        this.gamma = gamma;
        this.start();
    }
    lrAt(count) {
        return this.initialLr * this.gamma ** count;
    }
}
/** η_min + (η − η_min)·(1 + cos(π·t/tMax))/2. */
export class CosineAnnealingLR extends LRScheduler {
    tMax;
    etaMin;
    kind = "CosineAnnealingLR";
    constructor(optimizer, tMax, etaMin = 0, initialLr) {
        super(optimizer, initialLr);
        this.tMax = tMax;
        this.etaMin = etaMin;
        natural({ tMax }, 1);
        this.start();
    }
    lrAt(count) {
        const share = (1 + Math.cos((Math.PI * count) / this.tMax)) / 2;
        return this.etaMin + (this.initialLr - this.etaMin) * share;
    }
}
/** Times `factor` when a metric has not got better (lower) for `patience` steps. */
export class ReduceLROnPlateau extends LRScheduler {
    options;
    kind = "ReduceLROnPlateau";
    best = null;
    bad = 0;
    cooling = 0;
    constructor(optimizer, options = {}) {
        super(optimizer);
        this.options = options;
        if ((options.factor ?? 0.1) >= 1)
            throw new InputError("factor must be below 1.");
        this.start();
    }
    lrAt() {
        return this.last;
    }
    step(metric) {
        if (metric === undefined)
            throw new InputError("ReduceLROnPlateau.step needs the metric.");
        const { factor = 0.1, patience = 10, cooldown = 0, minLr = 0 } = this.options;
        if (this.better(metric)) {
            this.best = metric;
            this.bad = 0;
        }
        else {
            this.bad += 1;
        }
        if (this.cooling > 0) {
            this.cooling -= 1;
            this.bad = 0;
        }
        if (this.bad > patience) {
            const lower = Math.max(this.last * factor, minLr);
            if (this.last - lower > 1e-8)
                this.last = lower;
            this.cooling = cooldown;
            this.bad = 0;
        }
        super.step(metric);
    }
    better(value) {
        if (this.best === null)
            return !Number.isNaN(value);
        const { mode = "min", threshold = 1e-4 } = this.options;
        const margin = threshold * this.best;
        return mode === "min" ? value < this.best - margin : value > this.best + margin;
    }
    stateDict() {
        const { best, bad, cooling, last } = this;
        return { ...super.stateDict(), best, bad, cooling, _last: last };
    }
    loadStateDict(state) {
        this.best = state["best"];
        this.bad = Number(state["bad"]);
        this.cooling = Number(state["cooling"]);
        this.last = Number(state["_last"]);
        super.loadStateDict(state);
    }
}
function natural(values, least) {
    for (const [name, value] of Object.entries(values)) {
        if (!Number.isInteger(value) || value < least) {
            throw new InputError(`${name} must be a whole number of at least ${least}, not ${value}.`);
        }
    }
}
