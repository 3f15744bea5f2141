import { h, svgFrom, widget } from "./common.js";

/** A picture that the kernel drew, in the colours of the page. */
export function picture(ctx) {
  const draw = () => {
    const svg = svgFrom(ctx.data.svg);
    svg.style.maxWidth = `${svg.getAttribute("width")}px`;
    svg.removeAttribute("width");
    svg.removeAttribute("height");
    svg.classList.add("wb-chart");
    ctx.root.replaceChildren(h("p", { class: "wb-note" }, ctx.data.sentence), svg);
  };
  ctx.onData(draw);
  draw();
}

export default widget(picture);
