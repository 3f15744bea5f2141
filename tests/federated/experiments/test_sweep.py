"""Sweeps: the same numbers as a loop over trials, groups by shape, resuming, and trials that break."""

import multiprocessing
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.stats

import workbench as wb
from workbench.errors import DataError, MeasureError, ProgramError
from workbench.federated import algorithms
from workbench.federated.experiments import Grid, HypergradientSearch, RandomSearch, SuccessiveHalving, sweep
from workbench.federated.experiments._sweep import _digest
from workbench.federated.experiments._sweep_store import SweepStore

pytestmark = pytest.mark.usefixtures("little_optimized")

CLIENTS, ROUNDS = 3, 4
BATCHES = jnp.array([[1.0, 2.0], [3.0, 1.0], [5.0, 2.0]])


def loss(w: Any, x: Any) -> Any:
    return (w["w"] - x) ** 2


def make(lr: float) -> algorithms.Algorithm:
    return algorithms.fedavg(loss, clients=CLIENTS, client_optimizer=optax.sgd(lr))


def first(key: Any) -> Any:
    return {"w": jax.random.normal(key)}


def small(make: Any = make, space: Any = None, **options: Any) -> Any:
    options = {"params": first, "rounds": ROUNDS, "data": BATCHES, "progress": False} | options
    return sweep(make, space or {"lr": [0.05, 0.1, 0.2]}, **options)


@pytest.fixture(scope="module")
def plain() -> Any:
    """Three trials, two seeds, one round per call."""
    return small(seeds=2, rounds_per_call=1)


def test_a_sweep_gives_the_numbers_of_a_loop_over_trials_and_seeds(plain: Any) -> None:
    for trial, lr in ((0, 0.05), (2, 0.2)):
        for seed in (1,):
            algorithm = make(lr)
            state = algorithm.init(first(jax.random.fold_in(jax.random.key(seed), 0)))
            run = wb.run_rounds(wb.jit(algorithm.round), state, ROUNDS, data=BATCHES, progress=False)
            expected = run.history.summary()["loss"].to_numpy()
            np.testing.assert_allclose(plain.metrics(trial, seed)["loss"], expected, rtol=1e-5)
            np.testing.assert_allclose(plain.params(trial, seed)["w"], run.state.params["w"], rtol=1e-5)


def test_trials_start_with_the_bits_of_an_optimized_program() -> None:
    def normal(key: Any) -> Any:
        return jax.random.normal(key, (500,))

    result = small(lambda lr: (lambda w: w, lambda w, data: (w, {"loss": lr})), params=normal, rounds=1)
    key = jax.random.fold_in(jax.random.key(0), 0)
    optimized = jax.jit(normal).lower(key).compile({"xla_backend_optimization_level": 3})
    np.testing.assert_array_equal(result.params(0, 0), optimized(key))


def test_floats_share_one_program_and_sizes_have_one_each() -> None:
    def sized(lr: float, width: int) -> algorithms.Algorithm:
        return algorithms.fedavg(
            lambda w, x: ((w - x) ** 2).sum() / width, clients=CLIENTS, client_optimizer=optax.sgd(lr)
        )

    result = small(sized, {"lr": [0.1, 0.2], "width": [1, 2]}, params=lambda key, hp: jnp.zeros(hp["width"]))
    assert [(group.static, group.traced) for group in result.groups] == [
        ({"width": 1}, ("lr",)),
        ({"width": 2}, ("lr",)),
    ]
    assert result.trials["group"].tolist() == [0, 1, 0, 1]
    assert set(result.trials["status"]) == {"finished"}


def test_a_float_that_python_looks_at_is_a_constant_and_the_reason_is_kept() -> None:
    def branching(lr: float, mu: float) -> algorithms.Algorithm:
        assert mu >= 0
        return make(lr if mu == 0 else lr / 2)

    result = small(branching, {"lr": [0.1, 0.2], "mu": [0.0, 0.5]})
    assert [group.traced for group in result.groups] == [("lr",), ("lr",)]
    assert "mu" in result.groups[0].notes[0]
    assert "TracerBoolConversionError" in result.groups[0].notes[0]


def test_a_diverged_trial_ends_with_its_round_and_the_others_finish() -> None:
    result = small(space={"lr": [0.1, 1e20]}, rounds=3, rounds_per_call=1)
    trials = result.trials
    assert trials["status"].tolist() == ["finished", "diverged"]
    assert "is" in trials["reason"][1]
    assert "round" in trials["reason"][1]
    assert trials["rounds"][1] == len(result.metrics(1, 0)["loss"])
    assert result.best("loss") == {"lr": 0.1}


def test_a_trial_that_cannot_be_made_fails_with_its_error_and_the_others_finish() -> None:
    def picky(lr: float, kind: str) -> algorithms.Algorithm:
        if kind == "wrong":
            raise ValueError("there is no such kind")
        return make(lr)

    trials = small(picky, {"lr": [0.1], "kind": ["right", "wrong"]}).trials
    assert trials["status"].tolist() == ["finished", "failed"]
    assert trials["reason"][1] == "ValueError: there is no such kind"


def test_a_metric_that_some_trials_lack_is_named_for_them() -> None:
    def evaluate(params: Any, setting: Any) -> dict[str, Any]:
        return {"norm": jnp.abs(params["w"])} if setting["kind"] == "a" else {}

    result = small(lambda lr, kind: make(lr), {"lr": [0.1], "kind": ["a", "b"]}, evaluate=evaluate)
    assert result.trials["missing"].tolist() == ["", "norm"]
    assert set(result.table().query("trial == 1")["metric"]) == {"loss", "squared_drift"}


def test_halving_by_a_metric_that_a_trial_lacks_fails_this_trial_alone() -> None:
    def evaluate(params: Any, setting: Any) -> dict[str, Any]:
        return {"norm": jnp.abs(params["w"])} if setting["kind"] == "a" else {}

    strategy = SuccessiveHalving(metric="norm", eta=2, first_rounds=2)
    result = small(lambda lr, kind: make(lr), {"lr": [0.1], "kind": ["a", "b"]}, evaluate=evaluate, strategy=strategy)
    assert result.trials["status"].tolist() == ["finished", "failed"]
    assert "'norm' is missing; the metrics are loss, squared_drift" in result.trials["reason"][1]


def test_successive_halving_keeps_the_best_part_at_each_rung() -> None:
    space = {"lr": [0.001, 0.01, 0.1, 0.2]}
    result = small(
        space=space,
        params=jnp.float32(0),
        strategy=SuccessiveHalving(eta=2, first_rounds=1),
        make=lambda lr: algorithms.fedavg(lambda w, x: (w - x) ** 2, clients=CLIENTS, client_optimizer=optax.sgd(lr)),
        rounds=4,
    )
    assert result.trials["rounds"].tolist() == [1, 1, 2, 4] or result.trials["rounds"].tolist() == [1, 1, 4, 2]
    assert (result.trials["status"] == "pruned").sum() == 3


def test_stop_when_ends_a_trial_with_what_it_has() -> None:
    result = small(stop_when=lambda metrics: metrics["loss"][-1] < metrics["loss"][0], rounds_per_call=2)
    assert result.trials["status"].tolist() == ["stopped"] * 3
    assert result.trials["rounds"].tolist() == [2] * 3


def test_hypergradient_search_finds_the_learning_rate_of_a_quadratic() -> None:
    # One step of one client from 0 with loss (w − 1)²: lr = 0.5 lands on the minimum.
    strategy = HypergradientSearch(metric="after", steps=40, learning_rate=0.1, rounds=1)
    result = sweep(
        lambda lr: algorithms.fedavg(lambda w, x: (w - x) ** 2, clients=1, client_optimizer=optax.sgd(lr)),
        {"lr": [0.05, 0.9]},
        params=jnp.float32(0),
        data=jnp.array([[1.0]]),
        evaluate=lambda w: {"after": (w - 1) ** 2},
        rounds=1,
        strategy=strategy,
        progress=False,
    )
    assert [setting["lr"] for setting in result.settings] == pytest.approx([0.5, 0.5], abs=0.1)


def test_random_search_draws_from_distributions_of_scipy() -> None:
    strategy = RandomSearch(trials=3, seed=1)
    result = small(space={"lr": scipy.stats.loguniform(1e-3, 1e-1)}, strategy=strategy, rounds=1)
    assert len(result.groups) == 1
    assert len({setting["lr"] for setting in result.settings}) == 3


def test_the_table_has_statistics_of_the_clients() -> None:
    def evaluate(params: Any) -> dict[str, Any]:
        return {"client loss": jnp.stack([loss(params, x) for x in (1.0, 3.0, 5.0)])}

    result = small(space={"lr": [0.1]}, evaluate=evaluate, rounds=1)
    row = result.table().query("metric == 'client loss'").iloc[0]
    w = float(result.params(0, 0)["w"])
    losses = np.array([(w - x) ** 2 for x in (1.0, 3.0, 5.0)])
    expected = [losses.mean(), losses.std(), losses.min(), *np.quantile(losses, [0.1, 0.5, 0.9]), losses.max()]
    names = ["value", "client_std", "client_min", "client_p10", "client_median", "client_p90", "client_max"]
    np.testing.assert_allclose(row[names].astype(float), expected, rtol=1e-4)


def test_data_drawn_in_jax_depends_on_seed_and_round() -> None:
    result = small(
        space={"lr": [0.0]},
        params={"w": jnp.float32(0)},
        seeds=2,
        rounds=2,
        data=lambda key: jax.random.normal(key, (CLIENTS, 2)),
    )
    losses = [value for seed in range(2) for value in result.metrics(0, seed)["loss"].tolist()]
    assert len(set(losses)) == 4


def test_batches_of_the_host_are_those_of_round_and_seed() -> None:
    def batches(round: int, seed: int) -> np.ndarray:
        return np.full((CLIENTS, 1), 10.0 * seed + round, np.float32)

    result = small(
        space={"lr": [0.0]}, params={"w": jnp.float32(0)}, seeds=[1, 2], rounds=2, data=None, batches=batches
    )
    assert [result.metrics(0, seed)["loss"].tolist() for seed in (1, 2)] == [[100.0, 121.0], [400.0, 441.0]]


def test_more_trials_than_fit_run_one_call_after_another_with_the_same_numbers(plain: Any) -> None:
    parts = small(seeds=2, memory_bytes=1, rounds_per_call=2)
    for trial in range(3):
        np.testing.assert_allclose(plain.metrics(trial, 1)["loss"], parts.metrics(trial, 1)["loss"], rtol=1e-6)


class _Interrupt:
    def __init__(self, after: int) -> None:
        self.left = after

    def __call__(self, metrics: Any) -> bool:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt
        return False


def test_an_interrupted_sweep_goes_on_in_memory(plain: Any) -> None:
    with pytest.raises(KeyboardInterrupt, match=r"result\.resume\(\)") as caught:
        small(rounds_per_call=1, stop_when=_Interrupt(7))
    result = caught.value.result
    assert result.status == "interrupted"
    assert result.trials["rounds"].max() < ROUNDS
    assert result.resume().status == "finished"
    for trial in range(3):
        np.testing.assert_allclose(result.metrics(trial, 0)["loss"], plain.metrics(trial, 0)["loss"], rtol=1e-6)


def _sweep_in(directory: str, slow: bool) -> Any:
    return small(directory=directory, rounds_per_call=1, stop_when=lambda metrics: slow and bool(time.sleep(0.2)))


def test_a_sweep_killed_with_sigkill_resumes_with_nothing_lost(tmp_path: Path, plain: Any) -> None:
    child = multiprocessing.get_context("spawn").Process(target=_sweep_in, args=(str(tmp_path), True))
    child.start()
    file = tmp_path / "sweep.sqlite"
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and child.is_alive() and not _finished_rounds(file):
        time.sleep(0.05)
    assert child.pid
    os.kill(child.pid, signal.SIGKILL)
    child.join()
    result = _sweep_in(str(tmp_path), False)
    assert result.status == "finished"
    for trial in range(3):
        np.testing.assert_allclose(result.metrics(trial, 0)["loss"], plain.metrics(trial, 0)["loss"], rtol=1e-6)


def _finished_rounds(file: Path) -> bool:
    # The child holds the lock of the file, so its growth is the only sign from outside.
    return file.exists() and file.stat().st_size > 3 * 4096


def test_file_is_no_folder_of_a_sweep(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot be created \(FileExistsError"):
        small(directory=tmp_path / "file")


def test_a_finished_sweep_is_read_back_without_running(tmp_path: Path) -> None:
    small(directory=tmp_path)
    again = small(directory=tmp_path)
    assert again.trials["rounds"].tolist() == [ROUNDS] * 3
    assert sum(group.run_seconds for group in again.groups) == 0


def test_a_folder_of_another_sweep_is_refused(tmp_path: Path) -> None:
    small(directory=tmp_path, rounds=1)
    with pytest.raises(MeasureError, match="settings"):
        small(directory=tmp_path, rounds=1, space={"lr": [0.3]})


def test_a_folder_in_which_another_sweep_writes_is_refused(tmp_path: Path) -> None:
    store = SweepStore(tmp_path)
    store.lock()
    with pytest.raises(MeasureError, match="wait for the other sweep"):
        small(directory=tmp_path, rounds=1)
    store.close()


def test_a_hyperparameter_that_make_does_not_have_is_refused() -> None:
    with pytest.raises(ProgramError, match="'learning_rate'"):
        small(space={"learning_rate": [0.1]})


def test_a_grid_refuses_a_distribution() -> None:
    with pytest.raises(ProgramError, match="RandomSearch"):
        Grid().settings({"lr": scipy.stats.uniform(0, 1)})


def test_a_folder_of_a_sweep_with_other_data_is_refused(tmp_path: Path) -> None:
    small(directory=tmp_path, rounds=1)
    with pytest.raises(MeasureError, match="different data"):
        small(directory=tmp_path, rounds=1, data=BATCHES + 1)


def test_code_is_distinguished_by_its_constants_and_by_the_functions_inside() -> None:
    makers = [lambda lr: make(lr * 2), lambda lr: make(lr * 3), lambda lr: lambda w: w + 1, lambda lr: lambda w: w]
    assert len({_digest(maker) for maker in makers}) == 4
    assert _digest(lambda w: w in {"a", "b", "c"}) == _digest(lambda w: w in {"c", "b", "a"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"make": lambda lr: None}, "returned NoneType"),
        ({"evaluate": lambda params: params["w"]}, "returned .*Tracer. Metrics have names"),
    ],
)
def test_a_function_that_returns_something_else_is_the_reason(options: Any, said: str) -> None:
    trials = small(space={"lr": [0.1]}, **options).trials
    assert trials["status"].tolist() == ["failed"]
    assert re.search(said, trials["reason"][0])


@pytest.mark.parametrize("options", [{"rounds": 2.5}, {"seeds": 1.5}, {"seeds": [0, 0]}, {"rounds_per_call": 0}])
def test_counts_that_are_not_whole_are_refused(options: Any) -> None:
    with pytest.raises(MeasureError, match="distinct ints of 32 bits"):
        small(**options)


def test_a_state_of_integers_that_becomes_floats_fails_instead_of_being_rounded() -> None:
    def make(lr: Any) -> Any:
        return lambda params: params, lambda state, _: (state.astype(jnp.float32) * lr, {"loss": state.sum()})

    result = small(make, {"lr": [0.25]}, params=jnp.float32(4))
    assert result.trials["status"].tolist() == ["finished"]
    result = small(make, {"lr": [0.25]}, params=jnp.int32(4))
    assert result.trials["status"].tolist() == ["failed"]
    assert "int32 became float32" in result.trials["reason"][0]


@pytest.mark.parametrize("seed", [2**31, -(2**31) - 1])
def test_seeds_that_do_not_fit_into_32_bits_are_refused(seed: int) -> None:
    with pytest.raises(MeasureError, match=str(seed)):
        small(seeds=[seed])
