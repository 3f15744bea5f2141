import concurrent.futures
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_contract import CLIENTS, EngineContract, client_data, failing, fedavg, rounds, start

import workbench as wb
from workbench.engines import ClientReader, Engine, MeshEngine, Sequential
from workbench.engines._run_recorder import RunRecorder
from workbench.engines._sequential import Observed
from workbench.errors import EngineError, ProgramError
from workbench.records.run import RunRecord

pytestmark = pytest.mark.usefixtures("little_optimized")


class TestSequential(EngineContract):
    @pytest.fixture
    def engine(self) -> Engine:
        return Sequential()


class TestSequentialOperationByOperation(EngineContract):
    @pytest.fixture
    def engine(self) -> Engine:
        return Sequential(debug=True)


@wb.program(clients=3)
def logarithms(x: Any) -> Any:
    def of_one(row: Any) -> Any:
        doubled = 2 * row
        return jnp.log(doubled)

    return wb.reduce_sum(wb.map_fn(of_one, x))


BAD = np.array([1, 2, -3], np.float32)


def test_nan_names_its_client():
    with pytest.raises(EngineError, match=r"stage 0 \(`of_one`\) produced a NaN for client 2, in") as caught:
        Sequential(check_nan=True).run(logarithms, BAD)
    assert caught.value.client == 2
    assert caught.value.stage == "0"


def test_nan_names_the_line_and_the_value_when_debugging():
    pattern = r"client 2 in stage 0 \(`of_one`\), at .*test_sequential.py:\d+: the operation `log` made a NaN.*-6.0"
    with pytest.raises(EngineError, match=pattern):
        Sequential(debug=True, check_nan=True).run(logarithms, BAD)


def test_nan_passes_when_nobody_asked():
    assert np.isnan(Sequential().run(logarithms, BAD).results)


@pytest.mark.parametrize("debug", [False, True], ids=["compiled", "operation by operation"])
def test_client_that_raises_is_named_with_its_cause(debug: bool):
    def refuse(row: Any) -> Any:
        if row < 0:
            message = "negative"
            raise ArithmeticError(message)
        return row

    @wb.program(clients=3)
    def checked(x: Any) -> Any:
        return wb.reduce_sum(
            wb.map_fn(lambda row: jax.pure_callback(refuse, jax.typeof(row), row, vmap_method="sequential"), x)
        )

    with pytest.raises(EngineError, match=r"(?s)client 2.*ArithmeticError.*negative") as caught:
        Sequential(debug=debug).run(checked, BAD)
    assert caught.value.client == 2
    assert caught.value.__cause__ is not None
    assert [client.client for client in caught.value.run.clients] == [0, 1]


def test_watch_sees_every_operation_with_its_values():
    seen: list[Observed] = []
    Sequential(watch=seen.append).run(logarithms, BAD[:3] ** 2)
    assert [(o.client, o.operation) for o in seen] == [(i, op) for i in range(3) for op in ("mul", "log")]
    assert [float(o.outputs[0]) for o in seen if o.operation == "mul"] == [2, 8, 18]
    assert seen[0].line is not None
    assert seen[0].line.function.endswith("of_one")


def test_reader_with_another_number_of_clients_is_refused():
    pairs = [(i, np.float32(1)) for i in range(3)]
    with pytest.raises(EngineError, match="read 2 clients, expected 3"):
        Sequential().run(logarithms, ClientReader(lambda: iter(pairs[:2]), clients=3))
    with pytest.raises(EngineError, match="read more clients, expected 3"):
        Sequential().run(logarithms, ClientReader(lambda: iter([*pairs, (3, np.float32(1))]), clients=3))


@pytest.mark.parametrize(
    ("source", "clients", "expected"),
    [
        (lambda: iter(()), None, "given no `clients=`, and an object"),
        (iter([(0, 1)]), 1, "can be read only once"),
        ([], None, "a source with no clients"),
    ],
    ids=["no number", "an iterator", "empty"],
)
def test_reader_says_what_it_cannot_read(source: Any, clients: int | None, expected: str):
    with pytest.raises(ProgramError, match=expected):
        ClientReader(source, clients=clients)


def test_server_cannot_have_a_readers_rows_as_a_whole():
    @wb.program(clients=3)
    def sorted_rows(x: Any) -> Any:
        return jnp.sort(x)

    with pytest.raises(EngineError, match=r"the server stage 0 needs the rows of all clients at once.*ClientReader"):
        Sequential().run(sorted_rows, ClientReader([(i, np.float32(i)) for i in range(3)]))


def test_loop_cannot_take_slices_of_a_reader():
    def slices(x: Any) -> Any:
        return jax.lax.scan(lambda total, row: (total + logarithms(jnp.ones(3) * row), None), jnp.zeros(()), x)[0]

    with pytest.raises(EngineError, match="one slice per iteration, but the argument is a `ClientReader`"):
        Sequential().run(slices, ClientReader([(i, np.float32(i)) for i in range(3)]))


def test_server_stage_that_fails_is_named():
    with pytest.raises(EngineError, match=r"(?s)the server stage 1 of `failing` raised .*server down"):
        Sequential().run(wb.program(clients=3)(failing), np.ones(3, np.float32))


def test_only_functions_run():
    with pytest.raises(ProgramError, match=r"`Sequential.run` was given 3 \(type int\) as its program"):
        Sequential().run(3)  # pyright: ignore[reportArgumentType]


def test_emitted_values_are_received_and_cost_nothing_else():
    @wb.program(clients=CLIENTS)
    def telling(w: Any, data: Any) -> Any:
        def one(v: Any, x: Any) -> Any:
            wb.emit("norm", jnp.sum(x**2))
            return v * x.sum()

        return wb.reduce_sum(wb.map_fn(one, (wb.broadcast(w), data[0])))

    x, _ = client_data()
    with wb.listen() as received:
        run = Sequential().run(telling, start(), client_data())
    np.testing.assert_allclose(received.latest("norm"), (x**2).sum((1, 2)), rtol=1e-5)
    again = Sequential().run(telling, start(), client_data())
    np.testing.assert_allclose(run.results, again.results)
    # Nobody listens: 3 float32 leave each client and no fourth.
    assert {client.sent_bytes for client in again.clients} == {12}


@pytest.mark.parametrize("make", [Sequential, MeshEngine], ids=["sequential", "mesh"])
def test_second_run_traces_and_compiles_nothing(make: Any):
    traces: list[int] = []

    @wb.program(clients=3)
    def counted(x: Any) -> Any:
        traces.append(0)
        return wb.reduce_sum(wb.map_fn(lambda row: row + 1, x))

    engine = make()
    first, second = engine.run(counted, BAD), engine.run(counted, BAD + 1)
    assert len(traces) == 1
    assert (float(first.results), float(second.results)) == (3.0, 6.0)
    engine.run(counted, np.ones((3, 2), np.float32))
    assert len(traces) == 2


def test_engine_serves_two_threads_at_once():
    engine = Sequential()
    expected = wb.jit(fedavg)(start(), client_data())[0]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda _: engine.run(fedavg, start(), client_data()), range(4)))
    for run in runs:
        np.testing.assert_allclose(run.results[0], expected, rtol=1e-5, atol=1e-6)
        assert len(run.clients) == CLIENTS


def test_mesh_of_the_kernel_does_not_matter():
    with jax.set_mesh(wb.make_mesh(clients=4)):
        run = Sequential().run(fedavg, start(), client_data())
    np.testing.assert_allclose(run.results[0], Sequential().run(fedavg, start(), client_data()).results[0])


def test_record_is_printed_with_arrays_as_results():
    text = str(Sequential().run(logarithms, BAD[:3] ** 2))
    assert "sequential" in text


def test_interrupt_keeps_the_finished_rounds():
    x, y = client_data()
    passes: list[int] = []

    def read() -> Any:
        passes.append(0)
        if len(passes) == 4:  # the first is the look at the shapes, so this is round 2
            raise KeyboardInterrupt
        yield from enumerate(zip(x, y, strict=True))

    with pytest.raises(KeyboardInterrupt) as caught:
        Sequential().run(rounds, start(), ClientReader(read, clients=CLIENTS))
    run = caught.value.run  # pyright: ignore[reportAttributeAccessIssue]
    two = jax.lax.scan(lambda w, _: fedavg(w, (x, y)), start(), None, length=2)[0]
    assert run.rounds == 2
    np.testing.assert_allclose(run.results[0], two, rtol=1e-5, atol=1e-5)


def test_batches_that_share_their_first_client_are_separate_and_a_client_has_one_record():
    recorder = RunRecorder("round", "engine", None, None)
    for clients, seconds in (((3, 5), 2.0), ((3, 7), 4.0), ([3], 1.0), (range(3, 5), 8.0)):
        recorder.clients("train", clients, "worker", seconds, (8, 4))
    run = RunRecord.from_json(recorder.record().to_json())
    found = {client.client: (client.seconds, client.steps, client.received_bytes) for client in run.clients}
    assert len(run.clients) == 4
    assert found == {3: (1 + 2 + 1 + 4, 4, 4 + 4 + 8 + 4), 5: (1, 1, 4), 7: (2, 1, 4), 4: (4, 1, 4)}


def test_reductions_of_clients_that_communicate_are_finished_once() -> None:
    @wb.program(clients=4)
    def program(x: Any) -> Any:
        rows = wb.map_fn(lambda row: row + jax.lax.psum(row, "clients"), x)
        means = wb.reduce_mean(rows), wb.reduce_by_key(rows, jnp.array([0, 1, 1, 0]), 2, op="mean")
        return wb.reduce_sum(rows), means, wb.reduce_max(rows), wb.reduce_min(rows), rows

    total, (mean, groups), largest, smallest, rows = Sequential().run(program, jnp.array([1.0, 2, 3, 0])).results
    assert rows.tolist() == [7, 8, 9, 6]
    assert (float(total), float(mean), groups.tolist()) == (30, 7.5, [6.5, 8.5])
    assert (float(largest), float(smallest)) == (9, 6)
