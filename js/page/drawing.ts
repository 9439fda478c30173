/** The drawing pad: what the model reads in a drawing, and drawings to teach it. */
import { button, element, showBars, type Desk } from "./dom.js";
import type { Dataset } from "./dataset.js";
import { paint, type ImageForm } from "./images.js";
import type { Example } from "./own.js";
import { Pad } from "./pad.js";
import { best } from "./run.js";

/** What the card asks of the page. */
export interface Classifier {
  /** The share of each class; undefined if there is no model to ask. */
  classify(image: Float32Array): Promise<Float32Array | undefined>;
  className(label: number): string;
}

export class Drawing {
  examples: Example[] = [];
  private form: ImageForm | undefined;
  private dataset: Dataset | undefined;
  private readonly pad: Pad;

  constructor(
    desk: Desk,
    private readonly classifier: Classifier,
    private readonly changed: () => void,
  ) {
    this.pad = new Pad(element<HTMLCanvasElement>("pad"), () => void desk.guard(() => this.guess()));
    button("clear").onclick = () => this.clear();
    button("random").onclick = () => desk.guard(() => this.showRandom());
    button("add").onclick = () => desk.guard(async () => this.addExample());
  }

  /** Show the card for square pictures of one channel with classes; hide it for any others. */
  use(form: ImageForm | undefined, dataset: Dataset | undefined): void {
    const labels = dataset?.labels(Array.from({ length: dataset.rows }, (_, i) => i));
    const isSquare = form?.channels === 1 && form.height === form.width;
    const usable = isSquare && labels !== undefined && dataset?.columns.length === 2;
    element("drawing").hidden = !usable;
    [this.form, this.dataset] = usable ? [form, dataset] : [undefined, undefined];
    if (!usable) return;
    const top = labels.reduce((a, b) => Math.max(a, b), 0);
    const select = element<HTMLSelectElement>("label");
    const names = Array.from({ length: top + 1 }, (_, i) => this.classifier.className(i));
    if ([...select.options].map((option) => option.text).join() !== names.join()) {
      select.replaceChildren(...names.map((text) => new Option(text)));
    }
  }

  /** Say what the model reads: in the drawing, or in a picture that is given. */
  async guess(known?: Float32Array): Promise<void> {
    const { form } = this;
    const image = known ?? this.drawn();
    if (form === undefined || image === undefined) return;
    paint(element<HTMLCanvasElement>("small"), image, form);
    const shares = await this.classifier.classify(image);
    if (shares === undefined) return;
    const winner = best(shares);
    const strong = document.createElement("b");
    strong.textContent = this.classifier.className(winner);
    const percent = ((shares[winner] ?? 0) * 100).toFixed(0);
    element("answer").replaceChildren("It reads ", strong, ` (${percent} % sure)`);
    showBars("bars", Array.from(shares, (share, i) => [this.classifier.className(i), share]));
  }

  private clear(): void {
    this.pad.clear();
    element("bars").replaceChildren();
    element("answer").textContent = "Draw, and see what the model thinks.";
  }

  /** The drawing in the numbers that the model takes. */
  private drawn(): Float32Array | undefined {
    const { form } = this;
    if (form === undefined) return undefined;
    const [mean = 0] = form.mean;
    const [std = 1] = form.std;
    return this.pad.image(form.height, form.width)?.map((value) => (value - mean) / std);
  }

  private async showRandom(): Promise<void> {
    const { dataset, form } = this;
    if (dataset === undefined || form === undefined) return;
    const rows = dataset.held.length > 0 ? dataset.held : dataset.training;
    const row = rows[Math.floor(Math.random() * rows.length)] as number;
    const image = dataset.example(row);
    if (image === undefined) return;
    this.pad.show(image, form.height, form.width);
    const [label] = dataset.labels([row]) ?? [];
    if (label !== undefined) element<HTMLSelectElement>("label").selectedIndex = label;
    await this.guess(image);
  }

  private addExample(): void {
    const image = this.drawn();
    if (image === undefined) throw new Error("Draw something first.");
    this.examples.push({ image, label: element<HTMLSelectElement>("label").selectedIndex });
    element("examples").textContent = `${this.examples.length} of your own.`;
    this.changed();
    this.clear();
  }
}
