"""SVG and HTML as escaped text: elements, fitted text, numbers with units.

Everything inserted into an element is escaped, except what is already `Markup`.
"""

import base64
import functools
import html
import re
from collections.abc import Iterable

from workbench.render.units import number

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9:-]*")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_VOID = frozenset({"br", "hr", "img", "input", "meta", "link"})
_EM_PER_CHARACTER = 0.58  # width for a sans-serif typeface; the widest common fallback (DejaVu Sans) is near 0.6
_EM_PER_MONO_CHARACTER = 0.61


class Markup(str):
    """Escaped text that is safe in a page; created only by the functions of this module."""

    __slots__ = ()


def escape(text: object) -> Markup:
    """`text` with `& < > " '` escaped; unchanged if it is already markup.

    Example:
        >>> escape("a < b")
        'a &lt; b'
    """
    if isinstance(text, Markup):
        return text
    return Markup(html.escape(_printable(str(text)), quote=True))


def join(parts: Iterable[object], separator: str = "") -> Markup:
    """All `parts`, escaped and concatenated."""
    return Markup(str(escape(separator)).join(escape(part) for part in parts if part is not None))


def element(tag: str, *children: object, **attributes: object) -> Markup:
    """One element with escaped children and attributes.

    An attribute's trailing underscore is dropped and other underscores become hyphens (`class_`, `stroke_width`);
    `None` and `False` leave the attribute out, `True` writes it empty; numbers are shortened to two decimals.

    Raises:
        ValueError: if the tag or an attribute's name would break out of the element.

    Example:
        >>> element("rect", x=1.5, width=10.0, class_="wb-fill-bg", rx=None)
        '<rect x="1.5" width="10" class="wb-fill-bg"/>'
        >>> element("text", "a < b", font_size=12)
        '<text font-size="12">a &lt; b</text>'
    """
    if not _NAME.fullmatch(tag):
        message = f"`element` was given the tag {tag!r}; a tag is a letter followed by letters, digits, ':' or '-'"
        raise ValueError(message)
    written = "".join(_attribute(name, value) for name, value in attributes.items())
    inner = join(children)
    if not inner and tag in _VOID:
        return Markup(f"<{tag}{written}>")
    if not inner and tag not in _HTML_CONTAINERS:
        return Markup(f"<{tag}{written}/>")
    return Markup(f"<{tag}{written}>{inner}</{tag}>")


_HTML_CONTAINERS = frozenset(
    "a b body button caption code dd details div dl dt em figcaption figure h1 h2 h3 h4 head html i li main ol p pre "
    "script section small span strong style summary table tbody td tfoot th thead title tr ul".split()
)


def svg(width: float, height: float, *children: object, label: str, style: str = "", **attributes: object) -> Markup:
    """A complete SVG picture with a name for screen readers; `style` is trusted CSS (see `_theme.svg_style`).

    Example:
        >>> svg(10, 5, label="nothing")[:60]
        '<svg xmlns="http://www.w3.org/2000/svg" width="10" height="5'
    """
    sheet = element("style", Markup(style)) if style else None
    return element(
        "svg",
        element("title", label),
        sheet,
        *children,
        xmlns="http://www.w3.org/2000/svg",
        width=width,
        height=height,
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        aria_label=label,
        **({"class_": "wb-svg"} | attributes),
    )


def group(*children: object, **attributes: object) -> Markup:
    return element("g", *children, **attributes)


def rect(x: float, y: float, width: float, height: float, **attributes: object) -> Markup:
    """A rectangle; negative sizes become 0."""
    return element("rect", x=x, y=y, width=max(width, 0.0), height=max(height, 0.0), **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def text(
    x: float, y: float, content: object, *, fit: float | None = None, size: float = 12, **attributes: object
) -> Markup:
    """A line of text with its baseline at `y`, truncated to `fit` pixels; a tooltip shows the full text.

    Example:
        >>> text(0, 10, "ab", size=11)
        '<text x="0" y="10" font-size="11">ab</text>'
    """
    string = str(content)
    shown = string if fit is None else fit_text(string, fit, size)
    tooltip = element("title", string) if shown != string else None
    return element("text", shown, tooltip, x=x, y=y, font_size=size, **attributes)


def path(commands: str, **attributes: object) -> Markup:
    return element("path", d=commands, **attributes)


def text_width(content: str, size: float = 12, *, mono: bool = False) -> float:
    """Approximate width of `content` in pixels, more likely too large than too small."""
    return len(content) * size * (_EM_PER_MONO_CHARACTER if mono else _EM_PER_CHARACTER)


def fit_text(content: str, width: float, size: float = 12, *, mono: bool = False) -> str:
    """Shortens `content` with an ellipsis if it is wider than `width` pixels, but keeps line numbers.

    Example:
        >>> fit_text("reduce_weighted_mean", 80), fit_text("federated_round.py:27", 80)
        ('reduce_wei…', 'federat…:27')
    """
    if text_width(content, size, mono=mono) <= width:
        return content
    room = int(width / text_width("m", size, mono=mono)) - 1
    place = re.fullmatch(r"\S+(:\d+)", content)
    line = place[1] if place and len(place[1]) < room else ""
    return content[: room - len(line)] + "…" + line if room > 0 else "…"


def data_uri(picture: str | bytes) -> str:
    """An SVG or a PNG as a `data:` URL, which notebooks keep even if they strip inline SVG."""
    kind, content = ("png", picture) if isinstance(picture, bytes) else ("svg+xml", picture.encode())
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def _attribute(name: str, value: object) -> str:
    written = _attribute_name(name)
    if value is None or value is False:
        return ""
    if value is True:
        return f' {written}=""'
    shown = number(value) if isinstance(value, int | float) else str(escape(value))
    return f' {written}="{shown}"'


@functools.lru_cache(maxsize=512)  # names that the pictures use repeatedly
def _attribute_name(name: str) -> str:
    name = name.rstrip("_").replace("_", "-")
    if not _NAME.fullmatch(name):
        message = (
            f"`element` was given the attribute {name!r}; a name is a letter followed by letters, digits, ':' or '-'"
        )
        raise ValueError(message)
    return name


def _printable(content: str) -> str:
    # XML forbids most control characters; a single one in a name would make the whole picture unreadable.
    return content if content.isprintable() else _CONTROL.sub("�", content)
