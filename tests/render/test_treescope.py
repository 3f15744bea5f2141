"""Treescope shows our records, pictures too, and large explicitly sharded arrays do not break it through them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import treescope
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P
from records_parts import mesh_record, sharding_record

from workbench import render
from workbench.inspection import inspect_mesh, inspect_sharding
from workbench.records.run import RunRecord
from workbench.records.sharding import LeafShardingRecord


@pytest.mark.parametrize(
    "record", [mesh_record(), sharding_record(), sharding_record().leaves[0]], ids=lambda r: type(r).__name__
)
def test_record_is_a_tree_and_its_mesh_has_a_picture(record):
    text = treescope.render_to_text(record)
    assert text.startswith(f"{type(record).__name__}(")
    html = treescope.render_to_html(record, compressed=False)
    drawn = not isinstance(record, LeafShardingRecord)
    assert ("iframe" in html) == drawn
    assert ("aria-label" in html) == drawn  # of the SVG inside


def test_text_keeps_the_fields():
    text = treescope.render_to_text(mesh_record())
    assert "AxisRecord(" in text
    assert "name='clients'" in text


def test_results_of_a_run_are_left_out():
    text = treescope.render_to_text(RunRecord(name="r", engine="mesh", seconds=1.0, results=np.arange(7)))
    assert "results" not in text
    assert "engine='mesh'" in text


@pytest.mark.parametrize("spec", [P("x"), P("x", "y"), P(None, ("x", "y"))], ids=str)
def test_large_explicit_array_is_shown_without_reading_it(spec):
    # treescope 0.1.10 itself raises a ShardingTypeError on such an array: it slices it.
    mesh = Mesh(np.array(jax.devices()).reshape(4, 2), ("x", "y"), axis_types=(AxisType.Explicit, AxisType.Explicit))
    array = jax.device_put(jnp.zeros((5120, 5120), jnp.float32), NamedSharding(mesh, spec))
    with jax.set_mesh(mesh):
        record = inspect_sharding({"w": array})
        assert "(5120, 5120)" in treescope.render_to_text(record)
        assert treescope.render_to_html(record)
    assert "f32[5120,5120]" in render.text(record)
    assert treescope.render_to_html(inspect_mesh(mesh))
