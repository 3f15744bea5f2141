// Asks the worker for layouts; a newer question makes older ones void.
import type { Layout } from "./routes";
import type { Done, Job } from "./worker";
import code from "./worker?text";

type Importable = { layOut(job: Job): Layout };
export type Ask = (job: Job, serial: number) => Promise<Layout>;

const address = () => URL.createObjectURL(new Blob([code], { type: "text/javascript" }));

/** Layouts of a worker; where the page allows none, of this thread. */
export class Planner {
  private serial = 0;
  private worker: Worker | undefined;
  private ofWorker: Ask | undefined; // several questions may be open when the worker fails

  constructor(
    signal: AbortSignal,
    private ask?: Ask,
  ) {
    signal.addEventListener("abort", () => this.worker?.terminate());
  }

  /** The layout, or null where a newer one was asked for in the meantime. */
  async plan(job: Job): Promise<Layout | null> {
    this.serial += 1;
    const { serial } = this;
    this.ask ??= this.inWorker() ?? this.here();
    const { ask } = this;
    let layout: Layout;
    try {
      layout = await ask(job, serial);
    } catch (error) {
      if (ask !== this.ofWorker) throw error;
      if (this.ask === ask) {
        this.worker?.terminate(); // refused by the page's policy, which is told late, or broken: this thread tries
        this.worker = undefined;
        this.ask = this.here();
      }
      layout = await this.ask(job, serial);
    }
    return serial === this.serial ? layout : null;
  }

  private inWorker(): Ask | null {
    if (typeof Worker === "undefined") return null;
    let worker: Worker;
    try {
      worker = new Worker(address(), { type: "module" });
    } catch {
      return null;
    }
    this.worker = worker;
    const open = new Map<number, { done(layout: Layout): void; failed(error: Error): void }>();
    worker.addEventListener("message", ({ data }: MessageEvent<Done>) => {
      const asked = open.get(data.serial);
      open.delete(data.serial);
      if (data.layout) asked?.done(data.layout);
      else asked?.failed(new Error(data.error));
    });
    worker.addEventListener("error", (event) => {
      event.preventDefault();
      for (const { failed } of open.values()) failed(new Error(event.message || "the worker did not start"));
      open.clear();
    });
    this.ofWorker = (job, serial) =>
      new Promise((done, failed) => {
        open.set(serial, { done, failed });
        worker.postMessage({ ...job, serial });
      });
    return this.ofWorker;
  }

  private here(): Ask {
    let loaded: Promise<Importable> | undefined;
    return async (job) => {
      loaded ??= import(/* @vite-ignore */ address()) as Promise<Importable>;
      return (await loaded).layOut(job);
    };
  }
}
