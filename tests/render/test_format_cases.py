"""Numbers are written here as the front end writes them: both read the same table."""

import json
from pathlib import Path

import pytest

from workbench.render.units import METRIC_TITLES, bytes_text, count_text, flops_text, metric_text, seconds_text

TABLE = Path(__file__).parents[2] / "widgets" / "src" / "lib" / "format-cases.json"
FORMATS = {"bytes": bytes_text, "flops": flops_text, "seconds": seconds_text, "count": count_text}
CASES = [(unit, value, text) for unit, rows in json.loads(TABLE.read_text("utf-8")).items() for value, text in rows]


@pytest.mark.parametrize(("unit", "value", "text"), CASES)
def test_number_is_written_as_in_the_table(unit: str, value: float | None, text: str):
    assert FORMATS[unit](value) == text


@pytest.mark.parametrize(
    ("name", "title", "value", "text"), json.loads((TABLE.parent / "metric-cases.json").read_text("utf-8"))
)
def test_metric_has_the_heading_and_the_unit_of_the_table(name: str, title: str, value: float, text: str):
    assert METRIC_TITLES.get(name, name) == title
    assert metric_text(name, value) == text
