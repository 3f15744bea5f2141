"""`plan`, `inspect`, `measure`, `show`, `explore`: one call each, and what they say to bad input."""

import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.errors import InspectionError, MeshError
from workbench.records.compiled import ProgramRecord


@wb.program(clients=16)
def local_sgd(weights, rows):
    def train(local, row):
        def step(value, x):
            return value - 0.1 * jax.grad(lambda v: jnp.sum((x @ v) ** 2))(value), None

        return jax.lax.scan(step, local, row)[0] - local

    return weights + wb.reduce_mean(wb.map_fn(train, (wb.broadcast(weights), rows)))


WEIGHTS, ROWS = jnp.ones((4, 2)), jnp.ones((16, 3, 5, 4))


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line and "line_of" not in line)


@pytest.fixture(scope="module")
def record() -> ProgramRecord:
    return wb.inspect(local_sgd, on=wb.make_mesh(clients=4, model=2))(WEIGHTS, ROWS)


def test_inspect_reports_stages_in_order(record: ProgramRecord):
    kinds = [(stage.kind, stage.name) for stage in record.plan.stages]
    assert kinds == [("broadcast", "broadcast"), ("clients", "train"), ("reduce", "reduce_mean"), ("server", "server")]


def test_inspect_finds_the_one_promised_collective_and_its_line(record: ProgramRecord):
    assert record.module is not None
    (found,) = record.module.collectives
    assert (found.kind, found.axes, found.stages, found.executions) == ("all-reduce", ("clients",), ("2",), 1)
    assert found.payload_bytes == 4 * 2 * 4  # float32 [4, 2]
    assert [source.line for source in found.sources] == [line_of("return weights + wb.reduce_mean")]


def test_flops_of_the_plan_and_of_the_compiled_module_agree_with_a_count_by_hand(record: ProgramRecord):
    # One step of one client: x @ v and x.T @ g, each 2·5·4·2 FLOPs; 3 steps.
    per_client = 3 * 2 * (2 * 5 * 4 * 2)
    assert record.plan.stages[1].flops_per_client == per_client
    assert record.module is not None
    assert record.module.flops == 16 / 4 * per_client  # four of the sixteen clients per device


def test_inspect_names_the_shardings_of_inputs(record: ProgramRecord):
    assert record.inputs is not None
    assert [leaf.spec for leaf in record.inputs.leaves] == [((), ()), (("clients",), (), (), ())]


def test_an_abstract_mesh_of_thousands_is_planned():
    mesh = jax.sharding.AbstractMesh((16, 64), ("clients", "model"))
    planned = wb.inspect(local_sgd, on=mesh)(WEIGHTS, ROWS)
    assert planned.module is None
    assert "nothing was compiled" in planned.notes[0]
    assert planned.propagation is not None
    assert {(c.kind, c.axes) for c in planned.propagation.collectives} == {("all-reduce", ("clients",))}
    assert planned.mesh is not None
    assert len(planned.mesh.devices) == 1024


def test_record_of_a_compiled_program_reads_back(record: ProgramRecord):
    assert ProgramRecord.from_json(record.to_json()) == record


def test_record_of_a_run_reads_back_without_its_results():
    run = wb.measure(local_sgd, rounds=1)(WEIGHTS, ROWS)
    assert type(run).from_json(run.to_json()) == run


@pytest.mark.parametrize("clients", ["together", "probe"])
def test_measure_returns_the_result_and_where_the_time_went(clients):
    run = wb.measure(local_sgd, rounds=1, clients=clients, on=wb.make_mesh(clients=8))(WEIGHTS, ROWS)
    np.testing.assert_allclose(run.results, local_sgd(WEIGHTS, ROWS), rtol=1e-5)
    assert {stage.stage for stage in run.stages} >= {"1", "2"}
    assert run.attributed_seconds is not None
    assert run.attributed_seconds > 0.95
    if clients == "probe":
        assert sorted(c.client for c in run.clients if c.stage == "1") == list(range(16))
        assert all(c.seconds and c.seconds > 0 for c in run.clients if c.stage == "1")


def test_show_prints_text_in_a_terminal(capsys: pytest.CaptureFixture[str]):
    wb.show(local_sgd)(WEIGHTS, ROWS)
    said = capsys.readouterr().out
    assert "clients train; 16 clients" in said
    wb.show(wb.make_mesh(clients=8))
    assert "clients=8" in capsys.readouterr().out
    wb.show({"weights": WEIGHTS})
    assert "f32[4,2]" in capsys.readouterr().out


def test_showing_something_unknown_says_what_can_be_shown():
    with pytest.raises(InspectionError, match=r"received .fedavg., and no file or directory"):
        wb.show("fedavg")


def test_inspecting_what_is_no_function_says_what_to_use():
    with pytest.raises(InspectionError, match=r"`inspect` received .* of type int, .*meshes; arrays and pytrees"):
        wb.inspect(3)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("x", "view"),
    [
        (lambda: wb.make_mesh(clients=8), "MeshView"),
        (lambda: WEIGHTS, "ShardingView"),
        (lambda: {"w": WEIGHTS, "name": "x"}, "ShardingView"),
        (lambda: wb.inspect(local_sgd)(WEIGHTS, ROWS), "Explorer"),
        (lambda: wb.compare(*[wb.inspect(local_sgd)(WEIGHTS, ROWS)] * 2), "CompareView"),
        (lambda: wb.watch_devices(), "DevicesView"),
        (lambda: wb.run_rounds(lambda s, _: (s + 1, {"loss": s}), jnp.zeros(()), 2), "RunView"),
    ],
    ids=lambda x: x if isinstance(x, str) else "",
)
def test_explore_opens_the_widget_of_anything_and_lays_it_out(x, view: str):
    made = wb.explore(x(), layout={"width": "40%"})
    assert type(made).__name__ == view
    assert made.layout.width == "40%"
    heard = []
    made.observe(heard.append, "selection")
    made.select(device=0)
    assert heard[0]["new"] == {"device": 0}
    made.close()


def test_exploring_a_record_without_a_live_view_says_where_it_is_shown():
    cost = wb.inspect(local_sgd)(WEIGHTS, ROWS).module.memory
    with pytest.raises(InspectionError, match=r"`explore` received .* of type MemoryRecord, .* no live view.* card"):
        wb.explore(cost)


def test_measuring_clients_in_an_unknown_way_names_the_ways():
    with pytest.raises(InspectionError, match=r"clients='one by one'.*pass \"together\" or \"probe\""):
        wb.measure(local_sgd, clients="one by one")(WEIGHTS, ROWS)  # pyright: ignore[reportArgumentType]


def test_an_unknown_target_is_named_with_its_neighbours():
    with pytest.raises(MeshError, match="tpu7x"):
        wb.inspect(local_sgd, on="v7x:4x4x4")(WEIGHTS, ROWS)


def test_changing_two_things_is_compared():
    before = wb.inspect(local_sgd)(WEIGHTS, ROWS)
    after = wb.inspect(jax.grad(lambda w, r: local_sgd(w, r).sum()))(WEIGHTS, ROWS)
    compared = wb.compare(before, after)
    assert compared.to_dict()["record"] == "ComparisonRecord"
    assert "stages: 4 → 6" in str(compared)


def test_treescope_shows_records(record: ProgramRecord):
    import treescope

    assert "local_sgd" in treescope.render_to_text(record)


def test_a_mesh_and_arrays_are_inspected_for_themselves():
    mesh = wb.make_mesh(clients=8)
    assert [axis.name for axis in wb.inspect(mesh).axes] == ["clients"]
    assert [leaf.shape for leaf in wb.inspect({"weights": WEIGHTS}).leaves] == [WEIGHTS.shape]


def test_what_takes_long_says_in_a_notebook_what_it_does_and_takes_the_line_away(monkeypatch: pytest.MonkeyPatch):
    from IPython import display

    from workbench.api import _waiting

    said: list[str] = []
    lines = []
    reported = threading.Event()

    class Handle:
        def update(self, data, *, raw):
            said.append(data["text/plain"])

    def first(shown, **_):
        lines.append(shown)
        said.append(shown.children[0].value)
        reported.set()
        return Handle()

    monkeypatch.setattr(display, "display", first)
    with _waiting.waiting("step", "tracing", shown=True):
        _waiting.say_phase("compiling")
        with _waiting.waiting("step", "reading", shown=True):  # one line is enough
            assert reported.wait(30)
    assert said[0] == "step: reading, 0 s; interrupt the kernel to stop"
    assert said[-1] == ""
    assert [part.comm for part in lines] == [None]  # closed: the line is taken away inside `Output` too


def test_nothing_is_reported_where_nobody_looks():
    from workbench.api import _waiting

    with _waiting.waiting("step", "tracing", shown=False):
        assert _waiting._current.get() is None


def test_showing_a_list_that_contains_itself_is_refused():
    endless: list[object] = []
    endless.append(endless)
    with pytest.raises(InspectionError, match="contains itself"):
        wb.show(endless)
