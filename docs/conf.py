"""Sphinx configuration of the documentation site, `python -m sphinx -W docs build/site`; nothing is fetched."""

import importlib
import inspect
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math import latex2mathml
from sphinx import addnodes
from sphinx.ext import intersphinx

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "widgets"), str(ROOT / "docs")]

from field_glossary import PAGES, SEARCHED, TERMS  # noqa: E402
from other_sites import ALIASES, write_inventories  # noqa: E402

from workbench.render import mark  # noqa: E402

project = "Workbench"
author = "The Workbench authors"
copyright = "2026, the Workbench authors"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.intersphinx",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the notebooks are executed and checked by the test suite, which stores their outputs
nb_merge_streams = True
nb_code_prompt_show = "Show the solution"
nb_code_prompt_hide = "Hide the solution"
nb_ipywidgets_js = {}  # pages show pictures of the widgets, so no script is fetched for them
suppress_warnings = ["mystnb.unknown_mime_type"]  # live widgets have a static picture next to them

intersphinx_mapping = write_inventories(ROOT / "docs" / "_build" / "inventories")
intersphinx_disabled_reftypes = ["*:doc"]

autosummary_generate = True
autosummary_imported_members = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_use_ivar = True

html_math_renderer = "mathml"  # browsers draw it themselves; MathJax would be fetched from a network
html_theme = "furo"
html_title = "Workbench"
html_static_path = ["_static"]
html_logo = html_favicon = "_static/mark.svg"
(ROOT / "docs" / html_logo).write_text(mark(64), encoding="utf-8")
html_css_files = ["site.css"]
html_js_files = [("reference.js", {"defer": "defer"})]
html_copy_source = False
BRAND = {"light_css_variables": "#005a8f", "dark_css_variables": "#7cc4f2"}  # links in the blue of views and slides
html_theme_options = {
    "source_repository": "",
    "navigation_with_keys": True,
    **{name: {"color-brand-primary": color, "color-brand-content": color} for name, color in BRAND.items()},
}
exclude_patterns = ["images/notebooks/README.md", "_build", "build"]
templates_path = ["_templates"]


REFERENCE = (path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md"))
PACKAGES = re.findall(r"automodule:: (\S+)", "".join(REFERENCE))


NO_OUTPUTS = "> **This page was built without outputs.** Figures are missing. `workbench course site` executes it.\n\n"


def copy_course(app: object) -> None:
    """Puts the notebooks where the site can include them, with their outputs if they were executed, and their parts."""
    from benchmarks import notebook_pictures

    course = ROOT / "docs" / "course"
    course.mkdir(exist_ok=True)
    executed = Path(os.environ.get("WORKBENCH_EXECUTED", ROOT / "notebooks"))  # the test suite leaves outputs there
    if executed == ROOT / "notebooks":
        print(
            "NO OUTPUTS: the course's pages are built without figures. To execute the notebooks (about 20 minutes):\n"
            "  WORKBENCH_EXECUTED=FOLDER python -m pytest tests/notebooks -m notebook\n"
            "then build with the same WORKBENCH_EXECUTED=FOLDER, or use `workbench course site`.",
            file=sys.stderr,
        )
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        target = course / path.name
        path = executed / path.name if (executed / path.name).exists() else path
        text = with_folded_figures(without_folders(path.read_text(encoding="utf-8")))
        if '"outputs": [\n' not in text:
            text = with_notice(text)
        if not target.exists() or target.read_text(encoding="utf-8") != text:
            target.write_text(text, encoding="utf-8")
    notebook_pictures.write_parts(course)


def with_notice(notebook: str) -> str:
    """A notebook whose page says below its title that outputs are missing."""
    cells = json.loads(notebook)
    title, _, rest = "".join(cells["cells"][0]["source"]).partition("\n\n")
    cells["cells"][0]["source"] = f"{title}\n\n{NO_OUTPUTS}{rest}"
    return json.dumps(cells, ensure_ascii=False, indent=1)


def with_folded_figures(notebook: str) -> str:
    """A notebook whose cells that only draw show their figure, and their code on demand."""
    cells = json.loads(notebook)
    for cell in cells["cells"]:
        source, settings = "".join(cell["source"]), cell["metadata"]
        if cell["cell_type"] == "code" and source.startswith("figure, ") and source.endswith("figure;"):
            settings["tags"] = [*settings.get("tags", ()), "hide-input"]
            settings["mystnb"] = {
                f"code_prompt_{verb}": f"{verb.title()} the code of the figure" for verb in ("show", "hide")
            }
    return json.dumps(cells, ensure_ascii=False, indent=1)


def without_folders(notebook: str) -> str:
    """An executed notebook, whose tracebacks name no folder of the machine that ran it."""
    notebook = notebook.replace(f"{ROOT}/", "")
    return re.sub(r"/(?:[\w.+-]{1,60}/){0,8}ipykernel_\d+/\d+\.py", "notebook cell", notebook)


def write_views(app: object) -> None:
    """Writes the views of the front page, interactive without a kernel: the explorer, and its program in the player."""
    from benchmarks import front_page

    wb = importlib.import_module("workbench")
    wb.simulate_devices(8)
    front_page.write_player(ROOT / "docs" / "_static" / "player.html")
    front_page.write_explorer(ROOT / "docs" / "_static" / "explorer.html")


def glossary() -> dict[str, tuple[str, str]]:
    """Returns the terms of the views, from the table that they show, and of the field: explanation, and page."""
    from workbench.render import GLOSSARY, LESSONS

    pages = {word: f"course/{notebook}" for word, notebook in LESSONS.items()} | PAGES
    return {word: (sentence, pages.get(word, "")) for word, sentence in GLOSSARY.items()} | TERMS


def add_search_words(app: Any, doctree: nodes.document) -> None:
    """Adds index entries: the search first shows the page that explains a glossary term, or that `SEARCHED` names."""
    pages = {term.lower(): page for term, (_, page) in glossary().items()}
    pages |= {word: page for page, words in SEARCHED.items() for word in words.split(", ")}
    words = [word for word, page in pages.items() if page == app.env.docname]
    if words:
        entries = [("single", word, "", "main", None) for word in words]
        next(doctree.findall(nodes.section)).insert(1, addnodes.index(entries=entries))


def write_glossary(app: object) -> None:
    """Writes the page of terms."""
    terms = glossary()
    entries = []
    for word in sorted(terms, key=str.casefold):
        sentence, page = terms[word]
        more = f" [More]({page}.{'ipynb' if page.startswith('course/') else 'md'})" if page else ""
        entries.append(f"{word}\n: {sentence}{more}\n")
    head = f"# Glossary\n\n{len(terms)} terms from federated learning, sharding and compiled programs.\n\n"
    (ROOT / "docs" / "glossary.md").write_text(head + "\n".join(entries), encoding="utf-8")


def skip_member(app: object, what: str, name: str, thing: object, skip: bool, options: object) -> bool:
    """Leaves out what a package merely imports from elsewhere."""
    if (inspect.getdoc(thing) or "").startswith("Alias for field number"):
        return True  # a field of a NamedTuple: its class says more
    module = inspect.getmodule(thing)
    return skip or (module is not None and not module.__name__.startswith(("workbench", "workbench_widgets")))


def plain_docstring(app: object, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Reads our docstrings as they are meant: single backticks are code, and tables stay as they are written."""
    text = re.sub(r"(?<!`)`([^`\n]+)`(?!`)", r"``\1``\\ ", "\n".join(lines))
    text = text.replace("Args (of the constructor):", "Args:")
    written: list[str] = []
    for line in text.split("\n"):
        if line.lstrip().startswith("|") and not (written and written[-1].lstrip().startswith("|")):
            written += ["::", ""]
        written.append(f"    {line}" if line.lstrip().startswith("|") else line)
    lines[:] = written


def write_math(translator: Any, node: nodes.Element) -> None:
    """Writes a formula as MathML."""
    block = isinstance(node, nodes.math_block)
    formula = latex2mathml.tex2mathml(re.sub(r"\\dots(?![a-z])", r"\\ldots", node.astext()), as_block=block)
    translator.body.append(f'<div class="math">{formula}</div>' if block else formula)
    raise nodes.SkipNode


def short_types(
    app: object, what: str, name: str, thing: object, options: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Writes the types of arrays as they stand in the source: `Float[Array, "clients"]`."""

    def shorten(text: str | None) -> str | None:
        if text is None:
            return None
        text = re.sub(r"jaxtyping\.(\w+)\[(?:jaxlib\._jax\.|jax\.)?Array, '([^']*)'\]", r"\1[Array, '\2']", text)
        return re.sub(r"\b(?:collections\.abc|typing)\.(?=[A-Z])", "", text)

    return shorten(signature), shorten(returns)


# How pages write a package -> where the reference has its names.
SHORT = {
    **{f"wb.{name}.": f"workbench.federated.{name}." for name in ("algorithms", "data", "experiments", "population")},
    "wb.": "workbench.",
    "jnp.": "jax.numpy.",
    "np.": "numpy.",
    "nnx.": "flax.nnx.",
}


def link_names(app: object, doctree: nodes.document) -> None:
    """Makes links of the names in running text: `wb.inspect(fn)` and `jax.jit` lead to their documentation."""
    for literal in list(doctree.findall(nodes.literal)):
        name = re.match(r"(?:wb|workbench|jax|jnp|np|numpy|optax|nnx)(?:\.[A-Za-z_]\w*)+", literal.astext())
        inside = literal.parent
        while inside is not None and not isinstance(inside, nodes.reference | addnodes.pending_xref | nodes.title):
            inside = inside.parent
        if name is None or inside is not None:
            continue
        short = next((prefix for prefix in SHORT if name[0].startswith(prefix)), "")
        target = SHORT.get(short, "") + name[0].removeprefix(short)
        link = addnodes.pending_xref(
            "",
            refdomain="py",
            reftype="obj",
            reftarget=target,
            refexplicit=True,
            refwarn=False,
            refdoc=app.env.docname,  # type: ignore[attr-defined]
        )
        literal.replace_self(link)
        link += literal


def resolve_alias(app: Any, env: Any, node: addnodes.pending_xref, content: nodes.TextElement) -> nodes.Element | None:
    """Resolves a type that a signature names as in its source, or where it is defined, to its public documentation."""
    if (public := ALIASES.get(node["reftarget"])) is None:
        return None
    node["reftarget"] = public
    return intersphinx.missing_reference(app, env, node, content)


def name_every_export(app: object, doctree: nodes.document) -> None:
    """Adds an anchor for each package that exports a documented name: the pages of the source link to any of them."""
    for signature in doctree.findall(addnodes.desc_signature):
        name = signature.get("fullname")
        thing = getattr(sys.modules.get(signature.get("module") or ""), name or "", None)
        for package in [] if thing is None else PACKAGES:
            anchor = f"{package}.{name}"
            if getattr(importlib.import_module(package), name, None) is thing and anchor not in signature["ids"]:
                signature["ids"].append(anchor)


SHADES = re.compile(r"\b(black|white|dark|light|bright|pale)(er)?\b", re.IGNORECASE)  # as in `workbench course site`


def describe_figures(app: object, doctree: nodes.document) -> None:
    """Marks the captions of figures, and gives each figure its caption as alternative text."""
    for paragraph in doctree.findall(nodes.paragraph):
        if paragraph.astext().startswith("What to look for."):
            paragraph["classes"].append("wb-look")
    for image in doctree.findall(nodes.image):
        if not str(image.get("uri", "")).endswith(".png") or image.get("alt", image["uri"]) != image["uri"]:
            continue
        after = image.next_node(nodes.paragraph, ascend=True, siblings=True, descend=True)
        title = next(doctree.findall(nodes.title), None)
        said = after.astext() if after is not None else ""
        seen = said.removeprefix("What to look for.").strip() if said.startswith("What to look for.") else ""
        image["alt"] = seen[:300] or f"A figure of: {title.astext() if title else 'this page'}"
        if not SHADES.search(said):
            image["classes"].append("wb-inverts")


def first_sentence(page: nodes.document) -> list[nodes.Node]:
    """Returns the first sentence of a page, without links."""
    sentence: list[nodes.Node] = []
    for node in next((part.children for part in page.findall(nodes.paragraph)), ()):
        text = node.astext()
        end = re.match(r"(.*?[.])(?=\s|$)", text, re.DOTALL) if isinstance(node, nodes.Text) else None
        if end is not None:
            return [*sentence, nodes.Text(end[1])]
        is_link = isinstance(node, addnodes.pending_xref | nodes.reference)
        sentence += [child.deepcopy() for child in (node.children if is_link else [node])]
    return sentence


def explain_links(app: Any, doctree: nodes.document, name: str) -> None:
    """Explains each link of a list of pages by the page's first sentence; a link with a short title by the title."""
    for toctree in list(doctree.findall(addnodes.toctree)):
        if toctree["hidden"]:
            continue
        terms = nodes.definition_list(classes=["wb-links"])
        for label, page in toctree["entries"]:
            title = app.env.titles[page].astext()
            link = nodes.reference("", label or title, refuri=app.builder.get_relative_uri(name, page), internal=True)
            sentence = [nodes.Text(title)] if label else first_sentence(app.env.get_doctree(page))
            explanation = nodes.definition("", nodes.paragraph("", "", *sentence))
            terms += nodes.definition_list_item("", nodes.term("", "", link), explanation)
        toctree.replace_self(terms)


def setup(app: object) -> None:
    """Registers the hooks."""
    app.connect("builder-inited", copy_course)  # type: ignore[attr-defined]
    app.connect("builder-inited", write_views)  # type: ignore[attr-defined]
    app.connect("builder-inited", write_glossary)  # type: ignore[attr-defined]
    app.connect("autodoc-process-docstring", plain_docstring, 400)  # type: ignore[attr-defined]
    app.add_html_math_renderer("mathml", (write_math, None), (write_math, None))  # type: ignore[attr-defined]
    app.connect("autodoc-process-signature", short_types)  # type: ignore[attr-defined]
    app.connect("doctree-read", add_search_words)  # type: ignore[attr-defined]
    app.connect("doctree-read", link_names)  # type: ignore[attr-defined]
    app.connect("missing-reference", resolve_alias)  # type: ignore[attr-defined]
    app.connect("doctree-read", name_every_export)  # type: ignore[attr-defined]
    app.connect("doctree-read", describe_figures)  # type: ignore[attr-defined]
    app.connect("doctree-resolved", explain_links)  # type: ignore[attr-defined]
    app.connect("autodoc-skip-member", skip_member)  # type: ignore[attr-defined]
