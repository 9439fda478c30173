/** The live curves: training loss, and on held-out rows accuracy (right axis) or loss, as SVG. */

const SVG = "http://www.w3.org/2000/svg";
const WIDEST = 720;
const NARROWEST = 280;
const HEIGHT = 300;
const LEFT = 48;
const RIGHT = 44;
const TOP = 14;
const BOTTOM = 30;
const MAX_POINTS = 400;
const SMOOTHING = 0.8;

interface Point {
  readonly step: number;
  readonly value: number;
}

export class Chart {
  private losses: Point[] = [];
  private measures: Point[] = [];
  private isAccuracy = true;

  private width = WIDEST;

  constructor(private readonly svg: SVGSVGElement) {
    // drawn for the width that there is: letters keep their size on a phone
    new ResizeObserver(() => this.draw()).observe(svg);
    this.draw();
  }

  clear(): void {
    this.losses = [];
    this.measures = [];
    this.draw();
  }

  loss(step: number, value: number): void {
    if (Number.isFinite(value)) this.losses.push({ step, value });
  }

  /** What held-out rows gave: an accuracy, or else a loss. */
  measured(step: number, loss: number, accuracy: number | undefined): void {
    this.isAccuracy = accuracy !== undefined;
    const value = accuracy ?? loss;
    if (Number.isFinite(value)) this.measures.push({ step, value });
  }

  draw(): void {
    const room = this.svg.getBoundingClientRect().width || WIDEST;
    this.width = Math.round(Math.min(WIDEST, Math.max(NARROWEST, room)));
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${HEIGHT}`);
    const first = this.losses[0]?.step ?? 0;
    const last = Math.max(this.losses.at(-1)?.step ?? 0, first + 10);
    const losses = this.isAccuracy ? this.losses : [...this.losses, ...this.measures];
    const top = niceTop(losses.reduce((most, p) => Math.max(most, p.value), 0.1));
    const x = (step: number): number =>
      LEFT + ((step - first) / (last - first)) * (this.width - LEFT - RIGHT);
    const y = (share: number): number => HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
    const parts = [...this.grid(first, last, top, x, y)];
    parts.push(line("raw", thinned(this.losses), x, (v) => y(v / top)));
    parts.push(line("smooth", thinned(smoothed(this.losses)), x, (v) => y(v / top)));
    const height = (value: number): number => y(this.isAccuracy ? value : value / top);
    parts.push(line("accuracy", this.measures, x, height));
    const newest = this.measures.at(-1);
    if (newest !== undefined) {
      const cy = height(newest.value);
      parts.push(make("circle", { class: "dot", cx: x(newest.step), cy, r: 4 }));
    }
    this.svg.replaceChildren(...parts);
    this.svg.setAttribute("aria-label", this.description());
  }

  private description(): string {
    const first = this.losses[0];
    const last = smoothed(this.losses).at(-1);
    if (first === undefined || last === undefined) return "Loss curve: nothing trained yet.";
    const newest = this.measures.at(-1)?.value;
    const percent = ((newest ?? 0) * 100).toFixed(1);
    const shown = this.isAccuracy ? `accuracy ${percent} %` : `loss ${newest?.toFixed(3)}`;
    const tail = newest === undefined ? "" : ` Held-out ${shown}.`;
    return `Loss from ${first.value.toFixed(3)} at step ${first.step} to ` +
      `${last.value.toFixed(3)} at step ${last.step}.${tail}`;
  }

  private *grid(
    first: number,
    last: number,
    top: number,
    x: (step: number) => number,
    y: (share: number) => number,
  ): Iterable<SVGElement> {
    for (const share of [0, 0.25, 0.5, 0.75, 1]) {
      const [x2, y1] = [this.width - RIGHT, y(share)];
      yield make("line", { class: "grid", x1: LEFT, x2, y1, y2: y1 });
      yield label(LEFT - 8, y(share) + 4, "end", (top * share).toPrecision(2));
      if (this.isAccuracy) {
        yield label(this.width - RIGHT + 8, y(share) + 4, "start accuracy", `${share * 100}%`);
      }
    }
    for (const share of [0, 0.5, 1]) {
      const step = Math.round(first + (last - first) * share);
      const anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
      yield label(x(step), HEIGHT - 8, anchor, `step ${step}`);
    }
  }
}

function line(
  kind: string,
  points: readonly Point[],
  x: (step: number) => number,
  y: (value: number) => number,
): SVGElement {
  const path = points.map((p) => `${x(p.step).toFixed(1)},${y(p.value).toFixed(1)}`).join(" ");
  return make("polyline", { class: kind, points: path });
}

function smoothed(points: readonly Point[]): Point[] {
  let sum = 0;
  let weight = 0;
  return points.map(({ step, value }) => {
    sum = SMOOTHING * sum + (1 - SMOOTHING) * value;
    weight = SMOOTHING * weight + (1 - SMOOTHING);
    return { step, value: sum / weight };
  });
}

function thinned(points: readonly Point[]): Point[] {
  const every = Math.ceil(points.length / MAX_POINTS);
  return points.filter((_, i) => i % every === 0 || i === points.length - 1);
}

function niceTop(value: number): number {
  const unit = 10 ** Math.floor(Math.log10(value));
  return ([1, 2, 3, 4, 5, 8, 10].find((n) => n * unit >= value) ?? 10) * unit;
}

function label(x: number, y: number, kind: string, text: string): SVGElement {
  const element = make("text", { class: kind, x, y });
  element.textContent = text;
  return element;
}

function make(tag: string, attributes: Record<string, string | number>): SVGElement {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, String(value));
  return element;
}
