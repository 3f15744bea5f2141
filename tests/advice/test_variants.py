"""Variants of a program: the mesh on which they are compiled, and constraints whose removal makes them slower."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import workbench as wb
from workbench.advice import Variants
from workbench.advice._rewrite import with_constraints


def test_variants_have_the_given_mesh_before_all_others():
    given, current, of_arrays = (jax.make_mesh((8,), (name,), axis_types=(AxisType.Auto,)) for name in "abc")
    x = jax.device_put(jnp.ones(8), NamedSharding(of_arrays, P("c")))
    call: Any = wb.trace(jnp.sin)(x)._call

    def axes(**options):
        mesh: Any = Variants(call=call, fn=jnp.sin, args=(x,), kwargs={}, options=options).mesh
        return mesh.axis_names

    assert axes() == ("c",)
    with jax.set_mesh(current):
        assert axes() == ("b",)
        assert axes(mesh=given) == ("a",)


def test_a_constraint_without_which_devices_repeat_work_is_no_finding():
    """Without the constraint nothing is sent, but all devices compute the whole product."""
    mesh = jax.make_mesh((8,), ("model",), axis_types=(AxisType.Auto,))
    columns = NamedSharding(mesh, P(None, "model"))

    def predict(x, w, v):
        return jax.lax.with_sharding_constraint(x @ w, columns) @ v

    def shape(*sizes):
        return jax.ShapeDtypeStruct(sizes, "bfloat16", sharding=NamedSharding(mesh, P()))

    sizes = shape(1024, 16384), shape(16384, 16384), shape(16384, 1024)
    module: Any = wb.inspect(predict, on="v5e")(*sizes).module
    assert sum(each.wire_bytes or 0.0 for each in module.collectives) > 0
    advice = wb.advise(predict, on="v5e", verify=False)(*sizes)
    assert "costly constraint" not in [finding.rule for finding in advice.findings]


def test_constrained_values_are_counted():
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    closed = jax.make_jaxpr(lambda x: (jnp.sin(x), jnp.cos(x), x.sum()))(jnp.ones((8, 8)))
    changed, count = with_constraints(closed, (), mesh, {(8, 8): (("data",), ())})
    constraints = [each for each in changed.jaxpr.eqns if "sharding_constraint" in str(each)]
    assert count == len(constraints) == 2
