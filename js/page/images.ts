/** Pictures as a model takes them: how many channels, how large, in which order, with which mean. */
import type { ValueInfo } from "../src/index.js";

export type Metadata = Readonly<Record<string, string>>;
const MAX_SIDE = 8192;
/** Of red, green and blue in grey, as Pillow has it. */
const GREY = [0.299, 0.587, 0.114] as const;

/** How an input takes pictures. */
export interface ImageForm {
  readonly channels: 1 | 3;
  readonly height: number;
  readonly width: number;
  readonly isChannelsLast: boolean;
  /** Subtracted from numbers between 0 and 1, and what they are divided by then, per channel. */
  readonly mean: readonly number[];
  readonly std: readonly number[];
  /** Shape of one row. */
  readonly shape: readonly number[];
}

/** The form of an input that takes pictures; undefined for any other. */
export function imageForm(info: ValueInfo | undefined, metadata: Metadata): ImageForm | undefined {
  if (info?.type !== "float32") return undefined;
  const dims = info.shape.slice(1);
  const squares = flatSquare(dims) ?? planes(dims, listed(metadata["image_size"]));
  if (squares === undefined) return undefined;
  const spread = (key: string, usual: number): number[] => {
    const values = listed(metadata[key]);
    const isFine = values.length === 1 || values.length === squares.channels;
    const valueOf = (i: number): number => (isFine ? (values[i] ?? values[0] ?? usual) : usual);
    return Array.from({ length: squares.channels }, (_, i) => valueOf(i));
  };
  return { ...squares, mean: spread("image_mean", 0), std: spread("image_std", 1).map((s) => s || 1) };
}

type Planes = Omit<ImageForm, "mean" | "std">;

/** One number per pixel of a square, without further dimensions. */
function flatSquare(dims: readonly (number | string)[]): Planes | undefined {
  const [size] = dims;
  if (dims.length !== 1 || typeof size !== "number") return undefined;
  const side = Math.sqrt(size);
  if (!Number.isInteger(side) || side < 6) return undefined;
  return { channels: 1, height: side, width: side, isChannelsLast: false, shape: [size] };
}

/** C×H×W, H×W×C or H×W; sides that the model leaves open are those of its metadata. */
function planes(dims: readonly (number | string)[], size: readonly number[]): Planes | undefined {
  const forms = [
    { channels: dims[0], sides: dims.slice(1), isChannelsLast: false },
    { channels: dims[2], sides: dims.slice(0, 2), isChannelsLast: true },
  ];
  if (dims.length === 2) forms.splice(0, 2, { channels: 1, sides: [...dims], isChannelsLast: false });
  else if (dims.length !== 3) return undefined;
  for (const { channels, sides, isChannelsLast } of forms) {
    if (channels !== 1 && channels !== 3) continue;
    const [height, width] = sides.map((side, i) => (typeof side === "number" ? side : size[i]));
    const isSide = (side: number | undefined): side is number =>
      Number.isInteger(side) && (side as number) >= 6 && (side as number) <= MAX_SIDE;
    if (!isSide(height) || !isSide(width)) continue;
    const sizes = isChannelsLast ? [height, width, channels] : [channels, height, width];
    const shape = sizes.slice(dims.length === 2 ? 1 : 0);
    return { channels, height, width, isChannelsLast, shape };
  }
  return undefined;
}

/** Numbers of a list in JSON; none if it is anything else. */
function listed(text: string | undefined): number[] {
  try {
    const values: unknown = JSON.parse((text ?? "").slice(0, 1000));
    return Array.isArray(values) && values.every(Number.isFinite) ? (values as number[]) : [];
  } catch {
    return [];
  }
}

/** Names of the classes in a model's metadata. */
export function classNames(metadata: Metadata): string[] {
  try {
    const names: unknown = JSON.parse(metadata["class_names"] ?? "");
    return Array.isArray(names) && names.every((n) => typeof n === "string") ? (names as string[]) : [];
  } catch {
    return [];
  }
}

/** What can be drawn on a canvas. */
export type Picture = ImageBitmap | HTMLVideoElement | HTMLCanvasElement;

/**
 * The numbers of a picture. It is stretched to the size, as the command line does; `isCropped` takes
 * the largest part of its middle that has the right proportions.
 */
export function numbersOf(picture: Picture, form: ImageForm, isCropped = false): Float32Array {
  const { width, height } = form;
  const canvas = document.createElement("canvas");
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d", { willReadFrequently: true }) as CanvasRenderingContext2D;
  context.imageSmoothingQuality = "high";
  const [w, h] = sizeOf(picture);
  const scale = Math.min(w / width, h / height);
  const [cutWidth, cutHeight] = isCropped ? [width * scale, height * scale] : [w, h];
  const [x, y] = [(w - cutWidth) / 2, (h - cutHeight) / 2];
  context.drawImage(picture, x, y, cutWidth, cutHeight, 0, 0, width, height);
  return fromPixels(context.getImageData(0, 0, width, height).data, form);
}

const sizeOf = (picture: Picture): [number, number] =>
  picture instanceof HTMLVideoElement
    ? [picture.videoWidth, picture.videoHeight]
    : [picture.width, picture.height];

/** From red, green, blue and opacity in bytes. */
export function fromPixels(pixels: ArrayLike<number>, form: ImageForm): Float32Array {
  const { channels, height, width, mean, std } = form;
  const out = new Float32Array(channels * height * width);
  for (let i = 0; i < height * width; i++) {
    const rgb = [0, 1, 2].map((c) => (pixels[4 * i + c] as number) / 255);
    const values = channels === 3 ? rgb : [rgb.reduce((sum, v, c) => sum + v * (GREY[c] as number), 0)];
    values.forEach((value, c) => {
      out[placeOf(form, i, c)] = (value - (mean[c] as number)) / (std[c] as number);
    });
  }
  return out;
}

const placeOf = (form: ImageForm, pixel: number, c: number): number =>
  form.isChannelsLast ? pixel * form.channels + c : c * form.height * form.width + pixel;

/** Show the numbers of a picture on a canvas, one pixel for each. */
export function paint(canvas: HTMLCanvasElement, image: Float32Array, form: ImageForm): void {
  const { channels, height, width, mean, std } = form;
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d") as CanvasRenderingContext2D;
  const pixels = context.createImageData(width, height);
  for (let i = 0; i < height * width; i++) {
    const values = Array.from({ length: channels }, (_, c) => {
      const value = (image[placeOf(form, i, c)] as number) * (std[c] as number) + (mean[c] as number);
      return Math.round(Math.min(1, Math.max(0, value)) * 255);
    });
    const [red = 0, green = red, blue = red] = values;
    pixels.data.set([red, green, blue, 255], i * 4);
  }
  context.putImageData(pixels, 0, 0);
}
