"""SUMMA and 2.5-D products: right, differentiable, and exactly the communication of their formula."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import workbench as wb
from workbench.aot import stop_workers
from workbench.errors import MeshError, ProgramError
from workbench.federated import algorithms

N = 64
AXES = ("layers", "rows", "cols")


def mesh_of(layers: int, side: int) -> Any:
    count = layers * side * side
    types = (AxisType.Auto,) * 3
    return jax.make_mesh((layers, side, side), AXES, devices=jax.devices()[:count], axis_types=types)


def matrices(mesh: Any, n: int = N) -> list[Any]:
    specs = (P("rows", ("layers", "cols")), P(("layers", "rows"), "cols"))
    random = np.random.default_rng(0)
    return [jax.device_put(random.normal(size=(n, n)).astype(np.float32), NamedSharding(mesh, s)) for s in specs]


def product(panels: int) -> Any:
    def product(a: Any, b: Any) -> Any:
        return algorithms.matmul_25d(a, b, panels=panels)

    return product


GRIDS = [(1, 1, 1), (1, 2, 1), (1, 2, 4), (2, 2, 1), (2, 2, 4), (8, 1, 2)]
IDS = ["one device", "SUMMA at once", "SUMMA", "two layers at once", "two layers", "layers alone"]


@pytest.mark.parametrize(("layers", "side", "panels"), GRIDS, ids=IDS)
def test_product_and_gradient_are_those_of_numpy(layers: int, side: int, panels: int) -> None:
    mesh = mesh_of(layers, side)
    with jax.set_mesh(mesh):
        a, b = matrices(mesh)
        found = jax.jit(product(panels))(a, b)
        slope = jax.jit(jax.grad(lambda a, b: (product(panels)(a, b) ** 2).sum()))(a, b)
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    np.testing.assert_allclose(found, a @ b, atol=1e-3)
    np.testing.assert_allclose(slope, 2 * a @ b @ b.T, atol=2e-2)


@pytest.mark.parametrize(("layers", "side", "panels"), GRIDS, ids=IDS)
def test_the_compiled_module_moves_what_the_formula_says(layers: int, side: int, panels: int) -> None:
    mesh = mesh_of(layers, side)
    with jax.set_mesh(mesh):
        found = wb.inspect(product(panels))(*matrices(mesh)).module.collectives
    expected = algorithms.matmul_words(N, side=side, layers=layers)
    sent = {
        kind: sum(c.wire_bytes * c.executions / 4 for c in found if c.kind == kind) for kind in {c.kind for c in found}
    }
    assert sent.get("all-gather", 0) == expected["gather"]
    assert sent.get("all-reduce", 0) == expected["reduce"]
    assert set(sent) <= {"all-gather", "all-reduce"}
    assert {c.executions for c in found if c.kind == "all-gather"} <= {panels}


def test_panels_bound_the_memory_of_a_device_without_more_bytes() -> None:
    mesh = mesh_of(1, 2)
    with jax.set_mesh(mesh):
        whole, some = (
            wb.inspect(product(panels))(*matrices(mesh, 512)).module.memory.temporary_bytes for panels in (1, 8)
        )
    assert some < 0.8 * whole


def test_the_product_is_a_mapreduce_over_layers() -> None:
    mesh = mesh_of(2, 2)
    with jax.set_mesh(mesh):
        plan = wb.trace(product(2))(*matrices(mesh)).plan
    assert [(p.name, p.size, p.mesh_axes) for p in plan.placements] == [("layers", 2, ("layers",))]
    assert [s.operation for s in plan.stages if s.kind == "reduce"] == ["reduce_sum"]


@pytest.fixture(scope="module")
def tpu_compiler() -> Iterator[None]:
    chip = next(chip for chip in wb.aot.list_targets() if chip.platform == "tpu")
    if not chip.installed:
        pytest.skip(f"no compiler for TPUs is installed: {chip.install}")
    yield
    stop_workers()


@pytest.mark.slow
@pytest.mark.usefixtures("tpu_compiler")
@pytest.mark.parametrize(
    ("target", "layers", "side"),
    [("v4:4x4x4", 4, 4), ("v5e:8x8", 1, 8), ("v5e:8x8", 4, 4)],
    ids=["2.5-D on a cube", "SUMMA on a square", "2.5-D on a square"],
)
def test_an_absent_tpu_moves_what_the_formula_says(target: str, layers: int, side: int) -> None:
    mesh, n = AbstractMesh((layers, side, side), AXES), 1024
    specs = (P("rows", ("layers", "cols")), P(("layers", "rows"), "cols"))
    given = [jax.ShapeDtypeStruct((n, n), jnp.float32, sharding=NamedSharding(mesh, s)) for s in specs]
    with jax.sharding.use_abstract_mesh(mesh), jax.default_matmul_precision("highest"):
        record = wb.inspect(product(4), on=(mesh, target))(*given)
    sent = sum(c.wire_bytes * c.executions / 4 for c in record.module.collectives)
    assert sent == algorithms.matmul_words(n, side=side, layers=layers)["total"]


@pytest.mark.parametrize(
    ("mesh", "a", "error", "says"),
    [
        (None, (N, N), MeshError, "mesh axes none.*make_mesh"),
        ({"layers": 2, "rows": 4, "cols": 1}, (N, N), MeshError, "layers=2, rows=4, cols=1.*square"),
        ({"layers": 2, "rows": 2, "cols": 2}, (N, 48), ProgramError, "48 and 64 differ"),
        ({"layers": 2, "rows": 2, "cols": 2}, (63, N), ProgramError, "n=63 is not a multiple of 2"),
    ],
    ids=["no mesh", "not square", "inner sizes", "rows"],
)
def test_impossible_products_are_refused(mesh: Any, a: Any, error: type[Exception], says: str) -> None:
    with (
        jax.set_mesh(wb.make_mesh(**mesh)) if mesh else jax.default_matmul_precision("float32"),
        pytest.raises(error, match=says),
    ):
        algorithms.matmul_25d(jnp.ones(a), jnp.ones((N, N)))


def test_no_panels_are_refused() -> None:
    with jax.set_mesh(wb.make_mesh(layers=2, rows=2, cols=2)), pytest.raises(ProgramError, match=r"panels=0.*positive"):
        algorithms.matmul_25d(jnp.ones((N, N)), jnp.ones((N, N)), panels=0)
