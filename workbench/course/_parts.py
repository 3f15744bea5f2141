"""Course parts: order, difficulty, and the dependency map."""

import html
import re
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from workbench.course._notebooks import Title, read, title_of

# Title of the part -> number of the notebook -> difficulty
PARTS: dict[str, dict[str, int]] = {
    "Foundations": {"00": 1, "01": 1, "02": 1, "03": 2, "26": 2},
    "Shardings and XLA": {"04": 1, "05": 2, "06": 2, "07": 2, "19": 2},
    "Parallel training": {"15": 2, "22": 2, "23": 3, "30": 3, "29": 2, "14": 3},
    "Federated learning": {"08": 1, "09": 2, "27": 3, "28": 3, "21": 2, "10": 2, "31": 2, "25": 3, "11": 3},
    "Trust": {"24": 2, "12": 3, "20": 2},
    "Systems": {"13": 2, "16": 2, "17": 3, "18": 2},
}
COLOURS = dict(zip(PARTS, ("#0072b2", "#009e73", "#d55e00", "#cc79a7", "#e69f00", "#56b4e9"), strict=True))
SPELLED = {word.lower(): word for word in ("DiLoCo", "FedAvg", "HLO", "JAX", "MapReduce", "SUMMA")}
DIFFICULTY = {1: "first steps", 2: "builds on others", 3: "advanced"}


def parts_of(notebooks: Sequence[Path]) -> dict[str, list[Path]]:
    """Groups notebooks by part of the course, in reading order.

    Args:
        notebooks: The `.ipynb` files; their names start with their numbers.

    Returns: Notebooks keyed by the title of their part. Notebooks without a part come last, under "More".

    Example:
        >>> found = parts_of([Path("08-fedavg.ipynb"), Path("01-start.ipynb")])
        >>> {part: len(paths) for part, paths in found.items()}
        {'Foundations': 1, 'Federated learning': 1}
    """
    by_number = {path.stem.partition("-")[0]: path for path in notebooks}
    parts = {
        part: [by_number.pop(number) for number in numbers if number in by_number] for part, numbers in PARTS.items()
    }
    parts["More"] = list(by_number.values())
    return {part: paths for part, paths in parts.items() if paths}


def part_of(number: str) -> str:
    """Returns the title of the part that contains a notebook, or "" for a notebook outside the course.

    Example:
        >>> part_of("08")
        'Federated learning'
    """
    return next((part for part, numbers in PARTS.items() if number in numbers), "")


def difficulty_of(number: str) -> str:
    """Returns the difficulty of a notebook, or "" for a notebook outside the course.

    Example:
        >>> difficulty_of("08")
        'first steps'
    """
    return next((DIFFICULTY[numbers[number]] for numbers in PARTS.values() if number in numbers), "")


def label_of(path: Path) -> str:
    """Returns the number and the short title of a notebook.

    Example:
        >>> label_of(Path("08-fedavg-on-real-data.ipynb"))
        '08 FedAvg on real data'
    """
    number, *words = path.stem.split("-")
    title = " ".join(SPELLED.get(word, word) for word in words)
    return f"{number} {title[:1].upper()}{title[1:]}"


def prerequisites_of(path: Path) -> list[str]:
    """The numbers of the prerequisite notebooks to which the first cells link."""
    opening = "\n".join(cell.source for cell in read(path).cells[:4])
    named = re.search(r"\*\*Prerequisites\.\*\*(.*?)\*\*Time", opening, re.DOTALL)
    return re.findall(r"\]\((\d\d)-[\w-]+\.ipynb\)", named[1]) if named else []


def concept_map(notebooks: Sequence[Path], links: Mapping[str, str]) -> str:
    """Draws the dependencies between notebooks, with one column per part; with two columns on a phone.

    Example:
        >>> concept_map([], {}).startswith("<style")
        True
    """
    parts = parts_of(notebooks)
    return MAP_STYLE + _drawn_map(parts, links, "wb-wide", len(parts)) + _drawn_map(parts, links, "wb-narrow", 2)


MAP_STYLE = (
    "<style>.wb-map{--paper:var(--color-background-primary,Canvas);display:block;width:100%}"
    ".wb-map rect{fill:color-mix(in srgb,var(--part) 14%,var(--paper));stroke:var(--part)}"
    ".wb-map a{text-decoration:none;color:inherit}"
    ".wb-map a:hover rect{fill:color-mix(in srgb,var(--part) 35%,var(--paper))}"
    ".wb-map path{fill:none;stroke:currentColor;opacity:.35}"
    "@media (max-width:46rem){.wb-map.wb-wide{display:none}}"
    "@media not all and (max-width:46rem){.wb-map.wb-narrow{display:none}}</style>"
)


def _drawn_map(parts: Mapping[str, Sequence[Path]], links: Mapping[str, str], name: str, columns: int) -> str:
    """Draws one box per notebook; each row of the map has `columns` parts."""
    width, height, gap, top, margin = 122, 60, 26, 34, 20
    place, boxes, lines = {}, [], []
    titles = list(parts)
    y = 0
    for row in range(0, len(titles), columns or 1):
        for column, part in enumerate(titles[row : row + columns]):
            x = column * (width + gap) + margin
            boxes.append(f'<text x="{x}" y="{y + 16}" font-weight="600">{html.escape(part)}</text>')
            for line, path in enumerate(parts[part]):
                place[path.stem.partition("-")[0]] = x, y + top + line * (height + 14)
        y += top + max(len(parts[part]) for part in titles[row : row + columns]) * (height + 14)
    size = columns * (width + gap) - gap + margin + 18, y
    for part, path in ((part, path) for part, paths in parts.items() for path in paths):
        number = path.stem.partition("-")[0]
        x, y = place[number]
        for before in prerequisites_of(path):
            if before not in place:
                continue
            from_x, from_y = place[before]
            start, end = (from_x + width, x) if from_x < x else (from_x, x + width)
            bends = ((start + end) / 2,) * 2
            if from_x == x:  # in the same column: the curve follows its left side
                start, end, bends = x, x, (x - 22, x - 22)
            high, low = from_y + height / 2, y + height / 2
            bend = f"M{start} {high} C{bends[0]} {high},{bends[1]} {low},{end} {low}"
            lines.append(f'<path d="{bend}"/>')
        texts = textwrap.wrap(label_of(path).partition(" ")[2], 19, max_lines=2, placeholder=" …")
        named = "".join(
            f'<text x="{x + 8}" y="{y + 34 + 15 * line}" font-size="11">{html.escape(text)}</text>'
            for line, text in enumerate(texts)
        )
        boxes.append(
            f'<a href="{html.escape(links[number])}" style="--part:{COLOURS.get(part, "#0072b2")}">'
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'
            f'<text x="{x + 8}" y="{y + 18}" font-weight="600">{number}</text>{named}</a>'
        )
    return (
        f'<svg class="wb-map {name}" viewBox="0 0 {size[0]} {size[1]}" role="img" '
        f'aria-label="What each notebook builds on" style="max-width:{1.3 * size[0]:.0f}px" '
        f'font-family="inherit" font-size="13" fill="currentColor">{"".join(lines)}{"".join(boxes)}</svg>'
    )


def titles_of(notebooks: Sequence[Path]) -> dict[str, Title]:
    """Reads the title in the first cell of each notebook; returns the titles keyed by notebook number.

    Example:
        >>> titles_of([])
        {}
    """
    return {path.stem.partition("-")[0]: title_of(path) for path in notebooks}
