// A picture that the kernel drew: one for wide places and one for narrow ones.
import { h } from "../lib/dom";
import { fitted } from "../lib/fitted";
import type { RenderView } from "../lib/view";

export const picture: RenderView<"picture"> = (host, context) => {
  const drawn = fitted(context, context.state("drawn"));
  host.append(h("div", { class: "wb-scrolls" }, h("p", { class: "wb-note" }, context.state("sentence")), drawn));
};
