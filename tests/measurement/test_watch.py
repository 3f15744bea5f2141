"""`watch` in loops as people write them: nothing of the loop changes, and what is recorded is true."""

import dataclasses
import functools
import gc
import threading
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import workbench_widgets
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

import workbench as wb
from workbench.errors import EngineError, MeasureError
from workbench.measurement import Watch, _watch_core
from workbench.measurement._profile import RunningProfile
from workbench.measurement._watch_outputs import _is_metric
from workbench.records.live import WatchRecord


@pytest.fixture(autouse=True)
def watches_end(settled):
    """Collects the watches of a test: the log of JAX is listened to as long as one is there."""
    yield
    gc.collect()


@pytest.fixture
def make_sgd():
    """Makes the step of a training loop that donates its state, new for every test."""

    def make(**options):
        optimizer = optax.sgd(1e-2, momentum=0.9)

        @functools.partial(jax.jit, donate_argnums=(0, 1), **options)
        def step(params, opt_state, x):
            loss, gradient = jax.value_and_grad(lambda params: ((x @ params) ** 2).mean())(params)
            updates, opt_state = optimizer.update(gradient, opt_state, params)
            return optax.apply_updates(params, updates), opt_state, loss

        params = jnp.ones((4, 3))
        return step, params, optimizer.init(params)

    return make


def _losses(step, params, opt_state, steps=6):
    losses = []
    for number in range(steps):
        params, opt_state, loss = step(params, opt_state, jnp.full((2, 4), 1.0 + number))
        losses.append(float(loss))
    return losses


def _cost_of(watched, seconds=20.0):
    deadline = time.monotonic() + seconds
    while watched.program is None and time.monotonic() < deadline:
        time.sleep(0.01)
    return watched.record


def test_an_optax_loop_with_donation_computes_the_same(make_sgd):
    step, params, opt_state = make_sgd()
    expected = _losses(*make_sgd())
    watched = wb.watch(step, show=False)
    assert _losses(watched, params, opt_state) == expected
    assert params.is_deleted()  # the watch does not keep the donation from working
    assert [record.metrics["loss"] for record in watched.record.history] == pytest.approx(expected)


def test_names_of_outputs_are_those_of_the_return(make_sgd):
    step, params, opt_state = make_sgd()
    watched = wb.watch(step, show=False)
    _losses(watched, params, opt_state)
    assert "loss" in watched.to_pandas().columns


def test_the_first_call_alone_compiles(make_sgd):
    step, params, opt_state = make_sgd()
    watched = wb.watch(step, show=False)
    _losses(watched, params, opt_state)
    assert ["compile_seconds" in record.metrics for record in watched.record.history] == [True] + [False] * 5


def test_a_new_shape_is_a_compilation_with_its_step_and_reason(make_sgd):
    step, params, opt_state = make_sgd()
    watched = wb.watch(step, show=False)
    for rows in (2, 2, 5, 5):
        params, opt_state, _ = watched(params, opt_state, jnp.ones((rows, 4)))
    (problem,) = watched.record.problems
    assert problem.round == 2
    assert "argument `x`: its shape changed (now [5,4], before [2,4])" in problem.what
    (retrace,) = watched.record.retraces
    assert retrace.called.startswith("test_watch.py:")  # the user's line, not one of this package


def test_flops_and_collectives_are_those_of_inspect():
    mesh = wb.make_mesh(data=8)
    rows = jax.NamedSharding(mesh, jax.P("data"))

    @jax.jit
    def step(w, x):
        loss, gradient = jax.value_and_grad(lambda w: ((x @ w) ** 2).mean())(w)
        return w - 0.1 * gradient, loss

    w, x = jnp.ones((16, 4)), jax.device_put(jnp.ones((32, 16)), rows)
    watched = wb.watch(step, show=False)
    for _ in range(3):
        w, _loss = watched(w, x)
    record, program = _cost_of(watched), wb.inspect(step)(w, x)
    assert record.flops == program.module.flops > 0
    assert record.planned_peak_bytes == program.module.memory.peak_bytes
    assert record.collectives == round(sum(each.executions for each in program.module.collectives)) > 0


def test_reading_the_cost_compiles_and_traces_nothing_again():
    traced = []

    @jax.jit
    def step(w):
        traced.append(1)
        return w * 2, w.sum()

    compiled = []

    def listen(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(threading.current_thread().name)

    watched = wb.watch(step, show=False)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        w, _ = watched(jnp.ones(7))
        watched(w)
        record = _cost_of(watched)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert record.flops is not None
    assert traced == [1]
    assert "workbench-watch-cost" not in compiled


def test_an_nnx_loop_without_results_is_timed_and_its_metrics_are_read():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.dense = nnx.Linear(4, 2, rngs=rngs)
            self.dropout = nnx.Dropout(0.5, rngs=rngs)

        def __call__(self, x):
            return self.dropout(self.dense(x))

    @nnx.jit
    def train_step(model, optimizer, metrics, x):
        loss, gradient = nnx.value_and_grad(lambda model: (model(x) ** 2).mean())(model)
        metrics.update(loss=loss)
        optimizer.update(model, gradient)

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(1e-3), wrt=nnx.Param)
    metrics = nnx.MultiMetric(loss=nnx.metrics.Average("loss"))
    train_step = wb.watch(train_step, show=False)
    means = []
    for _ in range(4):
        train_step(model, optimizer, metrics, jnp.ones((3, 4)))
        means.append(float(metrics.loss.total[...]) / float(metrics.loss.count[...]))
    assert [record.metrics["loss"] for record in train_step.record.history] == pytest.approx(means)
    assert _cost_of(train_step).flops > 0


def test_a_model_with_functions_as_static_leaves_passes_through():
    @functools.partial(jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["activation"])
    @dataclasses.dataclass(frozen=True)
    class Model:
        w: jax.Array
        activation: object

    @jax.jit
    def step(model, x):
        loss, gradient = jax.value_and_grad(lambda model: model.activation(x @ model.w).sum())(model)
        return jax.tree.map(lambda w, g: w - 0.1 * g, model, gradient), loss

    model, watched = Model(jnp.ones((3, 2)), jax.nn.relu), wb.watch(step, show=False)
    for _ in range(3):
        model, _ = watched(model, jnp.ones((2, 3)))
    assert model.activation is jax.nn.relu
    assert [record.metrics["loss"] for record in watched.record.history] == pytest.approx([12.0, 9.6, 7.2])


def test_static_keywords_reach_the_function():
    @functools.partial(jax.jit, static_argnames="power")
    def step(w, *, power):
        return w, (w**power).sum()

    watched = wb.watch(step, show=False)
    assert float(watched(jnp.full(2, 3.0), power=2)[1]) == 18.0


def test_a_method_is_watched_with_its_object():
    class Trainer:
        @wb.watch
        @functools.partial(jax.jit, static_argnums=0)
        def step(self, x):
            return (self.factor * x).sum()

        factor = 3.0

    assert float(Trainer().step(jnp.ones(2))) == 6.0
    assert Trainer.step.record.steps == 1
    Trainer.step.close()  # JAX keeps the object as a static argument, and so its class


@pytest.mark.parametrize(
    ("devices", "values", "spec", "expected"),
    [
        (2, [1.0, 2.0], P("devices"), True),
        (8, [1.0] * 8, P("devices"), True),
        (2, [1.0] * 4, P("devices"), False),
        (2, [1.0, 2.0], P(), False),
        (1, [1.0], P("devices"), False),
        (2, [1, 2], P("devices"), False),
        (1, 1.0, P(), True),
        (1, 1, P(), False),
    ],
)
def test_metric_is_a_scalar_or_one_scalar_per_device(devices, values, spec, expected):
    sharding = NamedSharding(Mesh(np.array(jax.devices()[:devices]), ("devices",)), spec)
    assert _is_metric(jax.device_put(jnp.asarray(values), sharding)) == expected


def test_pmap_gives_one_number_for_the_loss_of_all_devices():
    def train_step(w, x):
        loss = jax.lax.pmean(((w * x) ** 2).mean(), "devices")
        return w - 0.1, loss

    step = wb.watch(jax.pmap(train_step, axis_name="devices"), show=False)
    w = jnp.ones((8, 3))
    for _ in range(3):
        w, _ = step(w, jnp.ones((8, 3)))
    assert step.record.history[0].metrics["loss"] == pytest.approx(1.0)


def test_a_scan_inside_counts_all_its_iterations():
    @jax.jit
    def epoch(w, batches):
        return jax.lax.scan(lambda w, x: (w @ x, w.sum()), w, batches)

    watched = wb.watch(epoch, show=False)
    watched(jnp.ones((4, 4)), jnp.ones((5, 4, 4)))
    assert _cost_of(watched).flops == 5 * 2 * 4**3


def test_attributes_of_the_function_are_reachable(make_sgd):
    step, params, opt_state = make_sgd()
    watched = wb.watch(step, show=False)
    assert (
        watched.lower(params, opt_state, jnp.ones((2, 4))).as_text()
        == step.lower(params, opt_state, jnp.ones((2, 4))).as_text()
    )
    assert watched.__wrapped__ is step
    assert wb.inspect(watched)(params, opt_state, jnp.ones((2, 4))).name == "step"


def test_an_exception_inside_is_passed_on_and_the_loop_can_go_on():
    def step(x):
        if x is None:
            raise ValueError("no batch")
        return jnp.sum(x)

    watched = wb.watch(step, show=False)
    watched(jnp.ones(2))
    with pytest.raises(ValueError, match="no batch"):
        watched(None)
    watched(jnp.ones(2))
    assert watched.record.steps == 3
    assert [problem.what for problem in watched.problems if "raised" in problem.what] == [
        "step 1 raised ValueError: no batch"
    ]


def test_an_interrupt_is_passed_on():
    def step(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wb.watch(step, show=False)(1)


def test_nan_is_named_with_its_step():
    watched = wb.watch(jax.jit(lambda x: jnp.log(x)), outputs={"loss": "value"}, show=False)
    for x in (2.0, 1.0, -1.0, -2.0):
        watched(x)
    problems = [problem for problem in watched.record.problems if problem.metric]
    assert [(problem.round, problem.what) for problem in problems] == [(2, "loss is nan in step 2")]


def test_outputs_by_function_and_by_name(make_sgd):
    step, params, opt_state = make_sgd()
    chosen = {"norm": lambda result: jnp.abs(result[0]).sum(), "last": "loss"}
    watched = wb.watch(step, outputs=chosen, show=False)
    params, opt_state, loss = watched(params, opt_state, jnp.ones((2, 4)))
    metrics = watched.record.history[0].metrics
    assert metrics["norm"] == pytest.approx(float(jnp.abs(params).sum()))
    assert metrics["last"] == pytest.approx(float(loss))


def test_an_output_that_does_not_exist_is_a_problem_that_names_those_that_do(make_sgd):
    step, params, opt_state = make_sgd()
    watched = wb.watch(step, outputs="accuracy", show=False)
    _losses(watched, params, opt_state, steps=1)
    (problem,) = watched.record.problems
    assert "'accuracy'" in problem.what
    assert "loss" in problem.what


def test_a_function_of_the_results_that_fails_is_removed(make_sgd):
    step, params, opt_state = make_sgd()
    watched = wb.watch(step, outputs={"bad": lambda result: result["loss"]}, show=False)
    assert len(_losses(watched, params, opt_state)) == 6
    assert [("'bad'" in problem.what) for problem in watched.record.problems] == [True]


def test_a_function_of_the_results_that_fails_leaves_those_after_it():
    outputs = {"bad": lambda result: result["loss"], "twice": lambda result: result * 2}
    watched = wb.watch(jax.jit(jnp.sum), outputs=outputs, show=False)
    watched(jnp.ones(3))
    watched.close()
    assert watched.history[-1].metrics["twice"] == 6.0


def test_a_single_result_is_named_by_its_return():
    def step(w):
        loss = (w**2).sum()
        return loss

    watched = wb.watch(jax.jit(step), show=False)
    watched(jnp.ones(3))
    watched.close()
    assert watched.history[-1].metrics["loss"] == 3.0


def test_memory_is_that_of_the_fullest_device():
    used = [{}, {"bytes_in_use": 7, "peak_bytes_in_use": 8}, {"bytes_in_use": 5, "peak_bytes_in_use": 9}]
    devices = [types.SimpleNamespace(process_index=0, memory_stats=lambda stats=stats: stats) for stats in used]
    core = _watch_core.Core("step", [])
    step = types.SimpleNamespace(probe=types.SimpleNamespace(sharding=types.SimpleNamespace(device_set=devices)))
    assert core._memory_now(step)
    record = core.record()
    assert (record.memory_bytes, record.peak_bytes) == (7, 9)


def test_a_learning_rate_inside_a_donated_state_is_read_in_every_step():
    @functools.partial(jax.jit, donate_argnums=0)
    def step(state):
        hyper = state["optimizer"]["hyper"]
        new = {"learning_rate": hyper["learning_rate"] * 0.5, "eps": hyper["eps"]}
        return {"optimizer": {"hyper": new}}, new["learning_rate"] * 3

    state = {"optimizer": {"hyper": {"learning_rate": jnp.float32(1.0), "eps": jnp.float32(1e-8)}}}
    watched = wb.watch(step, show=False)
    for _ in range(12):
        state, _ = watched(state)
    history = watched.record.history
    assert [found.metrics["learning_rate"] for found in history] == [0.5 ** (i + 1) for i in range(12)]
    assert "eps" not in history[0].metrics  # a constant of the optimizer is no metric


def test_outputs_that_are_donated_are_copied_from_then_on():
    @functools.partial(jax.jit, donate_argnums=0)
    def step(state):
        return {"w": state["w"] * 2, "rate": state["rate"] * 0.5}

    held = threading.Event()

    class Slow(Watch):
        pass

    watched = Slow(step)
    put = watched._core.put

    def late(found):  # as if the other thread came only after the next call
        held.wait(0.0)
        found_later.append(found)

    found_later = []
    watched._core.put = late
    state = watched({"w": jnp.ones(3), "rate": jnp.float32(1.0)})
    state = watched(state)
    watched._core.put = put
    for found in found_later[:1]:
        put(found)
    while "rate" not in watched._core.donated:
        time.sleep(0.001)
    watched._core.put = late
    state = watched(state)
    state = watched(state)  # donates what the step before handed out
    watched._core.put = put
    for found in found_later[1:]:
        put(found)
    watched.close()
    assert watched.record.history[-2].metrics["rate"] == 0.125


def test_seconds_are_those_until_the_results_are_ready():
    pause = 0.05

    @jax.jit
    def step(x):
        return jax.pure_callback(_slept, jax.ShapeDtypeStruct((), jnp.float32), x)

    def _slept(x):
        time.sleep(pause)
        return np.float32(x)

    watched = wb.watch(step, show=False)
    watched(jnp.float32(0))
    began = time.perf_counter()
    for number in range(4):
        watched(jnp.float32(number))
    record = watched.record
    total = time.perf_counter() - began
    seconds = [found.seconds for found in record.history[1:]]
    assert min(seconds) >= pause * 0.9
    assert sum(seconds) <= total
    assert record.step_seconds >= pause


def test_a_call_returns_before_its_results_are_ready():
    gate = threading.Event()

    def wait(x):
        gate.wait(3.0)  # all of it where calls wait for callbacks
        return x

    @jax.jit
    def step(x):
        return jax.pure_callback(wait, jax.ShapeDtypeStruct((), jnp.float32), x)

    plain = step(jnp.float32(0))
    was_asynchronous = not plain.is_ready()
    gate.set()
    plain.block_until_ready()
    gate.clear()
    watched = wb.watch(step, show=False)
    result = watched(jnp.float32(1))
    still = not result.is_ready()
    gate.set()
    assert still == was_asynchronous
    assert watched.record.steps == 1


def test_host_time_between_calls_is_the_inputs():
    step = jax.jit(lambda x: x.sum())
    watched = wb.watch(step, show=False)
    for _ in range(4):
        watched(jnp.ones(3)).block_until_ready()
        time.sleep(0.03)
    record = watched.record
    assert record.between_seconds >= 0.03
    assert record.idle_share > 0.5
    assert "input-bound" in str(watched)


def test_two_watched_functions_keep_apart():
    first = wb.watch(jax.jit(lambda x: x.sum()), name="first", show=False)
    second = wb.watch(jax.jit(lambda x: x.mean()), name="second", show=False)
    for _ in range(3):
        first(jnp.ones(2))
    second(jnp.ones(2))
    assert (first.record.steps, second.record.steps) == (3, 1)
    assert [made.function for made in second.record.compilations] == ["<lambda>"]


def test_one_function_called_from_two_threads():
    watched = wb.watch(jax.jit(lambda x: (x * 2).sum()), outputs={"sum": "value"}, show=False)
    results = {}

    def work(base):
        results[base] = [float(watched(jnp.full(2, float(base + i)))) for i in range(20)]

    threads = [threading.Thread(target=work, args=(base,)) for base in (0, 100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {base: [4.0 * (base + i) for i in range(20)] for base in (0, 100)}
    record = watched.record
    assert record.steps == 40
    assert sorted(found.round for found in record.history) == list(range(40))
    assert sorted(found.metrics["sum"] for found in record.history) == sorted(results[0] + results[100])


def test_no_array_is_kept_however_many_steps_there_are(make_sgd):
    step, params, opt_state = make_sgd()
    watched = wb.watch(step, show=False)

    def run(count, params, opt_state):
        for _ in range(count):
            params, opt_state, _ = watched(params, opt_state, jnp.ones((2, 4)))
        watched.record  # noqa: B018 -- waits
        gc.collect()
        return len(jax.live_arrays()), params, opt_state

    early, params, opt_state = run(5, params, opt_state)
    _cost_of(watched)
    late, params, opt_state = run(200, params, opt_state)
    assert late <= early


def test_the_history_of_a_long_loop_is_bounded_and_keeps_its_end(monkeypatch):
    monkeypatch.setattr(_watch_core, "_KEPT", 64)
    monkeypatch.setattr(_watch_core, "_WHOLE", 32)
    watched = wb.watch(jax.jit(lambda x: x + 1), show=False)
    for _ in range(500):
        watched(1.0)
    rounds = [found.round for found in watched.record.history]
    assert len(rounds) <= 64
    assert rounds[0] == 0
    assert rounds[-20:] == list(range(480, 500))
    assert watched.record.steps == 500


def test_a_call_inside_another_trace_is_no_step():
    watched = wb.watch(jax.jit(lambda x: (x**2).sum()), show=False)
    gradient = jax.grad(lambda x: watched(x))(jnp.ones(2))
    assert gradient.tolist() == [2.0, 2.0]
    assert watched.record.steps == 0
    watched(jnp.ones(2))
    assert [found.round for found in watched.record.history] == [0]


def test_a_second_version_says_what_changed():
    def make(width):
        @jax.jit
        def versioned(x):
            return (jnp.ones((width, x.shape[0])) @ x).sum()

        return versioned

    old = wb.watch(make(2), show=False)
    old(jnp.ones(8))
    _cost_of(old)
    new = wb.watch(make(4), show=False)
    new(jnp.ones(8))
    changes = _cost_of(new).changes
    assert "work: 32 FLOP → 64 FLOP (+100 %)" in changes


def test_a_second_version_with_few_steps_says_nothing_of_times():
    def changed(old, now, **options):
        records = [WatchRecord(name="step", status="finished", steps=9, **each) for each in (old, now)]
        return _watch_core.changes_of(*records, **options)

    slow, fast = {"step_seconds": 0.2, "flops": 1e9}, {"step_seconds": 0.1, "flops": 1e9 + 1}
    assert changed(slow, fast) == ("time of a call: 200 ms → 100 ms (-50 %)",)  # 1 GFLOP → 1 GFLOP is no difference
    assert changed(slow, fast, is_timed=False) == ()

    def make(width):
        @jax.jit
        def timed(x):
            return (jnp.ones((width, x.shape[0])) @ x).sum()

        return timed

    for width in (2, 4):
        watched = wb.watch(make(width), show=False)
        watched(jnp.ones(8))
        watched(jnp.ones(8))
    assert not [each for each in _cost_of(watched).changes if each.startswith("time ")]


def test_functions_without_a_name_are_not_versions_of_each_other():
    for factor in (1, 2):
        watched = wb.watch(jax.jit(lambda x, factor=factor: (x @ jnp.ones((4, factor))).sum()), show=False)
        watched(jnp.ones((3, 4)))
        assert _cost_of(watched).changes == ()


def test_a_profile_gives_measured_seconds_on_lines():
    @jax.jit
    def step(x):
        return (x @ x).sum()

    watched = wb.watch(step, profile_every=3, show=False)
    x = jnp.ones((128, 128))
    watched(x)
    _cost_of(watched)
    for _ in range(5):
        watched(x)
    watched.close()
    tree = watched.record.call_tree
    assert tree is not None, watched.record.notes
    whole = sum(tree.nodes[0].total.measured_seconds.values())
    profiled = [step.metrics for step in watched.record.history if "compute_seconds" in step.metrics]
    assert whole > 0
    assert profiled[-1]["compute_seconds"] == pytest.approx(whole)  # one device, no collective
    assert profiled[-1]["collective_seconds"] == 0


def test_trackers_get_every_step(tmp_path):
    class Tracker:
        def __init__(self):
            self.calls = []

        def start(self, about, program):
            self.calls.append(about["name"])
            self.code = about["code"]

        def log(self, record):
            self.calls.append(record.round)

        def finish(self, status):
            self.calls.append(status)

    tracker = Tracker()
    with wb.watch(jax.jit(lambda x: x.sum()), log=[tracker, tmp_path], name="loop", show=False) as step:
        step(jnp.ones(2))
        step(jnp.ones(2))
    assert tracker.calls == ["loop", 0, 1, "finished"]
    assert "x.sum()" in tracker.code  # of the function, and not of `watch`
    (folder,) = tmp_path.iterdir()
    assert len(wb.Run.load(folder).history) == 2


def test_a_display_that_fails_does_not_end_the_loop():
    def display(_):
        raise RuntimeError("no screen")

    watched = Watch(jax.jit(lambda x: x.sum()), display=display)
    watched.subscribe(lambda *_: 1 / 0)
    assert float(watched(jnp.ones(2))) == 2.0
    watched.close()
    assert any("no screen" in note for note in watched.record.notes)
    assert any("ZeroDivisionError" in note for note in watched.record.notes)


def test_steps_of_a_loop_of_several_functions():
    with wb.watch(show=False) as loop:
        for x in loop.steps([1.0, 2.0, float("nan")]):
            loop.log(loss=jnp.square(x), rate=0.1)
    assert [found.metrics["loss"] for found in loop.history[:2]] == [1.0, 4.0]
    assert loop.history[0].metrics["rate"] == 0.1
    assert loop.record.status == "finished"
    assert [problem.round for problem in loop.problems if problem.metric == "loss"] == [2]


def test_a_live_view_does_not_hold_the_record_up():
    watched = wb.watch(jax.jit(lambda x: x.sum()), show=False)
    view = workbench_widgets.RunView(watched)
    for _ in range(30):
        watched(jnp.ones(2))
    steps = watched.record.steps  # gives up after ten seconds
    assert steps == 30
    view.renew()
    assert view.live["finished"] == 30
    assert "30 steps" in view.text()
    view.close()


def test_calls_after_the_end_pass_through():
    watched = wb.watch(jax.jit(lambda x: x.sum()), show=False)
    watched(jnp.ones(2))
    watched.close()
    assert float(watched(jnp.ones(2))) == 2.0
    assert watched.record.steps == 1


def test_the_record_survives_json(make_sgd):
    step, params, opt_state = make_sgd()
    watched = wb.watch(step, show=False)
    _losses(watched, params, opt_state)
    record = watched.record
    assert WatchRecord.from_json(record.to_json()) == record


def test_a_picture_is_the_result_of_a_cell(make_sgd):
    step, params, opt_state = make_sgd()
    watched = wb.watch(step, show=False)
    _losses(watched, params, opt_state)
    shown = watched._repr_mimebundle_()
    assert shown["text/plain"].startswith("Watch of `step`, running: 6 steps")
    assert "<img" in shown["text/html"]


@pytest.mark.parametrize(
    ("fn", "options", "fact"),
    [(3, {}, "int"), (abs, {"profile_every": 0}, "profile_every=0"), (abs, {"outputs": [3]}, "3")],
)
def test_wrong_arguments_are_refused(fn, options, fact):
    with pytest.raises(MeasureError, match=fact):
        wb.watch(fn, show=False, **options)


def test_the_view_draws_seconds_of_steps_without_those_of_compilations(make_sgd):
    step, params, opt_state = make_sgd()
    watched = wb.watch(step, show=False)
    _losses(watched, params, opt_state)
    watched.close()
    view = workbench_widgets.RunView(watched)
    curves = {curve["name"]: len(curve["points"]) for curve in view.live["curves"]}
    assert curves["compile_seconds"] * 5 == curves["seconds"] == curves["dispatch_seconds"]
    assert view.live["pace"] in str(watched.record)  # one figure for one thing
    view.close()


def test_a_tracker_that_fails_is_a_problem_and_the_loop_goes_on():
    class Refusing:
        def start(self, about, program):
            raise OSError("no place for events")

        def log(self, record): ...

        def finish(self, status): ...

    step = wb.watch(jax.jit(lambda w: (w * 2, w.sum())), log=Refusing(), show=False)
    assert float(step(jnp.ones(3))[1]) == 3.0
    step.close()
    assert [problem.what for problem in step.record.problems] == [
        "Refusing failed and was removed (OSError: no place for events)"
    ]
    assert "Refusing failed" in str(step)


def test_metrics_that_a_step_updates_in_place_have_the_name_of_their_argument():
    nnx = pytest.importorskip("flax.nnx")
    metrics = nnx.MultiMetric(accuracy=nnx.metrics.Average("hits"), loss=nnx.metrics.Average("loss"))

    @nnx.jit
    def step(metrics, x):
        metrics.update(loss=x.sum(), hits=x.mean())

    watched = wb.watch(step, show=False)
    watched(metrics, jnp.ones(3))
    watched(metrics, jnp.zeros(3))
    watched.close()
    outputs = [{name: step.metrics[name] for name in ("metrics.accuracy", "metrics.loss")} for step in watched.history]
    assert outputs == [{"metrics.accuracy": 1.0, "metrics.loss": 3.0}, {"metrics.accuracy": 0.5, "metrics.loss": 1.5}]
    assert not any("total" in name for name in watched.to_pandas())


def test_total_without_a_count_stays_a_total():
    step = jax.jit(lambda x: {"loss": {"total": x.sum(), "size": x.shape[0]}})
    watched = wb.watch(step, show=False)
    watched(jnp.ones(3))
    watched.close()
    assert watched.history[0].metrics["total"] == 3


def test_only_a_total_is_divided_by_the_count_beside_it():
    step = jax.jit(lambda x: {"loss": {"largest": x.max(), "count": jnp.float32(3)}})
    watched = wb.watch(step, show=False)
    watched(jnp.ones(3))
    watched.close()
    metrics = watched.history[0].metrics
    assert (metrics["largest"], metrics["count"]) == (1, 3)


def test_names_of_outputs_of_a_jitted_method_are_those_of_its_return():
    class Trainer:
        def __init__(self):
            self.step = jax.jit(self.update)

        def update(self, w):
            loss = (w**2).sum()
            return w - 0.1, loss

    watched = wb.watch(Trainer().step, show=False)
    watched(jnp.ones(2))
    watched.close()
    assert watched.history[-1].metrics["loss"] == 2.0


@pytest.mark.parametrize("wrap", [jax.checkpoint, functools.partial(jax.shard_map, in_specs=P(), out_specs=P())])
def test_names_of_outputs_of_a_wrapped_function_are_those_of_its_return(wrap):
    def update(w):
        loss = (w**2).sum()
        return w - 0.1, loss

    with jax.set_mesh(jax.make_mesh((1,), ("data",))):
        watched = wb.watch(jax.jit(wrap(update)), show=False)
        watched(jnp.ones(2))
    watched.close()
    assert watched.history[-1].metrics["loss"] == 2.0


def test_a_function_that_is_traced_twice_inside_the_first_compilation_is_no_retrace():
    @jax.jit
    def inner(x, scale):
        return x * scale

    @jax.jit
    def step(w):
        return inner(w, 1.0) + inner(w, jnp.float32(2.0)), w.sum()

    watched = wb.watch(step, show=False)
    for _ in range(2):
        watched(jnp.ones(3))
    watched.close()
    assert watched.record.retraces == ()
    assert "retraced" not in str(watched)


def test_a_compilation_under_pmap_has_a_reason_and_the_name_of_the_function():
    def train_step(w, x):
        return w - x, (w * x).sum()

    step = wb.watch(jax.pmap(train_step), show=False)
    w, x = jnp.ones((8, 3)), np.ones((8, 3), "float32")
    for _ in range(3):
        w, _ = step(w, x)
    step.close()
    (problem,) = step.record.problems
    assert problem.round == 1
    assert problem.what.startswith("step 1 compiled `train_step` in ")
    assert "argument `w`: now f32[8,3] on 8 devices" in problem.what
    assert "before f32[8,3] on one device" in problem.what
    assert "argument `x`" not in problem.what


def test_reasons_of_a_compilation_are_written_once_and_few(make_sgd):
    step = wb.watch(jax.jit(lambda **arrays: sum(x.sum() for x in arrays.values())), name="many", show=False)
    for size in (2, 3):
        step(**{f"array{number}": jnp.ones(size) for number in range(6)})
    step.close()
    text = str(step)
    assert text.count("array0") == 1
    assert text.count("its shape changed") == 3
    assert "; and 3 more" in text


def test_steps_before_the_cost_was_known_have_rates_too(monkeypatch):
    """The cost is read in a thread: a short loop is over before that."""
    over, know = threading.Event(), _watch_core.Core._know
    monkeypatch.setattr(_watch_core.Core, "_know", lambda core, *rest: over.wait(60) and know(core, *rest))
    step = wb.watch(jax.jit(lambda w: (w @ w * 1e-3, w.sum())), name="short", show=False)
    w = jnp.ones((64, 64))
    for _ in range(4):
        w, _ = jax.block_until_ready(step(w))  # otherwise a busy machine may see two steps end together
    assert all("flops_per_second" not in found.metrics for found in step.record.history)
    over.set()
    step.close()
    table = step.to_pandas()
    assert table.index.name == "step"
    assert list(table["flops_per_second"].notna()) == [False, True, True, True]
    assert (table["flops_per_second"] * table["seconds"])[1:].tolist() == pytest.approx([step.record.flops] * 3)


def test_a_loop_without_outputs_says_how_to_choose_some():
    step = wb.watch(jax.jit(lambda w: w * 2), name="silent", show=False)
    step(jnp.ones(3))
    step.close()
    assert "no output is recorded, because the results contain no floating-point scalar" in str(step)


@pytest.mark.parametrize(
    ("share", "steps", "text"),
    [
        (0.6, 0.9, "60 % of the time (input-bound)"),
        (0.6, 0.02, "60 % of the time; only 2.0 % of the steps start after a long wait"),
        (0.1, 0.0, "10 % of the time"),
    ],
)
def test_a_loop_is_input_bound_only_if_most_steps_wait(share, steps, text):
    record = WatchRecord(name="f", status="running", steps=9, idle_share=share, idle_steps_share=steps)
    (line,) = [line for line in str(record).splitlines() if "devices wait" in line]
    assert line.endswith(text)


def test_figures_are_those_of_the_program_that_a_step_ran() -> None:
    """Two batch sizes take turns: each rate has the FLOPs of its own program, and the record those of most steps."""
    step = wb.watch(jax.jit(lambda w, x: (w - x.T @ (x @ w), (x @ w).sum())), name="two shapes", show=False)
    w, sizes = jnp.ones((256, 64)), [128, 128, 512] * 10
    work = {}
    for rows in sizes:
        if rows not in work:
            work[rows] = wb.inspect(step)(w, jnp.ones((rows, 256))).module.flops
        step(w, jnp.ones((rows, 256)))
        _ = step.record  # waits for the step, and so for its program
    step.close()
    known = [found for found in step.record.history if "flops_per_second" in found.metrics]
    assert {sizes[found.round] for found in known} == {128, 512}
    for found in known:
        assert found.metrics["flops_per_second"] * found.seconds == pytest.approx(work[sizes[found.round]])
    record = step.record
    assert record.flops == work[128]
    assert record.flops < work[512] / 3
    assert any(note.startswith("2 programs ran") for note in record.notes)


class _Ready:
    """A result that was ready before anybody looked."""

    def block_until_ready(self):
        return self

    def is_ready(self):
        return True


def test_steps_whose_ends_nobody_saw_share_the_seconds():
    core, now = _watch_core.Core("late", []), time.perf_counter()
    steps = [_watch_core.WatchedStep(number, now - 1.0 + 0.001 * number, None) for number in range(5)]
    for step in steps:
        step.probe = _Ready()
        core._queue.put(step)
    core._queue.put(None)
    core._see()
    ends = [step.end for step in steps]
    spans = [end - begin for begin, end in zip([steps[0].called, *ends], ends, strict=False)]
    assert sum(spans) == pytest.approx(1.0, abs=0.2)
    assert spans == pytest.approx([sum(spans) / 5] * 5)


class _Gate:
    """A result that is ready when the test says so."""

    def __init__(self):
        self.open = threading.Event()

    def block_until_ready(self):
        assert self.open.wait(60)

    def is_ready(self):
        return self.open.is_set()


def test_a_record_that_takes_long_lengthens_no_step(monkeypatch):
    """Reading a profile takes longer than a step: the ends of the steps meanwhile are seen as they come."""
    reading, read = threading.Event(), _watch_core.Core._hear
    monkeypatch.setattr(_watch_core.Core, "_hear", lambda core, step: reading.wait(60) and read(core, step))
    core = _watch_core.Core("slow", [])
    steps = [_watch_core.WatchedStep(core.next_index(), time.perf_counter(), None) for _ in range(4)]
    gates = [_Gate() for _ in steps]
    for step, gate in zip(steps, gates, strict=True):
        step.probe = gate
        core.put(step)
    opened = []
    for step, gate in zip(steps, gates, strict=True):
        opened.append(time.perf_counter())
        gate.open.set()
        while step.end == step.called:  # the record is still at the first step
            time.sleep(0.001)
    opened.append(time.perf_counter())
    reading.set()
    core.close()
    for step, before, after in zip(steps, opened, opened[1:], strict=False):
        assert before <= step.end <= after


def test_a_profile_that_is_still_being_read_delays_the_next_profile(monkeypatch):
    attempts = []

    class Profiler:
        def __init__(self):
            attempts.append(self)
            if len(attempts) == 2:
                raise EngineError("the previous profile has not been read yet")

        def stop(self):
            raise EngineError("not read")

    monkeypatch.setattr("workbench.measurement._watch.RunningProfile", Profiler)
    watched = wb.watch(jax.jit(lambda x: x.sum()), profile_every=2, show=False)
    for _ in range(5):  # profiled: 1, not 3, therefore 4
        watched(jnp.ones(2))
    watched.close()
    assert len(attempts) == 3


def test_a_second_profile_does_not_start_before_the_first_has_ended():
    first = RunningProfile()
    with pytest.raises(EngineError, match="previous profile"):
        RunningProfile()
    first.stop()
    RunningProfile().stop()


def test_the_line_in_a_terminal_shows_outputs_and_problems():
    class Line:
        def __init__(self):
            self.records = []

        def update(self, record):
            self.records.append(record)

        def close(self, status):
            self.records.append(status)

    @jax.jit
    def step(x):
        return {"loss": jnp.log(x).sum()}

    watched, line = wb.watch(step, show=False), Line()
    watched._core.progress = line
    for value in (1.0, -1.0, -1.0):
        watched(jnp.full(2, value))
    watched.close()
    assert [list(record.metrics) for record in line.records[:-1]] == [["loss"]] * 3
    assert [len(record.problems) for record in line.records[:-1]] == [0, 1, 0]


def test_a_paused_view_resumes_with_the_status_of_the_loop():
    watched = wb.watch(jax.jit(lambda x: x.sum()), show=False)
    watched(jnp.ones(2))
    watched.pause()
    assert watched.status == "paused"
    watched.end_cell()
    assert watched.status == "paused"
    watched.resume()
    assert watched.status == "waiting"
    assert watched.record.steps == 1
    watched.close()
    assert watched.status == "finished"
