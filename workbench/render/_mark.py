"""The logo of Workbench: one value is sent to three clients, and one value returns."""

from workbench.render._svg import Markup, data_uri, element
from workbench.render._theme import OKABE_ITO

_START, _CLIENTS, _RESULT = (16, 5), ((5, 16), (16, 16), (27, 16)), (16, 27)
_LINE = "#7F8A96"  # like the hues, contrast of at least 3:1 on light and dark pages


def mark(size: int = 32) -> Markup:
    """Draws the logo as a self-contained SVG that is readable at 16 pixels and above.

    Args:
        size: Width and height in pixels.

    Example:
        >>> mark(16)[:58]
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32'
    """
    paths = "".join(f"M{_START[0]} {_START[1]}L{x} {y}L{_RESULT[0]} {_RESULT[1]}" for x, y in _CLIENTS)
    lines = element("path", d=paths, fill="none", stroke=_LINE, stroke_width=2)
    blue, green, vermilion = OKABE_ITO[0], OKABE_ITO[2], OKABE_ITO[5]
    places = ((_START, blue), *((place, green) for place in _CLIENTS), (_RESULT, vermilion))
    dots = [element("circle", cx=x, cy=y, r=4.5, fill=hue) for (x, y), hue in places]
    return element(
        "svg", lines, *dots, xmlns="http://www.w3.org/2000/svg", viewBox="0 0 32 32", width=size, height=size,
        aria_hidden="true", style="vertical-align:-.12em",
    )  # fmt: skip


def icon_link() -> Markup:
    """The `link` element that makes the logo a page's icon without a separate file.

    Example:
        >>> icon_link()[:48]
        '<link rel="icon" type="image/svg+xml" href="data'
    """
    return element("link", rel="icon", type="image/svg+xml", href=data_uri(mark()))
