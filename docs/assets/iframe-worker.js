// Browsers run no worker for a page that is opened from disk. There, what would be a worker (the
// search) runs in a hidden frame of the page instead, and messages go to and fro as events.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    #frame = document.createElement("iframe");
    #waiting = []; // messages from before the script is there; null afterwards

    constructor(address) {
      super();
      this.#frame.hidden = true;
      this.#frame.title = "search";
      this.#frame.addEventListener("load", () => this.#start(address), { once: true });
      document.body.append(this.#frame);
    }

    #start(address) {
      const inside = this.#frame.contentWindow;
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = new URL(address, location.href);
      script.addEventListener("load", () => {
        const waiting = this.#waiting;
        this.#waiting = null;
        waiting.forEach((data) => this.postMessage(data));
      });
      inside.document.body.append(script);
    }

    postMessage(data) {
      if (this.#waiting) this.#waiting.push(data);
      else this.#frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
    }

    terminate() {
      this.#frame.remove();
    }
  };
}
