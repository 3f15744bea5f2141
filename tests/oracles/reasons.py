"""Programs in which the reason of every collective is known by construction.

`python -m tests.oracles.reasons --programs 400 --seed 1` draws programs, compiles each and compares what `wb.why` says.
"""

import argparse
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import workbench as wb
from workbench.records import WhyCollectiveRecord


@dataclasses.dataclass(frozen=True)
class Part:
    """A function whose collectives have one reason, at the line that ends in `# here`."""

    fn: Callable[..., Any]
    args: tuple[tuple[tuple[int, ...], P], ...]
    reason: str
    words: tuple[str, ...]  # all of them are in the sentence
    scans: bool = True  # whether it maps its first argument to its own shape and sharding

    @functools.cached_property
    def line(self) -> int:
        lines, first = inspect.getsourcelines(self.fn)
        return first + next(i for i, line in enumerate(lines) if line.rstrip().endswith("# here"))


def contracted(x: Any, w: Any) -> Any:
    return x @ w  # here


def gathered_weight(x: Any, w: Any) -> Any:
    return x @ w  # here


def mean_of_rows(x: Any) -> Any:
    return x - x.mean(0, keepdims=True)  # here


def constrained(x: Any) -> Any:
    return jax.lax.with_sharding_constraint(x, P())  # here


def rolled(x: Any) -> Any:
    return jnp.roll(x, 1, 0)  # here


def ordered(x: Any) -> Any:
    return jnp.sort(x, axis=0)  # here


def summed_up(x: Any) -> Any:
    return jnp.cumsum(x, axis=0)  # here


def transposed_sum(x: Any, y: Any) -> Any:
    return x + y.T  # here


def looked_up(table: Any, rows: Any) -> Any:
    return table[rows]  # here


def merged(x: Any) -> Any:
    return x.reshape(-1)  # here


def written(x: Any) -> Any:
    def total(x: Any) -> Any:
        return jax.lax.psum(x, "a")  # here

    return jax.shard_map(total, in_specs=P("a"), out_specs=P())(x)


def best(x: Any) -> Any:
    return jax.lax.top_k(x.T, 3)[0]  # here


def gradient(w: Any, x: Any) -> Any:
    return jax.grad(lambda w: jnp.sum(jnp.sin(x @ w)))(w)  # here


PARTS = {
    "contraction over a sharded dimension": Part(
        contracted, (((16, 32), P(None, "a")), ((32, 8), P("a"))), "sum", ("adds the parts",), scans=False
    ),
    "batch and weight over one axis": Part(
        gathered_weight,
        (((64, 32), P("a")), ((32, 32), P("a"))),
        "disagreement",
        ("gathers argument `", "One mesh axis"),
    ),
    "weight cut along the result's columns": Part(
        gathered_weight, (((64, 32), P("a")), ((32, 32), P(None, "a"))), "disagreement", ("gathers argument `",)
    ),
    "mean over rows": Part(mean_of_rows, (((64, 16), P("a")),), "sum", ("adds the parts",)),
    "constraint": Part(
        constrained, (((64, 32), P("a")),), "constraint", ("asks for P(-, -)", "arrives as P(a, -)"), False
    ),
    "roll": Part(rolled, (((64, 16), P("a")),), "whole dimension", ("dimension 0",)),
    "sort": Part(ordered, (((64, 16), P("a")),), "whole dimension", ("dimension 0",)),
    "cumulative sum": Part(summed_up, (((64, 16), P("a")),), "whole dimension", ("dimension 0",)),
    "sum with a transpose": Part(
        transposed_sum,
        (((32, 32), P("a")), ((32, 32), P("a"))),
        "disagreement",
        ("`transpose`", "the compiler redistributes"),
    ),
    "lookup in a sharded table": Part(looked_up, (((64, 16), P("a")), ((5,), P())), "sum", ("looks up",), scans=False),
    "reshape that merges": Part(merged, (((16, 64), P(None, "a")),), "disagreement", ("`reshape`",), scans=False),
    "psum of a shard_map": Part(written, (((64, 16), P("a")),), "program", ("asks for it itself",), scans=False),
    "top_k": Part(best, (((32, 64), P("a")),), "whole dimension", ("top_k",), scans=False),
    "gradient of a batch": Part(gradient, (((32, 8), P()), ((64, 32), P("a"))), "sum", ("adds the parts",)),
}


@dataclasses.dataclass(frozen=True)
class Program:
    """Some parts next to each other, each with arguments of its own, some of them in a loop."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    parts: tuple[Part, ...]


def draw(random: np.random.Generator, mesh: Mesh) -> Program:
    """One to three parts; each alone or in a scan of three steps."""
    names = [str(name) for name in random.choice(list(PARTS), int(random.integers(1, 4)), replace=False)]
    loops = [bool(PARTS[name].scans and random.random() < 0.4) for name in names]
    parts, args, counts = [PARTS[name] for name in names], [], []
    for part in parts:
        counts.append(len(part.args))
        for shape, spec in part.args:
            dtype = jnp.int32 if len(shape) == 1 else jnp.float32
            args.append(jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec)))

    def together(*args: Any) -> list[Any]:
        results, at = [], 0
        for part, loop, count in zip(parts, loops, counts, strict=True):
            first, *rest = args[at : at + count]
            at += count
            if loop:
                step = lambda carry, _, part=part, rest=rest: (part.fn(carry, *rest), None)  # noqa: E731
                results.append(jax.lax.scan(step, first, length=3)[0])
            else:
                results.append(part.fn(first, *rest))
        return results

    name = ", ".join(f"{name}{' in a scan' * loop}" for name, loop in zip(names, loops, strict=True))
    return Program(name, together, tuple(args), tuple(parts))


def faults(program: Program, mesh: Mesh) -> Iterator[tuple[str, WhyCollectiveRecord]]:
    """What `why` says of the program that is not so: "wrong" or "unknown", and the collective."""
    with jax.set_mesh(mesh):
        record = wb.inspect(program.fn)(*program.args)
        found = wb.why(record)
    assert record.module is not None
    lines = [tuple(sorted(source.line for source in each.sources)) for each in record.module.collectives]
    assert len(found.collectives) == len(lines)
    for each in found.collectives:
        at = each.source.line if each.source else None
        # What does not change is moved out of a loop and has the loop's line: then the sentence has ours.
        part = next((p for p in program.parts if at == p.line or f"reasons.py:{p.line}," in each.sentence), None)
        if each.reason == "unknown":
            yield "unknown", each
        elif part is None or each.reason != part.reason or not all(word in each.sentence for word in part.words):
            yield "wrong", each
    told = "".join(each.sentence for each in found.collectives)
    missing = [
        p for p in program.parts if not any(p.line in line for line in lines) and f"reasons.py:{p.line}," not in told
    ]
    # Where several became one, not every line is kept.
    combined = sum(
        int(count) - 1 for each in found.collectives for count in re.findall(r"combined (\d+)", each.sentence)
    )
    for part in missing[combined:]:  # the program does not communicate as its part says
        yield f"no collective at line {part.line}", found.collectives[0] if found.collectives else None  # pyright: ignore[reportReturnType]


def mesh_of(axes: int) -> Mesh:
    """A mesh of eight devices with the axis `a` of four or eight."""
    if axes == 1:
        return jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,))
    return jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    wb.simulate_devices(8)
    random = np.random.default_rng(asked.seed)
    counts: dict[str, int] = {}
    for _ in range(asked.programs):
        mesh = mesh_of(int(random.integers(1, 3)))
        program = draw(random, mesh)
        for kind, each in faults(program, mesh):
            counts[kind] = counts.get(kind, 0) + 1
            print(f"{kind}: {program.name}: {each and (each.kind, each.reason)} {each and each.sentence}")
    print(f"{asked.programs} programs: {counts or 'nothing wrong, nothing unknown'}")


if __name__ == "__main__":
    main()
