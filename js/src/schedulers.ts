/**
 * Learning-rate schedules; the numbers are those of the PyTorch scheduler of the same name. `step()`
 * is called after `optimizer.step()`. The position is saved with the checkpoint, in the form in which
 * Python saves it.
 */
import { InputError, StateError } from "./errors.js";
import type { Optimizer } from "./optimizer.js";

/** Counts steps and sets `lrAt(count)`. */
export abstract class LRScheduler {
  /** The name under which the state is saved. */
  abstract readonly kind: string;
  protected count = 0;
  protected last: number;
  protected initialLr: number;

  constructor(readonly optimizer: Optimizer, initialLr?: number) {
    this.initialLr = initialLr ?? optimizer.getLearningRate();
    this.last = this.initialLr;
  }

  /** Set the first learning rate; subclasses call it when they are complete. */
  protected start(): void {
    this.apply();
  }

  abstract lrAt(count: number): number;

  /** Go one step further; only `ReduceLROnPlateau` looks at `metric`. */
  step(metric?: number): void {
    void metric;
    this.count += 1;
    this.apply();
  }

  getLastLr(): number[] {
    return [this.last];
  }

  stateDict(): Record<string, unknown> {
    return { scheduler: this.kind, initial_lr: this.initialLr, count: this.count };
  }

  loadStateDict(state: Record<string, unknown>): void {
    const { scheduler, initial_lr: initialLr, count } = state;
    if (scheduler !== this.kind || typeof initialLr !== "number" || typeof count !== "number") {
      throw new StateError(`This is the state of ${String(scheduler)}, not of ${this.kind}.`);
    }
    this.initialLr = initialLr;
    this.count = count;
    this.apply();
  }

  /** Take over the position from the checkpoint; false if it has none. */
  resume(): boolean {
    const saved = this.optimizer.module.state.resumableScheduler;
    if (saved === undefined || Object.keys(saved).length === 0) return false;
    this.loadStateDict(saved);
    return true;
  }

  protected apply(): void {
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
  readonly kind = "LinearLRScheduler";

  constructor(
    optimizer: Optimizer,
    private readonly warmup: number,
    private readonly total: number,
    initialLr: number,
  ) {
    super(optimizer, initialLr);
    natural({ warmup, total }, 0);
    this.start();
  }

  lrAt(count: number): number {
    if (count < this.warmup) return (this.initialLr * count) / Math.max(1, this.warmup);
    const left = (this.total - count) / Math.max(1, this.total - this.warmup);
    return this.initialLr * Math.max(0, left);
  }
}

/** Times `gamma` every `stepSize` steps. */
export class StepLR extends LRScheduler {
  readonly kind = "StepLR";

  constructor(
    optimizer: Optimizer,
    private readonly stepSize: number,
    private readonly gamma = 0.1,
    initialLr?: number,
  ) {
    super(optimizer, initialLr);
    natural({ stepSize }, 1);
    this.start();
  }

  lrAt(count: number): number {
    return this.initialLr * this.gamma ** Math.floor(count / this.stepSize);
  }
}

/** Times `gamma` at each of the given step numbers. */
export class MultiStepLR extends LRScheduler {
  readonly kind = "MultiStepLR";

  constructor(
    optimizer: Optimizer,
    private readonly milestones: readonly number[],
    private readonly gamma = 0.1,
    initialLr?: number,
  ) {
    super(optimizer, initialLr);
    this.start();
  }

  lrAt(count: number): number {
    return this.initialLr * this.gamma ** this.milestones.filter((m) => m <= count).length;
  }
}

/** Times `gamma` at every step. */
export class ExponentialLR extends LRScheduler {
  readonly kind = "ExponentialLR";

  constructor(optimizer: Optimizer, private readonly gamma: number, initialLr?: number) {
    super(optimizer, initialLr);
    this.start();
  }

  lrAt(count: number): number {
    return this.initialLr * this.gamma ** count;
  }
}

/** η_min + (η − η_min)·(1 + cos(π·t/tMax))/2. */
export class CosineAnnealingLR extends LRScheduler {
  readonly kind = "CosineAnnealingLR";

  constructor(
    optimizer: Optimizer,
    private readonly tMax: number,
    private readonly etaMin = 0,
    initialLr?: number,
  ) {
    super(optimizer, initialLr);
    natural({ tMax }, 1);
    this.start();
  }

  lrAt(count: number): number {
    const share = (1 + Math.cos((Math.PI * count) / this.tMax)) / 2;
    return this.etaMin + (this.initialLr - this.etaMin) * share;
  }
}

/** Times `factor` when a metric has not got better (lower) for `patience` steps. */
export class ReduceLROnPlateau extends LRScheduler {
  readonly kind = "ReduceLROnPlateau";
  private best: number | null = null;
  private bad = 0;
  private cooling = 0;

  constructor(
    optimizer: Optimizer,
    private readonly options: {
      mode?: "min" | "max";
      factor?: number;
      patience?: number;
      threshold?: number;
      cooldown?: number;
      minLr?: number;
    } = {},
  ) {
    super(optimizer);
    if ((options.factor ?? 0.1) >= 1) throw new InputError("factor must be below 1.");
    this.start();
  }

  lrAt(): number {
    return this.last;
  }

  override step(metric?: number): void {
    if (metric === undefined) throw new InputError("ReduceLROnPlateau.step needs the metric.");
    const { factor = 0.1, patience = 10, cooldown = 0, minLr = 0 } = this.options;
    if (this.better(metric)) {
      this.best = metric;
      this.bad = 0;
    } else {
      this.bad += 1;
    }
    if (this.cooling > 0) {
      this.cooling -= 1;
      this.bad = 0;
    }
    if (this.bad > patience) {
      const lower = Math.max(this.last * factor, minLr);
      if (this.last - lower > 1e-8) this.last = lower;
      this.cooling = cooldown;
      this.bad = 0;
    }
    super.step(metric);
  }

  private better(value: number): boolean {
    if (this.best === null) return !Number.isNaN(value);
    const { mode = "min", threshold = 1e-4 } = this.options;
    const margin = threshold * this.best;
    return mode === "min" ? value < this.best - margin : value > this.best + margin;
  }

  override stateDict(): Record<string, unknown> {
    const { best, bad, cooling, last } = this;
    return { ...super.stateDict(), best, bad, cooling, _last: last };
  }

  override loadStateDict(state: Record<string, unknown>): void {
    this.best = state["best"] as number | null;
    this.bad = Number(state["bad"]);
    this.cooling = Number(state["cooling"]);
    this.last = Number(state["_last"]);
    super.loadStateDict(state);
  }
}

function natural(values: Record<string, number>, least: number): void {
  for (const [name, value] of Object.entries(values)) {
    if (!Number.isInteger(value) || value < least) {
      throw new InputError(`${name} must be a whole number of at least ${least}, not ${value}.`);
    }
  }
}
