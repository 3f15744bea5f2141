"""The mark: a picture that stands alone, and the icon of a page."""

import base64
import re
from xml.etree import ElementTree

from workbench.render import icon_link, mark
from workbench.render.report import page


def test_the_mark_is_a_picture_of_the_size_asked_for():
    picture = ElementTree.fromstring(mark(48))
    assert picture.tag == "{http://www.w3.org/2000/svg}svg"
    assert (picture.get("width"), picture.get("height")) == ("48", "48")
    dots = picture.findall("{http://www.w3.org/2000/svg}circle")
    for dot in dots:
        x, y, r = (float(dot.get(name, "nan")) for name in ("cx", "cy", "r"))
        assert r <= min(x, y, 32 - x, 32 - y)
    assert len({dot.get("fill") for dot in dots}) == 3


def test_the_icon_of_a_page_is_the_mark():
    (data,) = re.findall(r'href="data:image/svg\+xml;base64,([^"]+)"', icon_link())
    assert base64.b64decode(data).decode() == mark()


def test_a_report_has_the_mark_in_its_head_and_before_its_title():
    head, _, body = page("Report").partition("</head>")
    assert icon_link() in head
    assert mark(26) in body.partition("Report")[0]
