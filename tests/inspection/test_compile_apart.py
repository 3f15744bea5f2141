"""A program that ends XLA's compiler ends a process of its own instead of the kernel."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import workbench as wb
from workbench.errors import InspectionError


def mesh(**sizes: int) -> Any:
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


def lookup(mesh: Any, **options: Any) -> Callable[[Any, Any], Any]:
    """An embedding lookup of every client, in a `shard_map` over the clients' axis alone."""

    def one(table: Any, tokens: Any) -> Any:
        return jnp.take(table, tokens, axis=0).sum(0)

    def total(table: Any, tokens: Any) -> Any:
        return jax.lax.psum(jax.vmap(one)(table, tokens).sum(0), "clients")

    specs = (P("clients"), P("clients"))
    return jax.shard_map(total, mesh=mesh, in_specs=specs, out_specs=P(), axis_names={"clients"}, **options)


def arguments(mesh: Any) -> tuple[Any, Any]:
    table = jax.device_put(jnp.ones((8, 8, 16)), NamedSharding(mesh, P("clients", *mesh.axis_names[1:])))
    return table, jax.device_put(jnp.zeros((8, 8), jnp.int32), NamedSharding(mesh, P("clients", mesh.axis_names[1])))


@pytest.mark.parametrize("view", [wb.inspect, lambda fn: wb.measure(fn, rounds=1)])
def test_program_that_ends_the_compiler_is_an_error(view: Callable[..., Any]):
    three = mesh(clients=2, fsdp=2, tensor=2)
    with pytest.raises(InspectionError, match=r"over `clients` and leaves `fsdp` and `tensor` to the compiler"):
        view(lookup(three))(*arguments(three))


def test_program_that_ends_the_compiler_is_an_error_where_it_is_lowered_already():
    three = mesh(clients=2, fsdp=2, tensor=2)
    lowered = jax.jit(lookup(three)).lower(*arguments(three))
    with pytest.raises(InspectionError, match="XLA aborts on this program"):
        wb.inspect(lowered)()


def test_program_that_leaves_one_axis_to_the_compiler_is_compiled_here(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("workbench.inspection._compile_once.compile_for_cpu", lambda *_, **__: pytest.fail("not here"))
    two = mesh(clients=2, tensor=2)
    assert wb.inspect(lookup(two))(*arguments(two)).module is not None
