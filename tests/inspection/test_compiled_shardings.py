"""The shardings of compiled programs, against shardings that are drawn and against those that XLA assigns."""

import math

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings, strategies as st
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import workbench as wb
from tests.oracles import shardings as oracle
from workbench.inspection._compiled_shardings import Place, compiled_values, observed_spec
from workbench.inspection._why import _Reader
from workbench.records.compiled import InstructionRecord
from workbench.records.sharding import PlannedValueRecord

many = settings(max_examples=300, deadline=None, derandomize=True)
MESHES = ({"a": 8}, {"a": 2, "b": 4}, {"a": 4, "b": 2}, {"a": 2, "b": 2, "c": 2}, {"a": 6, "b": 2}, {"a": 2, "b": 3})


@st.composite
def assignments(draw: st.DrawFn) -> tuple[dict[str, int], list[dict[str, int]], set[str]]:
    """The sizes of mesh axes, the parts of axes that shard each dimension, and the axes that may be taken apart."""
    sizes = draw(st.sampled_from(MESHES))
    divided = {axis for axis in sizes if draw(st.booleans())}
    rank = draw(st.integers(1, 3))
    dims: list[dict[str, int]] = [{} for _ in range(rank)]
    for axis, size in sizes.items():
        factors = [f for f in (2, 2, 2, 3) if size % f == 0][: {2: 1, 3: 1, 4: 2, 6: 2, 8: 3}[size]]
        factors = [2, 3] if size == 6 else factors
        for factor in factors if axis in divided else [size]:
            if (place := draw(st.integers(-1, rank - 1))) >= 0:
                dims[place][axis] = dims[place].get(axis, 1) * factor
    return sizes, dims, divided


def _value(shape: tuple[int, ...], spec: tuple[tuple[str, ...], ...]) -> PlannedValueRecord:
    return PlannedValueRecord(
        name="%0", operation="tanh", shape=shape, dtype="f32", spec=spec, origins={}, op_name="jit(f)/tanh"
    )


def _specs(sizes: dict[str, int], dims: list[dict[str, int]]) -> tuple[frozenset[str], ...]:
    """The axes of each dimension, with parts of axes as `a[2 of 4]`."""
    return tuple(frozenset(a if n == sizes[a] else f"{a}[{n} of {sizes[a]}]" for a, n in dim.items()) for dim in dims)


@many
@given(assignments(), st.data())
def test_a_sharding_is_named_only_if_the_shape_leaves_no_other(drawn, data) -> None:
    sizes, dims, divided = drawn
    shape = tuple(math.prod(sizes.values()) * 5 for _ in dims)
    part = ",".join(str(size // math.prod(dim.values())) for size, dim in zip(shape, dims, strict=True))
    plan: list[tuple[str, ...]] = [() for _ in dims]
    for axis in sizes:
        if (place := data.draw(st.integers(-1, len(dims) - 1))) >= 0:
            plan[place] += (axis,)
    value = _value(shape, tuple(plan))
    instruction = InstructionRecord(
        name="tanh.1", opcode="tanh", computation="main", shape=f"f32[{part}]", size_bytes=4, executions=1.0,
        op_name="jit(f)/tanh",
    )  # fmt: skip
    places: dict[Place, set[str]] = {("jit(f)/tanh", None): divided} if divided else {}
    (told,), confirmed = compiled_values([value], [instruction], sizes, (), places)
    if told.name in confirmed and (divided or told.spec != value.spec):
        assert tuple(map(frozenset, told.spec)) == _specs(sizes, dims)
    observed = observed_spec(value, [instruction.shape], sizes, divided)
    if observed is not None and observed != value.spec:
        assert tuple(map(frozenset, observed)) == _specs(sizes, dims)
    whole = {dim: {axis for axis, size in part.items() if size == sizes[axis]} for dim, part in enumerate(dims)}
    gathered = {dim: axes for dim, axes in whole.items() if axes}
    observed = observed_spec(value, [instruction.shape], sizes, divided, gathered)
    if observed is not None:
        assert all(axes <= set(observed[dim]) for dim, axes in gathered.items())
        if observed != value.spec:
            assert tuple(map(frozenset, observed)) == _specs(sizes, dims)


def _language_model(heads: int, grad: bool):
    """A step whose lookups and heads the partitioner exchanges over a half of the axis `b`."""

    def logits(params, ids):
        x = params["table"][ids]
        q = (x @ params["q"]).reshape(*x.shape[:2], heads, -1)
        scores = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, q), -1)
        x = x + jnp.einsum("bhqk,bkhd->bqhd", scores, q).reshape(x.shape)
        return (x + jnp.tanh(x @ params["up"]) @ params["down"]) @ params["head"]

    loss = lambda params, ids: (logits(params, ids) ** 2).mean()  # noqa: E731
    return jax.jit(jax.grad(loss) if grad else logits)


@pytest.mark.parametrize(("heads", "grad"), [(2, False), (4, True)])
def test_shardings_around_parts_of_axes_are_those_that_xla_assigns(heads: int, grad: bool) -> None:
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(AxisType.Auto,) * 2)

    def shape(sizes, *axes, dtype="float32"):
        return jax.ShapeDtypeStruct(sizes, dtype, sharding=NamedSharding(mesh, P(*axes)))

    params = {
        "table": shape((128, 64), "b", "a"),
        "q": shape((64, 64), "a", "b"),
        "up": shape((64, 256), "a", "b"),
        "down": shape((256, 64), "b", "a"),
        "head": shape((64, 128), "a", "b"),
    }
    args = params, shape((16, 32), "a", dtype="int32")
    call = _language_model(heads, grad)
    with jax.set_mesh(mesh):
        record = wb.inspect(call)(*args)
    assert record.module is not None
    assert record.propagation is not None
    collectives = record.module.collectives
    assert any("b[2 of 4]" in collective.axes for collective in collectives)
    reader = _Reader(record.propagation, dict(mesh.shape), record.module.instructions, None, collectives)
    assigned, checked = oracle.assigned(call, args, mesh), 0
    for value in reader._of_compiled.propagation.values:
        known = assigned.get((value.op_name, value.source.line if value.source else None, value.shape))
        if value.name not in reader._of_compiled._confirmed or not value.operands or known is None:
            continue
        if any("[" in axis for axes in value.spec for axis in axes):
            continue  # the propagation plans this part of an axis
        named = oracle.groups_of(value, mesh)
        # The partitioner gathers or cuts a value further, but over the same axes.
        assert any(all(map(oracle.agree, named, groups)) for groups in known), value
        checked += 1
    assert checked > 10
    told = wb.why(record).collectives
    assert [each.axes for each in sorted(told, key=lambda each: each.instruction)] == [
        each.axes for each in sorted(collectives, key=lambda each: each.name)
    ]
    for each in told:
        halves = [axis for axis in each.axes if "[" in axis]
        assert ("among 2 of the 4 devices along `b`" in each.sentence) == (halves == ["b[2 of 4]"])
