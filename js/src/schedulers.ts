/** Learning-rate schedules: names and numbers are PyTorch's, saved in the form Python saves. */
import { InputError } from "./errors.js";
import type { Optimizer } from "./optimizer.js";

/** Sets the optimizer's learning rate; `step()` comes after `optimizer.step()`. */
export class LRScheduler {
  protected count = 0;
  protected last: number;

  constructor(
    readonly optimizer: Optimizer,
    private readonly name: string,
    private readonly lrAt: (initialLr: number, count: number, last: number) => number,
    private initialLr = optimizer.getLearningRate(),
  ) {
    this.last = initialLr;
    this.apply();
  }

  /** Go one step further; only `ReduceLROnPlateau` looks at the metric. */
  step(_metric?: number): void {
    this.count += 1;
    this.apply();
  }

  /** Take over the position from the checkpoint; false if it has none of this schedule. */
  resume(): boolean {
    const saved = this.optimizer.module.state.resumableScheduler;
    if (saved?.["scheduler"] !== this.name) return false;
    this.load(saved);
    this.apply();
    return true;
  }

  protected load(saved: Record<string, unknown>): void {
    this.initialLr = Number(saved["initial_lr"]);
    this.count = Number(saved["count"]);
  }

  protected save(): Record<string, unknown> {
    return { scheduler: this.name, initial_lr: this.initialLr, count: this.count };
  }

  protected apply(): void {
    this.last = this.lrAt(this.initialLr, this.count, this.last);
    this.optimizer.setLearningRate(this.last);
    const { state } = this.optimizer.module;
    // making a schedule must not lose the position that a loaded checkpoint holds
    state.resumableScheduler ??= state.scheduler;
    state.scheduler = this.save();
  }
}

/** A class of schedules: lr(t) by a formula of the first learning rate, t and the arguments. */
function schedule<A extends unknown[]>(
  name: string,
  formula: (lr: number, t: number, ...args: A) => number,
  initialLr?: (...args: A) => number,
): new (optimizer: Optimizer, ...args: A) => LRScheduler {
  return class extends LRScheduler {
    constructor(optimizer: Optimizer, ...args: A) {
      super(optimizer, name, (lr, t) => formula(lr, t, ...args), initialLr?.(...args));
    }
  };
}

const cosine = (from: number, to: number, share: number): number =>
  to + ((from - to) * (1 + Math.cos(Math.PI * share))) / 2;

/** Linear warm-up from 0 to `initialLr`, then linear decay to 0. */
export const LinearLRScheduler = schedule(
  "LinearLRScheduler",
  (lr, t, warmup: number, total: number, _initialLr: number) =>
    lr * (t < warmup ? t / warmup : Math.max(0, (total - t) / Math.max(1, total - warmup))),
  (_warmup, _total, initialLr) => initialLr,
);

export const ConstantLR = schedule(
  "ConstantLR", (lr, t, factor: number = 1 / 3, totalIters: number = 5) =>
    t < totalIters ? lr * factor : lr);

export const StepLR = schedule(
  "StepLR", (lr, t, stepSize: number, gamma: number = 0.1) =>
    lr * gamma ** Math.floor(t / stepSize));

export const MultiStepLR = schedule(
  "MultiStepLR", (lr, t, milestones: readonly number[], gamma: number = 0.1) =>
    lr * gamma ** milestones.filter((m) => m <= t).length);

export const ExponentialLR = schedule("ExponentialLR", (lr, t, gamma: number) => lr * gamma ** t);

export const CosineAnnealingLR = schedule(
  "CosineAnnealingLR", (lr, t, tMax: number, etaMin: number = 0) => cosine(lr, etaMin, t / tMax));

/** Starts again after t0 steps, then after t0·tMult, and so on. */
export const CosineAnnealingWarmRestarts = schedule(
  "CosineAnnealingWarmRestarts",
  (lr, t, t0: number, tMult: number = 1, etaMin: number = 0) => {
    let period = t0;
    for (; period >= 1 && t >= period; period *= tMult) t -= period;
    return cosine(lr, etaMin, t / period);
  },
);

export const PolynomialLR = schedule(
  "PolynomialLR", (lr, t, totalIters: number = 5, power: number = 1) =>
    lr * (1 - Math.min(t, totalIters) / totalIters) ** power);

/** Along a cosine from maxLr/divFactor up to `maxLr`, then down to the start/finalDivFactor. */
export const OneCycleLR = schedule(
  "OneCycleLR",
  (low, t, maxLr: number, totalSteps: number, pctStart: number = 0.3,
    _divFactor: number = 25, finalDivFactor: number = 1e4) => {
    if (t > totalSteps) throw new InputError(`OneCycleLR was made for ${totalSteps} steps.`);
    const top = pctStart * totalSteps - 1;
    if (t <= top) return cosine(low, maxLr, t / top);
    return cosine(maxLr, low / finalDivFactor, (t - top) / (totalSteps - 1 - top));
  },
  (maxLr, _totalSteps, _pctStart, divFactor = 25) => maxLr / divFactor,
);

/** Times `factor` when a metric has not got better (lower) for `patience` steps. */
export class ReduceLROnPlateau extends LRScheduler {
  private watched = { best: null as number | null, bad: 0, cooling: 0 };

  constructor(
    optimizer: Optimizer,
    private readonly options: {
      mode?: "min" | "max"; factor?: number; patience?: number; threshold?: number;
      cooldown?: number; minLr?: number;
    } = {},
  ) {
    super(optimizer, "ReduceLROnPlateau", (_lr, _t, last) => last);
    this.apply();
  }

  override step(metric: number): void {
    const { mode = "min", factor = 0.1, patience = 10, threshold = 1e-4 } = this.options;
    const { cooldown = 0, minLr = 0 } = this.options;
    let { best, bad, cooling } = this.watched;
    const margin = threshold * (best ?? 0);
    // a metric that is NaN is never better, the first one included
    const gain = best === null ? Infinity - metric : mode === "min" ? best - metric : metric - best;
    [best, bad] = gain > margin ? [metric, 0] : [best, bad + 1];
    if (cooling > 0) [cooling, bad] = [cooling - 1, 0];
    if (bad > patience) {
      const lower = Math.max(this.last * factor, minLr);
      if (this.last - lower > 1e-8) this.last = lower;
      [cooling, bad] = [cooldown, 0];
    }
    this.watched = { best, bad, cooling };
    super.step();
  }

  protected override save(): Record<string, unknown> {
    return { ...super.save(), ...this.watched, _last: this.last };
  }

  protected override load(saved: Record<string, unknown>): void {
    super.load(saved);
    const { best, bad, cooling, _last: last } = saved as typeof this.watched & { _last: number };
    this.watched = { best, bad, cooling };
    this.last = last;
  }
}
