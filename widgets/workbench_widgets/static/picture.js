import { fitted, h, widget } from "./common.js";

/** A picture that the kernel drew, in the colours of the page. */
export function picture(ctx) {
  ctx.root.append(h("p", { class: "wb-note" }, ctx.data.sentence), fitted(ctx, ctx.data.drawn));
}

export default widget(picture);
