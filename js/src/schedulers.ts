/** Learning-rate schedules: names and numbers are PyTorch's, saved in the form Python saves. */
import { check } from "./errors.js";
import type { Optimizer } from "./optimizer.js";

/** Sets the optimizer's learning rate; `step()` comes after `optimizer.step()`. */
export class LRScheduler {
  protected readonly position;

  constructor(
    readonly optimizer: Optimizer,
    scheduler: string,
    private readonly lrAt: (initialLr: number, count: number, last: number) => number,
    initialLr = optimizer.getLearningRate(),
  ) {
    const watched = { best: null as number | null, bad: 0, cooling: 0 }; // by ReduceLROnPlateau
    this.position = { scheduler, initial_lr: initialLr, count: 0, _last: initialLr, ...watched };
    this.apply();
  }

  /** Go one step further; only `ReduceLROnPlateau` looks at the metric. */
  step(_metric?: number): void {
    this.position.count += 1;
    this.apply();
  }

  /** Take over the position from the checkpoint; false if it has none of this schedule. */
  resume(): boolean {
    const saved = this.optimizer.module.state.resumableScheduler;
    if (saved?.["scheduler"] !== this.position.scheduler) return false;
    Object.assign(this.position, saved);
    this.apply();
    return true;
  }

  private apply(): void {
    const { position } = this;
    position._last = this.lrAt(position.initial_lr, position.count, position._last);
    this.optimizer.setLearningRate(position._last);
    const { state } = this.optimizer.module;
    // making a schedule must not lose the position that a loaded checkpoint holds
    state.resumableScheduler ??= state.scheduler;
    state.scheduler = { ...position };
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
  "ConstantLR",
  (lr, t, factor: number = 1 / 3, totalIters: number = 5) => (t < totalIters ? lr * factor : lr),
);
export const StepLR = schedule(
  "StepLR",
  (lr, t, size: number, gamma: number = 0.1) => lr * gamma ** Math.floor(t / size),
);
export const MultiStepLR = schedule(
  "MultiStepLR",
  (lr, t, milestones: readonly number[], gamma: number = 0.1) =>
    lr * gamma ** milestones.filter((m) => m <= t).length,
);
export const ExponentialLR = schedule("ExponentialLR", (lr, t, gamma: number) => lr * gamma ** t);
export const CosineAnnealingLR = schedule(
  "CosineAnnealingLR",
  (lr, t, tMax: number, etaMin: number = 0) => cosine(lr, etaMin, t / tMax),
);

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
  "PolynomialLR",
  (lr, t, total: number = 5, power: number = 1) => lr * (1 - Math.min(t, total) / total) ** power,
);

/** Along a cosine from maxLr/div up to `maxLr`, then down to the start/end. */
export const OneCycleLR = schedule<
  [maxLr: number, steps: number, pct?: number, div?: number, end?: number]
>(
  "OneCycleLR",
  (low, t, maxLr, steps, pct = 0.3, _div, end = 1e4) => {
    check(t <= steps, `OneCycleLR was made for ${steps} steps.`);
    const top = pct * steps - 1;
    if (t <= top) return cosine(low, maxLr, t / top);
    return cosine(maxLr, low / end, (t - top) / (steps - 1 - top));
  },
  (maxLr, _steps, _pct, div = 25) => maxLr / div,
);

const PLATEAU = { mode: "min", factor: 0.1, patience: 10, threshold: 1e-4, cooldown: 0, minLr: 0 };

/** Times `factor` when a metric has not got better (lower, or mode "max") for `patience` steps. */
export class ReduceLROnPlateau extends LRScheduler {
  private readonly options: typeof PLATEAU;

  constructor(optimizer: Optimizer, options: Partial<typeof PLATEAU> = {}) {
    super(optimizer, "ReduceLROnPlateau", (_lr, _t, last) => last);
    this.options = { ...PLATEAU, ...options };
  }

  override step(metric: number): void {
    const { mode, factor, patience, threshold, cooldown, minLr } = this.options;
    let { best, bad, cooling, _last: last } = this.position;
    // a metric that is NaN is never better, the first one included
    const gain = best === null ? Infinity - metric : mode === "min" ? best - metric : metric - best;
    [best, bad] = gain > threshold * (best ?? 0) ? [metric, 0] : [best, bad + 1];
    if (cooling > 0) [cooling, bad] = [cooling - 1, 0];
    if (bad > patience) {
      const lower = Math.max(last * factor, minLr);
      if (last - lower > 1e-8) last = lower;
      [cooling, bad] = [cooldown, 0];
    }
    Object.assign(this.position, { best, bad, cooling, _last: last });
    super.step();
  }
}
