"""Programs whose `shard_map` is given a mesh of its own, looked at over devices that are not here."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, AxisType, PartitionSpec as P

import workbench as wb
from workbench.errors import InspectionError


@pytest.fixture
def summed() -> Callable[[jax.Array], jax.Array]:
    mesh = wb.make_mesh(data=8)
    return jax.shard_map(lambda x: jax.lax.psum(x @ x.T, "data"), mesh=mesh, in_specs=P("data"), out_specs=P())


def test_same_axes_without_devices(summed: Callable[[jax.Array], jax.Array]) -> None:
    record = wb.inspect(summed, on=AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,)))(jnp.ones((16, 4)))
    assert record.mesh is not None
    assert [(axis.name, axis.size) for axis in record.mesh.axes] == [("data", 8)]
    assert "all_reduce" in record.stablehlo


def test_abstract_mesh_that_knows_its_kind_of_device(summed: Callable[[jax.Array], jax.Array]) -> None:
    record = wb.inspect(summed, on=wb.make_mesh(data=8).abstract_mesh)(jnp.ones((16, 4)))
    assert "all_reduce" in record.stablehlo


def test_another_number_of_devices_is_refused(summed: Callable[[jax.Array], jax.Array]) -> None:
    with pytest.raises(InspectionError, match=r"shard_map` over the mesh \{'data': 8\}.*Choose 8 devices"):
        wb.inspect(summed, on=AbstractMesh((4,), ("data",), axis_types=(AxisType.Auto,)))(jnp.ones((16, 4)))


def test_axes_of_another_type_are_refused(summed: Callable[[jax.Array], jax.Array]) -> None:
    explicit = AbstractMesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    with pytest.raises(InspectionError, match=r"axes Explicit, .* axes Auto\. .*axis types"):
        wb.inspect(summed, on=explicit)(jnp.ones((16, 4)))


def test_devices_that_are_not_attached(summed: Callable[[jax.Array], jax.Array]) -> None:
    pytest.importorskip("libtpu")
    record = wb.inspect(summed, on="v5e:2x4")(jnp.ones((16, 4)))
    assert record.module is not None
    assert [(each.kind, each.axes) for each in record.module.collectives] == [("all-reduce", ("data",))]
