"""Checks that a part of a page can be read and operated: contrast, names of controls."""

from playwright.sync_api import Locator

_CONTRASTS = """root => {
  const channel = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = c => 0.2126 * channel(c[0]) + 0.7152 * channel(c[1]) + 0.0722 * channel(c[2]);
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = text => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = text;
    pen.fillRect(0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data];
  };
  const ground = node => {
    for (; node; node = node.parentElement ?? node.getRootNode().host) {
      const c = rgba(getComputedStyle(node).backgroundColor);
      if (c[3] === 255) return c;
    }
    return [255, 255, 255, 255];
  };
  const inside = n => [...n.querySelectorAll("*")].flatMap(n => n.shadowRoot ? [n, ...inside(n.shadowRoot)] : [n]);
  const weak = [];
  for (const node of inside(root)) {
    if (["STYLE", "SCRIPT"].includes(node.tagName)) continue;
    if (node.closest("svg") || node.closest("[hidden]") || !node.getClientRects().length || node.disabled) continue;
    if (![...node.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
    const a = light(rgba(getComputedStyle(node).color)), b = light(ground(node));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) weak.push([node.className, node.textContent.slice(0, 30), ratio]);
  }
  return weak;
}"""

_NAMELESS = """root => [...root.querySelectorAll(
    "button,select,input,[role=button],[role=img],[role=tab],[role=region],[tabindex='0'],svg,canvas")]
  .filter(n => n.getClientRects().length && !n.closest("[aria-hidden=true]"))
  .filter(n => !(n.getAttribute("aria-label") || n.labels?.length || n.textContent.trim()))
  .map(n => n.outerHTML.slice(0, 120))"""

# The graph of a module is larger than its window and is dragged and zoomed: its edge cuts by intention.
_CUT = """root => [...root.querySelectorAll("svg:not(.wb-graphsvg) text")]
  .filter(n => n.getClientRects().length && n.textContent.trim())
  .filter(n => {
    const box = n.getBoundingClientRect(), all = n.closest("svg").getBoundingClientRect();
    return box.left < all.left - 1 || box.right > all.right + 1 || box.top < all.top - 1 || box.bottom > all.bottom + 1;
  })
  .map(n => n.textContent)"""


def weak_contrasts(view: Locator) -> list[object]:
    """Every visible text whose colour is too near its ground: class, text, ratio (4.5 is the least)."""
    return view.evaluate(_CONTRASTS)


def nameless(view: Locator) -> list[str]:
    """Every control and picture that a screen reader could only call by its kind."""
    return view.evaluate(_NAMELESS)


def cut_texts(view: Locator) -> list[str]:
    """Every visible text of a picture that its edge cuts."""
    return view.evaluate(_CUT)
