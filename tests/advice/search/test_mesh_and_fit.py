"""The search for a mesh and for the smallest machine, planned and not compiled."""

from typing import Any

import jax
import pytest

import workbench as wb
from workbench.advice._search._program import SearchProgram
from workbench.records.advice import SearchRecord


def shape(*sizes, dtype="bfloat16"):
    return jax.ShapeDtypeStruct(sizes, dtype)


def predict(params, x):
    return jax.nn.gelu(x @ params["up"]) @ params["down"]


def weights(width, hidden):
    return {"up": shape(width, hidden), "down": shape(hidden, width)}


def test_every_mesh_of_a_machine_is_searched():
    found = wb.search(predict, on="v5e:2x2", compiled=False)(weights(256, 1024), shape(64, 256))
    assert {tuple(each.mesh.values()) for each in found.choices} == {(4, 1), (2, 2), (1, 4)}


def test_large_batch_takes_the_mesh_for_the_data():
    found = wb.search(predict, on="v5e:2x2", compiled=False, axes=("data", "model"))(
        weights(128, 128), shape(65536, 128)
    )
    assert found.best.specs["x"][0]
    assert not {pattern for pattern in found.best.specs if pattern.startswith("params")}


def test_smallest_slice_grows_with_the_weights():
    small = wb.search(predict, on=["v5e"], compiled=False)(weights(1024, 4096), shape(64, 1024))
    large = wb.search(predict, on=["v5e"], compiled=False)(weights(65536, 262144), shape(64, 65536))
    assert (small.slices[0].target, small.slices[0].fits) == ("v5e:1x1", True)
    assert large.slices[0].fits
    # 2 * 65536 * 262144 bfloat16 are 64 GiB: more than four devices of 16 GiB hold beside anything else
    assert large.slices[0].devices > 4


def test_one_chip_is_a_slice():
    row = wb.search(predict, on=["v5e:1x1"], compiled=False)(weights(256, 1024), shape(64, 256)).slices[0]
    assert (row.target, row.chips, row.fits) == ("v5e:1x1", 1, True)


def test_named_slice_is_the_largest_that_is_tried():
    rows = wb.search(predict, on=["v5e:2x2"], compiled=False)(weights(65536, 262144), shape(64, 65536)).slices
    assert [(row.target, row.fits) for row in rows] == [("v5e:2x2", False)]


def test_fit_table_has_a_row_per_family_and_survives_json():
    table = wb.search(predict, on=["v5e", "v5p"], compiled=False)(weights(256, 1024), shape(64, 256))
    assert list(table.to_pandas()["chip"]) == ["v5e", "v5p"]
    assert SearchRecord.from_json(table.to_json()) == table


def test_unknown_family_is_refused():
    with pytest.raises(wb.errors.MeshError, match="v99"):
        wb.search(predict, on=["v99"], compiled=False)(weights(8, 8), shape(8, 8))


def test_unknown_chip_is_refused_with_the_known_ones():
    call: Any = wb.trace(predict)(weights(8, 8), shape(8, 8))._call
    with pytest.raises(wb.errors.WorkbenchError, match="v5e"):
        SearchProgram(call, jax.sharding.AbstractMesh((2,), ("data",)), "v99")


def test_text_says_why_smaller_slices_do_not_fit():
    table = wb.search(predict, on=["v5e"], compiled=False)(weights(65536, 262144), shape(64, 65536))
    text = str(table)
    assert f"{table.slices[0].target} (" in text
    assert "per call" in text
    assert "not v5e:2x2: the arguments alone need 64 GiB, but all its devices together have 63 GiB" in text


def test_slices_state_the_error_of_planned_memory():
    table = wb.search(predict, on=["v5e:1x1", "v5p"], compiled=False)(weights(256, 1024), shape(64, 256))
    unknown = "no planned peak was compared with a compiled peak, so the error of planned peaks is unknown"
    assert sorted(table.notes) == sorted(f"{row.target}: {unknown}" for row in table.slices)
    assert f"Note: v5e:1x1: {unknown}" in str(table)


def test_text_says_what_a_device_would_need():
    table = wb.search(predict, on=["v5e"], compiled=False)(weights(128, 128), shape(2**27, 128))
    assert "not v5e:2x2: a device needs" in str(table)
