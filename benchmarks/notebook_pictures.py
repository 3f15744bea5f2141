"""The README's picture of each notebook: the largest figure that it drew when it was run.

`WORKBENCH_EXECUTED=FOLDER python -m pytest tests/notebooks` leaves the notebooks with their outputs in a folder, and
`python -m benchmarks.notebook_pictures FOLDER` makes `docs/images/notebooks/NN-name.png` of them.
"""

import argparse
import base64
import io
import sys
from pathlib import Path

import nbformat
from PIL import Image

PICTURES = Path(__file__).parents[1] / "docs" / "images" / "notebooks"
WIDTH = 560


def main() -> None:
    """Writes a picture for each notebook of the folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prefer", nargs="*", default=[], help="NN:K takes the K-th figure of notebook NN, from 0")
    settings = parser.parse_args()
    wanted = dict(choice.split(":") for choice in settings.prefer)
    PICTURES.mkdir(parents=True, exist_ok=True)
    for path in sorted(settings.folder.glob("*.ipynb")):
        figures = figures_of(path)
        if not figures:
            print(f"{path.stem}: no figure")
            continue
        number = path.stem.partition("-")[0]
        wide = [image for image in figures if image.height <= image.width] or figures
        best = max(wide, key=lambda image: image.width * image.height)
        chosen = figures[int(wanted[number])] if number in wanted else best
        height = round(chosen.height * WIDTH / chosen.width)
        small = chosen.convert("RGB").resize((WIDTH, height), Image.Resampling.LANCZOS)
        small.quantize(128).save(PICTURES / f"{path.stem}.png", optimize=True)
        print(f"{path.stem}: {len(figures)} figures, {(PICTURES / f'{path.stem}.png').stat().st_size / 1024:.0f} KiB")


def figures_of(path: Path) -> list[Image.Image]:
    """What a notebook drew, in order: its images, and the pictures that stand in for its live views."""
    found = []
    for cell in nbformat.read(path, as_version=4).cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                found.append(Image.open(io.BytesIO(base64.b64decode(data["image/png"]))))
            elif "data:image/svg+xml" in data.get("text/html", ""):
                found.append(_drawn(data["text/html"]))
    return found


def _drawn(page: str) -> Image.Image:
    """A static picture of a view, as a browser draws it."""
    sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "browser")]
    from chromium import open_browser

    with open_browser() as browser:
        tab = browser.new_page(viewport={"width": 1000, "height": 800}, color_scheme="light")
        tab.set_content(page)
        picture = tab.locator("img").first.screenshot()
    return Image.open(io.BytesIO(picture))


if __name__ == "__main__":
    main()
