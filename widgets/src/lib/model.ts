// The widget's model as the host offers it (anywidget, an exported page, marimo), and the context made from it.
import { askNotebook, type CellSource, insertCell } from "./notebook";
import { NO_KERNEL } from "./offline-model";
import { merge } from "./selection";
import type { States } from "./states";
import { token, watchTheme } from "./theme";
import type { Progress, Reader, RequestOptions, Selection, SelectionPatch, ViewContext, ViewName } from "./view";

type Listener = (...values: never[]) => void;

export interface Model {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  send(content: unknown): void;
  on(event: string, callback: Listener): void;
  off(event: string, callback: Listener): void;
}

export interface Shared {
  model: Model;
  signal: AbortSignal;
  fail(error: unknown): void;
  say(text: string): void;
  open(view: string): void;
  chunk<T>(name: string): Promise<T>;
}

type Bytes = DataView | ArrayBuffer | null | undefined;
type Named = Record<string, unknown>;

/** Binary data as numbers; a copy, because hosts differ in alignment. */
export function floats(bytes: Bytes): Float32Array {
  if (!bytes) return new Float32Array();
  if (bytes instanceof ArrayBuffer) return new Float32Array(bytes.slice(0));
  return new Float32Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength) as ArrayBuffer);
}

export class KernelError extends Error {
  constructor(
    message: string,
    readonly traceback = "",
  ) {
    super(message);
    this.name = "KernelError";
  }
}

const PATIENCE_MILLISECONDS = 3000;

interface Reply {
  kind: string;
  id: string;
  value?: unknown;
  error?: { message: string; traceback?: string };
  progress?: Progress;
}
interface Waiting {
  done(value: unknown): void;
  failed(error: Error): void;
  onProgress?: (progress: Progress) => void;
}

/** Requests to the kernel: answers, progress, cancelling; a quiet sentence where the kernel keeps one waiting. */
export class Requests {
  private readonly waiting = new Map<string, Waiting>();
  private count = 0;

  constructor(
    private readonly model: Model,
    private readonly say: (text: string) => void,
    signal: AbortSignal,
  ) {
    const receive = ((content: Reply) => this.receive(content)) as Listener;
    model.on("msg:custom", receive);
    signal.addEventListener("abort", () => {
      model.off("msg:custom", receive);
      this.waiting.clear();
    });
  }

  send(name: string, args: object, { onProgress, signal }: RequestOptions): Promise<unknown> {
    if (this.model.get("offline")) return Promise.reject(new KernelError(NO_KERNEL));
    this.count += 1;
    const id = `${Date.now()}-${this.count}`;
    return new Promise((done, failed) => {
      let told = false;
      const late = setTimeout(() => {
        told = true;
        this.say("Waiting for the kernel: it is busy or has stopped.");
      }, PATIENCE_MILLISECONDS);
      const end = () => {
        clearTimeout(late);
        this.waiting.delete(id);
        if (told) this.say("");
      };
      this.waiting.set(id, {
        done: (value) => (end(), done(value)),
        failed: (error) => (end(), failed(error)),
        onProgress: (progress) => (clearTimeout(late), onProgress?.(progress)),
      });
      signal?.addEventListener("abort", () => {
        if (!this.waiting.has(id)) return;
        this.model.send({ kind: "cancel", id });
        this.waiting.get(id)?.failed(new DOMException("Stopped", "AbortError"));
      });
      this.model.send({ kind: "request", id, name, args });
    });
  }

  private receive(content: Reply): void {
    const known = this.waiting.get(content?.id);
    if (!known) return;
    if (content.kind === "progress" && content.progress) known.onProgress?.(content.progress);
    else if (content.kind === "response" && content.error)
      known.failed(new KernelError(content.error.message, content.error.traceback));
    else if (content.kind === "response") known.done(content.value);
  }
}

/** The context of one view of a widget; `key` is its part of a model that holds several. */
export function createContext<V extends ViewName>(
  root: HTMLElement,
  key: V | "",
  shared: Shared,
  requests: Requests,
): ViewContext<V> {
  const { model, signal } = shared;
  const prefix = key ? `${key}/` : "";
  const part = (trait: string) => (model.get(trait) ?? {}) as Named;
  const whole = () => (key ? part("data")[key] : part("data")) as States[V];
  const listen = (events: readonly string[], callback: () => void) => {
    const call = () => {
      try {
        callback();
      } catch (error) {
        shared.fail(error);
      }
    };
    for (const event of events) {
      model.on(event, call);
      signal.addEventListener("abort", () => model.off(event, call));
    }
  };
  return {
    key,
    signal,
    theme: { colour: (name) => token(root, name), onChange: (callback) => watchTheme(callback, signal) },
    get selection() {
      return part("selection") as Selection;
    },
    get glossary() {
      return (part("data").glossary ?? {}) as Record<string, string>;
    },
    get lessons() {
      return (part("data").lessons ?? {}) as Record<string, [string, string]>;
    },
    get hasKernel() {
      return !model.get("offline");
    },
    get whole() {
      return whole();
    },
    state: (name) => whole()?.[name],
    of<W extends ViewName>(view: W) {
      const sent = part("data")[view] as States[W] | undefined;
      if (!sent) return null;
      return {
        state: (name) => sent[name],
        array: (name) => floats(part("arrays")[`${view}/${name}`] as Bytes),
      } satisfies Reader<W>;
    },
    onState: (callback) => listen(["change:data", "change:arrays"], callback),
    array: (name) => floats(part("arrays")[prefix + name] as Bytes),
    live: (name) => part("live")[prefix + String(name)] as never,
    liveOf: (view, name) => part("live")[`${view}/${String(name)}`] as never,
    onLive: (callback) => listen(["change:live"], callback),
    setting<T>(name: string, fallback: T) {
      return (part("settings")[prefix + name] ?? fallback) as T;
    },
    set(name, value) {
      model.set("settings", { ...part("settings"), [prefix + name]: value });
      model.save_changes();
    },
    setOf(view, name, value) {
      model.set("settings", { ...part("settings"), [`${view}/${name}`]: value });
      model.save_changes();
    },
    onSettings: (callback) => listen(["change:settings"], callback),
    select(patch: SelectionPatch) {
      const before = part("selection") as Selection;
      const next = merge(before, patch);
      if (next === before) return;
      model.set("selection", next);
      model.save_changes();
    },
    onSelection: (callback) => listen(["change:selection"], callback),
    open: (view) => shared.open(view), // the explorer assigns its own after it has made its context
    async request(kind, payload = {}, options = {}) {
      try {
        return (await requests.send(kind, payload, options)) as never;
      } catch (error) {
        if (!options.quiet && !(error instanceof DOMException)) shared.fail(error);
        throw error;
      }
    },
    chunk: shared.chunk,
    insertCell: (source) => insertCell(model, source, root),
    jumpToLine: ({ file, line }) => {
      const cell = (part("data").cells as Record<string, CellSource> | undefined)?.[file];
      return askNotebook(root, { kind: "jump-to-cell", file, line, cell });
    },
    say: shared.say,
    fail: shared.fail,
  };
}
