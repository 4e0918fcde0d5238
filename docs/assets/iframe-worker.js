// A browser starts no worker for a page that is opened from a folder, and the site's search is a worker.
// There, this class runs the worker's script in a hidden frame: the same script, the same messages.
// The name of this file and of the class are those that mkdocs-material's offline plugin and its search look for.
window.IFrameWorker = class extends EventTarget {
  constructor(url) {
    super();
    const frame = document.createElement("iframe");
    frame.hidden = true;
    // The frame's script answers through postMessage(), which here raises an event of this object.
    frame.srcdoc = `<script>
      self.postMessage = (data) => frameElement.worker.dispatchEvent(new parent.MessageEvent("message", { data }));
    </script><script src="${new URL(url, document.baseURI)}" onload="frameElement.worker.begin()"></script>`;
    frame.worker = this;
    this.frame = frame;
    this.waiting = [];
    document.body.append(frame);
  }

  begin() {
    const early = this.waiting;
    this.waiting = null;
    early.forEach((data) => this.postMessage(data));
  }

  postMessage(data) {
    if (this.waiting) this.waiting.push(data);
    else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }));
  }

  terminate() {
    this.frame.remove();
  }
};
if (location.protocol === "file:") window.Worker = window.IFrameWorker;
