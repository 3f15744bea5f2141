import xml.etree.ElementTree as ET

import pytest

from workbench.render import _html, _svg, _theme


def test_element_escapes_children_and_attributes():
    made = _svg.element("text", '<script>"&', aria_label="\"><x y='")
    assert made == '<text aria-label="&quot;&gt;&lt;x y=&#x27;">&lt;script&gt;&quot;&amp;</text>'


def test_element_keeps_markup_as_it_is():
    assert _svg.element("g", _svg.element("rect", x=1)) == '<g><rect x="1"/></g>'


def test_control_characters_leave_the_picture_well_formed():
    ET.fromstring(_svg.svg(1, 1, _svg.text(0, 0, "a\x00b\x1b"), label="\x07"))


@pytest.mark.parametrize("tag", ["a b", "1", "x>", ""], ids=repr)
def test_element_refuses_a_tag_that_would_break_out(tag):
    with pytest.raises(ValueError, match="a tag is a letter followed by"):
        _svg.element(tag)


def test_element_refuses_an_attribute_that_would_break_out():
    with pytest.raises(ValueError, match=r"was given the attribute 'x onload'"):
        _svg.element("rect", **{"x onload": 1})


def test_text_that_does_not_fit_keeps_the_whole_in_its_tooltip():
    made = ET.fromstring(_svg.text(0, 0, "reduce_weighted_mean", fit=80))
    assert made.text == "reduce_wei…"
    assert made[0].text == "reduce_weighted_mean"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_colour_reads_on_every_ground(dark):
    colours = _theme.palette(dark)
    grounds = [colours[name] for name in ("bg", "panel", "raised")]
    grounds += [value for name, value in colours.items() if name.endswith("-soft")]
    inks = ["fg", "muted", *(name.removesuffix("-soft") for name in colours if name.endswith("-soft"))]
    weak = {(ink, ground) for ink in inks for ground in grounds[:2] if _theme.contrast(colours[ink], ground) < 4.5}
    weak |= {
        (ink, ground) for ink in ("fg", "muted") for ground in grounds if _theme.contrast(colours[ink], ground) < 4.5
    }
    assert not weak


@pytest.mark.parametrize("share", [0, 0.25, 0.5, 0.75, 1], ids=str)
def test_ink_reads_on_every_step_of_the_sequential_scale(share):
    ground = _theme.sequential(share)
    assert _theme.contrast(_theme.ink_on(ground), ground) >= 4.5


def test_live_css_follows_the_notebook_and_has_a_fallback():
    css = _theme.css_variables()
    assert "--wb-bg:var(--jp-layout-color0, #FFFFFF)" in css
    assert 'body[data-jp-theme-light="false"] .wb' in css


def test_standalone_css_holds_values_for_both_themes_and_no_variable():
    css = _theme.svg_style()
    assert "var(" not in css
    assert css.count("prefers-color-scheme: dark") == 1


def test_figure_keeps_the_description_and_hides_no_markup_in_the_caption():
    made = _html.figure(_svg.svg(1, 1, label="x"), 'a "b" <c>')
    assert 'alt="a &quot;b&quot; &lt;c&gt;"' in made
    assert "data:image/svg+xml;base64," in made


def test_page_refers_to_nothing_outside_itself():
    made = _html.page("t", _html.section("s", "1 < 2"))
    assert "http" not in made.replace('xmlns="http://www.w3.org/2000/svg"', "")  # a name, which nothing is fetched from
    assert "1 &lt; 2" in made
