// Stage mode: a view fills the screen in large type, and a presenter's remote control steps through it.
import { button, h, keepKeys } from "./dom";
import { clamp, consume } from "./keyboard";

const SIZES = { usual: 1.5, least: 1, most: 2.5, step: 0.25 };
const STEP = "wb-step";
const HELP =
  "On stage: Page Down, Page Up and the arrow keys change the step; B or the full stop blanks the screen; " +
  "+ and − change the text size; Escape leaves.";

export type Act = "next" | "back" | "blank" | "larger" | "smaller" | "leave";

const ACTS: Readonly<Record<string, Act>> = {
  PageDown: "next",
  PageUp: "back",
  ArrowRight: "next",
  ArrowLeft: "back",
  b: "blank",
  B: "blank",
  ".": "blank",
  "+": "larger",
  "=": "larger",
  "-": "smaller",
  Escape: "leave",
};

/** What a key means on the stage. Remote controls send Page Down, Page Up, and b or a full stop. */
export const actOf = (key: string): Act | undefined => ACTS[key];

/** Where keys are text, or move something already, they keep their meaning; those of a remote control do not. */
export function isFree(key: string, target: Element): boolean {
  if (key === "PageDown" || key === "PageUp") return !target.closest("textarea, [contenteditable=true]");
  return !target.closest("input, select, textarea, [contenteditable=true]");
}

export const nextSize = (size: number, act: Act): number =>
  act === "larger" || act === "smaller"
    ? clamp(size + (act === "larger" ? SIZES.step : -SIZES.step), SIZES.least, SIZES.most)
    : size;

/** `take` steps through what `host` shows, and returns whether there was a step to make. */
export function takeSteps(host: HTMLElement, take: (by: 1 | -1) => boolean, signal: AbortSignal): void {
  host.dataset.steps = "";
  const listen = (event: Event) => {
    if (take((event as CustomEvent<1 | -1>).detail)) event.preventDefault();
  };
  host.addEventListener(STEP, listen, { signal });
}

/** Offers a step to what is visible in `root`; returns whether something took it. */
export function offerStep(root: Element, by: 1 | -1): boolean {
  return [...root.querySelectorAll<HTMLElement>("[data-steps]")]
    .filter((host) => !host.closest("[hidden]"))
    .some((host) => !host.dispatchEvent(new CustomEvent(STEP, { detail: by, cancelable: true })));
}

interface StageOptions {
  signal: AbortSignal;
  say: (text: string) => void;
  /** What a step does where nothing visible takes it. */
  step?: (by: 1 | -1) => void;
}

/** A button that puts the view around `host` on the stage. */
export function stageButton(host: HTMLElement, { signal, say, step }: StageOptions): HTMLButtonElement {
  let root: HTMLElement | undefined;
  let size = SIZES.usual;
  const blank = h("div", {
    class: "wb-blank",
    hidden: true,
    role: "img",
    "aria-label": "Blank screen; B shows it again",
  });
  const scale = () => root?.style.setProperty("--wb-stage", String(size));
  const isFull = () => root !== undefined && (root.getRootNode() as Document | ShadowRoot).fullscreenElement === root;

  const leave = () => {
    if (!root) return;
    const left = root;
    const full = isFull();
    root = undefined;
    left.classList.remove("wb-onstage");
    blank.remove();
    left.removeEventListener("keydown", press, true);
    left.removeEventListener("keydown", bubble);
    document.removeEventListener("fullscreenchange", follow);
    if (full) void document.exitFullscreen().catch(() => {});
    say("");
    made.setAttribute("aria-pressed", "false");
    made.focus();
  };
  let wasFull = false;
  const follow = () => {
    if (isFull()) wasFull = true;
    else if (wasFull) leave(); // Escape ends the browser's full screen without a key that a page could hear
  };
  const act = (what: Act) => {
    say("");
    if (!blank.hidden && what !== "leave") blank.hidden = true;
    else if (what === "blank") blank.hidden = false;
    else if (what === "leave") leave();
    else if (what === "larger" || what === "smaller") {
      size = nextSize(size, what);
      scale();
    } else if (root) {
      const by = what === "next" ? 1 : -1;
      if (!offerStep(root, by)) step?.(by);
    }
  };
  /** Before any list or table inside: the keys of a remote control always step. */
  const press = (event: KeyboardEvent) => {
    const what = actOf(event.key);
    if (!what || event.key.startsWith("Arrow") || !isFree(event.key, event.target as Element)) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return; // the browser's own zoom, for one
    act(what);
    consume(event);
  };
  /** Arrow keys step only where nothing inside uses them. */
  const bubble = (event: KeyboardEvent) => {
    if (!event.key.startsWith("Arrow") || !actOf(event.key) || !isFree(event.key, event.target as Element)) return;
    act(actOf(event.key) as Act);
    consume(event);
  };
  const enter = () => {
    root = host.closest<HTMLElement>(".wb-shell") ?? undefined;
    if (!root) return;
    wasFull = false;
    blank.hidden = true;
    root.classList.add("wb-onstage");
    root.append(blank);
    scale();
    root.setAttribute("tabindex", "-1"); // a click beside everything leaves the keys here
    keepKeys(root);
    root.addEventListener("keydown", press, true);
    root.addEventListener("keydown", bubble);
    document.addEventListener("fullscreenchange", follow);
    void root.requestFullscreen?.().catch(() => {}); // without it the view fills the page
    made.setAttribute("aria-pressed", "true");
    root.focus({ preventScroll: true });
    say(HELP);
  };
  const made = button("Present", () => (root ? leave() : enter()), {
    class: "wb-stagebutton",
    "aria-pressed": "false",
    "data-tip": `Fills the screen, with large text. ${HELP}`,
  });
  signal.addEventListener("abort", leave);
  return made;
}

/** Where in `node` an event happened, in the node's own pixels, which a stage shows larger. */
export function placeIn(event: MouseEvent, node: HTMLElement): { x: number; y: number; width: number; height: number } {
  const box = node.getBoundingClientRect();
  const factor = box.width && node.offsetWidth ? node.offsetWidth / box.width : 1;
  return {
    x: (event.clientX - box.left) * factor,
    y: (event.clientY - box.top) * factor,
    width: box.width * factor,
    height: box.height * factor,
  };
}
