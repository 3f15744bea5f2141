import jax
import jax.numpy as jnp
import numpy as np
import pytest

from workbench.distributed import from_local_clients, synchronized, wait_for
from workbench.distributed._merge import merge_runs
from workbench.errors import EngineError, InspectionError, MeshError
from workbench.records.run import ClientRunRecord, RunRecord, StageRunRecord


@jax.jit
def _powers(x: jax.Array, count: int) -> jax.Array:
    return jax.lax.fori_loop(0, count, lambda _, y: y @ x, x)[0, 0]


def test_step_that_ends_in_time_is_returned() -> None:
    assert float(wait_for({"a": _powers(jnp.eye(2), 1), "b": 1})["a"]) == 1
    assert float(synchronized(_powers)(jnp.eye(2), 3)) == 1


def test_step_that_does_not_end_is_an_error_that_says_what_holds() -> None:
    late = _powers(jnp.eye(1000), 40)
    with pytest.raises(EngineError, match=r"did not end within 0.01 s on host 0 of 1: 1 of its results.*restart all"):
        wait_for(late, timeout_seconds=0.01)
    jax.block_until_ready(late)


def test_clients_of_this_host_become_one_array() -> None:
    mesh = jax.make_mesh((4, 2), ("clients", "model"))
    rows = from_local_clients({"x": np.arange(8.0, dtype=np.float32)}, mesh)
    np.testing.assert_array_equal(rows["x"], np.arange(8.0))
    assert rows["x"].sharding.spec == jax.P("clients")


@pytest.mark.parametrize(
    ("rows", "axes", "reported"),
    [
        (8, ("a", "b"), r"axis 'clients', because the mesh has the axes \['a', 'b'\]"),
        (6, ("clients", "b"), r"given \[6\]"),
    ],
    ids=["no axis", "uneven"],
)
def test_clients_that_do_not_fit_are_reported(rows: int, axes: tuple[str, str], reported: str) -> None:
    with pytest.raises(MeshError, match=reported):
        from_local_clients(np.ones((rows, 2)), jax.make_mesh((4, 2), axes))


def _run(host: int) -> RunRecord:
    clients = (ClientRunRecord(stage="1", client=host, seconds=1.0 + host),)
    stages = (StageRunRecord(stage="1", where=f"cpu:{host}", compute_seconds=1.0),)
    return RunRecord(
        name="fedavg",
        engine="cpu x 2",
        seconds=1.0 + host,
        round_seconds=(0.5, 0.5 + host),
        stages=stages,
        clients=clients,
        memory_peak_bytes=None if host else 7,
        attributed_seconds=1 - 0.1 * host,
    )


def test_records_of_two_hosts_are_one_run() -> None:
    run = merge_runs([_run(0), _run(1)])
    assert (run.seconds, run.round_seconds) == (2.0, (0.5, 1.5))
    assert [stage.where for stage in run.stages] == ["cpu:0", "cpu:1"]
    assert [client.seconds for client in run.clients] == [1.0, 2.0]
    assert (run.memory_peak_bytes, run.attributed_seconds) == (7, 0.9)
    assert run.notes == ("measured on 2 hosts",)


def test_records_of_different_programs_are_not_one_run() -> None:
    with pytest.raises(InspectionError, match=r"from the programs \['fedavg', 'other'\]"):
        merge_runs([_run(0), _run(1).replace(name="other")])


def test_hosts_run_a_function_and_not_its_text():
    from workbench.distributed import Hosts

    with pytest.raises(EngineError, match=r"`Hosts\.run` received an object of type str\. Every host calls a function"):
        Hosts.run(object.__new__(Hosts), "print(1)")  # type: ignore[arg-type]
