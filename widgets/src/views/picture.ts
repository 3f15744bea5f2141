// A picture that the kernel drew: one for wide places and one for narrow ones.
import { h, pictureFrom } from "../lib/dom";
import type { RenderView } from "../lib/view";

const NARROW = 700; // pixels

export const picture: RenderView = (host, context) => {
  const drawn = context.state<string[]>("drawn");
  const place = h("div", {});
  let shown = -1;
  const watch = new ResizeObserver(() => {
    const width = place.clientWidth;
    const next = width < NARROW ? drawn.length - 1 : 0;
    if (!width || next === shown) return; // without a width the view is hidden
    shown = next;
    const svg = pictureFrom(drawn[next]);
    svg.style.maxWidth = `${svg.getAttribute("width")}px`;
    svg.removeAttribute("width");
    svg.removeAttribute("height");
    svg.classList.add("wb-chart");
    place.replaceChildren(svg);
  });
  watch.observe(place);
  context.signal.addEventListener("abort", () => watch.disconnect());
  host.append(
    h("div", { class: "wb-scrolls" }, h("p", { class: "wb-note" }, context.state<string>("sentence")), place),
  );
};
