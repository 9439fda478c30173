/** Optimizer: update the parameters from the gradients. */
import { check, CheckpointError, ModelFileError } from "./errors.js";
import { sizeOf } from "./ort.js";
/** As good as no limit, and finite: a GPU need not know infinity. */
const NO_LIMIT = 1e30;
/** Applies the artifacts' optimizer to the parameters of a `Module`. */
export class Optimizer {
    /** @param reset - start with fresh moments even if the checkpoint has some. */
    constructor(module, reset = false) {
        this.module = module;
        const { facts, state } = module.device;
        check(facts.optimizer, "The artifacts have no optimizer for JavaScript.", ModelFileError);
        const { name, clip_norm: clipNorm, moments } = facts.optimizer;
        const old = reset ? undefined : state.optimizer;
        const misfit = (has) => `The checkpoint has ${has}, which does not fit ${name}. Use the optimizer it was trained ` +
            "with, or reset = true to start with fresh moments.";
        check(!old?.name || old.name === name, misfit(`the state of ${old?.name}`), CheckpointError);
        for (const [key, dims] of Object.entries(moments)) {
            const found = reset ? undefined : state.values.get(key);
            const fits = !found || `${found.dims}` === `${dims}`;
            check(fits, misfit(`"${key}" as [${found?.dims}]`), CheckpointError);
            const zeros = { type: "float32", dims, data: new Float32Array(sizeOf(dims)) };
            state.replace(key, found ?? zeros);
        }
        this.clipNorm = clipNorm ?? undefined;
        this.memory = { step: 0, learning_rate: 0.001, ...old, name };
        state.optimizer = this.memory;
    }
    /** Update every trainable parameter from its gradient. Gradients are kept. */
    step() {
        return this.apply(1);
    }
    /** Update as `step` does, with all gradients times `scale` (1/k averages k batches). */
    apply(scale) {
        const { device, state } = this.module;
        return state.exclusive(async () => {
            check(state.values.has(`grad/${state.trainable[0]}`), "No gradients: call trainStep first.");
            const float = (value) => device.tensor("float32", Float32Array.of(value), [1]);
            await device.run(device.isGpu ? "update_float32" : "update", {
                learning_rate: float(this.memory.learning_rate),
                step: device.tensor("int64", BigInt64Array.of(BigInt(this.memory.step + 1)), [1]),
                scale: float(scale),
                clip_norm: float(this.clipNorm ?? NO_LIMIT),
            });
            this.memory.step += 1;
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
    get name() {
        return this.memory.name;
    }
}
