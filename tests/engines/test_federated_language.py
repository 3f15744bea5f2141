import importlib.util
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from engine_contract import FEATURES, client_data, fedavg, per_client, rounds, start

import workbench as wb
from workbench.engines import to_federated_language
from workbench.errors import MissingDependencyError, ProgramError

needs_language = pytest.mark.skipif(
    importlib.util.find_spec("federated_language") is None, reason="the extra `federated-language` is not installed"
)
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # protobuf's own
]


@wb.program(clients=5)
def weighted(w: Any, data: Any, weight: Any) -> Any:
    rows = wb.map_fn(lambda v, row: row @ v, (wb.broadcast(w), data))
    return wb.reduce_weighted_mean(rows, weight), wb.reduce_max(rows), wb.reduce_min(rows)


@needs_language
def test_round_has_the_placements_and_intrinsics_of_the_program():
    computation = to_federated_language(fedavg, start(), client_data())
    assert computation.type_signature == (
        "(<w=float32[3]@SERVER,data_0={float32[4,3]}@CLIENTS,data_1={float32[4]}@CLIENTS> -> "
        "<float32[3]@SERVER,float32@SERVER>)"
    )
    assert computation.intrinsics["federated_broadcast"] == 1
    assert computation.intrinsics["federated_mean"] == 2
    for word in ("federated_broadcast", "federated_mean", "comp#train"):
        assert word in computation.text


@needs_language
def test_weighted_means_and_extremes_are_aggregations():
    x = np.ones((5, 4, FEATURES), np.float32)
    computation = to_federated_language(weighted, start(), x, np.ones(5, np.float32))
    assert computation.intrinsics["federated_sum"] == 2  # of weighted rows, and of weights
    assert computation.intrinsics["federated_max"] == computation.intrinsics["federated_min"] == 1
    assert computation.type_signature.endswith("-> <float32[4]@SERVER,float32[4]@SERVER,float32[4]@SERVER>)")


@needs_language
def test_bytes_come_back_as_the_same_computation(tmp_path: Path):
    import federated_language as language
    from federated_language.proto import computation_pb2

    computation = to_federated_language(fedavg, start(), client_data())
    computation.save(tmp_path / "round.pb")
    proto = computation_pb2.Computation.FromString((tmp_path / "round.pb").read_bytes())
    read = language.framework.ComputationBuildingBlock.from_proto(proto)
    assert read.type_signature.compact_representation() == computation.type_signature
    assert read.to_proto().SerializeToString(deterministic=True) == computation.proto


@needs_language
def test_local_computations_hold_the_functions_of_the_program():
    import federated_language as language

    computation = to_federated_language(per_client, start(), client_data())
    found: list[Any] = []
    language.framework.visit_postorder(
        computation.building_block,
        lambda block: found.append(block) if isinstance(block, language.framework.CompiledComputation) else None,
    )
    (train,) = found
    assert train.type_signature.compact_representation() == (
        "(<float32[3],float32[4,3],float32[4]> -> <float32[3],float32>)"
    )
    assert b"tanh" in train.to_proto().xla.hlo_module.value


@needs_language
def test_sums_are_in_the_dtype_that_the_reduction_states():
    @wb.program(clients=4)
    def total(x: Any) -> Any:
        return wb.reduce_sum(wb.map_fn(lambda row: row * 2, x))

    computation = to_federated_language(total, jnp.ones(4, jnp.bfloat16))
    assert computation.type_signature == "(<x={bfloat16}@CLIENTS> -> bfloat16@SERVER)"
    assert "comp#share" in computation.text  # float32 shares are summed, and rounded once at the server
    assert "comp#finish" in computation.text


@needs_language
def test_gradient_is_a_program_too():
    gradient = jax.grad(lambda data, w: fedavg(w, data)[1])
    computation = to_federated_language(gradient, client_data(), start())
    assert computation.type_signature.endswith("-> <{float32[4,3]}@CLIENTS,{float32[4]}@CLIENTS>)")


@needs_language
def test_inner_placement_is_local_work_and_reported():
    @wb.program(placements={"pods": 2, "clients": 3})
    def pods(x: Any) -> Any:
        return wb.reduce_mean(wb.map_fn(lambda rows: wb.reduce_max(rows, over="clients"), x, over="pods"), over="pods")

    computation = to_federated_language(pods, np.ones((2, 3), np.float32))
    assert computation.notes == ("an inner placement of the clients is local work of a client here",)


def _server_made_rows(x: Any) -> Any:
    with wb.program(clients=3):
        keys = jax.random.split(jax.random.key(0), 3)
        return wb.reduce_sum(wb.map_fn(lambda k, row: row + jax.random.normal(k), (keys, x)))


def _read_as_a_whole(x: Any) -> Any:
    with wb.program(clients=3):
        return wb.reduce_sum(wb.map_fn(lambda row: row * 2, x)) + jnp.sort(wb.map_fn(lambda row: row + 1, x))[0]


def _talking(x: Any) -> Any:
    with wb.program(clients=3):
        return wb.reduce_sum(wb.map_fn(lambda row: jax.lax.psum(row, "clients"), x))


@needs_language
@pytest.mark.parametrize(
    ("fn", "expected"),
    [
        (lambda x: rounds(start(), client_data())[1] + x[0], r"rounds or branches in `scan`.*export one round"),
        (_server_made_rows, "rows .* that the server made one for each"),
        (_read_as_a_whole, "a server stage reads the rows .* gets aggregates only"),
        (_talking, "clients talk to each other"),
    ],
    ids=["loop", "rows of the server", "rows for the server", "talk"],
)
def test_what_the_language_has_no_words_for_is_refused(fn: Any, expected: str):
    with pytest.raises(ProgramError, match=f"`to_federated_language` cannot write .*{expected}"):
        to_federated_language(fn, np.ones(3, np.float32))


def test_missing_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"pip install \"mapreduce-workbench\[federated-language\]\""):
        to_federated_language(fedavg, start(), client_data())
