import { check, CheckpointError, InputError, NonFiniteError } from "./errors.js";
import { hostValue, sizeOf } from "./ort.js";
/** Computes loss and gradients with the training model, or outputs with the eval model. */
export class Module {
    constructor(device) {
        this.device = device;
        /** Whether a training loss that is NaN or infinite is an error. */
        this.checkFinite = false;
        this.state = this.device.state;
        this.overwrite = true;
        const need = (isFine, text) => check(isFine, `The checkpoint does not fit the model: ${text}.`, CheckpointError);
        for (const { name, type, shape } of device.facts.parameters) {
            const found = this.state.values.get(`param/${name}`);
            const has = found && `${found.type}[${found.dims}]`;
            need(has === `${type}[${shape}]`, `"${name}" is ${has}, not ${type}[${shape}]`);
        }
        const idle = this.state.trainable.find((name) => !device.facts.trainable.includes(name));
        need(idle === undefined, `"${idle}" is not trained`);
        this.state.random.generation += 1n;
    }
    /** One forward and backward pass; gradients are added unless `lazyResetGrad` was called. */
    trainStep(...inputs) {
        return this.state.exclusive(async () => {
            const result = await this.step("train", inputs);
            const isFine = !this.checkFinite || Number.isFinite(result.loss);
            check(isFine, `The training loss is ${result.loss}.`, NonFiniteError);
            if (!this.overwrite)
                await this.device.run("accumulate");
            for (const name of this.state.trainable) {
                this.state.replace(`grad/${name}`, this.state.values.get(`fresh/${name}`));
                this.state.values.delete(`fresh/${name}`);
            }
            this.overwrite = false;
            return result;
        });
    }
    /** The eval model's outputs. */
    evalStep(...inputs) {
        return this.state.exclusive(() => this.step("evaluate", inputs));
    }
    /** Outputs of the original model: no loss, no targets. */
    predict(inputs) {
        return this.state.exclusive(() => this.run("predict", inputs));
    }
    /** Let the next training step overwrite the gradients; until then they stay readable. */
    lazyResetGrad() {
        this.overwrite = true;
    }
    /** The user's inputs of the training model. */
    inputs() {
        return this.device.model("train").inputs;
    }
    /** The original model's own inputs: those that its outputs depend on. */
    modelInputs() {
        return this.device.model("predict").inputs;
    }
    /** Number of elements of the (trainable) parameters. */
    getParametersSize(trainableOnly = true) {
        return this.places(trainableOnly).at(-1)?.end ?? 0;
    }
    /** A copy of all parameters as one vector, in the order of the training model's inputs. */
    getContiguousParameters(trainableOnly = false) {
        return this.state.exclusive(async () => {
            const vector = new Float32Array(this.getParametersSize(trainableOnly));
            for (const { name, start } of this.places(trainableOnly)) {
                const { data } = await hostValue(this.state.parameter(name));
                check(data instanceof Float32Array, `A vector holds float32 only; "${name}" is not.`);
                vector.set(data, start);
            }
            return vector;
        });
    }
    /** Set the parameters from one vector. */
    copyBufferToParameters(buffer, trainableOnly = true) {
        return this.state.exclusive(async () => {
            const size = this.getParametersSize(trainableOnly);
            check(buffer.length === size, `The buffer must have ${size} values, not ${buffer.length}.`);
            for (const { name, start, end } of this.places(trainableOnly)) {
                const { type, dims } = this.state.parameter(name);
                check(type === "float32", `A vector holds float32 only; "${name}" is not.`);
                this.state.replace(`param/${name}`, { type, dims, data: buffer.slice(start, end) });
            }
        });
    }
    /**
     * The bytes of a clean inference model with the current parameters as constants: the original
     * model's outputs and what they need, without targets and Dropout.
     */
    exportModelForInferencing() {
        return this.state.exclusive(() => this.device.bytes("export"));
    }
    /** Free the sessions, the optimizer's too. */
    release() {
        return this.device.release();
    }
    async step(model, given) {
        const outputs = await this.run(model, given);
        const [loss] = (await outputs[0]?.getData());
        return { loss: Number(loss), outputs };
    }
    async run(model, given) {
        const { inputs, outputs } = this.device.model(model);
        const names = inputs.map(({ name }) => name).join(", ");
        const counts = `${inputs.length} inputs are needed (${names}), ${given.length} were given.`;
        check(given.length === inputs.length, counts);
        const entries = inputs.map((info, i) => [info.name, this.tensor(info, given[i])]);
        const results = await this.device.run(model, Object.fromEntries(entries));
        return outputs.map((name) => results[name]);
    }
    /** onnxruntime checks data and dimensions itself, but does not say which input is wrong. */
    tensor({ name, type }, input) {
        try {
            return "getData" in input ? input : this.device.tensor(type, input.data, input.dims);
        }
        catch (error) {
            throw new InputError(`Input "${name}": ${error.message}`);
        }
    }
    /** Where each parameter lies in a vector of all (trainable) ones. */
    places(trainableOnly) {
        const { parameters, trainable } = this.device.facts;
        const all = parameters.filter(({ name }) => !trainableOnly || trainable.includes(name));
        let end = 0;
        return all.map(({ name }) => {
            const start = end;
            end += sizeOf(this.state.parameter(name).dims);
            return { name, start, end };
        });
    }
}
