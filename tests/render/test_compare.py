"""Comparisons as figure, text and table."""

import xml.etree.ElementTree as ET

import pytest

from workbench.records import ComparedRecord, ComparisonRecord
from workbench.render import amount_text, render_comparison_html, render_comparison_text, to_pandas

COMPARISON = ComparisonRecord(
    names=("before", "after<br>"),
    targets=("here", "here"),
    rows=(
        ComparedRecord(group="program", name="stages", values=(3, 3), unit="count"),
        ComparedRecord(group="stages", name="clients train", values=("64 clients", None), status="removed"),
        ComparedRecord(group="per device", name="FLOPs", values=(2000.0, 500.0), unit="flops", status="changed"),
        ComparedRecord(group="per device", name="peak memory", values=(None, 2048), unit="bytes", status="unknown"),
        ComparedRecord(group="collectives", name="all-reduce over m", values=(0.0, 4.0), unit="count", status="added"),
    ),
    notes=("something is missing",),
)


def test_text_lists_differences_by_group_and_counts_the_rest():
    assert render_comparison_text(COMPARISON).splitlines() == [
        "before on here | after<br> on here: 4 of 5 quantities differ.",
        "  stages",
        "    − clients train: 64 clients → –",
        "  per device",
        "    ≠ FLOPs: 2 kFLOP → 500 FLOP  (×0.25)",
        "    ? peak memory: – → 2 KiB",
        "  collectives",
        "    + all-reduce over m: 0 → 4",
        "Note: something is missing",
    ]


def rows_of(**options):
    return list(ET.fromstring(render_comparison_html(COMPARISON, **options)).iterfind(".//tbody/tr"))


def test_html_has_a_row_per_difference_or_per_quantity():
    assert (len(rows_of()), len(rows_of(all_rows=True))) == (4, 5)
    assert [cell.text for cell in rows_of()[1]] == ["per device", "FLOPs", "2 kFLOP", "500 FLOP", "×0.25"]


def test_html_escapes_names():
    heads = [cell.text for cell in ET.fromstring(render_comparison_html(COMPARISON)).iterfind(".//thead/tr/th")]
    assert heads == [None, None, "before", "after<br>", "last / first"]


def test_table_has_a_column_per_program_even_of_one_name():
    table = to_pandas(COMPARISON.replace(names=("f", "f")))
    assert list(table.columns) == ["group", "name", "f (here)", "f (here) #2", "unit", "status"]
    assert table["f (here) #2"].tolist()[2] == 500.0


@pytest.mark.parametrize(
    ("value", "unit", "said"),
    [(1536, "bytes", "1.5 KiB"), (2e9, "flops", "2 GFLOP"), (0.002, "seconds", "2 ms"), (4096, "count", "4,096")],
    ids=["bytes", "flops", "seconds", "count"],
)
def test_amounts_carry_their_unit(value, unit, said):
    assert amount_text(value, unit) == said
