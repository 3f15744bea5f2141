"""The README of the package index, and badges that open the course elsewhere.

python -m benchmarks.published_readme OWNER/REPOSITORY --branch TAG --to README.md
python -m benchmarks.published_readme OWNER/REPOSITORY --badges
"""

import argparse
import re
from pathlib import Path

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"

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
    parser.add_argument("repository")
    parser.add_argument("--branch", default="main")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--to", type=Path)
    what.add_argument("--badges", action="store_true")
    asked = parser.parse_args()
    if asked.badges:
        print(badges(asked.repository, asked.branch))
    else:
        text = (NOTEBOOKS.parent / "README.md").read_text(encoding="utf-8")
        asked.to.write_text(absolute_readme(text, asked.repository, asked.branch), encoding="utf-8")


if __name__ == "__main__":
    main()
