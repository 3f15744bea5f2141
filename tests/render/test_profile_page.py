"""The page of a recorded profile: what is drawn is what was measured."""

import base64
import re
from pathlib import Path
from urllib.parse import unquote

import pytest

from workbench.measurement import open_profile
from workbench.records.profile import ProfileRecord
from workbench.render import render_profile_html

RECORDED = Path(__file__).parents[1] / "recorded"


@pytest.fixture(scope="module")
def profile():
    return open_profile(RECORDED / "mi355x_te_attention.xplane.pb")


@pytest.fixture(scope="module")
def drawn(profile):
    return unquote(render_profile_html(profile))


def test_every_operation_has_a_row(profile, drawn):
    for operation in profile.operations:
        assert f"<td>{operation.name}</td>" in drawn


@pytest.mark.parametrize("title", ["Time line", "Devices", "Roofline", "Call tree", "Operations", "Notes"])
def test_part_is_there(drawn, title):
    assert f"<h2>{title}</h2>" in drawn


def test_measured_points_are_under_the_roof(profile):
    pictures = re.findall(r"data:image/svg\+xml;base64,([^\"]+)", render_profile_html(profile))
    (roofline,) = [svg for svg in (base64.b64decode(picture).decode() for picture in pictures) if "Roofline of" in svg]
    points = [float(y) for y in re.findall(r'<circle cx="[^"]+" cy="([^"]+)"', roofline)]
    assert len(points) == sum(bool(o.flops_per_second and o.intensity) for o in profile.operations)
    roof = min(float(y) for _, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", roofline))
    assert all(y > roof for y in points)


def test_names_from_a_profile_are_text(profile):
    hostile = profile.replace(name="<script>alert(1)</script>", notes=("<img src=x onerror=alert(1)>",))
    page = render_profile_html(hostile)
    assert "<script>" not in page
    assert "<img src=x" not in page


def test_nothing_is_fetched_from_a_network(drawn):
    links = set(re.findall(r"(?:src|href)=\"(?!data:|#)([^\"]*)", drawn))
    assert links == set()


def test_profile_without_operations_says_so():
    assert "No operation of a device was read." in render_profile_html(ProfileRecord(name="empty", files=()))
