"""Real programs on eight simulated devices: shares of what is joined and attributed, and exact steps per client."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.inspection import inspect_mesh, inspect_module
from workbench.inspection.sharding import place_clients
from workbench.measurement import ReadingOptions, measure_compiled
from workbench.measurement._clients import client_runs, lockstep_waste
from workbench.measurement._device_events import DeviceEvent
from workbench.measurement._join import JoinedEvent, JoinedProfile
from workbench.records.compiled import InstructionRecord, MemoryRecord, ModuleRecord
from workbench.records.program import PlacementRecord

CLIENTS = 24
STEPS = np.random.default_rng(0).integers(0, 7, CLIENTS).astype(np.int32)
FEATURES = 32


def local_round(w, steps, x):
    """One client: `steps` steps of gradient descent."""

    def descend(_, w):
        gradient = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        return w - 0.1 * gradient

    return jax.lax.fori_loop(0, steps, descend, w) - w


@wb.program(clients=CLIENTS)
def fedavg(w, steps, x):
    return w + wb.reduce_mean(wb.map_fn(local_round, (wb.broadcast(w), steps, x)))


@wb.program(clients=CLIENTS)
def three_rounds(w, steps, x):
    def turn(w, _):
        return w + wb.reduce_mean(wb.map_fn(local_round, (wb.broadcast(w), steps, x))), None

    return jax.lax.scan(turn, w, None, length=3)[0]


@wb.program(clients=CLIENTS)
def epochs_of_batches(w, steps, x):
    """Two epochs of `steps` batches each; the batches hold the work."""

    def epochs(w, steps, x):
        return jax.lax.fori_loop(0, 2, lambda _, w: w + local_round(w, steps, x), w)

    return wb.reduce_mean(wb.map_fn(epochs, (wb.broadcast(w), steps, x)))


@wb.program(clients=CLIENTS)
def two_maps(w, steps, x):
    """Two stages of clients after each other, which run in one loop over the clients."""
    first = wb.map_fn(local_round, (wb.broadcast(w), steps, x))
    second = wb.map_fn(lambda w, steps, x: local_round(w, 9 - steps, x), (first, steps, x))
    return wb.reduce_mean(second)


def measure(program, axes, *, stage, chunk_size=1):
    mesh = wb.make_mesh(**axes) if axes else None
    generator = np.random.default_rng(1)
    args = (
        jnp.asarray(generator.normal(size=(FEATURES, FEATURES)), jnp.float32),
        jnp.asarray(STEPS),
        jnp.asarray(generator.normal(size=(CLIENTS, 16, FEATURES)), jnp.float32),
    )
    with jax.set_mesh(mesh) if mesh is not None else contextlib.nullcontext():
        compiled = wb.jit(program, chunk_size=chunk_size).lower(*args).compile()
    record = inspect_mesh(mesh if mesh is not None else jax.make_mesh((1,), ("alone",), devices=jax.devices()[:1]))
    placement = PlacementRecord(name="clients", size=CLIENTS, mesh_axes=("clients",) if mesh is not None else ())
    record = place_clients(record, placement)
    options = ReadingOptions(mesh=record, client_stages=(stage,) if chunk_size == 1 else ())
    module = inspect_module(compiled, mesh=record)
    return measure_compiled(compiled, args, module, rounds=2, options=options)


MESHES = pytest.mark.parametrize(
    "axes",
    [{"clients": 8}, {"clients": 4, "model": 2}, {"clients": 2}, {}],
    ids=["8 devices", "4 x 2 devices", "2 devices", "no mesh"],
)


@pytest.fixture(scope="module")
def run():
    return measure(fedavg, {"clients": 8}, stage="1")


def test_nearly_all_events_are_joined_and_nearly_all_time_has_a_stage(run):
    assert run.joined_events >= 0.98
    assert run.attributed_seconds >= 0.95


def test_production_mode_is_joined_and_attributed_alike():
    run = measure(fedavg, {"clients": 4, "model": 2}, stage="1", chunk_size=None)
    assert run.joined_events >= 0.98
    assert run.attributed_seconds >= 0.95
    assert run.clients == ()


@MESHES
def test_probe_counts_the_true_steps_of_every_client(axes):
    run = measure(fedavg, axes, stage="1")
    steps = {}
    for client in run.clients:
        steps.setdefault(client.client, set()).add(client.steps)
    assert steps == {client: {count} for client, count in enumerate(STEPS.tolist())}


def test_probe_counts_the_steps_of_all_rounds_of_a_loop():
    run = measure(three_rounds, {"clients": 8}, stage="0.1")
    assert [client.steps for client in run.clients] == (3 * STEPS).tolist()


def test_probe_counts_batches_and_not_epochs():
    run = measure(epochs_of_batches, {"clients": 8}, stage="1")
    assert [client.steps for client in run.clients] == (2 * STEPS).tolist()
    assert {tuple(sorted(client.loops.values())) for client in run.clients if client.client == 0} == {(2, 2 * STEPS[0])}


@pytest.mark.parametrize(("stage", "steps"), [("1", STEPS), ("2", 9 - STEPS)], ids=["first", "second"])
def test_probe_distinguishes_two_stages_of_the_same_clients(stage, steps):
    run = measure(two_maps, {"clients": 8}, stage=stage)
    assert [client.steps for client in run.clients] == steps.tolist()


def test_gradient_of_a_program_is_joined_and_attributed():
    generator = np.random.default_rng(1)
    w, x = generator.normal(size=(FEATURES, FEATURES)), generator.normal(size=(CLIENTS, 16, FEATURES))

    @wb.program(clients=CLIENTS)
    def loss(w, x):
        return wb.reduce_mean(wb.map_fn(lambda w, x: jnp.mean(jnp.tanh(x @ w) ** 2), (wb.broadcast(w), x)))

    with jax.set_mesh(wb.make_mesh(clients=8)):
        run = wb.measure(jax.grad(loss), rounds=1)(jnp.asarray(w, jnp.float32), jnp.asarray(x, jnp.float32))
    assert run.joined_events >= 0.98
    assert run.attributed_seconds >= 0.95


def test_probe_flops_are_steps_times_the_same_for_all(run):
    # Forward, and backward with respect to the weights only: 2 products of 2 * 16 * 32 * 32 FLOPs in every step.
    products = 2 * 2 * 16 * FEATURES * FEATURES
    for client in run.clients:
        assert client.flops == pytest.approx(client.steps * products, rel=0.1)  # elementwise work counts a little


def test_lockstep_waste_is_longest_over_mean_of_each_device(run):
    for device, waste in enumerate(lockstep_waste(run.clients).values()):
        steps = STEPS[3 * device : 3 * device + 3]
        assert waste == pytest.approx(steps.max() / steps.mean() - 1)


def test_events_name_the_line_that_they_come_from(run):
    files = {event.source.file.rpartition("/")[2] for event in run.events if event.source and event.stage == "1"}
    assert "test_measured_program.py" in files


@pytest.mark.parametrize("axes", [{"clients": 4, "model": 2}, {}], ids=["4 x 2 devices", "no mesh"])
def test_measure_probes_clients_by_name(axes):
    generator = np.random.default_rng(1)
    args = (
        jnp.asarray(generator.normal(size=(FEATURES, FEATURES)), jnp.float32),
        jnp.asarray(STEPS),
        jnp.asarray(generator.normal(size=(CLIENTS, 16, FEATURES)), jnp.float32),
    )
    with jax.set_mesh(wb.make_mesh(**axes)) if axes else contextlib.nullcontext():
        run = wb.measure(fedavg, rounds=1, clients="probe")(*args)
    assert {(client.client, client.steps) for client in run.clients} == set(enumerate(STEPS.tolist()))
    assert run.attributed_seconds >= 0.95


@wb.program(clients=CLIENTS)
def of_one_kernel(x):
    return wb.reduce_mean(wb.map_fn(lambda row: row**2, x))


def test_clients_that_the_compiler_merges_have_the_seconds_of_separate_calls():
    rounds = 3

    def training(x):
        return jax.lax.scan(lambda x, _: (x - of_one_kernel(x), None), x, None, length=rounds)[0]

    run = wb.measure(training, rounds=1, clients="probe")(jnp.ones(CLIENTS))
    assert [client.client for client in run.clients] == list(range(CLIENTS))
    assert {client.stage for client in run.clients} == {"0.0"}
    assert all(client.seconds > 0 for client in run.clients)
    assert run.notes[-1].startswith("Stage 0.0: the time of a client is the time of a separate call")


def test_separate_calls_end_after_their_time(monkeypatch):
    monkeypatch.setattr("workbench.api._measure._MOST_SECONDS", 0.0)
    run = wb.measure(of_one_kernel, rounds=1, clients="probe")(jnp.ones(CLIENTS))
    assert run.clients == ()
    assert "took more than 0 s" in run.notes[-1]


def test_clients_that_communicate_are_not_called_separately():
    @wb.program(clients=CLIENTS)
    def centred(x):
        return wb.reduce_mean(wb.map_fn(lambda row: row - jax.lax.pmean(row, "clients"), x))

    run = wb.measure(centred, rounds=1, clients="probe")(jnp.ones(CLIENTS))
    assert run.clients == ()
    assert "communicate with each other" in run.notes[-1]


def test_clients_are_found_where_the_loop_ends_before_its_operations():
    """CPUs start the operations of a large body on other threads: the event of the loop then ends at once."""

    def instruction(name, opcode, computation, executions, **more):
        return InstructionRecord(
            name=name, opcode=opcode, computation=computation, shape="f32[4]", size_bytes=16,
            executions=executions, stage="1", **more,
        )  # fmt: skip

    clients, steps = 2, 3
    loop = instruction("while.1", "while", "main", 1.0, calls=("clients",))
    inner = instruction("while.2", "while", "clients", 2.0, calls=("steps",))
    copy = instruction("copy.1", "copy", "clients", 2.0)
    work = instruction("dot.1", "dot", "steps", 6.0, flops=10.0)
    results = [
        instruction(f"tuple.{place}", "tuple", place, times).replace(shape="(f32[4])")
        for place, times in (("clients", 2.0), ("steps", 6.0))
    ]
    module = ModuleRecord(
        name="m", platform="cpu", devices=1, instructions=(loop, inner, copy, work, *results), collectives=(),
        flops=60.0, accessed_bytes=None, memory=MemoryRecord(), attributed_instructions=1.0, attributed_flops=1.0,
        attributed_bytes=1.0,
    )  # fmt: skip

    def event(item, start, seconds):
        return JoinedEvent(DeviceEvent(0, item.name, "m", 0, start, seconds), item, "compute", 0.0)

    leaves, containers = [], []
    for call in range(2):  # the loop over clients takes 10 s, but its event takes 0.1 s
        begin = 20.0 * call
        containers.append(event(loop, begin, 0.1))
        for client in range(clients):
            at = begin + 1 + 5 * client
            leaves.append(event(copy, at, 0.1))
            containers.append(event(inner, at + 0.2, 0.05))
            leaves += [event(work, at + 1 + step, 0.5 + client) for step in range(steps)]
    joined = JoinedProfile(leaves=tuple(leaves), containers=tuple(containers), joined=1.0, attributed=1.0, notes=())
    found = client_runs(joined, module, {0: range(clients)}, stage="1", labels={0: "cpu:0"}, rounds=2)
    assert [(each.client, each.flops, each.steps) for each in found] == [(0, 30.0, 3), (1, 30.0, 3)]
    assert [each.seconds for each in found] == [pytest.approx(1.6), pytest.approx(4.6)]
