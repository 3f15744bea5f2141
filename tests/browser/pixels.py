"""Looks at a view as a reader does: what is drawn, what has no box, what is cut off, what scrolls in what scrolls."""

from playwright.sync_api import Locator

_LOOK = """view => {
  const wrong = [];
  const seen = e => e.checkVisibility({ visibilityProperty: true }) && !e.closest("[aria-hidden=true]");
  const name = e => `${e.tagName.toLowerCase()}.${e.getAttribute("class") ?? ""}`.slice(0, 60);
  const scrolls = e => ["auto", "scroll"].includes(getComputedStyle(e).overflowY)
    && e.clientHeight > 0 && e.scrollHeight > e.clientHeight + 1;
  const uniform = canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    const pixels = new Uint32Array(data.buffer);
    return pixels.every(pixel => pixel === pixels[0]);
  };
  for (const e of view.querySelectorAll("canvas, svg, [role=treegrid], table, .wb-main, .wb-detail, .cm-editor")) {
    if (!seen(e)) continue;
    const { width, height } = e.getBoundingClientRect();
    if (width < 8 || height < 8) wrong.push(`no box: ${name(e)} ${width} x ${height}`);
    else if (e.tagName === "CANVAS" && uniform(e)) wrong.push(`nothing drawn: ${name(e)}`);
    else if (e.matches("[role=treegrid]") && !e.querySelector("[role=row]")) wrong.push(`no row: ${name(e)}`);
  }
  for (const e of view.querySelectorAll("*")) {
    if (!seen(e)) continue;
    for (let up = e.parentElement; scrolls(e) && up && up !== view; up = up.parentElement)
      if (scrolls(up)) { wrong.push(`scrolls in what scrolls: ${name(e)} in ${name(up)}`); break; }
    if (e.closest(".cm-editor, svg, [role=row], .wb-icebar, .wb-live, .wb-hidden, select, input")) continue;
    const { overflowX, overflowY, textOverflow, scrollbarWidth } = getComputedStyle(e);
    const menu = e.parentElement.querySelector(":scope > .wb-moretabs");
    if (scrollbarWidth === "none" && e.scrollWidth > e.clientWidth + 2 && !(menu && seen(menu)))
      wrong.push(`scrolls without a sign: ${name(e)}`);
    const hides = overflow => ["hidden", "clip"].includes(overflow);
    const cut = [
      hides(overflowX) && textOverflow !== "ellipsis" && e.scrollWidth > e.clientWidth + 2,
      hides(overflowY) && e.scrollHeight > e.clientHeight + 2,
    ];
    if (e.clientWidth > 0 && cut.some(Boolean))
      wrong.push(`cut off: ${name(e)} ${e.scrollWidth} x ${e.scrollHeight} in ${e.clientWidth} x ${e.clientHeight}`);
  }
  return wrong;
}"""


def faults(view: Locator) -> list[str]:
    """What a reader of the view could not see or reach; empty where all is well."""
    return view.evaluate(_LOOK)
