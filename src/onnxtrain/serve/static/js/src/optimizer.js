import { check, CheckpointError, ModelFileError } from "./errors.js";
import { sizeOf } from "./ort.js";
/** Applies the artifacts' optimizer to the parameters of a `Module`. */
export class Optimizer {
    /** @param reset - start with fresh moments even if the checkpoint has some. */
    constructor(module, reset = false) {
        this.module = module;
        /** Limit of the global gradient norm, by default the optimizer's own. */
        this.clipNorm = this.module.facts.optimizer?.clip_norm;
        const { facts, state } = module;
        check(facts.optimizer, "The artifacts have no optimizer for JavaScript.", ModelFileError);
        const { name, moments } = facts.optimizer;
        const old = reset ? undefined : state.optimizer;
        const misfit = `does not fit ${name}. Use the optimizer it was trained with, or reset = true.`;
        const need = (isFine, has) => check(isFine, `The checkpoint has ${has}, which ${misfit}`, CheckpointError);
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
    setLearningRate(rate) {
        check(Number.isFinite(rate), `The learning rate must be a finite number, not ${rate}.`);
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
