// What stands around every view: a height that does not jump, errors that are seen, tips, words for screen readers.
import { button, h } from "./dom";
import { clamp, consume } from "./keyboard";
import { KernelError } from "./model";
import { copyText } from "./take-along";
import { installTips } from "./tooltip";

const LEAST_HEIGHT = 260;
const STEP = 40;

export interface Shell {
  root: HTMLElement;
  /** Above the body, as high as it needs. */
  head: HTMLElement;
  /** Fills the rest; what is in it scrolls by itself. */
  body: HTMLElement;
  fail(error: unknown): void;
  clear(): void;
  say(text: string): void;
}

interface Problem {
  message?: string;
  traceback?: string;
}

/** An error with its traceback to copy; hidden until there is one. */
function failure() {
  const text = h("span", { class: "wb-message" });
  const trace = h("pre", { tabindex: 0, role: "region", "aria-label": "traceback" });
  const copy = button("Copy traceback", () =>
    copyText(trace.textContent ?? "", trace, () => (copy.textContent = "Copied")),
  );
  const more = h("details", {}, h("summary", {}, "Traceback"), trace);
  const dismiss = button("×", () => (node.hidden = true), { "aria-label": "Dismiss the error" });
  const row = h("div", { class: "wb-row" }, text, copy, dismiss);
  const node = h("div", { class: "wb-error", role: "alert", hidden: true }, row, more);
  const show = (problem: Problem | undefined) => {
    node.hidden = !problem?.message;
    text.textContent = problem?.message ?? "";
    trace.textContent = problem?.traceback ?? "";
    copy.textContent = "Copy traceback";
    copy.hidden = more.hidden = !problem?.traceback;
  };
  return { node, show };
}

/** A handle below the view that makes it higher or lower. */
function heightHandle(root: HTMLElement, start: number, changed: (height: number) => void): HTMLElement {
  const handle = h("div", {
    class: "wb-heighthandle",
    role: "separator",
    tabindex: 0,
    "aria-orientation": "horizontal",
    "aria-label": "Height of the view",
    "aria-valuemin": LEAST_HEIGHT,
    "data-tip": "Drag, or use the arrow keys, to make the view taller or shorter.",
  });
  let height = start;
  const put = (next: number) => {
    height = Math.max(LEAST_HEIGHT, Math.round(next));
    root.style.setProperty("--wb-height", `${height}px`);
    handle.setAttribute("aria-valuenow", String(height));
  };
  put(start);
  handle.addEventListener("pointerdown", (event) => {
    handle.setPointerCapture(event.pointerId);
    consume(event);
  });
  handle.addEventListener("pointermove", (event) => {
    const { top, height: present } = root.getBoundingClientRect();
    if (handle.hasPointerCapture(event.pointerId)) put(event.clientY - top - (present - height));
  });
  handle.addEventListener("pointerup", () => changed(height));
  handle.addEventListener("keydown", (event) => {
    const step = { ArrowDown: STEP, ArrowUp: -STEP }[event.key];
    if (!step) return;
    put(clamp(height + step, LEAST_HEIGHT, 4000));
    changed(height);
    consume(event);
  });
  return handle;
}

export interface ShellOptions {
  label: string;
  height: number;
  onHeight: (height: number) => void;
  signal: AbortSignal;
}

export function createShell({ label, height, onHeight, signal }: ShellOptions): Shell {
  const root = h("section", { class: "wb wb-shell", role: "group", "aria-label": label });
  const head = h("div", { class: "wb-head" });
  const body = h("div", { class: "wb-body" });
  const status = h("div", { class: "wb-live", "aria-live": "polite", role: "status" });
  const errors = failure();
  root.append(errors.node, head, body, status, heightHandle(root, height, onHeight));
  installTips(root, signal);
  return {
    root,
    head,
    body,
    clear: () => errors.show(undefined),
    say: (text) => (status.textContent = text),
    fail(error) {
      const problem = error instanceof Error ? error : new KernelError(String((error as Problem)?.message ?? error));
      const traceback =
        error instanceof KernelError ? error.traceback : ((error as Problem).traceback ?? problem.stack);
      errors.show({ message: problem.message, traceback });
    },
  };
}
