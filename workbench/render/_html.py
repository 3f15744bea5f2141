"""HTML figures, and self-contained pages around pictures and tables."""

from workbench.render._mark import icon_link, mark
from workbench.render._svg import Markup, data_uri, element, join
from workbench.render._theme import css_variables

_PAGE = (
    "body{margin:0}.wb-page{min-height:100vh;background:var(--wb-bg);color:var(--wb-fg)}"
    "main{max-width:1080px;margin:0 auto;padding:32px 20px 64px;line-height:1.5}"
    "h1{font-size:26px;margin:0 0 4px}h2{font-size:18px;margin:36px 0 8px}p{margin:6px 0}"
    "a{color:var(--wb-accent)}figure{margin:12px 0}figcaption{color:var(--wb-muted);font-size:13px}"
    "img,svg{max-width:100%;height:auto}pre{background:var(--wb-panel);padding:10px;overflow:auto;font-size:12px}"
    "@media(max-width:40rem){figure{overflow-x:auto}figure img{max-width:max(100%,38rem)}}"
    "table{border-collapse:collapse;font-size:13px}"
    "th,td{padding:4px 10px;border-bottom:1px solid var(--wb-line);text-align:left}"
    "caption{text-align:left;color:var(--wb-muted);padding:4px 0}"
)


def figure(picture: Markup | bytes, caption: str) -> Markup:
    """An SVG or a PNG as an image whose caption is its description; works where inline SVG is stripped."""
    image = element("img", src=data_uri(picture), alt=caption, style="max-width:100%")
    return element("figure", image, element("figcaption", caption))


def section(title: str, *content: object) -> Markup:
    """A titled part of a page."""
    return element("section", element("h2", title), *content)


def page(title: str, *content: object, head: object = None) -> Markup:
    """A complete, self-contained page that follows the reader's light or dark system setting.

    Example:
        >>> page("Report", element("p", "1 < 2")).partition("<p>")[2]
        '1 &lt; 2</p></main></div></body></html>'
    """
    sheet = element("style", Markup(css_variables() + _PAGE))
    meta = (element("meta", charset="utf-8"), element("meta", name="viewport", content="width=device-width"))
    top = element("head", *meta, element("title", title), icon_link(), sheet, head)
    # A `div`, because the theme is selected on the body and applies to its descendants.
    body = element(
        "body", element("div", element("main", element("h1", mark(26), " ", title), *content), class_="wb wb-page")
    )
    return Markup("<!doctype html>\n" + join([element("html", top, body, lang="en")]))
