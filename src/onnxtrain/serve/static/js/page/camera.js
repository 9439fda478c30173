/** The camera: shown in the page, and in no other place. */
import { button, element } from "./dom.js";
const EVERY = 700;
export class Camera {
    /** @param look - is shown the picture from time to time. */
    constructor(desk, look) {
        this.desk = desk;
        this.look = look;
        this.video = element("video");
        button("camera").onclick = () => desk.guard(async () => (this.stream === undefined ? this.start() : this.stop()));
    }
    /** Show the part of the picture that the model gets. */
    shape({ width, height }) {
        this.video.style.setProperty("aspect-ratio", `${width} / ${height}`);
    }
    /** A picture that is there; the camera is switched on for it. */
    async frame() {
        if (this.stream === undefined)
            await this.start();
        return this.video;
    }
    async start() {
        const { mediaDevices } = navigator;
        if (mediaDevices === undefined) {
            throw new Error("Browsers offer the camera on https and localhost only: open the page there.");
        }
        const video = { facingMode: "environment", width: { ideal: 640 }, height: { ideal: 480 } };
        try {
            this.stream = await mediaDevices.getUserMedia({ video, audio: false });
        }
        catch (error) {
            throw new Error(cameraProblem(error));
        }
        this.video.srcObject = this.stream;
        this.show();
        await this.video.play();
        void this.watch(this.stream);
    }
    stop() {
        for (const track of this.stream?.getTracks() ?? [])
            track.stop();
        this.stream = undefined;
        this.video.srcObject = null;
        this.show();
    }
    show() {
        const isOn = this.stream !== undefined;
        element("viewer").hidden = !isOn;
        button("camera").textContent = isOn ? "Switch the camera off" : "Use the camera";
    }
    async watch(stream) {
        while (this.stream === stream) {
            await new Promise((resume) => setTimeout(resume, EVERY));
            if (this.stream === stream && !document.hidden)
                await this.desk.guard(() => this.look(this.video));
        }
    }
}
function cameraProblem({ name, message }) {
    if (name === "NotAllowedError") {
        return "The camera was not allowed. Allow it in the browser's address bar.";
    }
    if (name === "NotFoundError")
        return "There is no camera here. Add pictures as files instead.";
    return `The camera cannot be used: ${message || name}.`;
}
