"""Offline pages made from notebooks: a course site, and slides."""

import html
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.course._cards import card_of
from workbench.course._notebooks import Title, executed, read, require_libraries, title_of
from workbench.course._parts import COLOURS, concept_map, difficulty_of, part_of, parts_of, titles_of
from workbench.course._slides import DARK, SLIDES, keep_shades, prepare_slides
from workbench.render import icon_link, mark

LIBRARIES = ("nbconvert", "nbclient", "nbformat", "latex2mathml")
REVEAL = (
    "LICENSE",
    "dist/reveal.css",
    "dist/reveal.js",
    "dist/theme/white.css",
    "dist/theme/fonts/source-sans-pro",
    "plugin/notes/notes.js",
)


# The nbconvert page of one notebook, without scripts from the network.
NOTEBOOK_PAGE = """{%- extends 'lab/index.html.j2' -%}
{%- block html_head_js -%}{%- endblock html_head_js -%}
{%- block html_head_js_mathjax -%}{%- endblock html_head_js_mathjax -%}
{%- block html_head_css -%}{{ super() }}{{ resources.icon }}
<style>
:root {
  --jp-content-font-family: system-ui, sans-serif; --jp-content-font-size1: 16px; --jp-content-line-height: 1.6;
  --jp-code-font-size: 13.5px; --jp-code-line-height: 1.5; --jp-content-link-color: #005a8f;
}
body.jp-Notebook {max-width: 58rem; margin: 0 auto; padding: 1rem 1.25rem 4rem; font: 16px/1.6 system-ui, sans-serif}
.wb-home a {font-weight: 600; color: inherit; text-decoration: none}
.wb-home span {opacity: .7}
.jp-RenderedHTMLCommon :is(h1, h2, h3) {font-weight: 650; letter-spacing: -.01em; line-height: 1.2}
.jp-RenderedHTMLCommon h1 {font-size: clamp(1.6rem, 7vw, 2.2rem)}
.jp-RenderedHTMLCommon h2 {
  display: inline-block; margin-top: 2rem; padding-bottom: .25rem; font-size: 1.55rem;
  border-bottom: 3px solid var(--part)}
.jp-CodeCell .jp-Cell-inputWrapper {padding: 0 .6rem}
.jp-InputArea-editor {border-radius: .4rem; padding: .3rem .4rem}
.wb-look > .jp-Cell {
  margin: .25rem .6rem 1rem; padding: .1rem .6rem; border-left: 3px solid var(--part); border-radius: .25rem;
  background: color-mix(in srgb, var(--part) 7%, transparent)}
.wb-exercise .jp-InputArea-editor {border-left: 3px solid #d55e00}
.wb-contents {display: none}
@media (min-width: 86rem) {
  .wb-contents {
    display: block; position: fixed; top: 4rem; left: calc(50% + 30rem); width: 13rem; font-size: 13px;
    line-height: 1.35}
  .wb-contents a {display: block; padding: .2rem .6rem; color: inherit; text-decoration: none;
    border-left: 2px solid color-mix(in srgb, currentColor 20%, transparent)}
  .wb-contents a:hover {border-color: var(--part)}
}
.jp-OutputArea-output {overflow-x: auto}
.jp-OutputArea-output img, .jp-OutputArea-output svg {max-width: 100%; height: auto}
@media (max-width: 40rem) {.jp-OutputArea-output img[src^="data:image/png"] {max-width: max(100%, 38rem)}}
.jp-RenderedHTMLCommon math[display=block] {overflow-x: auto}
.jp-RenderedHTMLCommon .wb table {table-layout: auto}
.wb-turn {display: flex; justify-content: space-between; gap: 2rem; margin: 3rem .6rem}
.wb-turn a {color: var(--jp-content-link-color)}
.wb-turn a:last-child {text-align: right; margin-left: auto}
details.wb-fold > summary {margin: .5rem .6rem; cursor: pointer}
{{ resources.dark }}
</style>{%- endblock html_head_css -%}
{%- block codecell -%}
{%- set tags = cell.metadata.get("tags", []) -%}
{%- if "solution" in tags or "claims" in tags -%}
<details class="wb-fold"><summary>{{ "Solution" if "solution" in tags else "The checks" }}</summary>
{{ super() }}</details>
{%- elif "exercise" in tags -%}<div class="wb-exercise">{{ super() }}</div>
{%- else -%}{{ super() }}{%- endif -%}
{%- endblock codecell -%}
{%- block markdowncell -%}
{%- if cell.source.startswith("**What to look for.**") -%}<div class="wb-look">{{ super() }}</div>
{%- else -%}{{ super() }}{%- endif -%}
{%- endblock markdowncell -%}
"""
HOME = '<p class="wb-home"><a href="index.html">{mark} The Workbench course</a> <span>· {place}</span></p>{contents}'
TURN = '<nav class="wb-turn" aria-label="Neighbouring notebooks">{links}</nav>'
START = (
    'New here? Start with <a href="{page}">{question}</a> Each notebook asks one question, shows the numbers that it '
    "discusses, and ends with exercises. <code>workbench lab</code> opens the same notebooks to run and change them."
)
INDEX = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>The Workbench course</title>{icon}
<style>
:root {{color-scheme: light dark; --part: #0072b2; --line: color-mix(in srgb, currentColor 18%, transparent)}}
body {{font: 16px/1.5 system-ui, sans-serif; max-width: 84rem; margin: 0 auto; padding: 1.5rem}}
a {{color: light-dark(#005a8f, #7cc4f2)}}
h1 {{display: flex; gap: .75rem; align-items: center; letter-spacing: -.02em;
     font-size: clamp(1.3rem, 5.5vw, 2.4rem); margin: 1rem 0 .5rem}}
h2 {{margin: 2.5rem 0 1rem; padding-left: .75rem; border-left: .3rem solid var(--part); line-height: 1.2}}
.start {{max-width: 46rem; font-size: 1.1rem}}
ol {{list-style: none; padding: 0; display: grid; gap: 1rem;
     grid-template-columns: repeat(auto-fill, minmax(min(22rem, 100%), 1fr))}}
li {{position: relative; border: 1px solid var(--line); border-top: .2rem solid var(--part); border-radius: .5rem;
     padding: .9rem; overflow: hidden; transition: box-shadow .15s}}
li:hover {{box-shadow: 0 .25rem 1rem color-mix(in srgb, var(--part) 35%, transparent)}}
li a {{font-weight: 600; text-decoration: none}}
li a::after {{content: ""; position: absolute; inset: 0}}
li img {{display: block; width: 100%; aspect-ratio: 3 / 2; object-fit: contain; margin-bottom: .75rem}}
@media (prefers-color-scheme: dark) {{li img[src$=".png"] {{filter: invert(.91) hue-rotate(180deg)}}}}
li span {{display: block; font-size: .85rem; opacity: .75}}
</style></head><body>
<h1>{mark} The Workbench course</h1>
<p>{count} notebooks, {hours:.0f} hours with the exercises. {state}</p>
<p class="start">{start}</p>
{parts}
<h2>What each notebook builds on</h2>
{chart}
</body></html>
"""


def copy_reveal(folder: Path) -> Path:
    """Copies the needed reveal.js files and licence from `sphinx-revealjs` into a folder."""
    import sphinx_revealjs

    source, target = Path(sphinx_revealjs.__file__).parent / "_static" / "revealjs", folder / "reveal.js"
    for name in REVEAL:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, dirs_exist_ok=True)
        else:
            shutil.copyfile(source / name, target / name)
    return target


def formulas_as_mathml(markdown: str) -> str:
    """Converts TeX formulas in Markdown to MathML, which needs no script; leaves code unchanged."""
    from latex2mathml.converter import convert

    def written(match: re.Match[str]) -> str:
        if match["code"]:
            return match["code"]
        formula = convert(match["block"] or match["inline"], display="block" if match["block"] else "inline")
        return re.sub(r"[*_`~]", lambda sign: f"&#{ord(sign[0])};", formula)  # no emphasis inside a formula

    pattern = r"(?P<code>```.*?```|`[^`]*`)|\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^$\n]+?)\$"
    return re.sub(pattern, written, markdown, flags=re.DOTALL)


def is_left_out(cell: Any) -> bool:
    """Returns whether slides omit this cell."""
    tagged = {"setup", "solution", "claims"} & set(cell.metadata.get("tags", ()))
    return bool(tagged) or cell.metadata.get("slideshow", {}).get("slide_type") == "skip"


def write_slides(
    notebooks: Sequence[Path], folder: Path, *, execute: bool = True, report: Callable[[str], None] = lambda line: None
) -> list[Path]:
    """Writes reveal.js slides of each notebook; cells tagged as set-up or solution are left out.

    The pages work without a network: reveal.js is copied next to them, and formulas are MathML.

    Args:
        notebooks: The `.ipynb` files.
        folder: The folder for `NAME.slides.html` and `reveal.js`.
        execute: Whether slides have outputs; notebooks whose source is unchanged are not run again.
        report: Called with one line of text before each execution.

    Returns:
        The pages written.

    Raises:
        CourseError: if a file is not a notebook, or if a cell raises an exception.
        MissingDependencyError: if a library for pages or for a notebook is not installed.

    Example:
        >>> write_slides([], Path("slides"))
        []
    """
    if not notebooks:
        return []
    require_libraries(notebooks if execute else (), *LIBRARIES, "sphinx_revealjs")
    from nbconvert import SlidesExporter

    folder.mkdir(parents=True, exist_ok=True)
    copy_reveal(folder)
    exporter = SlidesExporter(
        raw_template=SLIDES,
        reveal_url_prefix="reveal.js",
        reveal_theme="white",
        exclude_input_prompt=True,
        exclude_output_prompt=True,
        config=_one_block(),
    )
    written = []
    for path in notebooks:
        notebook = executed(path, report) if execute else read(path)
        # before nbconvert, which writes the end of a slide into the cell before the next slide
        notebook.cells = [cell for cell in notebook.cells if not is_left_out(cell)]
        title = title_of(path)
        keep_shades(notebook)
        prepare_slides(notebook, title, [notebook_path.stem for notebook_path in notebooks])
        _write_formulas(notebook)
        body, _ = exporter.from_notebook_node(notebook, {"icon": icon_link(), "mark": mark(28), "number": title.number})
        written.append(folder / f"{path.stem}.slides.html")
        written[-1].write_text(body, encoding="utf-8")
    return written


def write_site(
    notebooks: Sequence[Path], folder: Path, *, execute: bool = True, report: Callable[[str], None] = lambda line: None
) -> Path:
    """Writes a page for each notebook and an index grouped by part, with a dependency map.

    Args:
        notebooks: The `.ipynb` files.
        folder: The folder for the site.
        execute: Whether pages have outputs; notebooks whose source is unchanged are not run again.
        report: Called with one line of text before each execution.

    Returns:
        The index, `index.html`.

    Raises:
        CourseError: if a file is not a notebook, or if a cell raises an exception.
        MissingDependencyError: if a library for pages or for a notebook is not installed.

    Example:
        >>> write_site([], Path("site")).name
        'index.html'
    """
    require_libraries(notebooks if execute else (), *LIBRARIES)
    from nbconvert import HTMLExporter

    folder.mkdir(parents=True, exist_ok=True)
    ordered = [path for paths in parts_of(notebooks).values() for path in paths]
    titles, links = titles_of(notebooks), {path.stem.partition("-")[0]: f"{path.stem}.html" for path in notebooks}
    exporter = HTMLExporter(
        raw_template=NOTEBOOK_PAGE, exclude_input_prompt=True, exclude_output_prompt=True, config=_one_block()
    )
    pictures = {}
    for path in notebooks:
        notebook = executed(path, report) if execute else read(path)
        if (card := card_of(notebook)) is not None:
            picture = folder / f"{path.stem}{card.suffix}"
            picture.write_bytes(card.content)
            pictures[path] = f'<img src="{picture.name}" alt="{html.escape(card.shows)}" loading="lazy">'
        notebook.cells = [cell for cell in notebook.cells if "remove-cell" not in cell.metadata.get("tags", ())]
        keep_shades(notebook)
        _write_formulas(notebook)
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = re.sub(r"\]\((\d\d-[\w-]+)\.ipynb", r"](\1.html", cell.source)
        body, _ = exporter.from_notebook_node(notebook, {"icon": icon_link(), "dark": DARK})
        number = path.stem.partition("-")[0]
        home = HOME.format(
            mark=mark(18), place=" · ".join(filter(None, (part_of(number), number))), contents=_contents(body)
        )
        # without the name of a light theme, so that views follow the dark mode of the system
        opening = f'<body class="jp-Notebook" style="--part: {COLOURS.get(part_of(number), "#0072b2")}">{home}'
        body = re.sub(r"<body[^>]*>", lambda tag, opening=opening: opening, body, count=1)
        turn = _neighbours(ordered, path, titles)
        body = re.sub(r"</body>", lambda end, turn=turn: turn + end[0], body, count=1)
        (folder / f"{path.stem}.html").write_text(body, encoding="utf-8")
    parts = []
    for part, paths in parts_of(notebooks).items():
        items = []
        for path in paths:
            title = titles[path.stem.partition("-")[0]]
            about = " · ".join(filter(None, (title.number, f"{title.minutes} minutes", difficulty_of(title.number))))
            link = f'<a href="{path.stem}.html">{html.escape(title.question)}</a>'
            items.append(f"<li>{pictures.get(path, '')}{link}<span>{about}</span></li>")
        colour = COLOURS.get(part, "#0072b2")
        parts.append(
            f'<section style="--part: {colour}"><h2>{html.escape(part)}</h2><ol>{"".join(items)}</ol></section>'
        )
    index = folder / "index.html"
    index.write_text(
        INDEX.format(
            icon=icon_link(),
            mark=mark(44),
            count=len(titles),
            hours=sum(title.minutes for title in titles.values()) / 60,
            state="" if execute else "<strong>These pages have no outputs: they were not executed.</strong>",
            start=_start(notebooks, titles),
            chart=concept_map(notebooks, links) if notebooks else "",
            parts="\n".join(parts),
        ),
        encoding="utf-8",
    )
    return index


def _contents(body: str) -> str:
    """Links to the sections of a page."""
    sections = re.findall(r'<h2 id="([^"]+)">(.*?)<a class="anchor-link"', body)
    links = "".join(f'<a href="#{anchor}">{heading}</a>' for anchor, heading in sections)
    return f'<nav class="wb-contents" aria-label="Sections">{links}</nav>'


def _neighbours(ordered: Sequence[Path], path: Path, titles: Mapping[str, Title]) -> str:
    """Links to the notebooks before and after a notebook in reading order."""
    at = ordered.index(path)
    links = [
        (arrow, ordered[place]) for arrow, place in (("← {}", at - 1), ("{} →", at + 1)) if 0 <= place < len(ordered)
    ]
    written = [
        f'<a href="{other.stem}.html">{arrow.format(html.escape(titles[other.stem.partition("-")[0]].question))}</a>'
        for arrow, other in links
    ]
    return TURN.format(links="".join(written))


def _start(notebooks: Sequence[Path], titles: Mapping[str, Title]) -> str:
    """The sentence for newcomers; empty if the notebook for newcomers is not among the notebooks."""
    first = next((path for path in notebooks if path.stem.startswith("01-")), None)
    return "" if first is None else START.format(page=f"{first.stem}.html", question=html.escape(titles["01"].question))


def _one_block() -> Any:
    """Configuration of nbconvert that shows successive printed lines in one block, without gaps."""
    from traitlets.config import Config

    return Config(CoalesceStreamsPreprocessor={"enabled": True})


def _write_formulas(notebook: Any) -> None:
    for cell in notebook.cells:
        if cell.cell_type == "markdown":  # no line break between a number and its percent sign
            cell.source = re.sub(r"(\d) %(?! ?\d)", "\\1\u00a0%", formulas_as_mathml(cell.source))
