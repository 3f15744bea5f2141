import importlib.util
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from engine_contract import FEATURES, client_data, failing, fedavg, hierarchical, per_client, printing, rounds, start

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
    assert computation.notes == ("an inner placement becomes local work of a client",)


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
        (_server_made_rows, "rows .* that the server computed for each client"),
        (_read_as_a_whole, "a server stage reads the rows .* receives only aggregates"),
        (_talking, "clients communicate with each other"),
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


def check_results(results: list[np.ndarray], expected: Any) -> None:
    for found, right in zip(results, jax.tree.leaves(expected), strict=True):
        assert found.dtype == right.dtype
        np.testing.assert_allclose(found.astype(np.float32), right.astype(np.float32), rtol=1e-5, atol=1e-6)


@needs_language
@pytest.mark.parametrize("name", EXPORTS)
def test_what_is_exported_gives_the_results_of_the_program(name: str):
    fn, args = EXPORTS[name]
    computation = to_federated_language(fn, *args)
    check_results(computation.run(*args), wb.jit(fn)(*args))


@needs_language
def test_arguments_of_other_types_are_refused():
    computation = to_federated_language(fedavg, start(), client_data())
    for wrong in ((start(),), (start()[:2], client_data()), (start(), (client_data()[0][:3], client_data()[1]))):
        with pytest.raises(ProgramError, match=r"`FederatedComputation.run` was given .* float32\[5, 4\]"):
            computation.run(*wrong)


SERVER = {
    "tanh": jnp.tanh,
    "sorted": lambda v: jnp.sort(v.astype(jnp.float32)).astype(v.dtype),
    "shifted": lambda v: v + jnp.arange(len(v)).astype(v.dtype),
    "total": lambda v: v * v.sum(),
}
CLIENT = {
    "product": lambda v, row: v * row,
    "residual": lambda v, row: jnp.tanh(row) - v * v.mean(),
    "steps": lambda v, row: jax.lax.fori_loop(0, 3, lambda _, u: u - 0.1 * (u - row).astype(u.dtype), v),
    "chosen": lambda v, row: jnp.where(row > 0, v, row),
}
REDUCE = {
    "sum": lambda rows, weight, mask: wb.reduce_sum(rows),
    "mean": lambda rows, weight, mask: wb.reduce_mean(rows),
    "weighted": lambda rows, weight, mask: wb.reduce_weighted_mean(rows, weight),
    "of some": lambda rows, weight, mask: wb.reduce_mean(rows, where=mask),
    "max": lambda rows, weight, mask: wb.reduce_max(rows),
    "min": lambda rows, weight, mask: wb.reduce_min(rows, where=mask),
}
ROUND = st.tuples(*(st.sampled_from([*table]) for table in (SERVER, CLIENT, REDUCE)))
DTYPES = st.sampled_from(["float32", "bfloat16"])


@needs_language
@hypothesis.given(st.lists(ROUND, min_size=1, max_size=3), st.integers(1, 5), DTYPES, st.booleans(), st.integers(0, 99))
@hypothesis.settings(max_examples=40, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
def test_drawn_programs_are_read_back_and_run(rounds: Any, clients: int, dtype: str, derive: bool, seed: int):
    random = np.random.default_rng(seed)

    @wb.program(clients=clients)
    def drawn(v: Any, x: Any, weight: Any, mask: Any) -> Any:
        rows = x
        for server, client, reduce in rounds:
            rows = wb.map_fn(CLIENT[client], (wb.broadcast(SERVER[server](v)), x))
            v = v + 0.5 * REDUCE[reduce](rows, weight, mask).astype(v.dtype)
        return v, rows

    v, x = (jnp.asarray(random.normal(size=s), dtype) for s in ((3,), (clients, 3)))
    present = jnp.asarray(np.append(random.random(clients - 1) < 0.5, True))
    args = v, x, jnp.asarray(random.uniform(0.5, 2, clients), dtype), present
    fn: Any = drawn
    if derive and dtype == "float32":
        fn = jax.grad(lambda *args: drawn(*args)[0].sum())
    found, expected = to_federated_language(fn, *args).run(*args), jax.tree.leaves(wb.jit(fn)(*args))
    for a, b in zip(found, expected, strict=True):
        tolerance = 1e-4 if dtype == "float32" else 0.1
        np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), rtol=tolerance, atol=tolerance)


@needs_language
def test_pods_give_the_results_of_the_program():
    x = np.random.default_rng(1).normal(size=(2, 3, FEATURES)).astype(np.float32)
    computation = to_federated_language(hierarchical, start(), (x,))
    check_results(computation.run(start(), x), wb.jit(hierarchical)(start(), (x,)))


@needs_language
@pytest.mark.parametrize("fn", [printing, failing], ids=["of a client", "of the server"])
def test_callbacks_are_refused(fn: Any):
    with pytest.raises(ProgramError, match="has Python callbacks, which are stored as addresses in this process"):
        to_federated_language(wb.program(clients=3)(fn), np.ones(3, np.float32))


@needs_language
def test_custom_calls_are_named_with_their_platform():
    @wb.program(clients=3)
    def solve(x: Any) -> Any:
        return wb.reduce_sum(wb.map_fn(lambda a: jnp.linalg.solve(a, a[0]), x))

    (note,) = to_federated_language(solve, np.ones((3, 4, 4), np.float32)).notes
    assert "lapack_sgetrf" in note
    assert f"which exist only on jaxlib's {jax.default_backend()} platform" in note
