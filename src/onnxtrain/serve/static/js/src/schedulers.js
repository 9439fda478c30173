/** Learning-rate schedules: names and numbers are PyTorch's, saved in the form Python saves. */
import { InputError } from "./errors.js";
/** Sets the optimizer's learning rate; `step()` comes after `optimizer.step()`. */
export class LRScheduler {
    optimizer;
    name;
    lrAt;
    initialLr;
    count = 0;
    last;
    constructor(optimizer, name, lrAt, initialLr = optimizer.getLearningRate()) {
        this.optimizer = optimizer;
        this.name = name;
        this.lrAt = lrAt;
        this.initialLr = initialLr;
        this.last = initialLr;
        this.apply();
    }
    /** Go one step further; only `ReduceLROnPlateau` looks at the metric. */
    step(_metric) {
        this.count += 1;
        this.apply();
    }
    /** Take over the position from the checkpoint; false if it has none of this schedule. */
    resume() {
        const saved = this.optimizer.module.state.resumableScheduler;
        if (saved?.["scheduler"] !== this.name)
            return false;
        this.load(saved);
        this.apply();
        return true;
    }
    load(saved) {
        this.initialLr = Number(saved["initial_lr"]);
        this.count = Number(saved["count"]);
    }
    save() {
        return { scheduler: this.name, initial_lr: this.initialLr, count: this.count };
    }
    apply() {
        this.last = this.lrAt(this.initialLr, this.count, this.last);
        this.optimizer.setLearningRate(this.last);
        const { state } = this.optimizer.module;
        // making a schedule must not lose the position that a loaded checkpoint holds
        state.resumableScheduler ??= state.scheduler;
        state.scheduler = this.save();
    }
}
/** A class of schedules: lr(t) by a formula of the first learning rate, t and the arguments. */
function schedule(name, formula, initialLr) {
    return class extends LRScheduler {
        constructor(optimizer, ...args) {
            super(optimizer, name, (lr, t) => formula(lr, t, ...args), initialLr?.(...args));
        }
    };
}
const cosine = (from, to, share) => to + ((from - to) * (1 + Math.cos(Math.PI * share))) / 2;
/** Linear warm-up from 0 to `initialLr`, then linear decay to 0. */
export const LinearLRScheduler = schedule("LinearLRScheduler", (lr, t, warmup, total, _initialLr) => lr * (t < warmup ? t / warmup : Math.max(0, (total - t) / Math.max(1, total - warmup))), (_warmup, _total, initialLr) => initialLr);
export const ConstantLR = schedule("ConstantLR", (lr, t, factor = 1 / 3, totalIters = 5) => t < totalIters ? lr * factor : lr);
export const StepLR = schedule("StepLR", (lr, t, stepSize, gamma = 0.1) => lr * gamma ** Math.floor(t / stepSize));
export const MultiStepLR = schedule("MultiStepLR", (lr, t, milestones, gamma = 0.1) => lr * gamma ** milestones.filter((m) => m <= t).length);
export const ExponentialLR = schedule("ExponentialLR", (lr, t, gamma) => lr * gamma ** t);
export const CosineAnnealingLR = schedule("CosineAnnealingLR", (lr, t, tMax, etaMin = 0) => cosine(lr, etaMin, t / tMax));
/** Starts again after t0 steps, then after t0·tMult, and so on. */
export const CosineAnnealingWarmRestarts = schedule("CosineAnnealingWarmRestarts", (lr, t, t0, tMult = 1, etaMin = 0) => {
    let period = t0;
    for (; period >= 1 && t >= period; period *= tMult)
        t -= period;
    return cosine(lr, etaMin, t / period);
});
export const PolynomialLR = schedule("PolynomialLR", (lr, t, totalIters = 5, power = 1) => lr * (1 - Math.min(t, totalIters) / totalIters) ** power);
/** Along a cosine from maxLr/divFactor up to `maxLr`, then down to the start/finalDivFactor. */
export const OneCycleLR = schedule("OneCycleLR", (low, t, maxLr, totalSteps, pctStart = 0.3, _divFactor = 25, finalDivFactor = 1e4) => {
    if (t > totalSteps)
        throw new InputError(`OneCycleLR was made for ${totalSteps} steps.`);
    const top = pctStart * totalSteps - 1;
    if (t <= top)
        return cosine(low, maxLr, t / top);
    return cosine(maxLr, low / finalDivFactor, (t - top) / (totalSteps - 1 - top));
}, (maxLr, _totalSteps, _pctStart, divFactor = 25) => maxLr / divFactor);
/** Times `factor` when a metric has not got better (lower) for `patience` steps. */
export class ReduceLROnPlateau extends LRScheduler {
    options;
    watched = { best: null, bad: 0, cooling: 0 };
    constructor(optimizer, options = {}) {
        super(optimizer, "ReduceLROnPlateau", (_lr, _t, last) => last);
        this.options = options;
        this.apply();
    }
    step(metric) {
        const { mode = "min", factor = 0.1, patience = 10, threshold = 1e-4 } = this.options;
        const { cooldown = 0, minLr = 0 } = this.options;
        let { best, bad, cooling } = this.watched;
        const margin = threshold * (best ?? 0);
        // a metric that is NaN is never better, the first one included
        const gain = best === null ? Infinity - metric : mode === "min" ? best - metric : metric - best;
        [best, bad] = gain > margin ? [metric, 0] : [best, bad + 1];
        if (cooling > 0)
            [cooling, bad] = [cooling - 1, 0];
        if (bad > patience) {
            const lower = Math.max(this.last * factor, minLr);
            if (this.last - lower > 1e-8)
                this.last = lower;
            [cooling, bad] = [cooldown, 0];
        }
        this.watched = { best, bad, cooling };
        super.step();
    }
    save() {
        return { ...super.save(), ...this.watched, _last: this.last };
    }
    load(saved) {
        super.load(saved);
        const { best, bad, cooling, _last: last } = saved;
        this.watched = { best, bad, cooling };
        this.last = last;
    }
}
