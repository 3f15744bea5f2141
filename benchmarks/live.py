"""Overhead of the profiler, the monitor, the round driver and emitted values, compared with the bare round.

`python -m benchmarks.live` uses eight simulated devices, and `--simulate 0` the attached devices. Each repetition runs
the bare round and every observed round. The table has medians, and the median of the ratios within a repetition.
"""

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import workbench as wb
from workbench.inspection import inspect_mesh, inspect_module
from workbench.inspection.sharding import place_clients
from workbench.measurement import ReadingOptions, measure_compiled, run_rounds
from workbench.measurement._clients import lockstep_waste
from workbench.measurement._join import join_profile
from workbench.measurement._profile import capture_profile
from workbench.records.compiled import ModuleRecord
from workbench.records.program import PlacementRecord
from workbench.records.run import RunRecord


def make_round(clients: int, width: int, steps: int, *, chunk_size: Any) -> tuple[Any, tuple[Any, ...]]:
    """Federated averaging of a linear layer, and its placed arguments; client i takes 1 + i % `steps` steps."""

    def train(w: jax.Array, count: jax.Array, x: jax.Array) -> jax.Array:
        def step(_: int, w: jax.Array) -> jax.Array:
            return w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)

        return jax.lax.fori_loop(0, count, step, w) - w

    @wb.program(clients=clients)
    def fedavg(w: jax.Array, count: jax.Array, x: jax.Array) -> jax.Array:
        return w + wb.reduce_mean(wb.map_fn(train, (wb.broadcast(w), count, x)))

    keys = jax.random.split(jax.random.key(0))
    args = (
        jax.random.normal(keys[0], (width, width)),
        1 + jnp.arange(clients) % steps,
        jax.random.normal(keys[1], (clients, 32, width)),
    )
    compiled = wb.jit(fedavg, chunk_size=chunk_size).lower(*args).compile()
    return compiled, jax.tree.map(jax.device_put, args, compiled.input_shardings[0])


def observed(compiled: Any, args: tuple[Any, ...], module: ModuleRecord) -> dict[str, Callable[[], float]]:
    """Ways to run one round; each returns the round's seconds, without work that can be done afterwards."""

    def bare() -> float:
        started = time.perf_counter()
        jax.block_until_ready(compiled(*args))
        return time.perf_counter() - started

    def profiled() -> float:
        seconds: list[float] = []
        capture_profile(lambda: seconds.append(bare()))
        return seconds[0]

    def profiled_and_joined() -> float:
        started = time.perf_counter()
        join_profile(capture_profile(bare), module)
        return time.perf_counter() - started

    def watched() -> float:
        with wb.watch_devices(0.05) as monitor:
            monitor.latest()
            return bare()

    def driven() -> float:
        run = run_rounds(lambda state, _: (compiled(state, *args[1:]), {}), args[0], 1, progress=False)
        return run.history[0].seconds

    return {
        "bare": bare,
        "profiler running": profiled,
        "profiler, reading and joining": profiled_and_joined,
        "monitor at 20 Hz": watched,
        "driven by run_rounds": driven,
    }


def compare(ways: dict[str, Callable[[], float]], rounds: int) -> list[tuple[str, float, float]]:
    """(way, median seconds, median of its ratio to the bare round of the same turn)."""
    for way in ways.values():
        way()
    iterations = [{name: way() for name, way in ways.items()} for _ in range(rounds)]
    median = statistics.median
    return [
        (name, median(t[name] for t in iterations), median(t[name] / t["bare"] for t in iterations)) for name in ways
    ]


def show(lines: list[tuple[str, float, float]]) -> None:
    for name, seconds, ratio in lines:
        print(f"{name:<32}{1e3 * seconds:9.2f} ms   x {ratio:.2f}")


def emitting_round(kind: str, clients: int, steps: int) -> tuple[Any, tuple[Any, ...]]:
    """Local SGD on a small network; four values per step are omitted, emitted, or "returned" as outputs."""

    def loss_of(p: tuple[jax.Array, ...], x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = jnp.tanh(x @ p[0] + p[1]) @ p[2] + p[3]
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1)), logits

    def train(params: tuple[jax.Array, ...], x: jax.Array, y: jax.Array) -> Any:
        def step(p: tuple[jax.Array, ...], _: None) -> Any:
            (loss, logits), slopes = jax.value_and_grad(loss_of, has_aux=True)(p, x, y)
            values = {
                "loss": loss,
                "accuracy": jnp.mean(jnp.argmax(logits, -1) == y),
                "largest logit": jnp.max(jnp.abs(logits)),
                "slope of the bias": jnp.linalg.norm(slopes[3]),
            }
            for name, value in values.items() if kind == "emit" else ():
                wb.emit(name, value)
            return jax.tree.map(lambda a, b: a - 0.1 * b, p, slopes), values if kind == "returned" else loss

        last, reported = jax.lax.scan(step, params, None, length=steps)
        return jax.tree.map(jnp.subtract, last, params), reported

    @wb.program(clients=clients)
    def fedavg(params: tuple[jax.Array, ...], x: jax.Array, y: jax.Array) -> Any:
        change, reported = wb.map_fn(train, (wb.broadcast(params), x, y))
        params = jax.tree.map(jnp.add, params, wb.reduce_mean(change))
        return params, reported if kind == "returned" else wb.reduce_mean(reported)

    keys = jax.random.split(jax.random.key(0), 4)
    params = (0.05 * jax.random.normal(keys[0], (784, 64)), jnp.zeros(64),
              0.1 * jax.random.normal(keys[1], (64, 10)), jnp.zeros(10))  # fmt: skip
    x = jax.random.normal(keys[2], (clients, 32, 784))
    return wb.jit(fedavg), (params, x, jax.random.randint(keys[3], (clients, 32), 0, 10))


def emitted(clients: int, steps: int) -> dict[str, Callable[[], float]]:
    """The same round without values, without and with a listener, and with the values as outputs."""
    rounds = {kind: emitting_round(kind, clients, steps) for kind in ("bare", "emit", "returned")}

    def timed(kind: str, *, listen: bool = False) -> Callable[[], float]:
        compiled, args = rounds[kind]

        def call() -> float:
            started = time.perf_counter()
            with wb.listen() if listen else contextlib.nullcontext(()) as received:
                jax.block_until_ready(compiled(*args))
                jax.device_get([each.value for each in received])
            return time.perf_counter() - started

        return call

    return {
        "bare": timed("bare"),
        "4 values, no listener": timed("emit"),
        "4 values emitted and read": timed("emit", listen=True),
        "4 values returned by hand": timed("returned"),
    }


def probe(clients: int, width: int, steps: int) -> RunRecord:
    """A measurement that runs the clients of each device one after another."""
    mesh = wb.make_mesh(clients=jax.device_count())
    record = place_clients(inspect_mesh(mesh), PlacementRecord(name="clients", size=clients, mesh_axes=("clients",)))
    with jax.set_mesh(mesh):
        compiled, args = make_round(clients, width, steps, chunk_size=1)
    options = ReadingOptions(mesh=record, client_stages=("1",))
    return measure_compiled(compiled, args, inspect_module(compiled, mesh=record), options=options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument(
        "--simulate", type=int, default=8, help="number of CPU devices to simulate; 0 uses the attached devices"
    )
    parser.add_argument("--emit", action="store_true", help="measure only emitted values")
    options = parser.parse_args()
    if options.simulate:
        wb.simulate_devices(options.simulate)
    if options.emit:
        with jax.set_mesh(wb.make_mesh(clients=jax.device_count())):
            print(f"{jax.devices()[0].device_kind} x {jax.device_count()}, 512 clients, 10 local steps")
            show(compare(emitted(512, 10), options.rounds))
        return
    size = (options.clients, options.width, options.steps)
    with jax.set_mesh(wb.make_mesh(clients=jax.device_count())):
        compiled, args = make_round(*size, chunk_size=None)
    print(f"{jax.devices()[0].device_kind} x {jax.device_count()}, {options.clients} clients, {options.rounds} turns")
    show(compare(observed(compiled, args, inspect_module(compiled)), options.rounds))
    run = probe(*size)
    assert run.joined_events is not None
    assert run.attributed_seconds is not None
    wrong = sum(client.steps != 1 + int(client.client) % options.steps for client in run.clients)
    print(f"events joined {100 * run.joined_events:.2f} %, time attributed {100 * run.attributed_seconds:.2f} %")
    print(f"probe: {wrong} of {len(run.clients)} clients with a wrong number of steps")
    print(f"running clients together would waste {100 * max(lockstep_waste(run.clients).values()):.0f} % in lockstep")


if __name__ == "__main__":
    main()
