"""Programs written against DrJAX, imported: equal numbers, and one client's function in the plan."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.engines import Executor, Sequential, from_drjax
from workbench.errors import MissingDependencyError, ProgramError

drjax = pytest.importorskip("drjax", reason='needs DrJAX: pip install "mapreduce-workbench[drjax]"')

pytestmark = [
    pytest.mark.usefixtures("little_optimized"),
    pytest.mark.filterwarnings("ignore:jax.interpreters.pxla.thread_resources:DeprecationWarning"),  # theirs
]

CLIENTS, EXAMPLES, FEATURES = 5, 6, 3


def _train(w: Any, x: Any, y: Any) -> Any:
    def loss(w: Any) -> Any:
        return jnp.mean((jnp.tanh(x @ w) - y) ** 2)

    trained, _ = jax.lax.scan(lambda w, _: (w - 0.1 * jax.grad(loss)(w), None), w, None, length=3)
    return trained - w, loss(trained)


@drjax.program(placements={"clients": CLIENTS})
def fedavg(w: Any, x: Any, y: Any) -> Any:
    delta, loss = drjax.map_fn(_train, (drjax.broadcast(w), x, y))
    return w + drjax.reduce_mean(delta), drjax.reduce_mean(loss)


@drjax.program(placements={"clients": CLIENTS})
def weighted(w: Any, x: Any, y: Any) -> Any:
    delta, _ = drjax.map_fn(_train, (drjax.broadcast(w), x, y))
    return w + drjax.reduce_weighted_mean(delta, drjax.map_fn(lambda y: jnp.sum(y**2), y)), drjax.reduce_sum(y)


def rounds(w: Any, x: Any, y: Any) -> Any:
    return jax.lax.scan(lambda w, _: fedavg(w, x, y), w, None, length=2)


gradient = jax.grad(lambda w, x, y: rounds(w, x, y)[1][-1])


def _arguments() -> tuple[np.ndarray, ...]:
    random = np.random.default_rng(0)
    x = random.normal(size=(CLIENTS, EXAMPLES, FEATURES)).astype(np.float32)
    return np.full(FEATURES, 0.1, np.float32), x, np.tanh(x.sum(-1)).astype(np.float32)


def _assert_equal(ours: Any, theirs: Any) -> None:
    assert jax.tree.structure(ours) == jax.tree.structure(theirs)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fn", [fedavg, weighted, rounds, gradient], ids=["fedavg", "weighted", "rounds", "gradient"])
@pytest.mark.parametrize("engine", [Sequential(), Executor(ThreadPoolExecutor(2))], ids=["sequential", "threads"])
def test_results_are_those_of_drjax(fn: Any, engine: Any) -> None:
    expected = jax.jit(fn)(*_arguments())
    _assert_equal(engine.run(from_drjax(fn), *_arguments()).results, expected)
    _assert_equal(wb.jit(from_drjax(fn), chunk_size=2)(*_arguments()), expected)


def test_plan_holds_the_function_of_one_client() -> None:
    stages = wb.trace(from_drjax(fedavg))(*_arguments()).plan.stages
    assert [stage.kind for stage in stages] == ["broadcast", "clients", "reduce", "server"]


def test_what_was_compiled_before_is_imported_all_the_same() -> None:
    compiled = jax.jit(fedavg)
    expected = compiled(*_arguments())
    _assert_equal(Sequential().run(from_drjax(compiled), *_arguments()).results, expected)
    _assert_equal(Sequential().run(from_drjax(wb.jit(fedavg)), *_arguments()).results, expected)


def test_calls_outside_an_import_stay_those_of_drjax() -> None:
    imported = str(jax.make_jaxpr(from_drjax(fedavg))(*_arguments()))
    assert "reduce_mean" in imported
    assert "mean_from_clients" not in imported
    assert "mean_from_clients" in str(jax.make_jaxpr(fedavg)(*_arguments()))


def test_a_program_that_was_traced_before_inside_is_named() -> None:
    compiled = jax.jit(fedavg)
    compiled(*_arguments())

    def twice(w: Any, x: Any, y: Any) -> Any:
        return compiled(compiled(w, x, y)[0], x, y)

    message = r"`twice` entered no DrJAX program.*`jax\.jit` inside it.*workbench\.jit\(from_drjax\(fn\)\)"
    with pytest.raises(ProgramError, match=message):
        from_drjax(twice)(*_arguments())


def test_something_else_than_a_function_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"`from_drjax` was given 3 \(type int\).*pass the decorated function"):
        from_drjax(3)  # pyright: ignore[reportArgumentType]


def test_without_drjax_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "drjax._src", None)
    with pytest.raises(MissingDependencyError, match=r"mapreduce-workbench\[drjax\]"):
        from_drjax(fedavg)
