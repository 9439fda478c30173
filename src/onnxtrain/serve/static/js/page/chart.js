/** The live curves: training loss (left axis) and held-out accuracy (right axis), as SVG. */
const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 720;
const HEIGHT = 300;
const LEFT = 48;
const RIGHT = 44;
const TOP = 14;
const BOTTOM = 30;
const MAX_POINTS = 400;
const SMOOTHING = 0.8;
export class Chart {
    constructor(svg) {
        this.svg = svg;
        this.losses = [];
        this.accuracies = [];
        svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
        this.draw();
    }
    clear() {
        this.losses = [];
        this.accuracies = [];
        this.draw();
    }
    loss(step, value) {
        if (Number.isFinite(value))
            this.losses.push({ step, value });
    }
    accuracy(step, value) {
        this.accuracies.push({ step, value });
    }
    draw() {
        const first = this.losses[0]?.step ?? 0;
        const last = Math.max(this.losses.at(-1)?.step ?? 0, first + 10);
        const top = niceTop(Math.max(0.1, ...this.losses.map((p) => p.value)));
        const x = (step) => LEFT + ((step - first) / (last - first)) * (WIDTH - LEFT - RIGHT);
        const y = (share) => HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
        const parts = [...this.grid(first, last, top, x, y)];
        parts.push(line("raw", thinned(this.losses), x, (v) => y(v / top)));
        parts.push(line("smooth", thinned(smoothed(this.losses)), x, (v) => y(v / top)));
        parts.push(line("accuracy", this.accuracies, x, y));
        const newest = this.accuracies.at(-1);
        if (newest !== undefined) {
            parts.push(make("circle", { class: "dot", cx: x(newest.step), cy: y(newest.value), r: 4 }));
        }
        this.svg.replaceChildren(...parts);
        this.svg.setAttribute("aria-label", this.description());
    }
    description() {
        const first = this.losses[0];
        const last = smoothed(this.losses).at(-1);
        if (first === undefined || last === undefined)
            return "Loss curve: nothing trained yet.";
        const accuracy = this.accuracies.at(-1);
        const tail = accuracy ? ` Held-out accuracy ${(accuracy.value * 100).toFixed(1)} %.` : "";
        return `Loss from ${first.value.toFixed(3)} at step ${first.step} to ` +
            `${last.value.toFixed(3)} at step ${last.step}.${tail}`;
    }
    *grid(first, last, top, x, y) {
        for (const share of [0, 0.25, 0.5, 0.75, 1]) {
            yield make("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(share), y2: y(share) });
            yield label(LEFT - 8, y(share) + 4, "end", (top * share).toPrecision(2));
            yield label(WIDTH - RIGHT + 8, y(share) + 4, "start accuracy", `${share * 100}%`);
        }
        for (const share of [0, 0.5, 1]) {
            const step = Math.round(first + (last - first) * share);
            const anchor = share === 0 ? "start" : share === 1 ? "end" : "middle";
            yield label(x(step), HEIGHT - 8, anchor, `step ${step}`);
        }
    }
}
function line(kind, points, x, y) {
    const path = points.map((p) => `${x(p.step).toFixed(1)},${y(p.value).toFixed(1)}`).join(" ");
    return make("polyline", { class: kind, points: path });
}
function smoothed(points) {
    let sum = 0;
    let weight = 0;
    return points.map(({ step, value }) => {
        sum = SMOOTHING * sum + (1 - SMOOTHING) * value;
        weight = SMOOTHING * weight + (1 - SMOOTHING);
        return { step, value: sum / weight };
    });
}
function thinned(points) {
    const every = Math.ceil(points.length / MAX_POINTS);
    return points.filter((_, i) => i % every === 0 || i === points.length - 1);
}
function niceTop(value) {
    const unit = 10 ** Math.floor(Math.log10(value));
    return ([1, 2, 3, 4, 5, 8, 10].find((n) => n * unit >= value) ?? 10) * unit;
}
function label(x, y, kind, text) {
    const element = make("text", { class: kind, x, y });
    element.textContent = text;
    return element;
}
function make(tag, attributes) {
    const element = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes))
        element.setAttribute(key, String(value));
    return element;
}
