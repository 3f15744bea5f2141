"""Chunk sizes, flags, phases and spreads of client loops, derived by hand."""

import math
import os
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType

import workbench as wb
from workbench.errors import ProgramError
from workbench.plan import LoopForm, check_chunk_size, choose_chunk_size, find_phases, trace
from workbench.plan._choices import choice_record, loop_fields
from workbench.plan._chunk_size import (
    _cores_per_device,
    _count_products,
    _iterations,
    resolve_chunk_size,
    usable_cores,
)
from workbench.plan._differs import Differs
from workbench.plan._evaluate import form_of, kept_bytes_of
from workbench.plan._phases import waiting_bytes
from workbench.plan._spread import choose_spread, manual_axes, other_axes
from workbench.records.program import PlanChoiceRecord

CLIENTS = 4096


def s(*shape: int, dtype: str = "float32") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def phase_of(client: Any, *rows: Any, shared: Any = (), clients: int = CLIENTS, mesh: Any = None) -> Any:
    """The phase of a mean over clients, each with its rows; `shared` values are broadcast."""

    def program(shared: Any, rows: Any) -> Any:
        mapped = wb.map_fn(lambda shared, rows: client(*shared, *rows), (wb.broadcast(shared), rows))
        return wb.reduce_sum(mapped)

    rows = tuple(s(clients, *row.shape, dtype=row.dtype) for row in rows)
    call = lambda: trace(wb.program(clients=clients)(program), (shared, rows)).plan  # noqa: E731
    if mesh is None:
        return find_phases(call())[0][0]
    with jax.sharding.use_abstract_mesh(mesh):
        return find_phases(call())[0][0]


# ---- chunk sizes


def chosen(client: Any, *rows: Any, shared: Any = (), cores: float = 1, share: int = CLIENTS) -> int:
    return choose_chunk_size(phase_of(client, *rows, shared=shared), share, platform="cpu", cores=cores)


def own(columns: int) -> tuple[Any, ...]:
    """A product of a client's own matrices, of 1000 · 1000 · 2 · `columns` FLOPs."""
    return lax.dot, s(1000, 1000), s(1000, columns)


@pytest.mark.parametrize(
    ("columns", "cores", "size"),
    [
        # At least 4 MFLOP in an iteration; with two cores up to 8 clients, and at most 80 MFLOP.
        (1, 1, 2), (2, 1, 1), (3, 1, 1), (1, 2, 8), (4, 1.9, 1), (4, 2, 8), (5, 2, 8), (6, 2, 6), (20, 2, 2),
        (21, 2, 1), (100, 2, 1),
    ],
)  # fmt: skip
def test_clients_with_matrices_of_their_own(columns: int, cores: float, size: int) -> None:
    assert chosen(*own(columns), cores=cores) == size


@pytest.mark.parametrize(
    ("columns", "cores", "size"),
    [
        # Products with a shared factor: up to 8 clients and 80 MFLOP on one core, up to 32 and 320 on two.
        (2, 1, 8), (5, 1, 8), (6, 1, 6), (20, 1, 2), (21, 1, 1), (2, 2, 32), (5, 2, 32), (6, 2, 26), (80, 2, 2),
        (81, 2, 1),
    ],
)  # fmt: skip
def test_clients_that_share_a_matrix(columns: int, cores: float, size: int) -> None:
    assert chosen(lax.dot, s(1000, columns), shared=(s(1000, 1000),), cores=cores) == size


@pytest.mark.parametrize(("shared_columns", "size"), [(3, 1), (4, 1), (5, 4)])
def test_more_than_half_of_the_products_must_be_shared(shared_columns: int, size: int) -> None:
    """8 MFLOP of a client's own product, beside 2 MFLOP for each column of the shared one."""

    def client(w: Any, x: Any, y: Any, z: Any) -> Any:
        return lax.dot(w, x)[0, 0] + lax.dot(y, z)[0, 0]

    rows = s(1000, shared_columns), s(1000, 1000), s(1000, 4)
    assert chosen(client, *rows, shared=(s(1000, 1000),)) == size


@pytest.mark.parametrize(("share", "size"), [(3, 3), (8, 8), (9, 8), (1, 1)])
def test_a_device_computes_no_more_clients_than_it_has(share: int, size: int) -> None:
    assert chosen(*own(4), cores=2, share=share) == size


def test_the_work_of_one_iteration_decides() -> None:
    """2 MFLOP in each of 10 iterations, and no work outside of the loop."""

    def client(w: Any, x: Any) -> Any:
        return lax.scan(lambda c, _: (lax.dot(w, c), None), x, None, length=10)[0]

    assert chosen(client, s(1000, 1000), s(1000, 1)) == 2
    assert chosen(lambda x: x + 1, s(1000)) == 4000  # elementwise work counts as well
    assert chosen(lambda x: x, s(4)) == CLIENTS


@pytest.mark.parametrize(("rows", "cores", "size"), [(1, 2, 16), (7, 2, 16), (8, 2, 15), (60, 2, 2), (61, 2, 2),
                                                     (123, 2, 1), (126, 2, 1), (1, 1, 1), (1, 1.9, 1)])  # fmt: skip
def test_own_tables_run_16_together_if_they_fit_in_4_megabytes(rows: int, cores: float, size: int) -> None:
    """Tables of 32,000 B a row, into which a client scatters a row."""

    def client(table: Any, at: Any) -> Any:
        return table.at[at].set(0.0)

    assert size == (1 if cores < 2 else max(1, min(16, 4_000_000 // (32_000 * rows))))
    assert chosen(client, s(rows, 8000), s(dtype="int32"), cores=cores) == size


def test_a_shared_table_is_no_table_of_a_client() -> None:
    assert chosen(lambda table, x: table.at[0].set(0.0)[1:].sum() + x, s(), shared=(s(8, 1000),)) > 16


def test_kernels_of_a_client_run_alone() -> None:
    def client(x: Any, k: Any) -> Any:
        return lax.conv(x, k, (1, 1), "SAME")

    image, kernel = s(1, 1, 4, 4), s(1, 1, 3, 3)
    assert chosen(client, image, kernel, cores=2) == 1
    assert chosen(lambda k, x: client(x, k), image, shared=(kernel,), cores=2) > 1


@pytest.mark.parametrize(
    ("client", "rows", "tally"),
    [
        # "all", "shared", "own kernels", "own tables", "largest table"
        (lambda w, x: lax.dot(w, x), s(5, 6), (240, 240, 0, 0, 0)),
        (lambda w, x: lax.dot(w, x) + lax.dot(x.T, x)[:4], s(5, 5), (200 + 250, 200, 0, 0, 0)),
        (lambda w, x: lax.dot(w, w.T)[0] + x, s(4), (0, 0, 0, 0, 0)),  # the same for all clients
        (lambda w, x: lax.conv(x, x[:, :, :2], (1,), "VALID"), s(1, 1, 5), (0, 0, 2 * 4 * 2, 0, 0)),
        (lambda w, x: lax.conv(x, w[None, :1, :2], (1,), "VALID"), s(1, 1, 5), (0, 0, 0, 0, 0)),
        (lambda w, x: x.at[1].add(1.0)[:4] + x.at[0].set(0.0)[:4], s(6), (0, 0, 0, 12, 24)),
        (lambda w, x: lax.scan(lambda c, _: (lax.dot(w, c), None), x, None, length=7)[0], s(5, 6), None),
        (lambda w, x: lax.scan(lambda c, _: (c.at[1].add(1.0), None), x, None, length=7)[0][:4], s(6),
         (0, 0, 0, 42, 24)),
    ],
    ids=range(8),
)  # fmt: skip
def test_products_of_a_client(client: Any, rows: Any, tally: Any) -> None:
    if tally is None:
        rows, tally = s(5, 5), (7 * 2 * 5 * 5 * 5, 7 * 250, 0, 0, 0)
        found = _count_products(phase_of(client, rows, shared=(s(5, 5),)))
    else:
        found = _count_products(phase_of(client, rows, shared=(s(4, 5),)))
    assert tuple(found.values()) == tally


def test_iterations_of_the_innermost_loops() -> None:
    def loop(length: int, inner: Any = lambda x: x) -> Any:
        return lambda x: lax.scan(lambda c, _: (inner(c), None), x, None, length=length)[0]

    until = lambda inner: lambda x: lax.while_loop(lambda c: c < 1, inner, x)  # noqa: E731
    cases = [(jnp.sin, 0), (loop(3), 3), (loop(3, loop(5)), 15), (lambda x: loop(3)(x) + loop(5)(x), 8),
             (jax.jit(loop(3)), 3), (until(loop(4)), 4), (until(jnp.sin), 0), (loop(2, until(jnp.sin)), 2),
             (loop(3, lambda x: loop(2)(x) + loop(4)(x)), 18)]  # fmt: skip
    assert [_iterations(jax.make_jaxpr(fn)(1.0).jaxpr) for fn, _ in cases] == [count for _, count in cases]


def test_an_accelerator_fills_a_quarter_of_its_memory() -> None:
    """A client has 40 B of data and 40 B of results."""
    phase = phase_of(lambda x: x + 1, s(10))
    assert phase.row_bytes == 80
    sizes = [choose_chunk_size(phase, 100, platform="gpu", memory_bytes=size) for size in (1, 639, 640, 641, 10**6)]
    assert sizes == [1, 1, 2, 2, 100]
    assert choose_chunk_size(phase, 10**9, platform="gpu") == (8 << 30) // 4 // 80  # without a known memory


def test_devices_share_the_cores_of_their_process() -> None:
    cores = [
        _cores_per_device(phase_of(jnp.sin, s(3), clients=8, mesh=each)) for each in (None, mesh(clients=4), mesh(a=2))
    ]
    assert cores == [usable_cores(), usable_cores() / 4, usable_cores()]
    assert usable_cores() == len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else usable_cores() > 0


def test_a_chunk_size_is_given_or_chosen() -> None:
    phase: Any = phase_of(*own(4))
    sizes = [resolve_chunk_size(size, phase, 9) for size in (None, 1, 9, 10)]
    assert sizes == [9, 1, 9, 9]
    assert resolve_chunk_size(lambda chosen, share: share - 2 * (chosen is phase), phase, 9) == 7
    assert resolve_chunk_size("auto", phase, 9) == choose_chunk_size(phase, 9)


@pytest.mark.parametrize("size", [1, 2, "auto", None, max])
def test_chunk_sizes_that_are_possible(size: Any) -> None:
    check_chunk_size("trace", size)
    check_chunk_size("jit", "tune")


@pytest.mark.parametrize(
    ("question", "size"), [("jit", 0), ("jit", -1), ("jit", True), ("jit", 2.0), ("jit", "all"), ("trace", "tune")]
)
def test_chunk_sizes_that_are_impossible(question: str, size: Any) -> None:
    with pytest.raises(ProgramError) as caught:
        check_chunk_size(question, size)
    assert str(caught.value) == (
        f"`{question}` was given chunk_size={size!r}. `chunk_size` is the number of clients that one device processes "
        'together: pass a positive int, "auto" to let the workbench choose, or None for all clients; `jit` also '
        'accepts "tune", which measures.'
    )


@pytest.mark.parametrize(
    ("size", "form", "fields"),
    [
        (4, LoopForm("vmap", 10, 2), (4, "vmap", 10, 2)),
        (None, LoopForm(kept_bytes=math.inf), (None, "auto", None, 1)),
        (max, LoopForm(), ("auto", "auto", 64 << 20, 1)),
    ],
)
def test_a_choice_has_the_form_of_its_loop(size: Any, form: LoopForm, fields: tuple[Any, ...]) -> None:
    names = "chunk_size", "spread", "kept_bytes", "unroll"
    assert loop_fields(size, form) == dict(zip(names, fields, strict=True))
    record = choice_record(size, form, program="p", source="given", why="by hand")
    assert record == PlanChoiceRecord(**loop_fields(size, form), program="p", source="given", why="by hand")
    assert form_of(record) == form
    assert kept_bytes_of(size, form) == (math.inf if size is None else form.kept_bytes)


# ---- values that differ between clients


def flags(fn: Any, *shapes: Any) -> Any:
    """The flags of the results for every combination of flags of the inputs, as a table."""
    closed = jax.make_jaxpr(fn)(*shapes)
    inputs = [tuple(bool(number & 2**i) for i in range(len(shapes))) for number in range(2 ** len(shapes))]
    return {each: tuple(Differs().run(closed, each)) for each in inputs}


def test_flags_of_single_operations_and_calls() -> None:
    def fn(x: Any, y: Any) -> Any:
        return x + 1, jax.jit(lambda x: 2 * x)(y), x * y, jnp.float32(3)

    assert flags(fn, 1.0, 1.0) == {
        (a, b): (a, b, a or b, False) for a in (False, True) for b in (False, True)
    }  # fmt: skip


def test_flags_pass_from_iteration_to_iteration() -> None:
    """`a` takes from `b`, which takes from `c`: three iterations until `a` differs."""

    def fn(a: Any, b: Any, c: Any, xs: Any, const: Any) -> Any:
        def body(carry: Any, x: Any) -> Any:
            a, b, c = carry
            return (a + b, b + c, c + const), (a, x)

        carry, stacked = lax.scan(body, (a, b, c), xs)
        return *carry, *stacked

    for (a, b, c, xs, const), found in flags(fn, 1.0, 1.0, 1.0, s(3), 1.0).items():
        late = c or const
        assert found == (a or b or late, b or late, late, a or b or late, xs)


def test_flags_of_loops_of_unknown_length() -> None:
    def fn(limit: Any, step: Any, x: Any, y: Any) -> Any:
        return lax.while_loop(lambda c: c[0] < limit, lambda c: (c[0] + 1.0, c[1] + step), (x, y))

    for (limit, step, x, y), found in flags(fn, 1.0, 1.0, 1.0, 1.0).items():
        assert found == ((True, True) if limit or x else (False, step or y))


def test_flags_of_branches() -> None:
    def fn(i: Any, x: Any, y: Any) -> Any:
        return lax.switch(i, [lambda x, y: (x, 1.0), lambda x, y: (y, y)], x, y)

    for (i, x, y), found in flags(fn, 1, 1.0, 1.0).items():
        assert found == (i or x or y, i or y)


# ---- phases: which rows wait for a later pass


@wb.program(clients=8)
def two_passes(x: Any, y: Any) -> Any:
    rows = wb.map_fn(lambda a: 2 * a, x)  # 8 rows of 12 B
    mean = wb.reduce_mean(rows)
    return wb.reduce_sum(wb.map_fn(lambda r, m, b: (r - m) * b, (rows, wb.broadcast(mean), y)))


def kept(program: Any, *shapes: Any, **options: Any) -> list[list[tuple[int, int]]]:
    """For each level, the numbers of steps and of kept rows of its phases."""
    phases = find_phases(trace(program, shapes).plan, **options)
    return [[(len(phase.steps), len(phase.kept)) for phase in level] for level in phases.values()]


@pytest.mark.parametrize(
    ("kept_bytes", "phases"), [(96, [[(2, 1)], [(2, 0)]]), (95, [[(2, 0)], [(3, 0)]]), (math.inf, [[(2, 1)], [(2, 0)]])]
)
def test_rows_within_the_budget_wait_and_larger_ones_are_computed_again(kept_bytes: float, phases: Any) -> None:
    shapes = s(8, 3), s(8, 3)
    assert waiting_bytes(trace(two_passes, shapes).plan) == 96
    assert kept(two_passes, *shapes, kept_bytes=kept_bytes) == phases


def test_rows_and_shared_values_of_a_phase() -> None:
    plan = trace(two_passes, (s(8, 3), s(8, 3))).plan
    (first,), (second,) = find_phases(plan).values()
    assert [len(first.rows), len(first.shared), len(second.rows), len(second.shared)] == [1, 0, 2, 1]
    (again,) = find_phases(plan, kept_bytes=0)[1]
    assert set(again.rows) == set(plan.closed.jaxpr.invars)
    assert [step.kind for step in again.steps] == ["clients", "clients", "reduce"]
    assert [len(phase.reductions) for phase in (first, second)] == [1, 1]


def test_rows_that_are_returned_or_read_by_the_server_are_kept() -> None:
    @wb.program(clients=8)
    def returned(x: Any) -> Any:
        rows = wb.map_fn(lambda a: 2 * a, x)
        return rows, wb.reduce_mean(wb.map_fn(lambda r, m: r - m, (rows, wb.broadcast(wb.reduce_mean(rows)))))

    assert kept(returned, s(8, 3), kept_bytes=0) == [[(2, 1)], [(2, 0)]]
    assert waiting_bytes(trace(returned, (s(8, 3),)).plan) == 0
    server = wb.program(clients=8)(lambda x: jnp.sort(wb.map_fn(lambda a: 2 * a, x))[0])
    assert kept(server, s(8), kept_bytes=0) == [[(1, 1)]]
    assert kept(lambda x: x + 1, s(8)) == []


def test_rows_of_one_client_per_device_cost_no_memory() -> None:
    @wb.program(clients=4)
    def few(x: Any) -> Any:
        rows = wb.map_fn(lambda a: 2 * a, x)
        return wb.reduce_sum(wb.map_fn(lambda r, m: r - m, (rows, wb.broadcast(wb.reduce_mean(rows)))))

    for devices, waiting in ((1, 16), (2, 16), (4, 0), (8, 0)):
        with jax.sharding.use_abstract_mesh(AbstractMesh((devices,), ("clients",), axis_types=(AxisType.Auto,))):
            assert waiting_bytes(trace(few, (s(4),)).plan) == waiting


# ---- spreads


def mesh(**axes: int) -> AbstractMesh:
    return AbstractMesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))


def gathering(x: Any) -> Any:
    return jnp.take(x, x.argmax(), axis=0)


def scattering(x: Any) -> Any:
    return x.at[x.argmax()].add(1.0)


def calling(x: Any) -> Any:
    return jax.pure_callback(lambda x: x, x, x)


@pytest.mark.parametrize(
    ("axes", "client", "others", "spread"),
    [
        ({"clients": 4}, gathering, (), "shard_map"), ({"clients": 4}, calling, (), "shard_map"),
        ({"clients": 4, "a": 1}, calling, (), "shard_map"), ({"clients": 4, "a": 2}, jnp.sin, ("a",), "shard_map"),
        ({"clients": 4, "a": 2}, gathering, ("a",), "shard_map"), ({"clients": 4, "a": 2}, calling, ("a",), "vmap"),
        ({"clients": 4, "a": 2, "b": 2}, jnp.sin, ("a", "b"), "shard_map"),
        ({"clients": 4, "a": 2, "b": 2}, gathering, ("a", "b"), "vmap"),
        ({"clients": 4, "a": 2, "b": 2}, scattering, ("a", "b"), "vmap"),
        ({"clients": 4, "a": 2, "b": 1}, gathering, ("a",), "shard_map"),
        ({"clients": 4, "a": 2, "b": 2}, jax.jit(gathering), ("a", "b"), "vmap"),
    ],
    ids=range(11),
)  # fmt: skip
def test_the_spread_that_xla_can_compile(axes: Any, client: Any, others: Any, spread: str) -> None:
    phase = phase_of(client, s(3), clients=8, mesh=mesh(**axes))
    assert (other_axes(phase.layout), choose_spread(phase, "auto")) == (others, spread)
    assert [choose_spread(phase, each) for each in ("vmap", "shard_map")] == ["vmap", "shard_map"]
    alone = client is calling and not others
    assert manual_axes(phase) == (set(axes) if alone else {"clients"})


@pytest.mark.parametrize(("axes", "dtype"), [({"clients": 4}, "i16"), ({"clients": 4, "a": 2}, "i32")])
def test_bfloat16_is_exchanged_in_32_bits_in_partly_manual_programs(axes: dict[str, int], dtype: str) -> None:
    """XLA:CPU ends the process when it compiles an all-reduce of bfloat16 there; extremes travel as integers."""
    extreme = wb.program(clients=8)(wb.reduce_max)
    with jax.set_mesh(jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(AxisType.Auto,) * len(axes))):
        text = wb.jit(extreme).lower(jnp.zeros((8, 3), jnp.bfloat16)).as_text()
    reduced = text.partition("stablehlo.all_reduce")[2]
    assert f"(tensor<3x{dtype}>) -> tensor<3x{dtype}>" in reduced.partition("return")[2]


def test_without_a_mesh_there_is_nothing_to_spread() -> None:
    phase = phase_of(jnp.sin, s(3), clients=8)
    assert (phase.layout, choose_spread(phase, "auto")) == (None, "shard_map")


@pytest.mark.parametrize(("clients", "axes", "one"), [(4, {"clients": 4}, True), (8, {"clients": 4}, False),
                                                      (4, {"clients": 4, "a": 2}, True)])  # fmt: skip
def test_one_client_per_mesh_position(clients: int, axes: Any, one: bool) -> None:
    phase = phase_of(lambda x: lax.psum(x, "clients"), s(3), clients=clients, mesh=mesh(**axes))
    assert (phase.one_per_device, phase.divisible) == (one, False)
    assert phase_of(jnp.sin, s(3), clients=clients, mesh=mesh(**axes)).divisible
