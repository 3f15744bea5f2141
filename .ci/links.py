"""Checks a built site, `python .ci/links.py SITE`: every link, anchor and file of ours is there, nothing is fetched.

Sphinx with -W checks the references that it resolves itself; here are those of finished pages, also of raw HTML, of
notebooks' outputs and of the theme. Links to other sites cannot be followed without a network: they must have a host
and no blank, no more. Every image has an alternative text.
"""

import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADS = {("script", "src"), ("img", "src"), ("source", "srcset"), ("video", "src"), ("iframe", "src"), ("link", "href")}
LEADS = {("a", "href"), ("form", "action"), ("object", "data")}
# Relations of <link> that name a page and load nothing.
NAMED_ONLY = {"canonical", "index", "search", "next", "prev", "genindex", "author"}


class Page(HTMLParser):
    """The anchors and the links of one page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.loads: list[str] = []
        self.leads: list[str] = []
        self.images_without_text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes what one element names, loads and leads to."""
        found = {name: value or "" for name, value in attrs}
        self.anchors |= {found[name] for name in ("id", "name") if found.get(name)}
        if tag == "img" and not found.get("alt", "").strip() and found.get("role") != "presentation":
            self.images_without_text.append(found.get("src", "")[:80])
        for name, value in found.items():
            if (tag, name) in LEADS or (tag == "link" and found.get("rel") in NAMED_ONLY and name == "href"):
                self.leads.append(value)
            elif (tag, name) in LOADS:
                self.loads.append(value)


def faults(site: Path) -> Iterator[str]:
    """What is wrong with the site, a line per fault."""
    pages = {path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    if not pages:
        yield f"{site}: no page is there"
    for path, page in pages.items():
        name = path.relative_to(site)
        yield from (f"{name}: the image {image} has no alternative text" for image in page.images_without_text)
        yield from (f"{name}: loads {link} from another site" for link in page.loads if urlsplit(link).netloc)
        for link in dict.fromkeys(page.leads + page.loads):
            if (fault := fault_of(link, path, pages)) is not None:
                yield f"{name}: {link[:120]}: {fault}"


def fault_of(link: str, path: Path, pages: dict[Path, Page]) -> str | None:
    """Why a link of a page leads nowhere; None where it does not."""
    parts = urlsplit(link)
    if parts.scheme in ("http", "https"):
        return None if "." in parts.netloc and " " not in link else "not an address"
    if parts.scheme in ("data", "mailto", "javascript"):
        return None
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.is_file():
        return "there is no such file"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].anchors:
        return "the page has no such anchor"
    return None


def main() -> int:
    """Prints the faults of a site."""
    found = list(faults(Path(sys.argv[1]).resolve()))
    print(*found, sep="\n")
    print(f"{len(found)} faults of links and images")
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main())
