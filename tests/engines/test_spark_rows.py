"""Rows of partial results on Spark, which are checked where they are read."""

from typing import Any

import numpy as np
import pytest

pa = pytest.importorskip("pyarrow", reason="the extra `spark` is not installed")

from workbench.engines.spark import _worker  # noqa: E402

SPEC = _worker.SparkPass(
    digest="", size=2, sources=(), checks=(), rows=(), made=(), shared=(), partial=(("float32", (3, 2)),), kept=0,
    merges=("add",), keyed=(0,), groups=2, check_nan=False,
)  # fmt: skip


def keyed_row() -> Any:
    """The partial results of one of three keys."""
    table = np.zeros((3, 2), np.float32)
    table[1] = 5.0
    (row,) = _worker.Compute(SPEC, None, None)._keyed(4, [table])
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
