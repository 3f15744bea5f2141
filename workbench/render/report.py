"""A report: titled sections of text, pictures and tables in one self-contained HTML file."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.render._html import figure, page, section
from workbench.render._svg import Markup, element, join

# A browser that opens the file must not load anything, even if a picture or a name in the file requests it.
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
_POLICY_OF_VIEWS = f"{_POLICY} blob:; script-src 'unsafe-inline' blob:; media-src blob:; font-src data:"
_STYLE = (
    # more specific than the style sheets of views, which are added to the page later
    ".wb-page main>div>section>h2{font-size:18px;margin:36px 0 8px}"
    ".wb-page main>div>section>p{font-size:16px;margin:6px 0}"
    ".wb-scroll{overflow-x:auto}td.wb-number,th.wb-number{text-align:right;font-variant-numeric:tabular-nums}nav "
    "ul{padding:0;margin:12px 0 0;list-style:none;display:flex;flex-wrap:wrap;gap:4px "
    "16px;font-size:14px}code{font-family:ui-monospace,monospace}.wb-page main>.wb-lead"
    "{font-size:17px;margin:6px 0}@media print{nav{display:none}section{break-inside:avoid}}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportText:
    """A paragraph."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportCode:
    """Preformatted lines, such as a program or a jaxpr."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportPicture:
    """An SVG with a caption; the caption is also the text for screen readers."""

    svg: str
    caption: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportImage:
    """A PNG with a caption; `dark` is shown instead if the reader's system uses dark mode."""

    png: bytes
    caption: str
    dark: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportTable:
    """A table; number columns (`12`, `3.4 MiB`) are right-aligned."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[object, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportView:
    """An interactive view with a caption; `fragment` is the view's own HTML with its script, and is not escaped."""

    fragment: str
    caption: str


_Piece = ReportText | ReportCode | ReportPicture | ReportImage | ReportTable | ReportView


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportSection:
    """A heading and its contents."""

    heading: str
    pieces: tuple[_Piece, ...]


def render_report(title: str, lead: str, sections: Sequence[ReportSection]) -> Markup:
    """The report as a complete page that follows the reader's light or dark system setting and loads no other files.

    All text is escaped. Pictures are embedded as images, so that their styles and ids do not collide.

    Example:
        >>> text = ReportText(text="1 < 2")
        >>> html = render_report("Report", "What this is.", [ReportSection(heading="A", pieces=(text,))])
        >>> "<p>1 &lt; 2</p>" in html
        True
    """
    links = [element("li", element("a", part.heading, href=f"#part-{n}")) for n, part in enumerate(sections)]
    body = [
        element("div", section(part.heading, *map(_render_piece, part.pieces)), id=f"part-{n}")
        for n, part in enumerate(sections)
    ]
    live = any(isinstance(piece, ReportView) for part in sections for piece in part.pieces)
    policy = _POLICY_OF_VIEWS if live else _POLICY  # a report without views runs no script
    head = join(
        [element("meta", http_equiv="Content-Security-Policy", content=policy), element("style", Markup(_STYLE))]
    )
    contents = element("nav", element("ul", *links), aria_label="Contents") if links else None
    return page(title, element("p", lead, class_="wb-lead"), contents, *body, head=head)


def _render_piece(piece: _Piece) -> Markup:
    match piece:
        case ReportText():
            return element("p", piece.text)
        case ReportCode():
            return element("pre", element("code", piece.text), tabindex="0")
        case ReportPicture():
            return figure(Markup(piece.svg), piece.caption)
        case ReportImage():
            return _render_image(piece)
        case ReportTable():
            return _render_table(piece)
        case ReportView():
            return element("figure", Markup(piece.fragment), element("figcaption", piece.caption))


def _render_image(piece: ReportImage) -> Markup:
    dark = piece.dark and element("source", srcset=_png_uri(piece.dark), media="(prefers-color-scheme: dark)")
    image = element("img", src=_png_uri(piece.png), alt=piece.caption)
    return element("figure", element("picture", dark or None, image), element("figcaption", piece.caption))


def _render_table(table: ReportTable) -> Markup:
    numeric = [all(_is_number(row[n]) for row in table.rows) for n in range(len(table.header))]
    classes = ["wb-number" if here and table.rows else None for here in numeric]
    header = [element("th", name, scope="col", class_=c) for name, c in zip(table.header, classes, strict=True)]
    rows = [
        element("tr", *(element("td", str(cell), class_=c) for cell, c in zip(row, classes, strict=True)))
        for row in table.rows
    ]
    parts = (element("caption", table.caption), element("thead", element("tr", *header)), element("tbody", *rows))
    return element("div", element("table", *parts), class_="wb-scroll", tabindex="0")


def _is_number(cell: object) -> bool:
    # "3.4 MiB", "–12", "1,024" and "unknown" are numbers; a stage's path "2.0" next to a name is text.
    text = str(cell).lstrip("-–~≈ ")
    return text[:1].isdigit() or text in ("", "unknown")


def _png_uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()
