// Master and detail: two panes that scroll by themselves, with a handle between them.
import { h } from "./dom";
import { clamp, consume } from "./keyboard";
import type { ViewContext } from "./view";

export const NARROW = 780; // pixels below which the detail goes under the master
const NARROW_SHARE = 0.72; // of the height, for the master
const LEAST = 0.15;
const STEP = 0.03;

export interface Split {
  node: HTMLElement;
  main: HTMLElement;
  detail: HTMLElement;
  /** Gives the master another share for a while; null takes it back, unless the handle was moved since. */
  lend(share: number | null): void;
}

/**
 * Master on the left, detail on the right; in narrow places the detail is below, and still on the screen. The master
 * gets `least` pixels, so that a picture in it is not made smaller, until the handle is moved.
 */
export function split(context: ViewContext, label: string, share = 0.6, least = 0): Split {
  const main = h("div", { class: "wb-main" });
  const detail = h("aside", { class: "wb-detail wb-panel", "aria-live": "polite", "aria-label": label, tabindex: 0 });
  const handle = h("div", {
    class: "wb-handle",
    role: "separator",
    tabindex: 0,
    "aria-label": `Width of: ${label}`,
    "aria-valuemin": 100 * LEAST,
    "aria-valuemax": 100 * (1 - LEAST),
  });
  const node = h("div", { class: "wb-splitter" }, main, handle, detail);
  node.style.setProperty("--wb-least", `${context.setting("split", -1) < 0 ? least : 0}px`);
  const narrow = () => node.classList.contains("wb-narrow");
  const put = (next: number) => {
    const kept = clamp(next, LEAST, 1 - LEAST);
    node.style.setProperty("--wb-share", String(kept));
    node.style.setProperty("--wb-share-narrow", String(moved ? kept : Math.max(kept, NARROW_SHARE)));
    handle.setAttribute("aria-valuenow", String(Math.round(100 * kept)));
  };
  let present = context.setting("split", share);
  let moved = context.setting("split", -1) >= 0;
  let lent: number | null = null;
  put(present);
  const lend = (next: number | null) => {
    if (next !== null && !narrow()) put(next);
    else if (lent !== null) put(present);
    lent = next;
  };
  const move = (next: number) => {
    lent = null;
    moved = true;
    node.style.setProperty("--wb-least", "0px");
    present = clamp(next, LEAST, 1 - LEAST);
    put(present);
  };
  handle.addEventListener("pointerdown", (event) => {
    handle.setPointerCapture(event.pointerId);
    consume(event);
  });
  handle.addEventListener("pointermove", (event) => {
    if (!handle.hasPointerCapture(event.pointerId)) return;
    const box = node.getBoundingClientRect();
    move(narrow() ? (event.clientY - box.top) / box.height : (event.clientX - box.left) / box.width);
  });
  handle.addEventListener("pointerup", () => context.set("split", present));
  handle.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -STEP, ArrowUp: -STEP, ArrowRight: STEP, ArrowDown: STEP }[event.key];
    if (!step) return;
    move((lent ?? present) + step);
    consume(event);
  });
  const watch = new ResizeObserver(() => {
    node.classList.toggle("wb-narrow", node.clientWidth > 0 && node.clientWidth < NARROW);
    handle.setAttribute("aria-orientation", narrow() ? "horizontal" : "vertical");
  });
  watch.observe(node);
  context.signal.addEventListener("abort", () => watch.disconnect());
  return { node, main, detail, lend };
}
