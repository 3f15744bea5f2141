"""The library's numbers against independent implementations, over drawn programs, meshes and rounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from jax import lax
from jax.sharding import AxisType

import oracles.analytic as oracle
import oracles.xla as xla
import workbench as wb
from workbench.measurement import ClientProfiles, simulate_round
from workbench.mesh import chunk_shard

some = settings(max_examples=12, deadline=None, derandomize=True)
many = settings(max_examples=300, deadline=None, derandomize=True)
sizes = st.integers(1, 12)


def _mesh(devices: int) -> jax.sharding.Mesh:
    return jax.make_mesh((devices,), ("clients",), axis_types=(AxisType.Auto,), devices=jax.devices()[:devices])


def _zeros(*shape: int, dtype: jnp.dtype | type = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


@many
@given(clients=st.integers(1, 200), devices=st.integers(1, 16), chunk_size=st.integers(1, 64))
def test_chunks_hold_the_clients_that_the_oracle_places(clients: int, devices: int, chunk_size: int):
    placed = oracle.slots(clients, devices, chunk_size)
    assert chunk_shard(-(-clients // devices), chunk_size)[1] == len(placed[0])
    assert sorted(client for device in placed for client in device if client >= 0) == list(range(clients))


@some
@given(clients=st.integers(1, 30), devices=st.sampled_from([1, 2, 4, 8]), chunk_size=st.integers(1, 6))
def test_clients_of_a_device_and_padding_are_those_of_its_slots(clients: int, devices: int, chunk_size: int):
    program = wb.program(clients=clients)(
        lambda w, x: wb.reduce_sum(wb.map_fn(lambda w, x: jnp.tanh(x @ w).max(0), (wb.broadcast(w), x)))
    )
    record = wb.inspect(program, on=_mesh(devices), chunk_size=chunk_size)(_zeros(4, 4), _zeros(clients, 3, 4))
    placed = oracle.slots(clients, devices, chunk_size)
    said = [list(range(held.start, held.stop)) for held in record.mesh.clients]
    assert said == [[client for client in device if client >= 0] for device in placed]
    assert record.cost.padding_waste == pytest.approx(1 - clients / (devices * len(placed[0])))
    work = next(stage.flops for stage in record.cost.stages if stage.kind == "clients")
    assert work == len(placed[0]) * oracle.product_flops((3, 4), (4, 4))


@some
@given(m=sizes, k=sizes, n=sizes, p=sizes, complex_numbers=st.booleans())
def test_products_are_analytic_in_plan_and_module(m: int, k: int, n: int, p: int, complex_numbers: bool):
    dtype = jnp.complex64 if complex_numbers else jnp.float32
    shapes = [(m, k), (k, n), (n, p)]
    arrays = [_zeros(*shape, dtype=dtype) for shape in shapes]
    record = wb.inspect(lambda a, b, c: (a @ b) @ c)(*arrays)
    expected = oracle.product_flops(*shapes, complex_numbers=complex_numbers)
    assert sum(stage.flops for stage in record.plan.stages) == expected
    assert record.module.flops == expected or any("elementwise" in note for note in record.module.notes)


@some
@given(rounds=st.integers(0, 5), width=st.integers(2, 6), step=st.integers(1, 3))
def test_loops_count_their_iterations(rounds: int, width: int, step: int):
    bound = rounds * step
    record = wb.inspect(lambda x: lax.fori_loop(0, bound, lambda i, y: y @ x, x))(_zeros(width, width))
    expected = oracle.iterations(0, bound, 1) * oracle.product_flops((width, width), (width, width))
    assert record.module.flops == expected


@some
@given(long=st.integers(1, 60), small=st.integers(4, 8), large=st.integers(4, 24))
def test_branch_that_is_counted_is_the_most_expensive(long: int, small: int, large: int):
    def call(p: jax.Array, x: jax.Array, y: jax.Array) -> jax.Array:
        loop = lambda: lax.fori_loop(0, long, lambda i, c: c @ x, x)  # noqa: E731
        return lax.cond(p, loop, lambda: (y @ y)[:small, :small])

    large = max(small, large)
    record = wb.inspect(call)(_zeros(dtype=bool), _zeros(small, small), _zeros(large, large))
    branches = [long * oracle.product_flops((small, small), (small, small)), 2.0 * large**3]
    assert record.module.flops == max(branches)


@some
@given(parts=st.lists(st.integers(1, 3000), min_size=1, max_size=4), devices=st.sampled_from([2, 4, 8]))
def test_combined_reductions_send_each_its_own_ring(parts: list[int], devices: int):
    @wb.program(clients=devices)
    def program(*rows: jax.Array) -> tuple:
        return tuple(wb.reduce_sum(wb.map_fn(lambda row: row * 2, each)) for each in rows)

    record = wb.inspect(program, on=_mesh(devices))(*(_zeros(devices, size) for size in parts))
    said = sorted(stage.collective_bytes["clients"] for stage in record.cost.stages if stage.kind == "reduce")
    rings = sorted(oracle.ring_bytes("all-reduce", 4.0 * size, devices) for size in parts)
    assert sum(said) == pytest.approx(sum(rings))
    if len(said) == len(rings):  # reductions of one line and one shape are one stage of the plan
        assert said == pytest.approx(rings)
    lines = {line.line for collective in record.module.collectives for line in collective.sources}
    assert lines


@some
@given(levels=st.integers(1, 4), clients=st.integers(2, 6))
def test_work_of_clients_is_all_that_the_module_computes(levels: int, clients: int):
    @wb.program(clients=clients)
    def program(x: jax.Array, w: jax.Array) -> jax.Array:
        rows = wb.map_fn(lambda x, w: jnp.tanh(x @ w), (x, wb.broadcast(w)))
        for _ in range(levels):
            mean = wb.reduce_mean(rows)
            rows = wb.map_fn(lambda row, mean: row - mean, (rows, wb.broadcast(mean)))
        return wb.reduce_mean(wb.map_fn(lambda row: jnp.max(row), rows))

    record = wb.inspect(program, chunk_size=1)(_zeros(clients, 64, 16), _zeros(16, 512))
    assert sum(client.flops for client in record.cost.clients) == record.module.flops


@many
@given(
    seconds=st.lists(st.floats(0.001, 100), min_size=1, max_size=20),
    dropout=st.floats(0, 0.9),
    wanted=st.none() | st.integers(1, 20),
    seed=st.integers(0, 5),
)
def test_round_ends_when_its_events_say(seconds: list[float], dropout: float, wanted: int | None, seed: int):
    count = len(seconds)
    profiles = ClientProfiles(
        flops_per_second=np.ones(count),
        down_bytes_per_second=1.0,
        up_bytes_per_second=1.0,
        dropout_probability=dropout,
    )
    wanted = None if wanted is None else min(wanted, count)
    timeline = simulate_round(profiles, seconds, 0.0, 0.0, wanted=wanted, seed=seed)
    left = {outcome.client: outcome for outcome in timeline.outcomes}
    everyone = simulate_round(profiles, seconds, 0.0, 0.0, seed=seed).outcomes
    leaves = [outcome.end_seconds if outcome.status == "dropped" else np.inf for outcome in everyone]
    assert timeline.seconds == pytest.approx(oracle.synchronous_round(seconds, leaves, wanted))
    assert all(np.isfinite(outcome.needed_seconds) for outcome in left.values())


@some
@given(
    examples=st.lists(st.integers(1, 40), min_size=2, max_size=6),
    batch=st.sampled_from([1, 4, 16]),
)
def test_padding_is_that_of_the_arrays(examples: list[int], batch: int):
    held = -(-max(examples) // batch) * batch
    count = len(examples)
    program = wb.program(clients=count)(
        lambda w, x: wb.reduce_mean(wb.map_fn(lambda w, x: (x @ w).sum(), (wb.broadcast(w), x)))
    )
    inspect = wb.inspect(program, examples_per_client=(examples, held))
    record = inspect(_zeros(16, 16), _zeros(count, held // batch, batch, 16))
    assert record.cost.padding_waste == pytest.approx(oracle.padding_share(examples, held))


@some
@given(width=st.integers(1, 64), donate=st.booleans())
def test_memory_totals_are_the_compilers(width: int, donate: bool):
    call = jax.jit(lambda x, y: jnp.tanh(x) + y, donate_argnums=(0,) if donate else ())
    compiled = call.lower(_zeros(width, 8), _zeros(width, 8)).compile()
    memory = wb.inspect(call)(_zeros(width, 8), _zeros(width, 8)).module.memory
    said = (memory.argument_bytes, memory.output_bytes, memory.temporary_bytes, memory.alias_bytes)
    assert said == xla.memory_totals(compiled)
