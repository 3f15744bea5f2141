"""Comparisons as figure, text and table."""

import xml.etree.ElementTree as ET

import pytest

from workbench import render
from workbench.records.advice import ComparedRecord, ComparisonRecord
from workbench.render import display_record, to_pandas
from workbench.render.units import amount_text

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
    assert render.text(COMPARISON).splitlines() == [
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


def test_whole_numbers_get_all_digits_if_rounding_hides_their_difference():
    row = ComparedRecord(group="per device", name="peak", values=(251_904, 251_905), unit="bytes", status="changed")
    lines = render.text(COMPARISON.replace(rows=(*COMPARISON.rows, row))).splitlines()
    assert "    ≠ peak: 251,904 B → 251,905 B" in lines


def test_differences_below_the_digits_are_counted():
    row = ComparedRecord(
        group="per device", name="time", values=(0.2500001, 0.2500002), unit="seconds", status="changed"
    )
    more = COMPARISON.replace(rows=(*COMPARISON.rows, row))
    lines = render.text(more).splitlines()
    assert lines[0].endswith("5 of 6 quantities differ.")
    assert lines[-2] == "  and 1 whose difference is too small for the digits shown"
    assert display_record(more)["text/html"].count("<tr") == display_record(COMPARISON)["text/html"].count("<tr")


def test_card_has_a_row_per_difference_and_escapes_names():
    card = ET.fromstring(display_record(COMPARISON)["text/html"])
    rows = [[cell.text for cell in row] for row in card.iterfind(".//tbody/tr")]
    assert len(rows) == 4
    assert rows[0] == ["per device", "FLOPs", "2 kFLOP", "500 FLOP", "×0.25"]
    assert [row[0] for row in rows] == ["per device", "per device", "collectives", "stages"]
    head = [cell.text for cell in card.iterfind(".//thead/tr/th")]
    assert head == ["of", "quantity", "1. before", "2. after<br>", "ratio"]


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
