// What every view is, and what it gets: see README.md.
import type { Answers, Live, States } from "./states";

/** A view by the name that Python gives it; "explorer" is the whole widget where that has tabs. */
export type ViewName = keyof States;
type LiveOf<V> = V extends keyof Live ? Live[V] : object;

/** What is chosen, in every view at once. */
export interface Selection {
  stage?: string;
  client?: number;
  device?: number;
  axis?: string;
  line?: string;
  instruction?: string;
  leaf?: string;
  node?: string;
}
export type SelectionKind = keyof Selection;
export type SelectionPatch = { [K in SelectionKind]?: Selection[K] | null };

export interface Progress {
  phase: string;
  seconds?: number;
  share?: number;
}
export interface RequestOptions {
  onProgress?: (progress: Progress) => void;
  signal?: AbortSignal;
  /** An error is shown in the view unless this is set; either way the promise is rejected. */
  quiet?: boolean;
}

export interface Theme {
  /** The present value of a colour token such as `clients`, for a canvas. */
  colour(name: string): string;
  onChange(callback: () => void): void;
}

/** What Python sent for one view. */
export type Reader<V extends ViewName> = Pick<ViewContext<V>, "state" | "array">;

export interface ViewContext<V extends ViewName = ViewName> {
  /** The part of the widget that this view shows, e.g. "hlo"; empty for a view that stands alone. */
  readonly key: string;
  readonly selection: Selection;
  readonly theme: Theme;
  /** Aborted when the view is taken away: give it to listeners, observers and requests. */
  readonly signal: AbortSignal;
  readonly glossary: Readonly<Record<string, string>>;
  readonly lessons: Readonly<Record<string, readonly [string, string]>>;
  /** Whether a kernel answers: not in exported pages. */
  readonly hasKernel: boolean;

  /** A named part of what Python sent for this view. */
  state<K extends keyof States[V]>(name: K): States[V][K];
  /** All of it. */
  readonly whole: States[V];
  /** What Python sent for another view of this widget; null where nothing. */
  of<W extends ViewName>(view: W): Reader<W> | null;
  onState(callback: () => void): void;
  /** A column of numbers that Python sent as bytes. */
  array(name: string): Float32Array;
  /** Values that change often while something runs. */
  live<K extends keyof LiveOf<V>>(name: K): LiveOf<V>[K] | undefined;
  /** The same of another view of this widget, e.g. the findings of "advice". */
  liveOf<W extends keyof Live, K extends keyof Live[W]>(view: W, name: K): Live[W][K] | undefined;
  onLive(callback: () => void): void;
  /** How the view is set up (open tab, filter); kept in Python, so that it survives and can be set from there. */
  setting<T>(name: string, fallback: T): T;
  set(name: string, value: unknown): void;
  setOf(view: string, name: string, value: unknown): void;
  onSettings(callback: () => void): void;

  select(patch: SelectionPatch): void;
  onSelection(callback: () => void): void;
  /** Opens another view of the same widget, e.g. "hlo"; does nothing where there is none. */
  open(view: string): void;

  /** Asks the kernel; rejects with an `Error`, or an `AbortError` after `signal`. */
  request<K extends keyof Answers>(kind: K, payload?: object, options?: RequestOptions): Promise<Answers[K]>;
  /** A part of the front end that is loaded when it is first needed. */
  chunk<T>(name: string): Promise<T>;
  /** Puts a code cell below this view; false where the host has no notebook to write in. */
  insertCell(source: string): boolean;
  /** Scrolls to a line of a cell (`In [2]`) or of a file and marks it; false where nothing can. */
  jumpToLine(place: { file: string; line: number }): boolean;
  say(text: string): void;
  fail(error: unknown): void;
}

export type RenderView<V extends ViewName = ViewName> = {
  bivarianceHack(host: HTMLElement, context: ViewContext<V>): void;
}["bivarianceHack"];
