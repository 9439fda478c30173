/** A pad to draw on; what is drawn becomes a small image as the model's own examples are. */
const STROKE = 0.13;
const MARGIN_FROM = 20;
const MARGIN = 4;
export class Pad {
    constructor(canvas, changed) {
        this.canvas = canvas;
        this.changed = changed;
        this.context = canvas.getContext("2d", { willReadFrequently: true });
        this.clear();
        canvas.addEventListener("pointerdown", (event) => {
            canvas.setPointerCapture(event.pointerId);
            this.last = this.position(event);
            this.stroke(this.last);
        });
        canvas.addEventListener("pointermove", (event) => {
            if (this.last !== undefined)
                this.stroke(this.position(event));
        });
        for (const kind of ["pointerup", "pointercancel"]) {
            canvas.addEventListener(kind, () => {
                if (this.last !== undefined)
                    this.changed();
                this.last = undefined;
            });
        }
    }
    clear() {
        this.context.fillStyle = "#000";
        this.context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    }
    /** Show an example of the data set, enlarged. */
    show(image, height, width) {
        const { canvas, context } = this;
        this.clear();
        const [cellX, cellY] = [canvas.width / width, canvas.height / height];
        image.forEach((value, i) => {
            const grey = Math.round(Math.min(1, Math.max(0, value)) * 255);
            context.fillStyle = `rgb(${grey},${grey},${grey})`;
            const [row, column] = [Math.floor(i / width), i % width];
            context.fillRect(column * cellX, row * cellY, Math.ceil(cellX), Math.ceil(cellY));
        });
    }
    /** The drawing cut to its bounds, centred and averaged down; undefined if there is none. */
    image(height, width) {
        const { canvas, context } = this;
        const pixels = context.getImageData(0, 0, canvas.width, canvas.height);
        const box = bounds(pixels);
        if (box === undefined)
            return undefined;
        const margin = height >= MARGIN_FROM ? MARGIN : 0;
        const scale = Math.min((height - 2 * margin) / box.height, (width - 2 * margin) / box.width);
        const out = new Float32Array(height * width);
        for (let row = 0; row < height; row++) {
            for (let column = 0; column < width; column++) {
                const x0 = box.x + box.width / 2 + (column - width / 2) / scale;
                const y0 = box.y + box.height / 2 + (row - height / 2) / scale;
                out[row * width + column] = average(pixels, x0, y0, 1 / scale);
            }
        }
        return out;
    }
    position(event) {
        const { left, top, width, height } = this.canvas.getBoundingClientRect();
        return {
            x: ((event.clientX - left) / width) * this.canvas.width,
            y: ((event.clientY - top) / height) * this.canvas.height,
        };
    }
    stroke(to) {
        const { context } = this;
        const from = this.last ?? to;
        context.strokeStyle = "#fff";
        context.lineWidth = this.canvas.width * STROKE;
        context.lineCap = "round";
        context.beginPath();
        context.moveTo(from.x, from.y);
        context.lineTo(to.x, to.y);
        context.stroke();
        this.last = to;
    }
}
function bounds({ data, width, height }) {
    let [x0, y0, x1, y1] = [width, height, -1, -1];
    for (let y = 0; y < height; y++) {
        for (let x = 0; x < width; x++) {
            if ((data[(y * width + x) * 4] ?? 0) < 64)
                continue;
            x0 = Math.min(x0, x);
            x1 = Math.max(x1, x);
            y0 = Math.min(y0, y);
            y1 = Math.max(y1, y);
        }
    }
    return x1 < 0 ? undefined : { x: x0, y: y0, width: x1 - x0 + 1, height: y1 - y0 + 1 };
}
function average({ data, width, height }, x0, y0, side) {
    let total = 0;
    let count = 0;
    for (let y = Math.floor(y0); y < y0 + side; y++) {
        for (let x = Math.floor(x0); x < x0 + side; x++) {
            count += 1;
            if (x >= 0 && y >= 0 && x < width && y < height)
                total += data[(y * width + x) * 4] ?? 0;
        }
    }
    return count === 0 ? 0 : total / count / 255;
}
