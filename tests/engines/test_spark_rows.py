"""Rows of partial results on Spark, which are checked where they are read."""

from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from workbench.engines._columns import read_column  # noqa: E402
from workbench.engines.spark import _readers, _worker  # noqa: E402
from workbench.errors import EngineError  # noqa: E402

SPEC = _worker.SparkPass(
    digest="", size=2, sources=(), checks=(), rows=(), made=(), shared=(), partial=(("float32", (3, 2)),), kept=0,
    merges=("add",), keyed=(0,), groups=2, check_nan=False,
)  # fmt: skip


def keyed_row() -> Any:
    """The partial results of one of three keys."""
    counts, payload = (1, _worker.token(0, 1, 4), 0, 0), _worker.encode([np.full(2, 5.0, np.float32)])
    row = _worker.Compute(SPEC, None, None)._row(_worker.KEYED, 0, 4, key=1, payload=payload, counts=counts)
    return _worker._as_batch([row], SPEC)


def test_a_row_is_read_as_it_was_written():
    values, counts = _worker.read_partial(keyed_row(), 0, (("float32", (2,)),))
    assert values[0].tolist() == [5.0, 5.0]
    assert counts[0] == 1


@pytest.mark.parametrize("column", ["kind", "number", "key", *_worker.COUNTS, "crc", "payload"])
def test_a_row_that_changed_is_refused(column: str):
    row = keyed_row()
    place, value = row.schema.get_field_index(column), row.column(column)[0].as_py()
    changed = value[:-1] + b"x" if isinstance(value, bytes) else value + 1
    row = row.set_column(place, row.schema.field(place), pa.array([changed], row.schema.field(place).type))
    with pytest.raises(ValueError, match="partial results changed in transit between two workers"):
        _worker.read_partial(row, 0, (("float32", (2,)),))


def test_merged_rows_of_a_key_can_be_read_again():
    row = keyed_row()
    (merged,) = _worker.Merge(SPEC)(iter([row, row]))
    values, counts = _worker.read_partial(merged, 0, (("float32", (2,)),))
    assert values[0].tolist() == [10.0, 10.0]
    assert counts[0] == 2


def examples(x: Any) -> Any:
    """Six examples of the clients "ann" (1), "bob" (3) and "eve" (2), sorted."""
    clients = ["ann", "bob", "bob", "bob", "eve", "eve"]
    index = [0, 1, 1, 1, 2, 2]
    return pa.RecordBatch.from_pydict(
        {"client": clients, "index": index, "batch": [0, 0, 0, 0, 1, 1], "v0": pa.array(x, pa.list_(pa.float32()))}
    )


PACK = _worker.Pack(["n", "x"], (("int32", ()), ("float32", (2, 1))), 2, examples=True)


@pytest.mark.parametrize("cut", [1, 3, 4, 6])
def test_examples_are_packed_cut_and_padded_wherever_arrow_batches_end(cut: int):
    record = examples([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0]])
    first, second = PACK(iter([record.slice(0, cut), record.slice(cut)]))
    assert (first["held"].to_pylist(), second["held"].to_pylist()) == ([[0, 1]], [[2]])
    assert (first["rows"].to_pylist(), second["rows"].to_pylist()) == ([4], [2])
    n, x = (_worker.decode(first[name][0].as_py(), ((kind, shape),))[0].tolist() for name, kind, shape in CELLS)
    assert (n, x) == ([1, 2], [[[1.0], [0.0]], [[2.0], [3.0]]])
    n, x = (_worker.decode(second[name][0].as_py(), ((kind, shape),))[0].tolist() for name, kind, shape in CELLS)
    assert (n, x) == ([2, 2], [[[5.0], [6.0]]] * 2)  # a copy of the first client fills the batch


CELLS = ("c0", "int32", (2,)), ("c1", "float32", (2, 2, 1))


@pytest.mark.parametrize("wrong", [None, [], [3.0, 4.0], [None]], ids=["null", "short", "long", "null inside"])
def test_an_example_without_its_numbers_names_the_client(wrong: Any):
    record = examples([[1.0], [2.0], wrong, [4.0], [5.0], [6.0]])
    with pytest.raises(
        ValueError, match=r"client 'bob' with [02] values in column 'x' of type list.*float32\[1\] is needed"
    ):
        list(PACK(iter([record])))


def test_a_table_that_loses_examples_when_it_is_read_again_is_refused():
    packed = pa.table({"batch": [0, 1], "held": [[0, 1], [2]], "rows": [3, 2]})
    _readers.check_packed(packed, pa.array(["ann", "bob", "eve"]), 2, 5)
    with pytest.raises(EngineError, match="5 rows instead of 6"):
        _readers.check_packed(packed, pa.array(["ann", "bob", "eve"]), 2, 6)
    with pytest.raises(EngineError, match="client 'joe' missing"):
        _readers.check_packed(packed, pa.array(["ann", "bob", "eve", "joe"]), 2, 5)


def test_a_table_whose_longest_client_grows_when_it_is_read_again_is_refused():
    record = examples([[1.0], [2.0], [3.0], [4.0], [5.0], [6.0]])
    work = _worker.Pack(PACK.columns, PACK.leaves, 2, examples=True, most=2)
    with pytest.raises(ValueError, match="3 examples of client 'bob', but at most 2 when they were counted"):
        list(work(iter([record])))


@pytest.mark.parametrize(
    ("value", "kind", "dtype"),
    [(2**32 + 5, "int64", "int32"), (-3, "int32", "uint8"), (2.5, "float32", "int32"), (np.nan, "float64", "int32")],
)
def test_numbers_that_a_program_cannot_represent_are_refused(value: Any, kind: str, dtype: str):
    cells = pa.array([1, value], getattr(pa, kind)())
    fact = f"numbers that {dtype} cannot represent in column 'x'"
    with pytest.raises(ValueError, match=f"{fact} of client 'bob'"):
        read_column(cells, "x", (dtype, ()), pa.array(["ann", "bob"]))
    with pytest.raises(ValueError, match=f"{fact} of a row"):
        read_column(cells, "x", (dtype, ()))
