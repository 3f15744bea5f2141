// A picture that the kernel drew at two widths: the one that fits.
import { h, pictureFrom, replace } from "./dom";
import type { ViewContext } from "./view";

const NARROW = 700;

export function fitted(context: ViewContext, drawn: readonly string[]): HTMLElement {
  const node = h("div", {});
  let shown = -1;
  const watch = new ResizeObserver(() => {
    const width = node.clientWidth;
    const next = width < NARROW ? drawn.length - 1 : 0;
    if (!width || next === shown) return; // without a width the view is hidden
    shown = next;
    const svg = pictureFrom(drawn[next]);
    svg.style.maxWidth = `${svg.getAttribute("width")}px`;
    svg.removeAttribute("width");
    svg.removeAttribute("height");
    svg.classList.add("wb-chart");
    replace(node, svg);
  });
  watch.observe(node);
  context.signal.addEventListener("abort", () => watch.disconnect());
  return node;
}
