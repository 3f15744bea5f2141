"""Writes the course's page with its parts and map, and a picture of each notebook, which its metadata choose.

`WORKBENCH_EXECUTED=FOLDER python -m pytest tests/notebooks` leaves executed notebooks in a folder. From this folder,
`python -m benchmarks.notebook_pictures FOLDER` makes `docs/images/notebooks/NN-name.png`, `docs/course.md`, and the map
of all notebooks. Notebooks are stored without outputs, so that their differences stay small. Code hosts show the
pictures in `notebooks/README.md`.
"""

import argparse
import base64
import html
import io
import sys
from pathlib import Path

import nbformat
from PIL import Image, ImageChops, ImageOps

from workbench.course import exercises
from workbench.course._cards import card_of
from workbench.course._parts import concept_map, difficulty_of, label_of, parts_of, titles_of

PICTURES = Path(__file__).parents[1] / "docs" / "images" / "notebooks"
PAGE = PICTURES.parents[1] / "course.md"
MAP = PICTURES.parent / "course-map.html"
NOTEBOOKS = PAGE.parents[1] / "notebooks"
LIST = NOTEBOOKS / "README.md"
LIST_OPENING = """# The course

Each notebook asks one question. The notebooks are stored without outputs, and each picture shows one of their results.
`workbench lab` opens a copy of the course in JupyterLab, and `workbench course site` executes the notebooks and writes
them as web pages.
"""
WIDTH = 560
OPENING = """# The course

Each notebook asks one question, builds the idea before it calls the library, and explains what to look for in each
figure. It ends with self-checking exercises: `wb.course.check("09.2", answer)` grades values as well as a program's
plan and bytes. `workbench lab` opens the course in JupyterLab. To teach the course, see [For
lecturers](teaching/index.md). The [gallery](gallery/index.md) reproduces claims of papers.

**New here?** Start with [01](course/01-start-here.ipynb); it takes 35 minutes. If `jax.vmap`, `jax.lax.scan` or optax
are new to you, first read [00](course/00-the-jax-you-need.ipynb). Then choose by interest:

* federated learning: [02](course/02-placements-and-primitives.ipynb), [08](course/08-fedavg-on-real-data.ipynb),
  [09](course/09-client-drift.ipynb), [24](course/24-attacks-and-privacy.ipynb),
  [12](course/12-robustness-privacy-compression.ipynb);
* sharding and parallel training: [04](course/04-shardings-and-meshes.ipynb), [05](course/05-reading-the-hlo.ipynb),
  [06](course/06-what-does-it-cost.ipynb), [22](course/22-collectives-as-algorithms.ipynb),
  [23](course/23-one-transformer.ipynb);
* MapReduce on clusters: [02](course/02-placements-and-primitives.ipynb), [26](course/26-mapreduce.ipynb),
  [18](course/18-out-of-the-notebook.ipynb), [13](course/13-stragglers-and-coding.ipynb).

{count} notebooks, {exercises} exercises, {hours:.0f} hours. The map shows what each notebook builds on; click a box to
open it.

```{{raw}} html
:file: images/course-map.html
```

"""
CLOSING = """
```{toctree}
:hidden:

course/part-foundations
course/part-shardings-and-xla
course/part-parallel-training
course/part-federated-learning
course/part-trust
course/part-systems
```
"""


def main() -> None:
    """Writes a picture for each notebook of the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    settings = parser.parse_args()
    PICTURES.mkdir(parents=True, exist_ok=True)
    for path in sorted(settings.folder.glob("*.ipynb")):
        picture = card_of(nbformat.read(path, as_version=4))
        if picture is None:
            print(f"{path.stem}: no figure")
            continue
        drawn = drawn_svg(picture.content) if picture.suffix == ".svg" else Image.open(io.BytesIO(picture.content))
        image = on_white(drawn)
        height = round(image.height * WIDTH / image.width)
        image.resize((WIDTH, height), Image.Resampling.LANCZOS).quantize(128).save(
            PICTURES / f"{path.stem}.png", optimize=True
        )
        print(f"{path.stem}: {(PICTURES / f'{path.stem}.png').stat().st_size / 1024:.0f} KiB")
    notebooks = sorted(NOTEBOOKS.glob("*.ipynb"))
    PAGE.write_text(page(notebooks), encoding="utf-8")
    LIST.write_text(notebook_list(notebooks), encoding="utf-8")


def on_white(image: Image.Image) -> Image.Image:
    """A picture on white, with narrow margins."""
    white = Image.new("RGBA", image.size, "white")
    opaque = Image.alpha_composite(white, image.convert("RGBA")).convert("RGB")
    drawn = ImageChops.difference(opaque, white.convert("RGB")).getbbox()
    return ImageOps.expand(opaque.crop(drawn), border=6, fill="white")


def shown_by(path: Path) -> str:
    """What the picture of a notebook shows, for readers who do not see it."""
    cells = nbformat.read(path, as_version=4).cells
    return next(cell.metadata["card"]["shows"] for cell in cells if "card" in cell.metadata)


def page(notebooks: list[Path]) -> str:
    """The page of the course; its map is written next to the pictures."""
    links = {path.stem.partition("-")[0]: f"course/{path.stem}.html" for path in notebooks}
    MAP.write_text(concept_map(notebooks, links) + "\n", encoding="utf-8")
    minutes = sum(title.minutes for title in titles_of(notebooks).values())
    text = OPENING.format(count=len(notebooks), exercises=len(exercises()), hours=minutes / 60)
    for part, paths in parts_of(notebooks).items():
        cards = "\n".join(card(path) for path in paths)
        text += f"## {part}\n\n:::::{{container}} wb-cards\n{cards}\n:::::\n\n"
    return text.rstrip("\n") + "\n" + CLOSING


def write_parts(folder: Path) -> None:
    """Writes a page for each part of the course, which groups the notebooks in the sidebar of the site."""
    for part, paths in parts_of(sorted(NOTEBOOKS.glob("*.ipynb"))).items():
        entries = "\n".join(f"{label_of(path)} <{path.stem}>" for path in paths)
        text = f"# {part}\n\nA part of [the course](../course.md):\n\n```{{toctree}}\n{entries}\n```\n"
        (folder / f"part-{part.lower().replace(' ', '-')}.md").write_text(text, encoding="utf-8")


def card(path: Path) -> str:
    """A notebook on the page of the course: its picture if it has one, its question, minutes and difficulty."""
    (title,) = titles_of([path]).values()
    question = title.question
    named = " · ".join(filter(None, (title.number, f"{title.minutes} minutes", difficulty_of(title.number))))
    picture = ""
    if (PICTURES / f"{path.stem}.png").exists():
        picture = (
            f"```{{image}} images/notebooks/{path.stem}.png\n:alt: {shown_by(path)}\n"
            f":target: course/{path.stem}.html\n```\n"
        )
    return f"::::{{container}} wb-card\n{picture}{named}  \n{{doc}}`{question} <course/{path.stem}>`\n::::"


def notebook_list(notebooks: list[Path]) -> str:
    """The page of the notebooks' folder on a code host: a picture of each notebook and its question."""
    text = LIST_OPENING
    for part, paths in parts_of(notebooks).items():
        text += f"\n## {part}\n\n| | |\n|---|---|\n"
        for path in paths:
            (title,) = titles_of([path]).values()
            named = " · ".join(filter(None, (title.number, f"{title.minutes} minutes", difficulty_of(title.number))))
            source, alt = f"../docs/images/notebooks/{path.stem}.png", html.escape(shown_by(path))
            picture = f'<img src="{source}" alt="{alt}" width="280">'
            text += f"| {picture} | **[{title.question}]({path.name})**<br>{named} |\n"
    return text


def drawn_svg(content: bytes) -> Image.Image:
    """A drawing as a browser shows it."""
    sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "browser")]
    from chromium import open_browser

    with open_browser() as browser:
        tab = browser.new_page(viewport={"width": 1000, "height": 800}, color_scheme="light")
        tab.set_content(f'<img src="data:image/svg+xml;base64,{base64.b64encode(content).decode()}">')
        return Image.open(io.BytesIO(tab.locator("img").screenshot(timeout=120_000)))


if __name__ == "__main__":
    main()
