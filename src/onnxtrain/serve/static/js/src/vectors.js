/** Arithmetic on tensors that live on a device: small models, one run for all tensors. */
import { floatModel, makeNode } from "./onnxfile.js";
export class Vectors {
    backend;
    sessions = new Map();
    constructor(backend) {
        this.backend = backend;
    }
    /** a + b for each pair, on the device. */
    async add(pairs) {
        const names = pairs.map((_, i) => [`a${i}`, `b${i}`]);
        const outputs = names.map((_, i) => `r${i}`);
        const session = await this.session(`Add${pairs.length}`, outputs, () => floatModel(names.map((n, i) => makeNode("Add", n, `r${i}`)), names.flat(), outputs));
        const feeds = {};
        pairs.forEach(([a, b], i) => Object.assign(feeds, { [`a${i}`]: a, [`b${i}`]: b }));
        const results = await session.run(feeds, nothing(outputs));
        return outputs.map((n) => results[n]);
    }
    /** Σx² over all tensors, on the host. */
    async sumOfSquares(tensors) {
        const names = tensors.map((_, i) => `a${i}`);
        const last = names.length - 1;
        const session = await this.session(`SumOfSquares${names.length}`, [], () => {
            const nodes = names.flatMap((name, i) => {
                const square = makeNode("ReduceSumSquare", [name], i === 0 ? "t0" : `s${i}`);
                square.setAttribute("keepdims", 0, "int");
                return i === 0 ? [square] : [square, makeNode("Add", [`t${i - 1}`, `s${i}`], `t${i}`)];
            });
            return floatModel(nodes, names, [`t${last}`]);
        });
        const feeds = Object.fromEntries(tensors.map((t, i) => [`a${i}`, t]));
        const results = await session.run(feeds, nothing([`t${last}`]));
        return (await results[`t${last}`]?.getData(true))[0] ?? 0;
    }
    /** The tensor to feed for a stored one: on the device, uploaded if need be, or on the host. */
    async current(store, name) {
        const { type, shape } = store.spec(name);
        const host = () => this.backend.tensor(type, store.view(name), shape);
        if (!this.backend.onDevice || type.code !== "F32")
            return host();
        const there = store.device(name);
        if (there !== undefined)
            return there;
        const session = await this.session("Identity", ["r"], () => floatModel([makeNode("Identity", ["a"], "r")], ["a"], ["r"]));
        const uploaded = (await session.run({ a: host() }, nothing(["r"])))["r"];
        store.place(name, uploaded, false);
        return uploaded;
    }
    session(key, kept, model) {
        const found = this.sessions.get(key) ?? this.backend.session(model(), kept);
        this.sessions.set(key, found);
        return found;
    }
}
const nothing = (names) => Object.fromEntries(names.map((n) => [n, null]));
