/** The drawing pad: what the model reads in a drawing, and drawings to teach it. */
import { button, element, showBars } from "./dom.js";
import { paint } from "./images.js";
import { Pad } from "./pad.js";
import { best } from "./run.js";
export class Drawing {
    constructor(desk, classifier, changed) {
        this.classifier = classifier;
        this.changed = changed;
        this.examples = [];
        this.pad = new Pad(element("pad"), () => void desk.guard(() => this.guess()));
        button("clear").onclick = () => this.clear();
        button("random").onclick = () => desk.guard(() => this.showRandom());
        button("add").onclick = () => desk.guard(async () => this.addExample());
    }
    /** Show the card for square pictures of one channel with classes; hide it for any others. */
    use(form, dataset) {
        const labels = dataset?.labels(Array.from({ length: dataset.rows }, (_, i) => i));
        const isSquare = form?.channels === 1 && form.height === form.width;
        const usable = isSquare && labels !== undefined && dataset?.columns.length === 2;
        element("drawing").hidden = !usable;
        [this.form, this.dataset] = usable ? [form, dataset] : [undefined, undefined];
        if (!usable)
            return;
        const top = labels.reduce((a, b) => Math.max(a, b), 0);
        const select = element("label");
        const names = Array.from({ length: top + 1 }, (_, i) => this.classifier.className(i));
        if ([...select.options].map((option) => option.text).join() !== names.join()) {
            select.replaceChildren(...names.map((text) => new Option(text)));
        }
    }
    /** Say what the model reads: in the drawing, or in a picture that is given. */
    async guess(known) {
        const { form } = this;
        const image = known ?? this.drawn();
        if (form === undefined || image === undefined)
            return;
        paint(element("small"), image, form);
        const shares = await this.classifier.classify(image);
        if (shares === undefined)
            return;
        const winner = best(shares);
        const strong = document.createElement("b");
        strong.textContent = this.classifier.className(winner);
        const percent = ((shares[winner] ?? 0) * 100).toFixed(0);
        element("answer").replaceChildren("It reads ", strong, ` (${percent} % sure)`);
        showBars("bars", Array.from(shares, (share, i) => [this.classifier.className(i), share]));
    }
    clear() {
        this.pad.clear();
        element("bars").replaceChildren();
        element("answer").textContent = "Draw, and see what the model thinks.";
    }
    /** The drawing in the numbers that the model takes. */
    drawn() {
        const { form } = this;
        if (form === undefined)
            return undefined;
        const [mean = 0] = form.mean;
        const [std = 1] = form.std;
        return this.pad.image(form.height, form.width)?.map((value) => (value - mean) / std);
    }
    async showRandom() {
        const { dataset, form } = this;
        if (dataset === undefined || form === undefined)
            return;
        const rows = dataset.held.length > 0 ? dataset.held : dataset.training;
        const row = rows[Math.floor(Math.random() * rows.length)];
        const image = dataset.example(row);
        if (image === undefined)
            return;
        this.pad.show(image, form.height, form.width);
        const [label] = dataset.labels([row]) ?? [];
        if (label !== undefined)
            element("label").selectedIndex = label;
        await this.guess(image);
    }
    addExample() {
        const image = this.drawn();
        if (image === undefined)
            throw new Error("Draw something first.");
        this.examples.push({ image, label: element("label").selectedIndex });
        element("examples").textContent = `${this.examples.length} of your own.`;
        this.changed();
        this.clear();
    }
}
