// The site's search runs in a worker, which browsers refuse to pages opened from a file: there a hidden frame does its work.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {  // the theme asks for the first name
    constructor(url) {
      super();
      const own = new URL(url, location);
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      const load = (address) => new Promise((done, failed) => {
        const script = inside.document.createElement("script");
        script.src = new URL(address, own);
        script.onload = done;
        script.onerror = failed;
        inside.document.head.appendChild(script);
      });
      inside.importScripts = (...addresses) =>
        addresses.reduce((before, address) => before.then(() => load(address)), Promise.resolve());
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.ready = load(own);
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }
    terminate() { this.frame.remove(); }
  };
}
