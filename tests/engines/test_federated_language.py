import importlib.util
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engine_contract import FEATURES, client_data, failing, fedavg, hierarchical, per_client, printing, rounds, start
from federated_evaluator import Placed, evaluate

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


@wb.program(clients=5)
def _present(x: Any, present: Any) -> Any:
    return wb.reduce_mean(x, where=present), wb.reduce_max(x, where=present), wb.reduce_sum(present.astype(float))


@wb.program(clients=5)
def _grouped(x: Any, keys: Any) -> Any:
    return wb.reduce_by_key(x, keys, 3)


@wb.program(clients=5)
def _narrow(x: Any) -> Any:
    return wb.reduce_mean(wb.map_fn(lambda row: row * 2, x))


@wb.program(clients=5)
def _proximal(w: Any, data: Any, mu: Any) -> Any:
    def train(w: Any, mu: Any, x: Any, y: Any) -> Any:
        step = jax.grad(lambda v: jnp.mean((jnp.tanh(x @ v) - y) ** 2) + mu * jnp.sum((v - w) ** 2))
        return jax.lax.fori_loop(0, 3, lambda _, v: v - 0.1 * step(v), w)

    return wb.reduce_mean(wb.map_fn(train, (wb.broadcast(w), wb.broadcast(mu), *data)))


_AVERAGING = wb.algorithms.fedavg(
    lambda w, batch: jnp.mean((batch @ w) ** 2), clients=5, client_optimizer=optax.sgd(0.1)
)
_X = np.random.default_rng(3).normal(size=(5, 4, FEATURES)).astype(np.float32)
EXPORTS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "a round": (fedavg, (start(), client_data())),
    "weights and extremes": (weighted, (start(), _X, np.arange(5, dtype=np.float32))),
    "a gradient": (jax.grad(lambda w, data: fedavg(w, data)[1]), (start(), client_data())),
    "by key": (_grouped, (_X, np.array([0, 2, 1, 2, 0], np.int32))),
    "rows": (per_client, (start(), client_data())),
    "where": (_present, (_X, np.array([1, 0, 1, 1, 0], bool))),
    "bfloat16": (_narrow, (jnp.arange(5, dtype=jnp.bfloat16),)),
    "proximal steps": (_proximal, (start(), client_data(), np.float32(0.3))),
    "the library's averaging": (_AVERAGING.round, (_AVERAGING.init(jnp.ones(FEATURES)), _X[:, None])),
}


@needs_language
@pytest.mark.parametrize("name", EXPORTS)
def test_what_is_exported_gives_the_results_of_the_program(name: str):
    fn, args = EXPORTS[name]
    computation = to_federated_language(fn, *args)
    leaves = [x for x in jax.tree.leaves(args) if np.shape(x) or fn is _proximal]
    results = evaluate(computation.proto, leaves, 5)
    for found, expected in zip(
        [results] if isinstance(results, Placed) else results, jax.tree.leaves(wb.jit(fn)(*args)), strict=True
    ):
        whole = np.stack(found.values) if found.at_clients else found.values[0]
        assert whole.dtype == expected.dtype
        np.testing.assert_allclose(whole.astype(np.float32), expected.astype(np.float32), rtol=1e-5, atol=1e-6)


@needs_language
def test_pods_give_the_results_of_the_program():
    x = np.random.default_rng(1).normal(size=(2, 3, FEATURES)).astype(np.float32)
    computation = to_federated_language(hierarchical, start(), (x,))
    results = evaluate(computation.proto, [start(), x], 2)
    np.testing.assert_allclose(results.values[0], wb.jit(hierarchical)(start(), (x,)), rtol=1e-5)


@needs_language
@pytest.mark.parametrize("fn", [printing, failing], ids=["of a client", "of the server"])
def test_callbacks_are_refused(fn: Any):
    with pytest.raises(ProgramError, match="calls Python back, by the address of a function in this process"):
        to_federated_language(wb.program(clients=3)(fn), np.ones(3, np.float32))


@needs_language
def test_custom_calls_are_named_with_their_platform():
    @wb.program(clients=3)
    def solve(x: Any) -> Any:
        return wb.reduce_sum(wb.map_fn(lambda a: jnp.linalg.solve(a, a[0]), x))

    (note,) = to_federated_language(solve, np.ones((3, 4, 4), np.float32)).notes
    assert "lapack_sgetrf" in note
    assert f"only jaxlib's {jax.default_backend()} platform has" in note
