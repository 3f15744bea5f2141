// One tip per view, in the browser's top layer, where no scrolling panel can cut it off.
import { h, uniqueId } from "./dom";
import { clamp } from "./keyboard";

const GAP = 6;

/** Where a tip of that size goes: below its word, above where there is no room, never outside of the window. */
export function placeTip(
  word: { left: number; top: number; bottom: number },
  tip: { width: number; height: number },
  page: { width: number; height: number },
): { left: number; top: number } {
  const below = word.bottom + GAP;
  const top = below + tip.height <= page.height ? below : word.top - GAP - tip.height;
  return { left: clamp(word.left, GAP, Math.max(GAP, page.width - tip.width - GAP)), top: Math.max(GAP, top) };
}

/** Shows the `data-tip` of whatever inside `root` is pointed at or focused. */
export function installTips(root: HTMLElement, signal: AbortSignal): void {
  const tip = h("div", { class: "wb-tip", role: "tooltip", id: uniqueId(), popover: "manual" });
  let owner: Element | null = null;
  const hide = () => {
    if (owner) tip.hidePopover?.();
    owner?.removeAttribute("aria-describedby");
    owner = null;
  };
  const show = (event: Event) => {
    const found = (event.target as Element).closest("[data-tip]");
    if (found === owner) return;
    hide();
    if (!found || !root.contains(found)) return;
    if (event.type === "focusin" && !found.matches(":focus-visible")) return;
    owner = found;
    tip.textContent = found.getAttribute("data-tip");
    tip.showPopover?.();
    found.setAttribute("aria-describedby", tip.id);
    const page = { width: document.documentElement.clientWidth, height: document.documentElement.clientHeight };
    const { left, top } = placeTip(found.getBoundingClientRect(), tip.getBoundingClientRect(), page);
    Object.assign(tip.style, { left: `${left}px`, top: `${top}px` });
  };
  root.append(tip);
  for (const event of ["pointerover", "focusin"]) root.addEventListener(event, show, { signal });
  // What was clicked is known: its tip would cover what the click opened, so it stays away until the pointer has left.
  root.addEventListener("click", () => tip.hidePopover?.(), { signal });
  root.addEventListener("pointerleave", hide, { signal });
  root.addEventListener("pointerdown", hide, { signal }); // what a click opens is not to be covered
  root.addEventListener("focusout", hide, { signal });
  root.addEventListener("keydown", (event) => event.key === "Escape" && hide(), { signal });
  window.addEventListener("scroll", hide, { signal, capture: true });
}
