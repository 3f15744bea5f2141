"""Predicted against measured seconds of programs on the devices of this machine, after calibration.

    python -m benchmarks.predictions_here --calibrate 8   # half a minute; for 1, 2 and 8 devices
    python -m benchmarks.predictions_here 8               # measures what has no result yet, for --seconds at most
    python -m benchmarks.predictions_here --predict 8     # predicts all results again; runs nothing
    python -m benchmarks.predictions_here --page          # writes the tables of docs/predictions.md

Public programs (`tests/public_programs`), rounds of the algorithms and aggregators, and groups of variants of one
program. The calls of one group are interleaved; seconds are medians of the wall time of one call. A prediction adds
the measured seconds of one call of a small program to those of the operations. Run it on a quiet machine: another
process on the cores shows as an error of the prediction. Results and calibrations are in `benchmarks/predictions_here`.
"""

import argparse
import contextlib
import functools
import itertools
import json
import math
import os
import re
import statistics
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.render.units import share_text

FOLDER = Path(__file__).with_name("predictions_here")
PAGE = Path(__file__).parents[1] / "docs" / "predictions.md"
BEGIN, END = "<!-- table: made by benchmarks/predictions_here.py -->", "<!-- end of the table of this machine -->"
COUNTS = (1, 2, 8)
CLIENTS = 8
NEAR = 1.10  # times the measured best: what counts as best


@dataclass(frozen=True, slots=True)
class Program:
    """A call that is predicted and measured; variants of one group do the same work in other ways."""

    name: str
    kind: str  # "public program", "round" or the kind of variants: "chunk size", "remat", "sharding", "microbatch"
    build: Callable[[], tuple[Any, Callable[..., Any], tuple[Any, ...]]]  # mesh, function, arguments
    group: str = ""
    chunk_size: Any = "auto"


# ---- programs


def public_programs(count: int) -> Iterator[Program]:
    """The public programs, on as many of their mesh axes as there are devices."""
    from tests.public_programs import programs

    whole = programs.mesh_with

    def smaller(**axes: int) -> Any:
        left, sizes = count, {}
        for axis, size in axes.items():
            sizes[axis] = math.gcd(size, left)
            left //= sizes[axis]
        import jax

        devices = jax.devices()[: math.prod(sizes.values())]
        types = (jax.sharding.AxisType.Auto,) * len(sizes)
        return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=types, devices=devices)

    programs.mesh_with = whole if count == 8 else smaller
    for name, make in programs.PROGRAMS.items():
        yield Program(name, "public program", make)


def rounds(count: int) -> Iterator[Program]:
    """One round of every algorithm, of federated averaging with every aggregator, and of larger models."""
    import jax
    import jax.numpy as jnp

    import workbench as wb
    from benchmarks.rounds import MODELS
    from tests import algorithm_registry as registry
    from workbench.federated import algorithms

    registry.CLIENTS = CLIENTS
    mesh = mesh_of(clients=count)
    key = jax.random.key(0)
    shapes = {"w1": (64, 256), "b1": (256,), "w2": (256, 10), "b2": (10,)}

    def loss(params: Any, batch: Any) -> Any:
        logits = jax.nn.relu(batch["x"] @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]
        losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], 1)[:, 0]
        return jnp.where(batch["mask"], losses, 0).sum() / jnp.maximum(batch["mask"].sum(), 1).astype(jnp.float32)

    def call(case: registry.Case) -> tuple[Any, Any, Any]:
        params = {name: 0.05 * jax.random.normal(key, shape) for name, shape in shapes.items()}
        batches = {
            "x": jax.random.normal(key, (CLIENTS, 4, 32, 64)),
            "y": jax.random.randint(key, (CLIENTS, 4, 32), 0, 10),
            "mask": jnp.ones((CLIENTS, 4, 32), bool),
            "weight": jnp.arange(1.0, CLIENTS + 1),
        }
        algorithm = case.make(loss, params)
        return mesh, algorithm.round, (algorithm.init(case.start(params)), case.batches(batches))

    def model(make: Callable[..., Any], clients: int) -> tuple[Any, Any, Any]:
        params, data, train = make(clients)

        @wb.program(clients=clients)
        def fedavg(params: Any, data: Any) -> Any:
            return wb.reduce_mean(wb.map_fn(train, (wb.broadcast(params), data)))

        return mesh, fedavg, (params, data)

    for name, case in registry.ALGORITHMS.items():
        if name not in ("in_cohorts", "newton"):  # one has five clients; the other inverts a matrix of all parameters
            yield Program(name, "round", functools.partial(call, case))
    for name, make in registry.AGGREGATORS.items():
        averaging = registry.Case(
            lambda loss, _, make=make: algorithms.fedavg(
                loss, clients=CLIENTS, client_optimizer=registry.SGD, aggregator=make()
            )
        )
        yield Program(f"fedavg, {name}", "round", functools.partial(call, averaging))
    for name, make in MODELS.items():
        for clients in (8, 32, 64):
            yield Program(f"{name}, {clients} clients", "round", functools.partial(model, make, clients))
    for name, make in MODELS.items():  # how many clients a device computes together
        for clients in (16, 64):
            for size in (1, 4, 16, None):
                if size is None or size * count <= clients:
                    yield Program(
                        f"{name}, {clients} clients, chunk size {size}", "chunk size",
                        functools.partial(model, make, clients), f"chunk size: {name}, {clients} clients", size,
                    )  # fmt: skip


def variants(count: int) -> Iterator[Program]:
    """Training steps of multilayer perceptrons and transformers: what is kept, how it is sharded, microbatches."""
    for width, length in ((128, 128), (256, 64), (256, 256)):
        for policy in ("none", "dots", "full"):
            group = f"remat: transformer of width {width}, {length} tokens"
            build = functools.partial(transformer_step, count, width, length, policy=policy)
            yield Program(f"{group}, {policy}", "remat", build, group)
    for width, batch in ((256, 256), (512, 64), (1024, 512), (512, 2048)):
        group = f"sharding: perceptron of width {width}, batch {batch}"
        for name in ("data", "fsdp", "tensor") if count > 1 else ():
            yield Program(
                f"{group}, {name}", "sharding", functools.partial(perceptron, count, width, batch, name), group
            )
    for width, length in ((128, 128), (256, 64)):
        group = f"sharding: transformer of width {width}, {length} tokens"
        for name in ("data", "fsdp") if count > 1 else ():
            build = functools.partial(transformer_step, count, width, length, sharding=name)
            yield Program(f"{group}, {name}", "sharding", build, group)
    for width, batch in ((256, 256), (512, 1024), (1024, 256)):
        group = f"microbatch: perceptron of width {width}, batch {batch}"
        for parts in (1, 2, 4, 8):
            build = functools.partial(perceptron, count, width, batch, "data", parts=parts)
            yield Program(f"{group}, {parts}", "microbatch", build, group)


def mesh_of(**axes: int) -> Any:
    import jax

    types = (jax.sharding.AxisType.Auto,) * len(axes)
    return jax.make_mesh(
        tuple(axes.values()), tuple(axes), axis_types=types, devices=jax.devices()[: math.prod(axes.values())]
    )


def perceptron(count: int, width: int, batch: int, sharding: str, *, parts: int = 1) -> tuple[Any, Any, Any]:
    """A step of gradient descent of four layers; `parts`: gradients are summed over so many microbatches."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    mesh = mesh_of(x=count)
    up, down, data = {"data": ((), (), ("x",)), "fsdp": (("x",), ("x",), ("x",)), "tensor": ((None, "x"), ("x",), ())}[
        sharding
    ]

    def struct(*shape: int, spec: tuple[str | None, ...]) -> Any:
        return jax.ShapeDtypeStruct(shape, "float32", sharding=jax.NamedSharding(mesh, jax.P(*spec)))

    def loss(params: Any, x: Any) -> Any:
        for first, second in params:
            x = x + jax.nn.relu(x @ first) @ second
        return (x**2).mean()

    def step(params: Any, x: Any) -> Any:
        def add(total: Any, part: Any) -> Any:
            return jax.tree.map(jnp.add, total, jax.grad(loss)(params, part)), None

        pieces = jnp.moveaxis(x.reshape(batch // parts, parts, width), 1, 0)
        zeros = jax.tree.map(jnp.zeros_like, params)
        gradient = jax.grad(loss)(params, x) if parts == 1 else lax.scan(add, zeros, pieces)[0]
        return jax.tree.map(lambda p, g: p - 0.1 / parts * g, params, gradient)

    params = [(struct(width, 4 * width, spec=up), struct(4 * width, width, spec=down)) for _ in range(2)]
    return mesh, step, (params, struct(batch, width, spec=data))


def transformer_step(
    count: int, width: int, length: int, *, policy: str = "none", sharding: str = "data"
) -> tuple[Any, Any, Any]:
    """A step of gradient descent of two decoder layers, 8 sequences."""
    import jax
    import jax.numpy as jnp

    mesh, heads = mesh_of(x=count), 4
    weights = ("x",) if sharding == "fsdp" else ()

    def struct(*shape: int, spec: tuple[str | None, ...] = weights) -> Any:
        return jax.ShapeDtypeStruct(shape, "float32", sharding=jax.NamedSharding(mesh, jax.P(*spec)))

    def layer(x: Any, w: Any) -> Any:
        q, k, v = ((x @ w[name]).reshape(*x.shape[:2], heads, -1) for name in "qkv")
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / (width / heads) ** 0.5
        shares = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -1e9))
        x = x + jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(x.shape) @ w["o"]
        return x + jax.nn.gelu(x @ w["up"]) @ w["down"]

    def loss(params: Any, x: Any) -> Any:
        kept = {"dots": jax.checkpoint_policies.dots_saveable, "full": None}
        one = layer if policy == "none" else jax.checkpoint(layer, policy=kept[policy])
        for w in params:
            x = one(x, w)
        return (x**2).mean()

    def step(params: Any, x: Any) -> Any:
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x))

    square = {name: struct(width, width) for name in "qkvo"}
    params = [{**square, "up": struct(width, 4 * width), "down": struct(4 * width, width)} for _ in range(2)]
    return mesh, step, (params, struct(8, length, width, spec=("x",)))


# ---- runs


def prepare(program: Program, chip: Any, *, runs: bool = True) -> tuple[Callable[[], float] | None, dict[str, Any]]:
    """Compiles a program; returns what runs it once and gives the seconds, and its prediction."""
    import jax
    import numpy as np

    from workbench.cost import estimate_cost
    from workbench.cost._operations import seconds_of_call
    from workbench.inspection import Inspection, LoweredCall, inspect_module, trace_call

    mesh, fn, args = program.build()
    random = np.random.default_rng(0)

    def array(leaf: Any) -> Any:
        if not isinstance(leaf, jax.ShapeDtypeStruct):
            return leaf
        is_float = jax.numpy.issubdtype(leaf.dtype, jax.numpy.floating)
        values = 0.05 * random.normal(size=leaf.shape) if is_float else np.zeros(leaf.shape)
        return jax.device_put(jax.numpy.asarray(values, leaf.dtype), leaf.sharding)

    with jax.set_mesh(mesh) if mesh is not None else contextlib.nullcontext():
        args = jax.tree.map(array, args) if runs else args
        call = trace_call(fn, args, {}, mesh)
        if isinstance(call, LoweredCall):
            compiled = call.program.compile() if isinstance(call.program, jax.stages.Lowered) else call.program
            cost, given = estimate_cost(inspect_module(compiled), chip=chip), args
        else:
            made = Inspection(call, program.chunk_size).compile(mesh)
            cost = estimate_cost(made.module, made.plan, chip=chip, mesh=made.mesh)
            compiled, given = made.compiled, made.args
    stages = cost.stages
    assert compiled is not None
    arrays = len(jax.tree.leaves((compiled.args_info, compiled.out_tree.unflatten([0] * compiled.out_tree.num_leaves))))
    prediction = {
        "predicted": None if cost.seconds is None else cost.seconds + seconds_of_call(chip, arrays),
        "compute": sum(stage.compute_seconds or 0.0 for stage in stages),
        "memory": sum(stage.memory_seconds or 0.0 for stage in stages),
        "collectives": sum(stage.collective_seconds or 0.0 for stage in stages),
    }
    if not runs:
        return None, prediction
    given = tuple(given)
    where = compiled.input_shardings[0]
    leaves, structure = jax.tree.flatten(given)
    if len(jax.tree.leaves(where)) == len(leaves):
        given = jax.tree.unflatten(structure, map(jax.device_put, leaves, jax.tree.leaves(where)))
    donates = "input_output_alias" in (compiled.as_text() or "").split("\n", 1)[0]

    def once() -> float:
        own = jax.block_until_ready(jax.tree.map(jax.numpy.copy, given)) if donates else given
        began = time.perf_counter()
        jax.block_until_ready(compiled(*own))
        return time.perf_counter() - began

    once()
    return once, prediction


def all_programs(count: int) -> list[Program]:
    return [*public_programs(count), *rounds(count), *variants(count)]


def results_file(count: int) -> Path:
    return FOLDER / f"results-{count}.json"


def read_results(count: int) -> dict[str, dict[str, Any]]:
    path = results_file(count)
    return json.loads(path.read_text()) if path.exists() else {}


def write_results(count: int, results: dict[str, dict[str, Any]]) -> None:
    results_file(count).write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")


def chip_of(count: int) -> Any:
    from workbench.records.hardware import ChipRecord

    return ChipRecord.from_json((FOLDER / f"cpu-{count}.json").read_text())


def run(count: int, seconds: float, *, only: str = "", runs: bool = True, again: bool = False) -> None:
    """Predicts and measures what has no result yet, group by group, until the seconds are over."""
    import jax

    jax.config.update("jax_numpy_rank_promotion", "allow")
    begin, chip, results = time.monotonic(), chip_of(count), read_results(count)
    groups: defaultdict[str, list[Program]] = defaultdict(list)
    for program in all_programs(count):
        is_asked = "measured" in results.get(program.name, {}) if not runs else again or program.name not in results
        if is_asked and re.search(only, program.name):
            groups[program.group or program.name].append(program)
    for group in groups.values():
        if time.monotonic() - begin > seconds:
            break
        calls: dict[str, Callable[[], float]] = {}
        for program in group:
            try:
                once, prediction = prepare(program, chip, runs=runs)
            except Exception as error:  # a program that this number of devices cannot run
                results[program.name] = {"error": f"{type(error).__name__}: {str(error)[:120]}"}
                continue
            kept = {} if runs else results.get(program.name, {})
            results[program.name] = {**kept, **prediction, "kind": program.kind, "group": program.group}
            if once is not None:
                calls[program.name] = once
        walls = measured(calls)
        for name, own in walls.items():
            low, middle, high = statistics.quantiles(own, n=4, method="inclusive")
            results[name] |= {"measured": middle, "quartiles": [low, high], "calls": len(own)}
            print(f"{name}: predicted {results[name]['predicted']}, measured {middle:.3g} s", flush=True)
        write_results(count, results)
        jax.clear_caches()
    left = sum(program.name not in results for program in all_programs(count))
    print(f"{left} programs are left")


def measured(
    calls: dict[str, Callable[[], float]], *, seconds: float = 0.4, warm_seconds: float = 0.1
) -> dict[str, list[float]]:
    """Wall seconds of interleaved calls: at least 5 of each, for about `seconds` a program, after a warm-up."""
    walls: dict[str, list[float]] = {name: [] for name in calls}
    for once in calls.values():
        warm = time.monotonic() + warm_seconds
        while time.monotonic() < warm:
            once()
    end = time.monotonic() + seconds * len(calls)
    for turn in itertools.count():
        if turn >= 5 and time.monotonic() > end:
            break
        for name in list(calls) if turn % 2 else list(calls)[::-1]:
            walls[name].append(calls[name]())
    return walls


# ---- the page


def tables() -> str:
    """Errors by kind and number of devices, then the order of variants."""
    lines = [
        "| devices | programs | number of programs | median error | predicted within a factor of 2 | "
        "largest factor between predicted and measured |",
        "|---|---|---|---|---|---|",
    ]
    every: list[float] = []
    for count in COUNTS:
        results = read_results(count)
        for kind in ("public program", "round"):
            ratios = [r["predicted"] / r["measured"] for r in results.values()
                      if r.get("kind") == kind and r.get("predicted") and r.get("measured")]  # fmt: skip
            if ratios:
                every += ratios
                lines.append(f"| {count} | {kind}s | {row_of(ratios)} |")
    if every:
        lines.append(f"| all | | {row_of(every)} |")
    lines += [
        "",
        "| variants | groups of variants | groups in which the predicted best is within 10 % of the measured best | "
        "worst group: predicted best relative to measured best |",
        "|---|---|---|---|",
    ]
    losses: defaultdict[str, list[tuple[float, str]]] = defaultdict(list)
    for count in COUNTS:
        for group, members in groups_of(read_results(count)).items():
            losses[members[0]["kind"]].append((loss_of_choice(members), f"{group}, {count} device{'s' * (count > 1)}"))
    for kind, found in sorted(losses.items()):
        lines.append(f"| {kind} | {len(found)} | {order_of(found)} |")
    if losses:
        together = [each for found in losses.values() for each in found]
        lines.append(f"| all | {len(together)} | {order_of(together)} |")
    return "\n".join([*lines, "", *sentences(every, [loss for found in losses.values() for loss, _ in found])])


def sentences(ratios: list[float], losses: list[float]) -> list[str]:
    """What the tables say, in words."""
    spreads = [
        (each["quartiles"][1] - each["quartiles"][0]) / each["measured"]
        for count in COUNTS
        for each in read_results(count).values()
        if each.get("measured") and each.get("quartiles")
    ]
    if not (ratios and losses and spreads):
        return []
    error = statistics.median(abs(ratio - 1) for ratio in ratios)
    right = sum(loss <= NEAR for loss in losses)
    return [
        f"The interquartile range of a program's call times is {share_text(statistics.median(spreads), 0)} of their "
        "median (median over all rows). "
        f"The target of a median error of 25 % is {'met' if error <= 0.25 else 'missed'}.",
        f"{sum(ratio > 1 for ratio in ratios)} of {len(ratios)} programs run faster than predicted. The **order** of "
        f"variants, on which advice and search depend, is right in {right} of {len(losses)} groups.",
    ]


def row_of(ratios: list[float]) -> str:
    errors = [abs(ratio - 1) for ratio in ratios]
    within = sum(0.5 <= ratio <= 2 for ratio in ratios) / len(ratios)
    factor = max(max(ratio, 1 / ratio) for ratio in ratios)
    return (
        f"{len(ratios)} | {share_text(statistics.median(errors), 0)} | {share_text(within, 0)} | {factor:.2g} |".rstrip(
            " |"
        )
    )


def groups_of(results: dict[str, dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Variants of one program, by group; groups with two that ran and were predicted."""
    groups: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for each in results.values():
        if each.get("group") and each.get("predicted") and each.get("measured"):
            groups[each["group"]].append(each)
    return {name: members for name, members in groups.items() if len(members) > 1}


def loss_of_choice(members: list[dict[str, Any]]) -> float:
    """Measured seconds of the variant with the smallest prediction, over those of the fastest."""
    chosen = min(members, key=lambda each: each["predicted"])
    return chosen["measured"] / min(each["measured"] for each in members)


def order_of(found: list[tuple[float, str]]) -> str:
    near = sum(loss <= NEAR for loss, _ in found)
    loss, name = max(found)
    return f"{near} ({share_text(near / len(found), 0)}) | {loss:.2f} × ({name})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("devices", type=int, nargs="?", choices=COUNTS, help="simulated CPU devices")
    parser.add_argument(
        "--calibrate", action="store_true", help="measure the rates of these devices first, and nothing else"
    )
    parser.add_argument("--predict", action="store_true", help="predict again, run nothing")
    parser.add_argument("--again", action="store_true", help="measure what has a result too")
    parser.add_argument("--only", default="", help="a regular expression of names")
    parser.add_argument("--seconds", type=float, default=150.0, help="begin no group after this time")
    parser.add_argument("--page", action="store_true", help="write the tables into docs/predictions.md")
    arguments = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    if arguments.devices:
        os.environ["JAX_PLATFORMS"] = "cpu"
        os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={arguments.devices}"
        warnings.simplefilter("ignore")
        if arguments.calibrate:
            import workbench as wb

            chip = wb.calibrate(seconds=45, store=False, progress=sys.stderr.isatty())
            (FOLDER / f"cpu-{arguments.devices}.json").write_text(chip.to_json(indent=1) + "\n")
        else:
            limit = math.inf if arguments.predict else arguments.seconds
            run(arguments.devices, limit, only=arguments.only, runs=not arguments.predict, again=arguments.again)
    print(tables())
    if arguments.page:
        text = PAGE.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN)
        PAGE.write_text(before + BEGIN + "\n\n" + tables() + "\n\n" + END + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
