"""Style of slides: large type, a dark theme, collapsed plotting code, and frames around views."""

import html
import itertools
import re
from collections.abc import Collection
from typing import Any

from workbench.course._notebooks import FOLDED, Title
from workbench.course._parts import part_of
from workbench.render import mark

# nbconvert's pages are light; these variables make them dark.
DARK = """
@media screen and (prefers-color-scheme: dark) {
:root {
  color-scheme: dark;
  --r-background-color: #16181c; --r-main-color: #e4e6ea; --r-heading-color: #fff; --r-link-color: #7cc4f2;
  --jp-layout-color0: #16181c; --jp-layout-color1: #16181c; --jp-layout-color2: #23262c; --jp-layout-color3: #3a3e46;
  --jp-content-font-color0: #fff; --jp-content-font-color1: #e4e6ea; --jp-content-font-color2: #c3c7ce;
  --jp-content-font-color3: #a5aab3; --jp-content-link-color: #7cc4f2;
  --jp-ui-font-color0: #fff; --jp-ui-font-color1: #e4e6ea; --jp-ui-font-color2: #c3c7ce; --jp-ui-font-color3: #a5aab3;
  --jp-border-color0: #4a4f58; --jp-border-color1: #4a4f58; --jp-border-color2: #3a3e46; --jp-border-color3: #2b2e35;
  --jp-cell-editor-background: #23262c; --jp-cell-editor-border-color: #3a3e46;
  --jp-rendermime-table-row-background: #1d2025; --jp-rendermime-table-row-hover-background: #2b3a46;
  --jp-rendermime-error-background: #4a2226;
  --jp-mirror-editor-keyword-color: #7fd18b; --jp-mirror-editor-operator-color: #d3a6ff;
  --jp-mirror-editor-comment-color: #9fb3b3; --jp-mirror-editor-string-color: #ff9d94;
  --jp-mirror-editor-number-color: #9bd77e; --jp-mirror-editor-builtin-color: #7fd18b;
  --jp-mirror-editor-variable-color: #e4e6ea; --jp-mirror-editor-punctuation-color: #9cc9ff;
  --jp-mirror-editor-property-color: #9cc9ff; --jp-mirror-editor-def-color: #9cc9ff;
  --jp-mirror-editor-meta-color: #d3a6ff; --jp-mirror-editor-error-color: #ff8a80;
}
html body, body.jp-Notebook {background: #16181c; color: #e4e6ea}
.highlight, .highlight pre {color: #e4e6ea}
.jp-OutputArea-output img[src^="data:image/png"] {filter: invert(.91) hue-rotate(180deg)}
.jp-OutputArea-output img.jp-needs-light-background {background: #fff; filter: brightness(.88)}
}
"""

# nbconvert's page loads require.js, jQuery, Mermaid, MathJax and reveal.js from the network; this page needs only
# reveal.js, from the folder next to it.
SLIDES = (
    """{%- extends 'index.html.j2' -%}
{%- block html_head_css -%}{{ super() }}{{ resources.icon }}{%- endblock html_head_css -%}
{%- block html_head_js -%}{%- endblock html_head_js -%}
{%- block html_head_js_mathjax -%}{%- endblock html_head_js_mathjax -%}
{%- block footer_js -%}
<div class="wb-mark">{{ resources.mark }} {{ resources.number }}</div>
<script src="reveal.js/dist/reveal.js"></script>
<script src="reveal.js/plugin/notes/notes.js"></script>
<script>
const width = Math.min(1280, Math.max(640, innerWidth));  // a narrow screen gets narrower slides with readable text
const LARGEST = 745, ZOOMS = [1.3, 1.2, 1.1, 1, 0.95, 0.9, 0.85, 0.8];
const sections = () => [...document.querySelectorAll(".slides > section > section")];
const PRINTED = ".jp-RenderedText.jp-OutputArea-output pre", FIGURE = "img, iframe.wb-view";
// Long code of a figure is folded, so that the figure is seen.
function fold(cell, longest = 6) {
  const code = cell.querySelector(".jp-Cell-inputWrapper:not(details *)");
  const lines = code?.querySelector("pre")?.textContent.trim().split("\\n").length ?? 0;
  if (lines <= longest || !cell.querySelector(FIGURE)) return;
  const details = document.createElement("details"), title = document.createElement("summary");
  title.textContent = `Code of the figure, ${lines} lines`;
  code.replaceWith(details);
  details.append(title, code);
  details.addEventListener("toggle", () => fit());
}
// Places where a cell may continue on the next slide, in three ranks: outputs, paragraphs, rows and code after a blank
// line; a blank line in a function; another line.
function breaks(cell) {
  const isOpening = (node) => !node || /^H\\d$/.test(node.tagName) || node.textContent.trim().endsWith(":");
  const blocks = cell.querySelectorAll(
    ".jp-Cell-outputWrapper, .jp-OutputArea-child, .jp-MarkdownOutput > *, .jp-MarkdownOutput > * > li, tbody > tr");
  const found = [[], [], []], code = ".jp-Cell-inputWrapper:not(details *)";
  found[0] = [...blocks].filter((node) =>
    node.matches(".jp-Cell-outputWrapper") ? cell.querySelector(code) : !isOpening(node.previousElementSibling));
  for (const node of cell.querySelector(`${code} pre`)?.childNodes ?? []) {
    const next = node.nextSibling, text = node.nodeType === Node.TEXT_NODE ? node.data : "";
    if (!next || !/\\n( {4})?$/.test(text) || /^[)\\]}]/.test(next.textContent)) continue;
    found[/\\n\\s*\\n$/.test(text) ? 0 : /\\n\\s*\\n/.test(text) ? 1 : 2].push(next);
  }
  for (const output of cell.querySelectorAll(PRINTED)) {
    const lines = linesOf(output);  // not in the last two lines, and not before an indented line
    for (const line of lines.slice(3, -2))
      if (!/^\\s/.test(line.data)) found[line.previousSibling.data.trim() ? 2 : 1].push(line);
  }
  return found;
}
// Printed text as a node for each line; text with colours stays whole.
function linesOf(output) {
  for (let line = output.firstChild; line?.nodeType === Node.TEXT_NODE; line = line.nextSibling) {
    const end = line.data.indexOf("\\n") + 1;
    if (end > 0 && end < line.length) line.splitText(end);
  }
  const nodes = [...output.childNodes];
  return nodes.every((node) => node.nodeType === Node.TEXT_NODE) ? nodes : [];
}
// Printed columns stay aligned: wide text gets smaller type, and only very wide text wraps, on a slide that `wraps`.
function narrow(output, wraps) {
  output.style.fontSize = output.style.whiteSpace = "";
  const ratio = output.clientWidth / output.scrollWidth;
  if (ratio >= 1) return true;
  if (ratio > 0.7) output.style.fontSize = `${Math.floor(200 * ratio) / 10}px`;
  else if (wraps) output.style.whiteSpace = "pre-wrap";
  return ratio > 0.7 || wraps;
}
function narrowFormula(formula) {
  const text = formula.closest(".jp-MarkdownOutput"), ratio = text.clientWidth / text.scrollWidth;
  if (ratio < 1) formula.style.fontSize = `${Math.floor(113 * ratio) / 100}em`;
}
// The names of row groups, repeated above the rows that continue on the next slide.
function repeatGroups(row) {
  const rows = [...row.parentNode.children], at = rows.indexOf(row), names = [];
  for (const [index, above] of rows.slice(0, at).entries())
    for (const name of above.children) {
      const inside = at - index, below = name.rowSpan - inside;
      if (below < 1) continue;
      names.push(Object.assign(name.cloneNode(true), {rowSpan: below}));
      name.rowSpan = inside;
    }
  row.prepend(...names);
}
function topOf(node) {
  const range = document.createRange();
  range.selectNode(node);
  return range.getBoundingClientRect().top;
}
// Whether this is the text below a figure, which belongs on the figure's slide.
function isCaption(cell) {
  const isText = cell?.matches(".jp-MarkdownCell:not(:has(.jp-MarkdownOutput > :is(h1, h2, h3):first-child))");
  return Boolean(isText && cell.previousElementSibling?.matches(".jp-CodeCell:has(img, iframe.wb-view)"));
}
// Makes room for the text below a figure: folds the figure's code, and then draws the figure smaller, as long as its
// text is readable. Returns whether this changed anything.
function makeRoom(cell, excess) {
  const figures = [...cell.querySelectorAll(FIGURE)], before = excess();
  if (before > 0) fold(cell, 1);
  for (const figure of figures) {
    const height = figure.offsetHeight, least = Math.min(height, 1.1 * figure.naturalHeight || 340);
    if (excess() > 0) figure.style.maxHeight = `${Math.max(least, height - excess() / figures.length)}px`;
  }
  return excess() < before;
}
// The place from which a slide continues on the next one, if it does not fit or has a second heading. A heading stays
// with its text, and a caption with its figure.
function placeOfBreak(slide) {
  const isFirst = (node) => !node.previousElementSibling?.matches(":not(.wb-kicker, .wb-cover)");
  const title = [...slide.querySelectorAll(".jp-MarkdownOutput > :is(h1, h2)")].find(
    (node) => !isFirst(node) || !slide.firstElementChild.contains(node));
  const heading = title && isFirst(title) ? title.closest(".jp-Cell") : title;
  const height = LARGEST / 0.8, end = slide.getBoundingClientRect().top + height - 70;
  const cells = [...slide.children], over = cells.findIndex((each) => each.getBoundingClientRect().bottom > end);
  if (over < 0 || (heading && topOf(heading) < end)) return heading;
  const at = over - isCaption(cells[over]), isOpening = at === 0 || (at === 1 && cells[0].offsetHeight < 110);
  if (isOpening && cells[at].querySelector(FIGURE)) {
    const last = isCaption(cells[at + 1]) ? cells[at + 1] : cells[at];
    if (makeRoom(cells[at], () => last.getBoundingClientRect().bottom - end)) return placeOfBreak(slide);
    const output = cells[at].querySelector(FIGURE).closest(".jp-OutputArea-child");
    if (output?.previousElementSibling) return output;
  }
  const first = isOpening ? over : at, cell = cells[first], top = topOf(cell);
  if (first > 0 && cell.offsetHeight < height - 110 && !isOpening) return cell;
  const found = breaks(cell), least = isCaption(cell) ? 20 : 120;
  const [before] = found.map((places) => places.filter((node) => topOf(node) <= end - 25 && topOf(node) > top + least))
    .filter((places) => places.length);
  return before?.reduce((last, node) => (topOf(node) > topOf(last) ? node : last))
    ?? (first > 0 ? cell : found[0].find((node) => topOf(node) > top + 60)) ?? cells[first + 1];
}
function split(slide) {
  let place = placeOfBreak(slide);
  if (!place) return;
  const before = place.previousSibling;
  if (place.localName === "tr") repeatGroups(place);
  if (place.parentNode.localName === "pre") place = before.splitText(before.data.search(/ *$/));  // its indentation
  const heads = place.closest?.("table")?.tHead?.cloneNode(true), range = document.createRange();
  range.setStartBefore(place);
  range.setEndAfter(slide.lastChild);
  const next = slide.cloneNode(false);
  next.append(range.extractContents());
  if (heads) next.querySelector("table").prepend(heads);
  slide.after(next);
  split(next);
}
async function prepare() {
  document.querySelectorAll(".jp-CodeCell").forEach(fold);
  const frame = document.querySelector(".slides");
  frame.style.width = `${width / 0.8}px`;
  frame.classList.add("wb-measured");
  frame.getBoundingClientRect();  // requests the fonts that the slides use
  await document.fonts.ready;
  for (const output of document.querySelectorAll(PRINTED)) narrow(output, true);
  sections().forEach(split);
  frame.classList.remove("wb-measured");
  frame.style.width = "";
  let section = "";  // a slide without a heading names its section
  for (const slide of sections()) {
    const heading = slide.querySelector("h1, h2, h3");
    const name = heading?.cloneNode(true);
    name?.querySelectorAll(".anchor-link").forEach((link) => link.remove());
    const above = Object.assign(document.createElement("p"), {className: "wb-section", textContent: section});
    if (section && !slide.firstElementChild?.contains(heading)) slide.prepend(above);
    if (heading) section = name.textContent.trim();
  }
}
// A short slide gets larger type, a long one smaller type. A slide that cannot be split scrolls, also with the keys.
function fit() {
  const slide = Reveal.getCurrentSlide();
  if (!slide) return;
  slide.classList.remove("too-long");
  slide.style.zoom = 1;
  if (Reveal.isScrollView?.()) return;
  const wide = [...slide.querySelectorAll("pre, .highlight, .jp-OutputArea-output, .jp-MarkdownOutput")];
  const printed = innerWidth > 600 ? [...slide.querySelectorAll(PRINTED)] : [];  // phones wrap it
  const formulas = [...slide.querySelectorAll("math[display=block]")];
  const isCut = () => wide.some((each) => each.scrollWidth > each.clientWidth + 1);
  const fits = (zoom) => {
    slide.style.zoom = zoom;
    const isNarrow = printed.map((output) => narrow(output, zoom === ZOOMS.at(-1))).every(Boolean);
    for (const formula of formulas) formula.style.fontSize = "";
    if (!isNarrow || (zoom > 1 && isCut())) return false;
    formulas.forEach(narrowFormula);
    return slide.scrollHeight * zoom <= LARGEST;
  };
  slide.classList.toggle("too-long", !ZOOMS.some(fits));
}
function turn(back) {
  const slide = Reveal.getCurrentSlide(), forth = !back;
  if (!slide?.classList.contains("too-long")) return false;
  const left = forth ? slide.scrollHeight - slide.clientHeight - slide.scrollTop : slide.scrollTop;
  if (left < 4) return false;
  slide.scrollBy({top: (forth ? 0.8 : -0.8) * slide.clientHeight});
  return true;
}
const FORTH = ["PageDown", "ArrowDown", "n", "N"], BACK = ["PageUp", "ArrowUp", "p", "P"];
function keyboardCondition(event) {
  const back = BACK.includes(event.key) || (event.key === " " && event.shiftKey);
  if (!back && !FORTH.includes(event.key) && event.key !== " ") return true;
  if (!turn(back)) return true;
  event.preventDefault();
  return false;
}
addEventListener("message", (event) => {
  const frame = [...document.querySelectorAll("iframe.wb-view")].find((each) => each.contentWindow === event.source);
  if (!frame) return;
  if (event.data.height) {frame.style.height = `${Math.min(event.data.height, 470)}px`; fit();}
  if (event.data.turn === "next" && !turn(false)) Reveal.next();
  if (event.data.turn === "previous" && !turn(true)) Reveal.prev();
});
const show = () => {const slide = Reveal.getCurrentSlide(); if (slide) slide.scrollTop = 0; fit();};
addEventListener("load", async () => {  // images have their sizes
  await prepare();
  Reveal.initialize({controls: true, progress: true, hash: true, center: false, slideNumber: "c/t", width, height: 800,
                     margin: 0.02, keyboardCondition, plugins: [RevealNotes]});
  Reveal.on("ready", show);
  Reveal.on("slidechanged", show);
});
</script>
<style>
:root {
  --r-main-font: "Source Sans Pro", system-ui, sans-serif;
  --r-heading-text-transform: none; --r-heading-letter-spacing: -0.01em;
  --r-main-color: #1f2328; --r-link-color: #005a8f;
  --jp-content-font-family: var(--r-main-font); --jp-content-font-size1: 27px; --jp-content-line-height: 1.4;
  --jp-code-font-size: 20px; --jp-code-line-height: 1.35; --jp-content-link-color: var(--r-link-color);
}
.reveal .slides > section > section {box-sizing: border-box; padding: 36px 56px 30px; text-align: left}
.reveal .slides > section:first-child > section:first-child {padding-top: 190px}
.reveal .wb-measured section {display: block !important; position: static !important; height: auto !important}
.reveal .wb-measured iframe.wb-view {height: 470px !important}
.reveal section.too-long {height: calc(745px / 0.8); overflow-y: auto; overscroll-behavior: contain}
.reveal section.too-long::after {content: ""; display: block; position: sticky; bottom: -30px; height: 70px;
  margin-top: -40px; pointer-events: none; background: linear-gradient(transparent, var(--r-background-color))}
.reveal h1 {font-size: 56px !important; margin-bottom: 28px !important}
.reveal h2 {font-size: 42px !important; margin-bottom: 18px !important}
.reveal h3 {font-size: 32px !important}
.reveal h1, .reveal h2, .reveal h3 {border: 0; color: var(--r-heading-color)}
.reveal h2 {padding-bottom: 8px !important; border-bottom: 4px solid #0072b2 !important; display: inline-block}
.reveal .wb-kicker {margin: 0 0 12px; font-size: 22px; color: #0072b2; font-weight: 600}
.wb-cover {position: absolute; right: 56px; top: 40px}
.reveal .wb-section {margin: 0 0 8px; font-size: 20px; color: #0072b2; font-weight: 600}
.reveal math {font-size: 1em}
.reveal math[display=block] {font-size: 1.15em}
.reveal .jp-Cell {padding: 0}
.reveal .jp-InputPrompt, .reveal .jp-OutputPrompt {display: none}
.reveal .jp-RenderedHTMLCommon {padding: 0; color: var(--r-main-color)}
.reveal .jp-RenderedHTMLCommon p, .reveal .jp-RenderedHTMLCommon li {line-height: 1.4}
.reveal .jp-RenderedHTMLCommon code {font-size: .85em}
.reveal .highlight {margin: 8px 0}
.reveal .highlight pre {box-sizing: border-box; padding: 10px 14px; margin: 0; width: auto; box-shadow: none}
.reveal .jp-OutputArea-output {overflow-x: auto}
.reveal .jp-OutputArea-output pre {white-space: pre; word-break: normal; overflow-wrap: anywhere; overflow-x: auto}
.reveal .jp-RenderedHTMLCommon table {margin: 8px 0; font-size: 20px; table-layout: auto}
.reveal .jp-RenderedHTMLCommon td, .reveal .jp-RenderedHTMLCommon th {padding: 6px 12px; max-width: 30em}
.reveal .jp-OutputArea-output img {
  width: 100%; max-height: 500px; margin: 8px 0; object-fit: contain; object-position: left}
.reveal details summary {cursor: pointer; font-size: 20px; color: var(--jp-content-font-color2)}
.reveal iframe.wb-view {
  display: block; width: 100%; max-width: none; max-height: none; height: 470px; border: 0; margin: 8px 0;
  zoom: 1.15}
.reveal .controls {font-size: 6px}
.reveal .slide-number {
  background: none; color: var(--jp-content-font-color3); font-size: 16px; right: 76px; bottom: 14px}
.wb-mark {position: fixed; left: 16px; bottom: 12px; z-index: 1; display: flex; gap: 8px; align-items: center;
  font: 600 16px var(--r-main-font); color: var(--jp-content-font-color2)}
@media (max-width: 600px) {
  .wb-mark, .wb-cover {display: none}
  .reveal iframe.wb-view {zoom: 1}
  .reveal .slides > section > section {padding: 20px}
  .reveal :is(.highlight, .jp-OutputArea-output) pre {white-space: pre-wrap; overflow-wrap: anywhere}
}
"""
    + DARK
    + """
@media screen and (prefers-color-scheme: dark) {.reveal :is(.wb-section, .wb-kicker) {color: #7cc4f2}}
</style>
{%- endblock footer_js -%}
"""
)

# A view has sections, headings and keys that reveal.js would take for slides; a frame separates them.
FRAME = """<!doctype html><html><head><meta charset="utf-8"><style>:root {{color-scheme: light dark}}
body {{margin: 0; font: 16px/1.4 system-ui, sans-serif}} img {{max-width: 100%}}</style></head><body>{view}<script>
new ResizeObserver(() => parent.postMessage({{height: document.body.scrollHeight}}, "*")).observe(document.body);
addEventListener("keydown", (event) => {{
  const turn = {{PageDown: "next", PageUp: "previous"}}[event.key];
  if (!turn || event.defaultPrevented || document.fullscreenElement) return;
  event.preventDefault();
  parent.postMessage({{turn}}, "*");
}});
</script></body></html>"""
SAVED = 'class="wb-savedview"'
EXERCISES = "## Exercises"
SHADES = re.compile(r"\b(black|white|dark|light|bright|pale)(er)?\b", re.IGNORECASE)  # wrong in an inverted figure


def keep_shades(notebook: Any) -> None:
    """Keeps figures light in dark mode if the text below names a shade, such as "dark"; inverts other figures."""
    for cell, after in itertools.pairwise(notebook.cells):
        if after.cell_type != "markdown" or not SHADES.search(after.source):
            continue
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                output.metadata["image/png"] = {"needs_background": "light"}


def prepare_slides(notebook: Any, title: Title, names: Collection[str]) -> None:
    """Adds a cover, puts views into frames, and removes warnings, and links and hints to content that the slides lack.

    The first exercise is on the slide with the heading of the exercises.
    """

    def linked(match: re.Match[str]) -> str:
        return f"[{match[1]}]({match[2]}.slides.html)" if match[2] in names else match[1]

    notebook.metadata["title"] = f"{title.number} · {title.question}"
    place = " · ".join(filter(None, ("The Workbench course", part_of(title.number), title.number)))
    cover = f'<p class="wb-kicker">{place}</p><div class="wb-cover">{mark(130)}</div>'
    notebook.cells[0].source = f"{cover}\n\n{notebook.cells[0].source}"
    for heading, first in itertools.pairwise(notebook.cells):
        if heading.source.startswith(EXERCISES):
            heading.source = EXERCISES
            first.metadata.slideshow = {"slide_type": "-"}
    for cell in notebook.cells:
        if "exercise" in cell.metadata.get("tags", ()):
            cell.outputs = []
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
        if cell.cell_type == "markdown":
            cell.source = FOLDED.sub("", re.sub(r"\[([^\]]+)\]\((\d\d-[\w-]+)\.ipynb[^)]*\)", linked, cell.source))
        for output in cell.get("outputs", ()):
            view = output.get("data", {}).get("text/html", "")
            if SAVED in view:
                output.data["text/html"] = framed(view)


def framed(view: str) -> str:
    """A saved view in a separate frame."""
    page = html.escape(FRAME.format(view=view))
    return (
        f'<iframe class="wb-view" title="Interactive view" allow="fullscreen" loading="lazy" srcdoc="{page}"></iframe>'
    )
