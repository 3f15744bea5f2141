"""A report is one file: escaped, accessible, and fetching nothing."""

import re
from html.parser import HTMLParser

import pytest

from workbench.render.report import (
    ReportCode,
    ReportImage,
    ReportPicture,
    ReportSection,
    ReportTable,
    ReportText,
    ReportView,
    render_report,
)

PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" width="4" height="4"><rect width="4" height="4"/></svg>'
NASTY = "<script>alert('&')</script>"


class Page(HTMLParser):
    """Every start tag with its attributes, and all text."""

    def __init__(self, markup):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(markup)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def all(self, name):
        return [attributes for tag, attributes in self.tags if tag == name]


def render(*pieces, title="Title", lead="Lead", heading="Heading"):
    return Page(render_report(title, lead, [ReportSection(heading=heading, pieces=pieces)]))


def test_report_escapes_every_text():
    table = ReportTable(caption=NASTY, header=(NASTY,), rows=((NASTY,),))
    pieces = (ReportText(text=NASTY), ReportCode(text=NASTY), ReportPicture(svg=PICTURE, caption=NASTY), table)
    page = render(*pieces, title=NASTY, lead=NASTY, heading=NASTY)
    assert page.all("script") == []
    # title and h1, lead, link and h2, text, code, caption of the picture, of the table, header, cell
    assert page.text.count(NASTY) == 11


def test_report_fetches_nothing():
    image = ReportImage(png=b"light", dark=b"dark", caption="curve")
    page = render(ReportPicture(svg=PICTURE, caption="square"), image)
    addresses = [a.get("src") or a.get("srcset") for tag, a in page.tags if tag in ("img", "source")]
    assert len(addresses) == 3
    assert all(address.startswith("data:image/") for address in addresses)
    assert not page.all("script") + page.all("iframe")
    assert all(link["href"].startswith("data:") for link in page.all("link"))
    assert {"http-equiv", "content"} in [set(meta) for meta in page.all("meta")]
    assert "default-src 'none'" in next(m["content"] for m in page.all("meta") if "http-equiv" in m)


def test_report_names_every_picture_and_links_every_section():
    page = render(ReportPicture(svg=PICTURE, caption="square"), ReportImage(png=b"x", caption="curve"))
    assert [image["alt"] for image in page.all("img")] == ["square", "curve"]
    assert [link["href"].removeprefix("#") for link in page.all("a")] == ["part-0"]
    assert "part-0" in [division.get("id") for division in page.all("div")]
    assert page.all("html")[0]["lang"] == "en"


def test_report_shows_the_dark_picture_only_where_the_system_is_dark():
    (source,) = render(ReportImage(png=b"light", dark=b"dark", caption="curve")).all("source")
    assert source["media"] == "(prefers-color-scheme: dark)"


@pytest.mark.parametrize(
    ("cells", "right"),
    [(("1", "2.5 MiB"), True), (("-3", "unknown"), True), (("1", "three"), False)],
    ids=["numbers with units", "negative or unknown", "a word among them"],
)
def test_report_sets_columns_of_numbers_to_the_right(cells, right):
    page = render(ReportTable(caption="c", header=("h",), rows=tuple((cell,) for cell in cells)))
    assert [cell.get("class") == "wb-number" for cell in page.all("td")] == [right, right]
    assert page.all("th")[0]["scope"] == "col"


def test_report_with_a_row_of_the_wrong_length_is_refused():
    with pytest.raises(ValueError, match="zip"):
        render(ReportTable(caption="c", header=("a", "b"), rows=(("1", "2", "3"),)))


def test_report_follows_light_and_dark():
    assert re.search(r"prefers-color-scheme:\s*dark", render_report("t", "l", []))


def test_only_a_report_with_views_may_run_scripts():
    without, with_view = (
        render(ReportText(text="x"), *more) for more in ((), (ReportView(fragment="<b>v</b>", caption="view"),))
    )
    policies = [next(m["content"] for m in page.all("meta") if "http-equiv" in m) for page in (without, with_view)]
    assert ["script-src" in policy for policy in policies] == [False, True]
    assert all(policy.startswith("default-src 'none'") and "http" not in policy for policy in policies)
    assert with_view.all("b")
    assert "view" in with_view.text
