"""Waiting times in a notebook, compared with plain JAX: `python -m benchmarks.latency`.

Every row compares a pair that runs in turn in one process: Workbench and the plain form. The row has processor seconds,
and the median and range of the ratios of neighbours. `benchmarks.import_time` measures the import, and
`benchmarks.eager` measures single eager calls of primitives.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

import workbench as wb
from benchmarks.rounds import describe_machine, mlp, transformer

Run = Callable[[], object]


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=21)
    iterations = parser.parse_args().iterations
    print(describe_machine())
    print("| what | ours | plain JAX | ours / plain | range |\n|---|---|---|---|---|", flush=True)
    cases = [*traces(), *dispatches(), *inspections()]
    for name, ours, plain, times in cases:
        mine, theirs = interleaved(ours, plain, iterations=min(iterations, times))
        ratios = [a / b for a, b in zip(mine, theirs, strict=True)]
        print(
            f"| {name} | {_readable(mine)} | {_readable(theirs)} | {statistics.median(ratios):.2f} "
            f"| {min(ratios):.2f} to {max(ratios):.2f} |",
            flush=True,
        )


def interleaved(ours: Run, plain: Run, *, iterations: int) -> tuple[list[float], list[float]]:
    """Processor seconds of both forms, in alternating order."""
    mine: list[float] = []
    theirs: list[float] = []
    ours()
    plain()
    for turn in range(iterations):
        pair = ((ours, mine), (plain, theirs))
        for run, own in pair if turn % 2 else reversed(pair):
            began = time.process_time()
            run()
            own.append(time.process_time() - began)
    return mine, theirs


def _readable(seconds: list[float]) -> str:
    median = statistics.median(seconds)
    return f"{1e6 * median:.0f} µs" if median < 1e-3 else f"{1e3 * median:.3g} ms"


def traces() -> list[tuple[str, Run, Run, int]]:
    """Trace and plan compared with `jax.jit(fn).trace`, for new functions each time."""
    found: list[tuple[str, Run, Run, int]] = []
    makers = {
        "trace and plan: the README's program": _readme,
        "trace and plan: a round of an MLP": lambda: _round(mlp),
        "trace and plan: a round of a transformer": lambda: _round(transformer),
        "trace and plan: a train step of Flax NNX": _nnx_step,
    }
    for name, make in makers.items():
        fresh, args = make()
        found.append((name, *_traced(fresh, args), 21))
    return found


def _traced(fresh: Callable[[], Callable], args: tuple[Any, ...]) -> tuple[Run, Run]:
    return lambda: wb.trace(fresh())(*args).plan, lambda: jax.jit(fresh()).trace(*args)


def _readme() -> tuple[Callable[[], Callable], tuple[Any, ...]]:
    def fresh() -> Callable:
        @wb.program(clients=64)
        def average_gradient(weights: jax.Array, examples: jax.Array) -> jax.Array:
            def loss(weights: jax.Array, x: jax.Array) -> jax.Array:
                return jnp.mean((x @ weights) ** 2)

            return wb.reduce_mean(wb.map_fn(jax.grad(loss), (wb.broadcast(weights), examples)))

        return average_gradient

    return fresh, (jnp.ones(3), jnp.ones((64, 5, 3)))


def _round(model: Callable) -> tuple[Callable[[], Callable], tuple[Any, ...]]:
    params, data, train = model(64)

    def fresh() -> Callable:
        @wb.program(clients=64)
        def one_round(params: Any, data: Any) -> Any:
            return wb.reduce_mean(wb.map_fn(train, (wb.broadcast(params), data)))

        return one_round

    return fresh, (params, data)


def _nnx_step() -> tuple[Callable[[], Callable], tuple[Any, ...]]:
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, width: int, rngs: nnx.Rngs) -> None:
            self.attention = nnx.MultiHeadAttention(4, width, rngs=rngs, decode=False)
            self.inner, self.outer = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

        def __call__(self, x: jax.Array) -> jax.Array:
            x = x + self.attention(x)
            return x + self.outer(jax.nn.gelu(self.inner(x)))

    model = nnx.Sequential(*(Block(64, nnx.Rngs(i)) for i in range(4)))
    graph, params = nnx.split(model, nnx.Param)
    optimizer = optax.adamw(1e-3)

    def fresh() -> Callable:
        def step(params: Any, state: Any, x: jax.Array) -> Any:
            loss, gradients = jax.value_and_grad(lambda params: jnp.mean(nnx.merge(graph, params)(x) ** 2))(params)
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state, loss

        return step

    return fresh, (params, optimizer.init(params), jnp.ones((4, 16, 64)))


def dispatches() -> list[tuple[str, Run, Run, int]]:
    """A hundred calls of a compiled program with many leaves, compared with `jax.jit`."""
    found: list[tuple[str, Run, Run, int]] = []
    for leaves in (2, 200):
        params = {f"w{i}": jnp.ones(3) for i in range(leaves - 1)}
        data = jnp.ones((8, 3))

        @wb.program(clients=8)
        def fn(params: Any, data: jax.Array) -> Any:
            return jax.tree.map(lambda x: x + wb.reduce_sum(data), params)

        ours, plain = wb.jit(fn), jax.jit(fn)

        def calls(run: Callable, params: Any = params, data: jax.Array = data) -> Run:
            return lambda: jax.block_until_ready([run(params, data) for _ in range(100)][-1])

        found.append((f"100 calls of a compiled program with {leaves} arrays", calls(ours), calls(plain), 21))
    return found


def inspections() -> list[tuple[str, Run, Run, int]]:
    """A second `inspect` of a step, compared with tracing, lowering and compiling an equal new step."""
    fresh, args = _nnx_step()
    known = fresh()
    numbers = itertools.count(1)

    def compiled() -> None:
        factor = float(next(numbers))  # another constant in each turn, or the compiler's own cache answers
        step = fresh()
        jax.jit(lambda *args: jax.tree.map(lambda x: factor * x, step(*args))).lower(*args).compile()

    def again() -> None:
        wb.inspect(known)(*args)

    return [("a second `inspect` of a train step, against compiling it", again, compiled, 5)]


if __name__ == "__main__":
    main()
