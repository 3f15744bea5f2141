"""Colours for light and dark pages, as CSS for live views and self-contained pictures.

Drawing code refers to colours by class (`wb-fill-clients`, `wb-stroke-line`, `wb-fill-muted`), never by value. A
self-contained picture uses `svg_style()`, which contains the colour values; a live page uses `css_variables()`, which
follows the notebook's theme. The hues are Okabe and Ito's, which readers with any common kind of colour vision can
distinguish; every hue is accompanied by a label or a pattern.
"""

import functools

from workbench.render._svg import Markup, element, rect, svg

OKABE_ITO = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#7F7F7F")
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"

_HUES = {
    "server": ("#5B6776", "#A9B4C2"),
    "program": ("#5B6776", "#A9B4C2"),  # the only stage of a program without clients
    "broadcast": ("#0072B2", "#56B4E9"),
    "clients": ("#00795A", "#33C79B"),
    "reduce": ("#B84A00", "#FF9A5C"),
    "loop": ("#8A4A74", "#E2A3C7"),
    "branch": ("#7A6400", "#E5D552"),
    "collective": ("#B84A00", "#FF9A5C"),
    "accent": ("#005A9C", "#6CBDF0"),
    "good": ("#00795A", "#33C79B"),
    "bad": ("#B3261E", "#FF8A80"),
}
_GROUND = {  # name: (light, dark, the notebook's own variable)
    "bg": ("#FFFFFF", "#15181C", "--jp-layout-color0"),
    "panel": ("#F6F7F9", "#1E2329", ""),  # see `_SHADES`
    "raised": ("#ECEEF1", "#2A3038", ""),
    "line": ("#D3D8DE", "#424B56", "--jp-border-color2"),
    "fg": ("#1B1F24", "#E8EBEF", "--jp-content-font-color1"),
    "muted": ("#57606A", "#A3ADB8", ""),  # Lab's own secondary text has a contrast below 4.5:1 on its darkest panels
}
# JupyterLab Light uses the same white for page and panels, so panels would have no edge. A live page therefore mixes
# panel colours from the page's background and text, in these shares of text.
_SHADES = {"panel": (4, 6), "raised": (8, 11)}
_CIVIDIS = (
    (0, 34, 78), (18, 53, 112), (59, 73, 108), (87, 93, 109), (112, 113, 115),
    (138, 134, 120), (165, 156, 116), (195, 179, 105), (225, 204, 85), (254, 232, 56),
)  # fmt: skip


def mix(a: str, b: str, share: float) -> str:
    """The colour at the fraction `share` of the way from `a` to `b`.

    Example:
        >>> mix("#000000", "#ffffff", 0.5)
        '#808080'
    """
    return "#" + "".join(f"{round(x + (y - x) * share):02x}" for x, y in zip(_rgb(a), _rgb(b), strict=True))


@functools.cache
def palette(dark: bool = False) -> dict[str, str]:
    """Every named colour for a light or a dark page.

    Base colours (`bg panel raised line fg muted`), one hue per kind of stage with a pale variant (`clients`,
    `clients-soft`), and `series-0` … `series-7`.
    """
    column = int(dark)
    colours = {name: values[column] for name, values in _GROUND.items()}
    for name, values in _HUES.items():
        colours[name] = values[column]
        colours[f"{name}-soft"] = mix(colours["bg"], values[column], 0.2 if dark else 0.1)
    for index, hue in enumerate(OKABE_ITO):
        colours[f"series-{index}"] = mix(hue, "#ffffff", 0.12) if dark else hue
    return colours


def sequential(share: float) -> str:
    """The colour of a value between 0 and 1 (cividis: uniform lightness, safe for colour blindness).

    Example:
        >>> sequential(0.0), sequential(1.0)
        ('#00224e', '#fee838')
    """
    place = min(max(share, 0.0), 1.0) * (len(_CIVIDIS) - 1)
    low = min(int(place), len(_CIVIDIS) - 2)
    pair = zip(_CIVIDIS[low], _CIVIDIS[low + 1], strict=True)
    return "#" + "".join(f"{round(a + (b - a) * (place - low)):02x}" for a, b in pair)


def ink_on(background: str) -> str:
    """Black or white, whichever is more readable on `background`.

    Example:
        >>> ink_on("#00224e"), ink_on("#fee838")
        ('#ffffff', '#000000')
    """
    return max(("#ffffff", "#000000"), key=lambda ink: contrast(ink, background))


def contrast(a: str, b: str) -> float:
    """The WCAG contrast between two colours, 1 to 21.

    Example:
        >>> contrast("#000000", "#ffffff")
        21.0
    """
    high, low = sorted((_luminance(a), _luminance(b)), reverse=True)
    return round((high + 0.05) / (low + 0.05), 2)


def picture(
    width: float, height: float, *children: object, label: str, dark: bool | None = None, live: bool = False
) -> Markup:
    """A complete SVG picture.

    The picture paints its own background in a light or a dark theme, or follows the system setting with `dark=None`. A
    `live` picture takes its background and colours from the page instead.
    """
    ground = None if live else rect(0, 0, width, height, class_="wb-fill-bg")
    return svg(width, height, ground, *children, label=label, style="" if live else svg_style(dark))


def svg_style(dark: bool | None = None) -> Markup:
    """CSS for a self-contained picture in a light or a dark theme; with `None`, it follows the system setting."""
    if dark is not None:
        return Markup(_TYPE + _classes(palette(dark)))
    night = _classes(palette(True))
    return Markup(f"{_TYPE}{_classes(palette(False))}@media (prefers-color-scheme: dark){{{night}}}")


def css_variables() -> Markup:
    """CSS for live views inside `.wb`: variables that follow the notebook's theme, and the classes that use them."""
    light, dark = palette(False), palette(True)
    host = {name: f"var({variable}, {{}})" for name, (_, _, variable) in _GROUND.items() if variable}
    mixed = "color-mix(in srgb,var(--wb-bg),var(--wb-fg) {}%)"

    def declared(colours: dict[str, str], index: int) -> str:
        values = {name: host.get(name, "{}").format(value) for name, value in colours.items()}
        values |= {name: mixed.format(shares[index]) for name, shares in _SHADES.items()}
        return "".join(f"--wb-{name}:{value};" for name, value in values.items())

    day, night = declared(light, 0), declared(dark, 1)
    # `data-wb-theme` lets a page (an exported report, a screenshot) choose; otherwise each host has its own attribute.
    hosts = (
        'body[data-jp-theme-light="false"]',
        'html[theme="dark"]',
        "body.vscode-dark",
        'html[data-wb-theme="dark"]',
    )
    dark_hosts = ",".join(f"{name} .wb" for name in hosts)
    undecided = 'body:not([data-jp-theme-light]):not(.vscode-light) .wb:not([data-wb-theme="light"] .wb)'
    return Markup(
        f".wb{{color-scheme:light;{day}}}"
        f"@media (prefers-color-scheme: dark){{{undecided}{{color-scheme:dark;{night}}}}}"
        f"{dark_hosts}{{color-scheme:dark;{night}}}"
        f"{_TYPE}{_classes({name: f'var(--wb-{name})' for name in light})}"
    )


def hatches() -> Markup:
    """Eight `<pattern>`s `wb-hatch-0` … `wb-hatch-7` that distinguish series without colour."""
    shapes = ("", "M0 6L6 0", "M0 0L6 6", "M3 0V6", "M0 3H6", "M0 3H6M3 0V6", "M0 0L6 6M0 6L6 0", "M1 1H2M4 4H5")
    patterns = [
        element(
            "pattern",
            element("path", d=shape, class_="wb-stroke-bg", stroke_width=1.2, fill="none") if shape else None,
            id=f"wb-hatch-{index}",
            width=6,
            height=6,
            patternUnits="userSpaceOnUse",
        )
        for index, shape in enumerate(shapes)
    ]
    return element("defs", *patterns)


_TYPE = (
    f".wb,.wb-svg{{font-family:{FONT};font-variant-numeric:tabular-nums}}.wb-mono{{font-family:{MONO}}}"
    ".wb-strong{font-weight:600}.wb-end{text-anchor:end}.wb-middle{text-anchor:middle}"
)


def _classes(colours: dict[str, str]) -> str:
    return "".join(
        f".wb-fill-{name}{{fill:{value}}}.wb-stroke-{name}{{stroke:{value}}}" for name, value in colours.items()
    )


def _rgb(colour: str) -> tuple[int, int, int]:
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _luminance(colour: str) -> float:
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in _rgb(colour))]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
