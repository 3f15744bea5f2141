"""Wherever a number of FLOPs stands, those of elementwise operations stand next to it, which are counted apart."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from records_parts import RECORD_CLASSES

import workbench as wb
from workbench import render
from workbench.render import stage_details, to_pandas

AMOUNT = re.compile(r"[1-9][\d.]* [kMGTPE]?FLOP\b(?!/s)")
# Of chips and devices, not of programs; shares; what a roofline's matrix unit has to do; a sum of both kinds.
ALONE = {
    ("WatchRecord", "flops_per_second"),
    ("WatchRecord", "peak_flops_share"),
    ("WatchRecord", "flops"),  # of matrix products, whose share of the peak is shown
    ("ChipRecord", "peak_flops_per_second"),
    ("ChipRecord", "vector_flops_per_second"),
    ("ProfiledDeviceRecord", "peak_flops_per_second"),
    ("StageRunRecord", "peak_flops_share"),
    ("ClientProfileRecord", "flops_per_second"),
    ("DeviceClassRecord", "flops_per_second"),
    ("WorkRecord", "total_flops"),
    ("ModuleRecord", "attributed_flops"),
    ("ProfiledOperationRecord", "flops_per_second"),
    ("CallFiguresRecord", "flops"),
    ("CallFiguresRecord", "flops_matmul"),  # next to flops_elementwise
    ("CallFiguresRecord", "flops_elementwise"),
}


@pytest.fixture(scope="module")
def program() -> Any:
    """Rounds in a loop, whose clients multiply matrices and apply elementwise functions; the server does both, too."""

    @wb.program(clients=4)
    def rounds(w: jax.Array, x: jax.Array) -> jax.Array:
        def one(w: jax.Array, _: None) -> tuple[jax.Array, None]:
            mean = wb.reduce_mean(wb.map_fn(lambda w, x: x.T @ jnp.tanh(x @ w), (wb.broadcast(w), x)))
            return jnp.tanh(w @ mean), None

        return jax.lax.scan(one, w, None, length=3)[0]

    return wb.inspect(rounds)(jnp.ones((16, 16)), jnp.ones((4, 8, 16)))


def strings(tree: Any) -> Iterator[str]:
    """Every text in nested lists and dictionaries; a table's row is one text."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, tuple) and all(isinstance(each, str) for each in tree):
        yield " ".join(tree)
    elif isinstance(tree, dict):
        for each in tree.values():
            yield from strings(each)
    elif isinstance(tree, list | tuple):
        for each in tree:
            yield from strings(each)


@pytest.mark.parametrize(
    "text",
    [
        str,
        lambda r: render.text(r.module),
        lambda r: render.text(r.plan),
        lambda r: render.text(r.cost),
    ],
    ids=["program", "module", "plan", "cost"],
)
def test_lines_of_texts_state_both_kinds(program: Any, text: Any) -> None:
    found = [line for line in text(program).splitlines() if AMOUNT.search(line)]
    assert found
    assert [line for line in found if "elementwise" not in line] == []


def test_cards_and_frames_state_both_kinds(program: Any) -> None:
    found = re.findall(r">([^<]*\d [kMGTPE]?FLOP\b[^<]*)<", str(render.svg(program)))
    assert any("in all" in text for text in found)
    assert any(text.startswith("4 × ") for text in found)
    assert [text for text in found if "elementwise" not in text] == []


def test_details_of_stages_state_both_kinds(program: Any) -> None:
    for path, detail in stage_details(program).items():
        rows = [text for text in strings(detail) if text.startswith(("matrix FLOPs", "elementwise FLOPs"))]
        kinds = [row.startswith("elementwise") for row in rows]
        assert kinds.count(True) == kinds.count(False) > 0, (path, rows)


def test_tables_have_a_column_of_both_kinds(program: Any) -> None:
    frames = [to_pandas(program), to_pandas(program.plan), to_pandas(program.module), to_pandas(program.cost)]
    for table in [*frames, to_pandas(program.cost.clients)]:
        found = [column for column in table.columns if "flops" in column and "elementwise" not in column]
        assert found
        for column in found:
            head, _, rest = column.rpartition("flops")
            assert f"{head}elementwise_flops{rest}" in table.columns, column


def test_program_states_work_of_both_kinds_in_numbers(program: Any) -> None:
    table = to_pandas(program).set_index("stage")
    known = table[table["flops_per_client"] > 0]
    assert (known["elementwise_flops_per_client"] > 0).all()
    predicted = table.dropna(subset=["predicted_flops"])
    assert (predicted["predicted_elementwise_flops"] > 0).any()
    assert (predicted["predicted_flops"] > 0).any()


def test_records_have_a_field_of_both_kinds() -> None:
    for kind in RECORD_CLASSES:
        fields = {field.name for field in dataclasses.fields(kind)}
        names = fields | {name for name, value in vars(kind).items() if isinstance(value, property)}
        for name in sorted(name for name in names if "flops" in name and "elementwise" not in name):
            if (kind.__name__, name) not in ALONE:
                assert f"elementwise_{name}" in names, f"{kind.__name__}.{name}"
