"""Laws: derivatives stay inside the algebra, compiled programs hold the promised collectives, a second call is free."""

import re
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P
from mapreduce_cases import CASES, TRANSFORMATIONS, inputs
from mapreduce_meshes import under

import workbench as wb
from workbench._jax_compat import inner_jaxprs
from workbench.primitives import MAPREDUCE_PRIMITIVES, REDUCTIONS, broadcast_p, map_p

# What JAX itself may use to move values between clients: reductions and reshuffles along the leading axis.
_HIDDEN = re.compile(
    r"psum|pmax|pmin|all_gather|all_to_all|ppermute|reduce_scatter|shard_map|sharding_constraint|reshard"
)
CLIENTS = 11  # a size that no other axis has


def _equations(jaxpr: Any) -> Any:
    """Equations outside of client functions: what happens between clients and server."""
    for equation in jaxpr.eqns:
        yield equation
        if equation.primitive not in MAPREDUCE_PRIMITIVES:
            for inner in inner_jaxprs(equation):
                yield from _equations(inner)


def _moves_clients(equation: Any) -> bool:
    """Whether an equation that is not ours turns rows of clients into something without that axis, or back."""
    if equation.primitive in MAPREDUCE_PRIMITIVES or inner_jaxprs(equation):
        return False
    before = any(CLIENTS in v.aval.shape for v in equation.invars)
    after = any(CLIENTS in v.aval.shape for v in equation.outvars)
    zeros = not equation.invars or all(v.aval.shape == () for v in equation.invars)  # symbolic zeros made real
    return before != after and not zeros


@pytest.mark.parametrize("transformation", ["value", "grad", "hessian", "forward over reverse", "reverse over reverse"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_derivatives_hold_only_our_primitives_as_communication(case: Any, transformation: str) -> None:
    # Where a case ends at the clients, the loss of the test would add up their rows itself.
    ours = (lambda w, x: wb.reduce_sum(case.ours(w, x))) if case.name in ("broadcast", "map_fn") else case.ours
    fn = TRANSFORMATIONS[transformation](wb.program(clients=CLIENTS)(ours))
    equations = list(_equations(jax.make_jaxpr(fn)(*inputs(CLIENTS)).jaxpr))
    assert [str(e.primitive) for e in equations if _HIDDEN.search(e.primitive.name)] == []
    assert [str(e) for e in equations if _moves_clients(e)] == []
    assert any(e.primitive in MAPREDUCE_PRIMITIVES for e in equations)


def test_transposes_are_each_other() -> None:
    three = wb.program(clients=3)

    def of(fn: Any, x: Any) -> list[str]:
        pulled = jax.make_jaxpr(lambda x, ct: jax.linear_transpose(fn, x)(ct))(x, jax.eval_shape(fn, x))
        return [e.primitive.name for e in _equations(pulled.jaxpr)]

    rows = jnp.ones((3, 2))
    keys = jnp.array([2, 0, 1])
    assert of(three(wb.broadcast), jnp.ones(2)) == ["reduce_sum"]
    assert of(three(wb.reduce_sum), rows) == ["broadcast"]
    assert of(three(wb.reduce_mean), rows) == ["div", "broadcast"]
    assert of(three(lambda x: wb.select(x, jnp.array([0]))), rows) == ["place"]
    assert of(three(lambda x: wb.reduce_by_key(x, keys, 3)), rows) == ["broadcast", "map_fn"]


def test_what_a_client_closes_over_is_an_explicit_broadcast() -> None:
    fn = wb.program(clients=3)(lambda w, x: wb.map_fn(lambda row: row * w, x))
    equations = list(_equations(jax.make_jaxpr(fn)(jnp.ones(2), jnp.ones((3, 2))).jaxpr))
    assert [e.primitive for e in equations] == [broadcast_p, map_p]
    (client,) = inner_jaxprs(equations[1])
    assert [v.aval.shape for v in client.invars] == [(2,), (2,)]


def _collectives(text: str) -> Counter:
    return Counter(re.findall(r"= \S+ (all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute)\(", text))


def _round(w: Any, x: Any) -> Any:
    return wb.reduce_mean(wb.map_fn(lambda v, row: jnp.tanh(row @ v), (wb.broadcast(w), x)))


def _placed(mesh: str) -> tuple[Any, Any]:
    w, x = jnp.ones((4, 4)), jnp.ones((16, 2, 4))
    at = jax.sharding.get_mesh()
    return jax.device_put(w, NamedSharding(at, P())), jax.device_put(x, NamedSharding(at, P("clients")))


COMPILERS = pytest.mark.parametrize(
    "compiler", [jax.jit, wb.jit, lambda fn: wb.jit(fn, chunk_size=1)], ids=["jax.jit", "wb.jit", "one at once"]
)


@COMPILERS
@pytest.mark.parametrize("mesh", ["Auto", "Explicit"], ids=str)
def test_compiled_map_holds_no_collective(mesh: str, compiler: Any) -> None:
    fn = wb.program(clients=16)(lambda w, x: wb.map_fn(lambda row: jnp.tanh(row @ w), x))
    with under(mesh):
        text = compiler(fn).lower(*_placed(mesh)).compile().as_text()
    assert _collectives(text) == {}


@COMPILERS
@pytest.mark.parametrize("mesh", ["Auto", "Explicit"], ids=str)
@pytest.mark.parametrize(
    ("program", "promised"),
    [
        (_round, 1),
        (lambda w, x: wb.reduce_max(wb.map_fn(lambda row: row @ w, x)), 1),
        (lambda w, x: wb.reduce_by_key(wb.map_fn(lambda row: row @ w, x), np.arange(16) % 3, 3), 1),
        (lambda w, x: _round(w + _round(w, x).sum(), x), 2),
    ],
    ids=["mean", "max", "by key", "two rounds"],
)
def test_compiled_reduction_is_one_all_reduce(program: Any, promised: int, mesh: str, compiler: Any) -> None:
    with under(mesh):
        text = compiler(wb.program(clients=16)(program)).lower(*_placed(mesh)).compile().as_text()
    assert _collectives(text) == {"all-reduce": promised}


@COMPILERS
@pytest.mark.parametrize("mesh", ["Auto", "Explicit"], ids=str)
def test_compiled_gradient_holds_one_all_reduce(mesh: str, compiler: Any) -> None:
    # Forward, the mean itself is not needed for the gradient of its sum; backward, broadcast becomes a sum.
    gradient = jax.grad(lambda w, x: wb.program(clients=16)(_round)(w, x).sum())
    with under(mesh):
        text = compiler(gradient).lower(*_placed(mesh)).compile().as_text()
    assert _collectives(text) == {"all-reduce": 1}


def test_without_the_annotations_the_compiler_computes_every_client_everywhere() -> None:
    """The ablation: the same program without an axis of its name computes all clients on all devices."""
    program = wb.program(clients=16)
    fn = program(lambda w, x: wb.map_fn(lambda v, row: jnp.tanh(row @ v), (wb.broadcast(w), x)))
    unsharded = wb.program(clients=16, axes={"clients": "elsewhere"})(fn.__wrapped__)
    w, x = jnp.ones((4, 4)), jnp.ones((16, 2, 4))
    with under("Auto"):
        ours = jax.jit(fn).lower(w, x).compile().cost_analysis()
        ablated = jax.jit(unsharded).lower(w, x).compile().cost_analysis()
    assert ablated["flops"] / ours["flops"] == pytest.approx(8, rel=0.1)


@pytest.mark.parametrize("compiler", [jax.jit, wb.jit], ids=["jax.jit", "wb.jit"])
def test_second_call_does_not_trace_again(compiler: Any) -> None:
    traced = []

    @compiler
    @wb.program(clients=3)
    def fn(w: Any, x: Any) -> Any:
        traced.append(1)
        return wb.reduce_mean(wb.map_fn(lambda row: row * w, x))

    for scale in (1.0, 2.0, 3.0):
        fn(scale * jnp.ones(2), jnp.ones((3, 2)))
    assert len(traced) == 1


def test_a_jitted_function_is_traced_again_for_other_clients() -> None:
    total = jax.jit(lambda x: wb.reduce_sum(wb.broadcast(x)))
    assert [float(wb.program(clients=n)(total)(jnp.float32(1))) for n in (3, 4, 3)] == [3, 4, 3]


def test_scopes_name_every_primitive_in_the_lowered_program() -> None:
    fn = wb.program(clients=3)(lambda w, x: wb.reduce_mean(wb.map_fn(lambda row: row * w, x)))
    text = jax.jit(jax.grad(lambda w, x: fn(w, x).sum())).lower(jnp.ones(2), jnp.ones((3, 2))).as_text(debug_info=True)
    for scope in ("wb.broadcast[clients]", "wb.map_fn[clients]", "wb.reduce_sum[clients]"):
        assert scope in text
    assert len(REDUCTIONS) == 5
