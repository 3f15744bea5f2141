"""The README of a package index.

python -m benchmarks.published_readme OWNER/REPOSITORY --branch TAG --to README.md
"""

import argparse
import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def absolute_readme(text: str, repository: str, branch: str = "main") -> str:
    """The README as a package index needs it: every link is absolute."""
    pages, files = (
        f"https://github.com/{repository}/blob/{branch}/",
        f"https://raw.githubusercontent.com/{repository}/{branch}/",
    )
    text = re.sub(r"\]\((?!https?://|#)([^)\s]+)\)", rf"]({pages}\1)", text)
    return re.sub(r'(src(?:set)?)="(?!https?://)([^"]+)"', rf'\1="{files}\2"', text)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repository")
    parser.add_argument("--branch", default="main")
    parser.add_argument("--to", type=Path, required=True)
    asked = parser.parse_args()
    asked.to.write_text(
        absolute_readme(README.read_text(encoding="utf-8"), asked.repository, asked.branch), encoding="utf-8"
    )


if __name__ == "__main__":
    main()
