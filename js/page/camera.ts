/** The camera: shown in the page, and in no other place. */
import { button, element, type Desk } from "./dom.js";
import type { ImageForm } from "./images.js";

const EVERY = 700;

export class Camera {
  private readonly video = element<HTMLVideoElement>("video");
  private stream: MediaStream | undefined;

  /** @param look - is shown the picture from time to time. */
  constructor(
    private readonly desk: Desk,
    private readonly look: (video: HTMLVideoElement) => Promise<void>,
  ) {
    button("camera").onclick = () =>
      desk.guard(async () => (this.stream === undefined ? this.start() : this.stop()));
  }

  /** Show the part of the picture that the model gets. */
  shape({ width, height }: ImageForm): void {
    this.video.style.setProperty("aspect-ratio", `${width} / ${height}`);
  }

  /** A picture that is there; the camera is switched on for it. */
  async frame(): Promise<HTMLVideoElement> {
    if (this.stream === undefined) await this.start();
    return this.video;
  }

  private async start(): Promise<void> {
    const { mediaDevices } = navigator as { mediaDevices?: MediaDevices };
    if (mediaDevices === undefined) {
      throw new Error("Browsers offer the camera on https and localhost only: open the page there.");
    }
    const video = { facingMode: "environment", width: { ideal: 640 }, height: { ideal: 480 } };
    try {
      this.stream = await mediaDevices.getUserMedia({ video, audio: false });
    } catch (error) {
      throw new Error(cameraProblem(error as DOMException));
    }
    this.video.srcObject = this.stream;
    this.show();
    await this.video.play();
    void this.watch(this.stream);
  }

  private stop(): void {
    for (const track of this.stream?.getTracks() ?? []) track.stop();
    this.stream = undefined;
    this.video.srcObject = null;
    this.show();
  }

  private show(): void {
    const isOn = this.stream !== undefined;
    element("viewer").hidden = !isOn;
    button("camera").textContent = isOn ? "Switch the camera off" : "Use the camera";
  }

  private async watch(stream: MediaStream): Promise<void> {
    while (this.stream === stream) {
      await new Promise((resume) => setTimeout(resume, EVERY));
      if (this.stream === stream && !document.hidden) await this.desk.guard(() => this.look(this.video));
    }
  }
}

function cameraProblem({ name, message }: DOMException): string {
  if (name === "NotAllowedError") {
    return "The camera was not allowed. Allow it in the browser's address bar.";
  }
  if (name === "NotFoundError") return "There is no camera here. Add pictures as files instead.";
  return `The camera cannot be used: ${message || name}.`;
}
