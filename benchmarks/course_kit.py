"""What lecturers take from the notebooks: slides, versions without solutions, a cheat sheet, badges.

python -m benchmarks.course_kit slides notebooks/09-client-drift.ipynb --to build/slides [--execute]
python -m benchmarks.course_kit students --to build/students
python -m benchmarks.course_kit cheatsheet --to build/cheatsheet.pdf
python -m benchmarks.course_kit badges OWNER/REPOSITORY
python -m benchmarks.course_kit readme OWNER/REPOSITORY --to README.md
"""

import argparse
import re
import shutil
from pathlib import Path

import nbformat

from workbench.errors import needs_library

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


# nbconvert's page asks networks for require.js, jQuery, Mermaid, MathJax and reveal.js; this one needs the last alone,
# from the folder next to it.
PAGE = """{%- extends 'index.html.j2' -%}
{%- block html_head_js -%}{%- endblock html_head_js -%}
{%- block html_head_js_mathjax -%}{%- endblock html_head_js_mathjax -%}
{%- block footer_js -%}
<script src="reveal.js/dist/reveal.js"></script>
<script src="reveal.js/plugin/notes/notes.js"></script>
<script>
Reveal.initialize({controls: true, progress: true, hash: true, width: 1280, height: 800, plugins: [RevealNotes]});
const tooLong = () => document.querySelectorAll("section.present section, section.present").forEach((slide) => {
  if (!slide.querySelector("section") && slide.scrollHeight > 780) slide.classList.add("too-long");
});
Reveal.on("ready", tooLong);
Reveal.on("slidechanged", tooLong);
</script>
<style>
.reveal section.too-long {height: 780px; overflow-y: auto; top: 10px !important}
.reveal math {font-size: 1.1em}
</style>
{%- endblock footer_js -%}
"""
REVEAL = (
    "LICENSE",
    "dist/reveal.css",
    "dist/reveal.js",
    "dist/theme/white.css",
    "dist/theme/fonts/source-sans-pro",
    "plugin/notes/notes.js",
)


def copy_reveal(folder: Path) -> Path:
    """Copies what slides need of reveal.js, with its licence, from the installed `sphinx-revealjs` into a folder."""
    with needs_library("sphinx-revealjs", needed_for="`course_kit slides`"):
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
    """Markdown whose TeX formulas are MathML, which browsers draw without a script; code is left alone."""
    with needs_library("latex2mathml", needed_for="`course_kit slides`"):
        from latex2mathml.converter import convert

    def written(found: re.Match[str]) -> str:
        if found["code"]:
            return found["code"]
        formula = convert(found["block"] or found["inline"], display="block" if found["block"] else "inline")
        return re.sub(r"[*_`~]", lambda sign: f"&#{ord(sign[0])};", formula)  # no emphasis inside a formula

    pattern = r"(?P<code>```.*?```|`[^`]*`)|\$\$(?P<block>.+?)\$\$|\$(?P<inline>[^$\n]+?)\$"
    return re.sub(pattern, written, markdown, flags=re.DOTALL)


def is_left_out(cell: nbformat.NotebookNode) -> bool:
    """Whether slides go without this cell."""
    tagged = {"setup", "solution", "claims"} & set(cell.metadata.get("tags", ()))
    return bool(tagged) or cell.metadata.get("slideshow", {}).get("slide_type") == "skip"


def write_slides(notebooks: list[Path], folder: Path, *, execute: bool = False) -> list[Path]:
    """Writes reveal.js slides of each notebook; cells tagged as set-up or solution are left out.

    The pages work without a network: reveal.js is copied next to them, and formulas are MathML.

    Args:
        notebooks: The `.ipynb` files.
        folder: Where `NAME.slides.html` and the folder `reveal.js` are written.
        execute: Whether to run the notebook first, so that slides have its outputs.

    Returns:
        The pages written.
    """
    from nbconvert import SlidesExporter

    folder.mkdir(parents=True, exist_ok=True)
    copy_reveal(folder)
    written = []
    for path in notebooks:
        notebook = nbformat.read(path, as_version=4)
        if execute:
            from nbclient import NotebookClient

            client = NotebookClient(
                notebook, timeout=900, resources={"metadata": {"path": path.parent}}, store_widget_state=False
            )
            client.execute()
        # before nbconvert looks at them: it writes the end of a slide into the cell in front of the next one
        notebook.cells = [cell for cell in notebook.cells if not is_left_out(cell)]
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = formulas_as_mathml(cell.source)
        exporter = SlidesExporter(
            raw_template=PAGE,
            reveal_url_prefix="reveal.js",
            reveal_theme="white",
            exclude_input_prompt=True,
            exclude_output_prompt=True,
        )
        body, _ = exporter.from_notebook_node(notebook)
        written.append(folder / f"{path.stem}.slides.html")
        written[-1].write_text(body, encoding="utf-8")
    return written


def write_students(folder: Path) -> list[Path]:
    """Writes the notebooks without solutions; the answers' cells and their checks remain."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        notebook.cells = [cell for cell in notebook.cells if "solution" not in cell.metadata.get("tags", ())]
        written.append(folder / path.name)
        nbformat.write(notebook, written[-1])
    return written


SHEET = {
    "Programs": [
        "@wb.program(clients=64)            server -> clients -> server",
        "wb.broadcast(x)                    one copy for each client",
        "wb.map_fn(f, (a, b))               f of ONE client, at every client",
        "wb.reduce_sum / mean / max / min   clients -> server",
        "wb.reduce_weighted_mean(x, w)      by number of examples",
        "wb.reduce_by_key(x, keys, n)       MapReduce's shuffle",
        "transpose: broadcast <-> reduce_sum",
    ],
    "Look": [
        "t = wb.trace(fn)(*args); t.plan    stages, what is disclosed",
        "wb.inspect(fn)(*args)              collectives, memory, FLOPs",
        "wb.why(fn)(*args)                  why each collective is there",
        "wb.show / wb.explore               click, step",
        'wb.inspect(fn, on="v5e:4x4")   ahead of time for a TPU',
    ],
    "Shardings (mesh clients=4, model=2)": [
        'P("clients", None)                 rows in 4, columns whole',
        'P(None, "model")                   columns in 2',
        'P(("clients", "model"))            rows in 8',
        "x @ up @ down: columns, then rows -> one all-reduce",
    ],
    "Costs (n devices, S bytes, latency a, bandwidth B, m microbatches on p stages)": [
        "ring all-reduce     2 (n-1) a + 2 S (n-1)/n / B",
        "tree                2 log2 n (a + S / B)",
        "all-gather          (n-1) a + S (n-1)/n / B   (S: the result)",
        "bubble              (p-1) / (m+p-1)",
        "ridge               peak FLOP/s / bandwidth",
        "AdamW in float32    16 bytes a parameter",
    ],
    "Federated learning": [
        "FedAvg     K local steps, weighted mean of updates",
        "FedOpt     the mean update is a pseudo-gradient",
        "FedProx    + mu/2 |w - w_server|^2 at the client",
        "SCAFFOLD   y <- y - r (g - c_i + c)",
        "DiLoCo     H AdamW steps, outer Nesterov 0.7 / 0.9",
        "DP mean    clip to C, noise z C in the sum: z C / n in the mean",
    ],
}


def write_cheatsheet(path: Path) -> Path:
    """Writes one page A4 with the primitives, views, shardings, costs and algorithms of the course."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    path.parent.mkdir(parents=True, exist_ok=True)
    figure = plt.figure(figsize=(8.27, 11.69))
    figure.text(0.06, 0.955, "Workbench: the course on one page", fontsize=16, weight="bold")
    height = 0.925
    for title, lines in SHEET.items():
        figure.text(0.06, height, title, fontsize=11.5, weight="bold", color="#0072B2")
        for line in lines:
            height -= 0.0215
            figure.text(0.07, height, line, fontsize=9, family="monospace")
        height -= 0.037
    figure.text(0.06, 0.03, "Every exercise: wb.course.check(number, answer)", fontsize=9)
    figure.savefig(path, format="pdf", metadata={"CreationDate": None, "Title": "Workbench cheat sheet"})
    plt.close(figure)
    return path


COLAB = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
BINDER = "[![Open in Binder](https://mybinder.org/badge_logo.svg)]"


def badges_of(notebook: str, repository: str, branch: str) -> str:
    """Markdown that opens a notebook in Colab and in Binder, where its first code cell installs the package."""
    colab = f"https://colab.research.google.com/github/{repository}/blob/{branch}/notebooks/{notebook}"
    binder = f"https://mybinder.org/v2/gh/{repository}/{branch}?labpath=notebooks%2F{notebook}"
    return f"{COLAB}({colab}) {BINDER}({binder})"


def badges(repository: str, branch: str = "main") -> str:
    """A line with both badges for each notebook."""
    names = [path.name for path in sorted(NOTEBOOKS.glob("*.ipynb"))]
    return "\n".join(f"* {name.removesuffix('.ipynb')}: {badges_of(name, repository, branch)}" for name in names)


def absolute_readme(text: str, repository: str, branch: str = "main") -> str:
    """The README as the package index needs it: every link absolute, badges of the first notebook below the title."""
    title, _, rest = text.partition("\n")
    pages, files = (
        f"https://github.com/{repository}/blob/{branch}/",
        f"https://raw.githubusercontent.com/{repository}/{branch}/",
    )
    rest = re.sub(r"\]\((?!https?://|#)([^)\s]+)\)", rf"]({pages}\1)", rest)
    rest = re.sub(r'(src(?:set)?)="(?!https?://)([^"]+)"', rf'\1="{files}\2"', rest)
    return f"{title}\n\n{badges_of('01-start-here.ipynb', repository, branch)}\n{rest}"


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    slides = commands.add_parser("slides")
    slides.add_argument("notebooks", type=Path, nargs="*", default=sorted(NOTEBOOKS.glob("*.ipynb")))
    slides.add_argument("--to", type=Path, default=Path("build/slides"))
    slides.add_argument("--execute", action="store_true")
    commands.add_parser("students").add_argument("--to", type=Path, default=Path("build/students"))
    commands.add_parser("cheatsheet").add_argument("--to", type=Path, default=Path("build/cheatsheet.pdf"))
    commands.add_parser("badges").add_argument("repository")
    readme = commands.add_parser("readme")
    readme.add_argument("repository")
    readme.add_argument("--branch", default="main")
    readme.add_argument("--to", type=Path, required=True)
    asked = parser.parse_args()
    if asked.command == "slides":
        print(*write_slides(asked.notebooks, asked.to, execute=asked.execute), sep="\n")
    elif asked.command == "students":
        print(*write_students(asked.to), sep="\n")
    elif asked.command == "cheatsheet":
        print(write_cheatsheet(asked.to))
    elif asked.command == "readme":
        text = (NOTEBOOKS.parent / "README.md").read_text(encoding="utf-8")
        asked.to.write_text(absolute_readme(text, asked.repository, asked.branch), encoding="utf-8")
    else:
        print(badges(asked.repository))


if __name__ == "__main__":
    main()
