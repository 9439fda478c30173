/** Optimizer: update the parameters from the gradients; and schedules of its learning rate. */
import type { OptimizerState } from "./checkpoint.js";
import { check, CheckpointError, ModelFileError } from "./errors.js";
import type { Module } from "./module.js";
import { sizeOf, type Tensor } from "./ort.js";

/** Applies the artifacts' optimizer to the parameters of a `Module`. */
export class Optimizer {
  /** Limit of the global gradient norm, by default the optimizer's own. */
  clipNorm = this.module.facts.optimizer?.clip_norm;
  readonly name: string;
  private readonly memory: OptimizerState;

  /** @param reset - start with fresh moments even if the checkpoint has some. */
  constructor(
    readonly module: Module,
    reset = false,
  ) {
    const { facts, state } = module;
    check(facts.optimizer, "The artifacts have no optimizer for JavaScript.", ModelFileError);
    const { name, moments } = facts.optimizer;
    const old = reset ? undefined : state.optimizer;
    const misfit = `does not fit ${name}. Use the optimizer it was trained with, or reset = true.`;
    const need = (isFine: boolean, has: string): void =>
      check(isFine, `The checkpoint has ${has}, which ${misfit}`, CheckpointError);
    need(!old?.name || old.name === name, `the state of ${old?.name}`);
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
  step(): Promise<void> {
    return this.apply(1);
  }

  /** Update as `step` does, with all gradients times `scale` (1/k averages k batches). */
  apply(scale: number): Promise<void> {
    const { module, memory } = this;
    return module.state.exclusive(async () => {
      const { trainable, values } = module.state;
      check(values.has(`grad/${trainable[0]}`), "No gradients: call trainStep first.");
      const float = (x: number): Tensor => module.tensor("float32", Float32Array.of(x), [1]);
      await module.run(module.isGpu ? "update_float32" : "update", {
        learning_rate: float(memory.learning_rate),
        step: module.tensor("int64", BigInt64Array.of(BigInt(memory.step + 1)), [1]),
        scale: float(scale),
        // as good as no limit, and finite: a GPU need not know infinity
        clip_norm: float(this.clipNorm ?? 1e30),
      });
      memory.step += 1;
    });
  }

  setLearningRate(rate: number): void {
    check(Number.isFinite(rate), `The learning rate must be a finite number, not ${rate}.`);
    this.memory.learning_rate = rate;
  }

  getLearningRate(): number {
    return this.memory.learning_rate;
  }

  /** Number of updates so far, those before a resume included. */
  get stepCount(): number {
    return this.memory.step;
  }
}

/**
 * Sets the optimizer's learning rate; `step()` comes after `optimizer.step()`. Saved as Python
 * saves it: under the name of one of its schedules, that schedule resumes there.
 */
export class LRScheduler {
  private readonly position: { scheduler: string; initial_lr: number; count: number };

  constructor(
    readonly optimizer: Optimizer,
    scheduler: string,
    private readonly lrAt: (initialLr: number, count: number) => number,
    initialLr = optimizer.getLearningRate(),
  ) {
    this.position = { scheduler, initial_lr: initialLr, count: 0 };
    this.apply();
  }

  step(): void {
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
    const { state } = this.optimizer.module;
    this.optimizer.setLearningRate(this.lrAt(this.position.initial_lr, this.position.count));
    // making a schedule must not lose the position that a loaded checkpoint holds
    state.resumableScheduler ??= state.scheduler;
    state.scheduler = { ...this.position };
  }
}

/** Linear warm-up from 0 to `initialLr`, then linear decay to 0. */
export class LinearLRScheduler extends LRScheduler {
  constructor(optimizer: Optimizer, warmup: number, total: number, initialLr: number) {
    const left = (t: number): number => Math.max(0, (total - t) / Math.max(1, total - warmup));
    const factor = (t: number): number => (t < warmup ? t / warmup : left(t));
    super(optimizer, "LinearLRScheduler", (lr, t) => lr * factor(t), initialLr);
  }
}

export class StepLR extends LRScheduler {
  constructor(optimizer: Optimizer, stepSize: number, gamma = 0.1) {
    super(optimizer, "StepLR", (lr, t) => lr * gamma ** Math.floor(t / stepSize));
  }
}

export class CosineAnnealingLR extends LRScheduler {
  constructor(optimizer: Optimizer, tMax: number, etaMin = 0) {
    const share = (t: number): number => (1 + Math.cos((Math.PI * t) / tMax)) / 2;
    super(optimizer, "CosineAnnealingLR", (lr, t) => etaMin + (lr - etaMin) * share(t));
  }
}
