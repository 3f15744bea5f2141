"""A function is traced once, whatever is asked of the traced call."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

import workbench as wb
from workbench.aot import list_targets, stop_workers

needs_tpu_compiler = pytest.mark.skipif(
    not any(target.installed for target in list_targets() if target.platform == "tpu"),
    reason="no compiler for TPUs is installed",
)


@pytest.fixture(scope="module", autouse=True)
def _workers():
    yield
    stop_workers()


@pytest.fixture
def counted():
    """A program, and the list that each of its Python calls adds to."""
    calls: list[int] = []

    @wb.program(clients=8)
    def mean_square(x):
        calls.append(1)
        return wb.reduce_mean(wb.map_fn(lambda row: row**2, x))

    return mean_square, calls


@pytest.fixture
def mesh():
    return jax.make_mesh((4,), ("clients",), axis_types=(AxisType.Auto,))


X = np.arange(8, dtype=np.float32)
MEAN = 17.5
EIGHT = AbstractMesh((8,), ("clients",), axis_types=(AxisType.Auto,))
ASKED = {
    "plan": lambda traced, mesh: traced.plan,
    "inspect": lambda traced, mesh: traced.inspect(),
    "inspect on a mesh": lambda traced, mesh: traced.inspect(on=mesh),
    "inspect on an abstract mesh": lambda traced, mesh: traced.inspect(on=EIGHT),
    "show": lambda traced, mesh: traced.show(),
    "explore": lambda traced, mesh: traced.explore(),
    "measure": lambda traced, mesh: traced.measure(rounds=1),
    "measure on a mesh": lambda traced, mesh: traced.measure(rounds=1, on=mesh),
    "probe": lambda traced, mesh: traced.measure(rounds=1, clients="probe"),
    "tap": lambda traced, mesh: traced.tap(client=3),
    "what_if": lambda traced, mesh: traced.what_if({"x": P("clients")}, on=mesh, compiled=False),
    "export": lambda traced, mesh: traced.export(),
    "engine": lambda traced, mesh: traced.engine(wb.engines.Sequential()).run(),
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED.keys())
def test_each_question_calls_the_function_once(ask, counted, mesh):
    fn, calls = counted
    ask(wb.trace(fn)(X), mesh)
    assert len(calls) == 1


def test_all_questions_together_call_the_function_once(counted, mesh):
    fn, calls = counted
    traced = wb.trace(fn)(X)
    for ask in ASKED.values():
        ask(traced, mesh)
    assert len(calls) == 1


@needs_tpu_compiler
def test_target_calls_the_function_once(counted):
    fn, calls = counted
    record = wb.inspect(fn, on="v5e:2x4")(X)
    assert record.module.devices == 8
    assert len(calls) == 1


@needs_tpu_compiler
def test_shapes_on_a_small_mesh_are_compiled_for_a_larger_one(mesh):
    def train(weights, batches):
        return jax.lax.scan(lambda w, x: (w - jax.grad(lambda w: jnp.sum((x @ w) ** 2))(w), None), weights, batches)[0]

    @wb.program(clients=16)
    def mean(weights, rows):
        return wb.reduce_mean(wb.map_fn(train, (wb.broadcast(weights), rows)))

    rows = jax.ShapeDtypeStruct((16, 2, 4, 8), jnp.float32, sharding=NamedSharding(mesh, P("clients")))
    weights = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(mesh, P()))
    record = wb.inspect(mean, on=(AbstractMesh((8,), ("clients",)), "v5e:2x4"))(weights, rows)
    assert record.module is not None
    assert [collective.axes for collective in record.module.collectives] == [("clients",)]


ONE_LINE = {
    "inspect": lambda fn: wb.inspect(fn)(X),
    "show": lambda fn: wb.show(fn)(X),
    "measure": lambda fn: wb.measure(fn, rounds=1)(X),
    "explore": lambda fn: wb.explore(fn)(X),
    "tap": lambda fn: wb.trace(fn)(X).tap(),
}


@pytest.mark.parametrize("ask", ONE_LINE.values(), ids=ONE_LINE.keys())
def test_one_line_forms_call_the_function_once(ask, counted):
    fn, calls = counted
    ask(fn)
    assert len(calls) == 1


def test_results_are_those_of_the_function_wherever_they_are_computed(counted, mesh):
    traced = wb.trace(counted[0])(X)
    results = [
        traced.measure(rounds=1).results,
        traced.measure(rounds=1, on=mesh).results,
        traced.tap(client=3).results,
        traced.engine(wb.engines.Sequential()).run().results,
        wb.load(traced.export())(X),
    ]
    np.testing.assert_allclose(results, MEAN)


def test_clients_lie_along_a_mesh_that_is_named_after_tracing(counted, mesh):
    record = wb.trace(counted[0])(X).inspect(on=mesh)
    assert [collective.axes for collective in record.module.collectives] == [("clients",)]
    assert record.module.flops < wb.trace(counted[0])(X).inspect().module.flops or record.module.devices == 4


def test_gradient_is_looked_at_on_another_mesh_without_tracing_it_again(counted, mesh):
    fn, calls = counted
    record = wb.trace(jax.grad(fn))(X).inspect(on=mesh)
    assert record.module.devices == 4
    assert len(calls) == 1


def test_program_with_a_shard_map_is_traced_a_second_time_and_says_so(mesh):
    calls = []

    def total(x):
        calls.append(1)
        there = jax.sharding.get_abstract_mesh()
        if there.empty:
            return x.sum()
        return jax.shard_map(lambda row: jax.lax.psum(row.sum(), "clients"), in_specs=P("clients"), out_specs=P())(x)

    with jax.set_mesh(mesh):
        traced = wb.trace(total)(X)
    record = traced.inspect(on=jax.make_mesh((2,), ("clients",), axis_types=(AxisType.Auto,)))
    assert len(calls) == 2
    assert any("traced a second time" in note for note in record.notes)
    assert record.module.devices == 2


def keywords(x, on=1.0, *, rounds=2.0, clients=3.0, order=4.0, target=5.0, chip=6.0, view=7.0):
    """A function whose keywords are those of the options."""
    return x.sum() * on * rounds * clients * order * target * chip * view


KEYWORDS = dict.fromkeys(("on", "rounds", "clients", "order", "target", "chip", "view"), 2.0)


def test_keywords_of_the_function_never_meet_those_of_the_options(capsys):
    assert wb.inspect(keywords)(jnp.ones(3), **KEYWORDS).module.devices == 1
    assert float(wb.measure(keywords, rounds=1)(jnp.ones(3), **KEYWORDS).results) == 3 * 2**7
    assert float(wb.load(wb.trace(keywords)(jnp.ones(3), **KEYWORDS).export())(jnp.ones(3), **KEYWORDS)) == 3 * 2**7
    wb.show(keywords)(jnp.ones(3), **KEYWORDS)
    assert "keywords" in capsys.readouterr().out


def test_tapped_function_takes_keywords():
    @wb.program(clients=4)
    def scaled(x, *, client, order):
        return wb.reduce_sum(wb.map_fn(lambda row: row * 2, x)) * client * order

    assert float(wb.trace(scaled)(X[:4], client=3.0, order=2.0).tap(client=1).results) == 72.0


def test_unknown_option_is_refused_before_the_function_is_called(counted):
    with pytest.raises(TypeError, match=r"`inspect` received `chunksize`.* Did you mean `chunk_size`\?"):
        wb.inspect(counted[0], chunksize=2)
    assert counted[1] == []


def test_clients_inside_a_loop_of_the_server_keep_their_placement(mesh):
    @wb.program(clients=8)
    def train(w, x):
        def turn(w, _):
            return w - wb.reduce_mean(wb.map_fn(lambda row, w: jnp.tanh(w @ row), (x, wb.broadcast(w)))), None

        return jax.lax.scan(turn, w, None, length=3)[0]

    record = wb.inspect(train, on=mesh)(jnp.ones((64, 64)), jnp.ones((8, 64, 64)))
    assert [(p.name, p.size, p.mesh_axes) for p in record.plan.placements] == [("clients", 8, ("clients",))]
    assert record.plan.chunk_size is not None
    assert len(record.mesh.clients) == 4
    run = wb.measure(train, clients="probe", rounds=1)(jnp.ones((64, 64)), jnp.ones((8, 64, 64)))
    assert sorted({client.client for client in run.clients}) == list(range(8))


def test_random_keys_become_shapes_as_other_arrays_do():
    drawn = wb.trace(lambda key: jax.random.normal(key, (3,)))(jax.random.key(0)).with_shapes()
    assert drawn.inspect().plan.inputs[0].shape == ()
