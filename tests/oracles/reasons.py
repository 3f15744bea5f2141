"""Programs in which the reason of every collective is known by construction.

`python -m tests.oracles.reasons --programs 400 --seed 1` draws programs, compiles each and compares what `wb.why` says.
"""

import argparse
import contextlib
import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

import workbench as wb
from workbench.records.sharding import WhyCollectiveRecord


@dataclasses.dataclass(frozen=True)
class Part:
    """A function whose collectives have one reason, at the line that ends in `# here`."""

    fn: Callable[..., Any]
    args: tuple[tuple[tuple[int, ...], P], ...]
    reason: str
    words: tuple[str, ...]  # all of them are in the sentence
    scans: bool = True  # whether it maps its first argument to its own shape and sharding
    backward: tuple[str, ...] = ()  # the reasons of its gradient's collectives; empty where the gradient is not tried
    others: tuple[str, ...] = ()  # reasons of further collectives: 63 rows over 8 devices are returned whole
    explicit: bool = False  # whether JAX accepts it on explicit axes
    at: Callable[..., Any] | type | None = None  # what has the line, where the function itself has not
    result: P | None = None  # what the whole program is asked for

    @functools.cached_property
    def line(self) -> int:
        lines, first = inspect.getsourcelines(self.at or self.fn)
        return first + next(i for i, line in enumerate(lines) if line.rstrip().endswith("# here"))


def contracted(x: Any, w: Any) -> Any:
    return x @ w  # here


def contracted_by_name(x: Any, w: Any) -> Any:
    return jnp.einsum("bi,ij->bj", x, w)  # here


def gathered_weight(x: Any, w: Any) -> Any:
    return x @ w  # here


def mean_of_rows(x: Any) -> Any:
    return x - x.mean(0, keepdims=True)  # here


def largest_of_rows(x: Any) -> Any:
    return x - x.max(0, keepdims=True)  # here


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


def added_at(table: Any, rows: Any, updates: Any) -> Any:
    return table.at[rows].add(updates)  # here


def merged(x: Any) -> Any:
    return x.reshape(-1)  # here


def joined(x: Any, y: Any) -> Any:
    return jnp.concatenate([x, y], 0)  # here


def neighbours(x: Any) -> Any:
    return x[1:] - x[:-1]  # here


def written(x: Any) -> Any:
    def total(x: Any) -> Any:
        return jax.lax.psum(x, "a")  # here

    return jax.shard_map(total, in_specs=P("a"), out_specs=P())(x)


def written_gather(x: Any) -> Any:
    def whole(x: Any) -> Any:
        return jax.lax.all_gather(x, "a", tiled=True)  # here

    return jax.shard_map(whole, in_specs=P("a"), out_specs=P(), check_vma=False)(x)


def written_ring(x: Any) -> Any:
    def shifted(x: Any) -> Any:
        size = jax.lax.axis_size("a")
        return jax.lax.ppermute(x, "a", [(i, (i + 1) % size) for i in range(size)])  # here

    return jax.shard_map(shifted, in_specs=P("a"), out_specs=P("a"))(x)


def written_exchange(x: Any) -> Any:
    def exchanged(x: Any) -> Any:
        return jax.lax.all_to_all(x, "a", 1, 0, tiled=True)  # here

    return jax.shard_map(exchanged, in_specs=P("a"), out_specs=P(None, "a"))(x)


def best(x: Any) -> Any:
    return jax.lax.top_k(x.T, 3)[0]  # here


def gradient(w: Any, x: Any) -> Any:
    return jax.grad(lambda w: jnp.sum(jnp.sin(x @ w)))(w)  # here


def gradient_of_checkpoint(w: Any, x: Any) -> Any:
    return jax.grad(lambda w: jnp.sum(jax.checkpoint(lambda w: jnp.sin(x @ w))(w)))(w)  # here


def convolved(x: Any, kernel: Any) -> Any:
    return jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))  # here


def transformed(x: Any) -> Any:
    return jnp.fft.fft(x, axis=0).real  # here


def normalized(x: Any) -> Any:
    return x / jnp.sqrt((x * x).sum(0, keepdims=True) + 1)  # here


def redistributed(x: Any) -> Any:
    return jax.lax.with_sharding_constraint(x, P(None, "a"))  # here


def nested(x: Any, w: Any) -> Any:
    @jax.jit
    def inner(x: Any, w: Any) -> Any:
        return x @ w  # here

    return jnp.tanh(inner(x, w))


def permuted(x: Any) -> Any:
    return jax.random.permutation(jax.random.key(0), x)  # here


def layer(x: Any, w: Any) -> Any:
    class Layer(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.tanh(x @ w)  # here

    return Layer().apply({}, x)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Linear:
    """A layer as Equinox writes it: a pytree that is called for one example."""

    weight: Any

    def __call__(self, x: Any) -> Any:
        return self.weight @ x  # here


def mapped_layer(x: Any, w: Any) -> Any:
    return jax.vmap(Linear(w))(x)


def reversed_rows(x: Any) -> Any:
    return x[::-1]  # here


def one_row(x: Any, row: Any) -> Any:
    return jax.lax.dynamic_index_in_dim(x, row[0], 0)  # here


def split(x: Any) -> Any:
    return x.reshape(3, -1, x.shape[1])  # here


def subtracted(x: Any, y: Any) -> Any:
    return x - y  # here


def largest_at(x: Any) -> Any:
    return jnp.argmax(x, axis=0)  # here


def shares(x: Any) -> Any:
    return jax.nn.softmax(x, axis=0)  # here


def running_maximum(x: Any) -> Any:
    return jax.lax.cummax(x, axis=0)  # here


def padded(x: Any) -> Any:
    return jnp.pad(x, ((1, 0), (0, 0)))[:-1]  # here


def grouped(x: Any, group: Any) -> Any:
    return jax.ops.segment_sum(x, group, num_segments=8)  # here


def scores(q: Any, k: Any) -> Any:
    return q @ k.T  # here


def asked_of_an_argument(x: Any) -> Any:
    return jax.jit(jnp.sin, in_shardings=P())(x)  # here


def returned(x: Any) -> Any:
    return jnp.sin(x)  # here


def carried(x: Any, w: Any) -> Any:
    def body(carry: Any, _: Any) -> Any:
        return jnp.tanh(carry @ w), None  # here

    return jax.lax.scan(body, x, length=3)[0]


def carried_otherwise(x: Any) -> Any:
    body = lambda carry, _: (jax.lax.with_sharding_constraint(jnp.tanh(carry), P(None, "a")), None)  # noqa: E731
    return jax.lax.scan(body, x, length=3)[0]  # here


def chosen(x: Any, which: Any) -> Any:
    return jax.lax.cond(which[0] > 0, lambda x: x.sum(0), lambda x: x.max(0), x)  # here


def older_random_numbers(x: Any) -> Any:
    with jax.threefry_partitionable(False):
        return x + jax.random.uniform(jax.random.key(0), x.shape)  # here


class StatefulLayer(nnx.Module):
    def __init__(self, w: Any) -> None:
        self.w = nnx.Param(w)

    def __call__(self, x: Any) -> Any:
        return x @ self.w[...]  # here


def stateful_layer(x: Any, w: Any) -> Any:
    return nnx.tanh(StatefulLayer(w)(x))


def scanned_layers(x: Any, w: Any) -> Any:
    return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, w)[0]  # here


PARTS = {
    "contraction over a sharded dimension": Part(
        contracted, (((16, 32), P(None, "a")), ((32, 8), P("a"))), "sum", ("adds the parts",), scans=False
    ),
    "contraction of an einsum": Part(
        contracted_by_name, (((16, 32), P(None, "a")), ((32, 8), P("a"))), "sum", ("adds the parts",), scans=False
    ),
    "contraction in a nested jit": Part(
        nested, (((16, 32), P(None, "a")), ((32, 8), P("a"))), "sum", ("adds the parts",), scans=False
    ),
    "batch and weight over one axis": Part(
        gathered_weight,
        (((64, 32), P("a")), ((32, 32), P("a"))),
        "disagreement",
        ("argument `", "A mesh axis"),
        backward=("sum",),
        explicit=True,
    ),
    "batch and weight of a module": Part(
        layer,
        (((64, 32), P("a")), ((32, 32), P("a"))),
        "disagreement",
        ("argument `", "A mesh axis"),
        backward=("sum",),
        explicit=True,
    ),
    "batch and weight of a mapped layer": Part(
        mapped_layer,
        (((64, 32), P("a")), ((32, 32), P("a"))),
        "disagreement",
        ("A mesh axis",),
        at=Linear,
        backward=("disagreement",),
    ),
    "weight cut along the result's columns": Part(
        gathered_weight,
        (((64, 32), P("a")), ((32, 32), P(None, "a"))),
        "disagreement",
        ("argument `", "A mesh axis"),
        backward=("sum",),
    ),
    "mean over rows": Part(
        mean_of_rows, (((64, 16), P("a")),), "sum", ("adds the parts",), backward=("sum",), explicit=True
    ),
    "maximum over rows": Part(
        largest_of_rows,
        (((64, 16), P("a")),),
        "sum",
        ("takes the maximum", "the largest"),
        backward=("sum",),
        explicit=True,
    ),
    "norm over rows": Part(
        normalized, (((64, 16), P("a")),), "sum", ("adds the parts",), backward=("sum",), explicit=True
    ),
    "constraint": Part(constrained, (((64, 32), P("a")),), "constraint", ("requests P()", "arrives as P('a')"), False),
    "constraint on another dimension": Part(
        redistributed, (((64, 32), P("a")),), "constraint", ("requests P(None, 'a')", "arrives as P('a')"), False
    ),
    "roll": Part(rolled, (((64, 16), P("a")),), "whole dimension", ("dimension 0",), backward=("compiler",)),
    "reversal": Part(
        reversed_rows,
        (((64, 16), P("a")),),
        "whole dimension",
        ("dimension 0",),
        backward=("whole dimension",),
        explicit=True,
    ),
    "sort": Part(ordered, (((64, 16), P("a")),), "whole dimension", ("dimension 0",), backward=("sum",)),
    "cumulative sum": Part(
        summed_up, (((64, 16), P("a")),), "whole dimension", ("dimension 0",), backward=("whole dimension",)
    ),
    "difference of neighbours": Part(
        neighbours, (((64, 16), P("a")),), "whole dimension", ("dimension 0",), scans=False, others=("output",)
    ),
    "convolution": Part(
        convolved,
        (((2, 64, 8, 4), P(None, "a")), ((3, 3, 4, 4), P())),
        "whole dimension",
        ("dimension 1",),
        backward=("whole dimension",),
        explicit=True,
    ),
    "Fourier transform": Part(transformed, (((64, 16), P("a")),), "whole dimension", ("`fft`",), False, explicit=True),
    "concatenation": Part(
        joined,
        (((64, 16), P("a")), ((64, 16), P("a"))),
        "whole dimension",
        ("`concatenate`", "dimension 0"),
        False,
        explicit=True,
    ),
    "sum with a transpose": Part(
        transposed_sum,
        (((32, 32), P("a")), ((32, 32), P("a"))),
        "disagreement",
        ("`transpose`", "the compiler redistributes"),
        backward=("disagreement",),
    ),
    "lookup in a sharded table": Part(looked_up, (((64, 16), P("a")), ((5,), P())), "sum", ("looks up",), scans=False),
    "row of a sharded array": Part(
        one_row, (((64, 16), P("a")), ((1,), P())), "whole dimension", ("`dynamic_slice`", "dimension 0"), scans=False
    ),
    "scatter of sharded updates": Part(
        added_at, (((64, 16), P()), ((32,), P("a")), ((32, 16), P("a"))), "sum", ("adds the parts",), scans=False
    ),
    "permutation of rows": Part(permuted, (((64, 16), P("a")),), "sum", ("looks up",), scans=False, backward=("sum",)),
    "reshape that merges": Part(merged, (((16, 64), P(None, "a")),), "disagreement", ("`reshape`",), scans=False),
    "psum of a shard_map": Part(
        written, (((64, 16), P("a")),), "program", ("itself requests this exchange",), scans=False, explicit=True
    ),
    "all_gather of a shard_map": Part(
        written_gather,
        (((64, 16), P("a")),),
        "program",
        ("itself requests this exchange",),
        scans=False,
        explicit=True,
    ),
    "ppermute of a shard_map": Part(
        written_ring,
        (((64, 16), P("a")),),
        "program",
        ("itself requests this exchange",),
        backward=("program",),
        explicit=True,
    ),
    "all_to_all of a shard_map": Part(
        written_exchange,
        (((64, 16), P("a")),),
        "program",
        ("itself requests this exchange",),
        scans=False,
        explicit=True,
    ),
    "top_k": Part(best, (((32, 64), P("a")),), "whole dimension", ("top_k",), scans=False),
    "gradient of a batch": Part(
        gradient, (((32, 8), P()), ((64, 32), P("a"))), "sum", ("adds the parts",), backward=("sum",), explicit=True
    ),
    "gradient of a checkpoint": Part(
        gradient_of_checkpoint,
        (((32, 8), P()), ((64, 32), P("a"))),
        "sum",
        ("adds the parts",),
        backward=("sum",),
        explicit=True,
    ),
    "reshape that splits": Part(split, (((24, 16), P("a")),), "disagreement", ("`reshape`",), scans=False),
    "arguments of different specs": Part(
        subtracted,
        (((64, 64), P("a")), ((64, 64), P(None, "a"))),
        "disagreement",
        ("argument `", "A mesh axis"),
        backward=("disagreement",),
    ),
    "place of the maximum": Part(
        largest_at, (((64, 16), P("a")),), "sum", ("the result for its part", "gathers these"), scans=False
    ),
    "softmax over rows": Part(shares, (((64, 16), P("a")),), "sum", ("dimension 0",), backward=("sum",)),
    "running maximum": Part(running_maximum, (((64, 16), P("a")),), "whole dimension", ("dimension 0",)),
    "padding": Part(padded, (((64, 16), P("a")),), "whole dimension", ("dimension 0",), scans=False),
    "sums of groups": Part(
        grouped, (((64, 16), P("a")), ((64,), P("a"))), "sum", ("`scatter", "adds the parts"), scans=False
    ),
    "scores of attention": Part(
        scores, (((64, 16), P("a")), ((64, 16), P("a"))), "disagreement", ("A mesh axis",), scans=False
    ),
    "sharding asked of an argument": Part(
        asked_of_an_argument, (((64, 16), P("a")),), "constraint", ("requests P()", "arrives as P('a')"), False
    ),
    "sharding asked of a result": Part(
        returned, (((64, 16), P("a")),), "output", ("must return", "as P()"), scans=False, result=P()
    ),
    "carry of a loop": Part(
        carried,
        (((64, 64), P("a")), ((64, 64), P(None, "a"))),
        "disagreement",
        ("argument `", "A mesh axis"),
        backward=("sum", "disagreement"),
    ),
    "loop that starts with another sharding": Part(
        carried_otherwise, (((64, 64), P("a")),), "disagreement", ("carries argument `", "before the loop"), scans=False
    ),
    "branches of a condition": Part(chosen, (((64, 16), P("a")), ((1,), P())), "sum", ("dimension 0",), scans=False),
    "older random numbers": Part(
        older_random_numbers, (((64, 16), P("a")),), "whole dimension", ("dimension 0",), False, others=("compiler",)
    ),
    "batch and weight of an NNX module": Part(
        stateful_layer,
        (((64, 32), P("a")), ((32, 32), P("a"))),
        "disagreement",
        ("argument `", "A mesh axis"),
        backward=("sum",),
        at=StatefulLayer,
    ),
    "weights of scanned layers": Part(
        scanned_layers,
        (((64, 32), P("a")), ((3, 32, 32), P(None, "a"))),
        "disagreement",
        ("A mesh axis", "a slice (f32[32,32]) of argument `"),
        backward=("sum", "disagreement"),
        explicit=True,
    ),
}


# Parts of a program that `jax.pmap` maps over the axis `a`: each argument is one device's.
def mapped_sum(x: Any) -> Any:
    return jnp.tanh(x - jax.lax.psum(x, "a"))  # here


def mapped_largest(x: Any) -> Any:
    return x - jax.lax.pmax(x.max(0, keepdims=True), "a")  # here


def mapped_gradient(w: Any, x: Any) -> Any:
    gradient = jax.grad(lambda w: jnp.sum(jnp.sin(x @ w)))(w)
    return w - jax.lax.pmean(gradient, "a")  # here


def mapped_statistics(x: Any) -> Any:
    mean, square = jax.lax.pmean((x.mean(0, keepdims=True), (x * x).mean(0, keepdims=True)), "a")  # here
    return (x - mean) / jnp.sqrt(square - mean * mean + 1)


def mapped_gather(x: Any) -> Any:
    return x + jax.lax.all_gather(x, "a").mean(0)  # here


def mapped_ring(x: Any) -> Any:
    size = jax.lax.axis_size("a")
    return jax.lax.ppermute(jnp.sin(x), "a", [(i, (i + 1) % size) for i in range(size)])  # here


def mapped_exchange(x: Any) -> Any:
    return jax.lax.all_to_all(jnp.cos(x), "a", 0, 0)  # here


def mapped_share(x: Any) -> Any:
    return jax.lax.psum_scatter(x, "a", tiled=True)  # here


def _requested(fn: Callable[..., Any], *shapes: tuple[int, ...], **options: Any) -> Part:
    words = ("itself requests this exchange",)
    return Part(fn, tuple((shape, P()) for shape in shapes), "program", words, **options)


MAPPED: dict[str, Part] = {
    "sum of a pmap": _requested(mapped_sum, (8, 16), backward=("program",)),
    "maximum of a pmap": _requested(mapped_largest, (8, 16)),
    "gradient of a pmap": _requested(mapped_gradient, (16, 4), (8, 16), backward=("program",)),
    "statistics of a pmap": _requested(mapped_statistics, (8, 16), backward=("program",)),
    "gather of a pmap": _requested(mapped_gather, (8, 16), backward=("program",)),
    "ring of a pmap": _requested(mapped_ring, (8, 16), backward=("program",)),
    "exchange of a pmap": _requested(mapped_exchange, (8, 16), backward=("program",)),
    "share of a pmap": _requested(mapped_share, (64, 16), scans=False, backward=("program",)),
}


# What surrounds a part, and whether the part has to keep the shape of its first argument.
def _in_scan(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *rest: jax.lax.scan(lambda carry, _: (fn(carry, *rest), None), x, length=3)[0]


def _in_loop(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *rest: jax.lax.fori_loop(0, 3, lambda _, carry: fn(carry, *rest), x)


def _in_gradient(fn: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *rest: jax.grad(lambda x: jnp.sum(fn(x, *rest) ** 2))(x)


WRAPPERS: dict[str, Callable[[Callable[..., Any]], Callable[..., Any]]] = {
    "": lambda fn: fn,
    "in jit": jax.jit,
    "in checkpoint": jax.checkpoint,
    "in a scan": _in_scan,
    "in a loop": _in_loop,
    "under grad": _in_gradient,
}


def _wrapper(part: Part, random: np.random.Generator) -> str:
    loops, gradients = ("in a scan", "in a loop"), ("under grad",)
    fitting = [w for w in WRAPPERS if (part.scans or w not in loops) and (part.backward or w not in gradients)]
    return str(random.choice(fitting))


@dataclasses.dataclass(frozen=True)
class Program:
    """Some parts next to each other, each with arguments of its own, some of them in a loop or under `grad`."""

    name: str
    fn: Callable[..., Any]
    args: tuple[Any, ...]
    parts: tuple[Part, ...]
    wrappers: tuple[str, ...] = ()

    def reasons(self, part: Part) -> tuple[str, ...]:
        """The reasons that collectives at the line of a part may have."""
        if self.wrappers and self.wrappers[self.parts.index(part)] == "under grad":
            return (part.reason, *part.backward)
        return (part.reason, *part.others)


def draw(random: np.random.Generator, mesh: Mesh) -> Program:
    """One to three parts, each alone or inside a transformation."""
    explicit = AxisType.Explicit in mesh.axis_types
    known = [name for name, part in PARTS.items() if part.explicit or not explicit]
    names = [str(name) for name in random.choice(known, int(random.integers(1, 4)), replace=False)]
    return assemble(names, [_wrapper(PARTS[name], random) for name in names], mesh)


def _one_after_another(parts: Sequence[Part], wrappers: Sequence[str]) -> Callable[..., list[Any]]:
    """A function of the arguments of all parts, which calls each part inside its transformation."""

    def together(*args: Any) -> list[Any]:
        results, at = [], 0
        for part, wrapper in zip(parts, wrappers, strict=True):
            results.append(WRAPPERS[wrapper](part.fn)(*args[at : at + len(part.args)]))
            at += len(part.args)
        return results

    return together


def assemble(names: Sequence[str], wrappers: Sequence[str], mesh: Mesh) -> Program:
    """Parts by name, each inside a transformation, as one program."""
    parts = [PARTS[name] for name in names]
    args = []
    for part in parts:
        for shape, spec in part.args:
            dtype = jnp.int32 if len(shape) == 1 else jnp.float32
            args.append(jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec)))

    together = _one_after_another(parts, wrappers)
    fn: Callable[..., Any] = together
    if any(part.result is not None for part in parts):
        asked = [None if part.result is None else NamedSharding(mesh, part.result) for part in parts]
        fn = jax.jit(together, out_shardings=asked)
    name = ", ".join(f"{name} {wrapper}".strip() for name, wrapper in zip(names, wrappers, strict=True))
    return Program(name, fn, tuple(args), tuple(parts), tuple(wrappers))


def draw_mapped(random: np.random.Generator) -> Program:
    """One to three parts under `jax.pmap`, with arguments for all devices or one for each."""
    names = [str(name) for name in random.choice(list(MAPPED), int(random.integers(1, 4)), replace=False)]
    return assemble_mapped(names, [_wrapper(MAPPED[name], random) for name in names], whole=bool(random.integers(2)))


def assemble_mapped(names: Sequence[str], wrappers: Sequence[str], *, whole: bool = False) -> Program:
    """Parts by name under `jax.pmap` over 8 devices; `whole`: the first of several arguments is the same on all."""
    parts = [MAPPED[name] for name in names]
    shapes = [shape for part in parts for shape, _ in part.args]
    together = _one_after_another(parts, wrappers)
    in_axes = tuple(None if whole and number == 0 and len(shapes) > 1 else 0 for number in range(len(shapes)))
    args = tuple(
        jax.ShapeDtypeStruct(shape if axis is None else (8, *shape), jnp.float32)
        for shape, axis in zip(shapes, in_axes, strict=True)
    )
    name = ", ".join(f"{name} {wrapper}".strip() for name, wrapper in zip(names, wrappers, strict=True))
    return Program(name, jax.pmap(together, axis_name="a", in_axes=in_axes), args, tuple(parts), tuple(wrappers))


def _is_moved_before_a_loop(each: WhyCollectiveRecord, program: Program) -> bool:
    """Whether the compiler exchanges an argument once, before the loop that reads it, and `why` says so.

    The sentence must give the argument's own sharding, and the line of the part that reads the argument.
    """
    number = re.search(r"argument `args\[(\d+)\]`", each.sentence)
    spec = re.search(r"arrives as P\((.*?)\)|receives argument .*? as P\((.*?)\)", each.sentence)
    line = next((p.line for p in program.parts if f"reasons.py:{p.line}" in each.sentence), None)
    if number is None or spec is None or line is None or each.executions != 1 or " loop" not in each.sentence:
        return False
    axes = [axis or None for axis in re.findall(r"'(\w+)'|None", spec[1] or spec[2])]
    return axes == list(program.args[int(number[1])].sharding.spec)


def faults(program: Program, mesh: Mesh | None) -> Iterator[tuple[str, WhyCollectiveRecord]]:
    """What `why` says of the program that is not so: "wrong" or "unknown", and the collective."""
    with contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
        record = wb.inspect(program.fn)(*program.args)
        found = wb.why(record)
    assert record.module is not None
    lines = [tuple(sorted(source.line for source in each.sources)) for each in record.module.collectives]
    assert len(found.collectives) == len(lines)
    for each in found.collectives:
        at = each.source.line if each.source else None
        # What does not change is moved out of a loop and has the loop's line: then the sentence has ours.
        named = [p for p in program.parts if f"reasons.py:{p.line}" in each.sentence]
        part = next((p for p in program.parts if at == p.line), next(iter(named), None))
        if each.reason == "unknown":
            yield "unknown", each
        elif each.reason == "compiler" and "a" not in each.axes:
            continue  # no part is sharded over these axes: the compiler spread the work
        elif _is_moved_before_a_loop(each, program):
            continue
        elif part is None or each.reason not in program.reasons(part):
            yield "wrong", each
        elif each.reason == part.reason and not all(word in each.sentence for word in part.words):
            if program.reasons(part) == (part.reason,):
                yield "wrong", each
        if each.source is not None and lines and not any(at in known for known in lines):
            yield f"line {at}, which inspect does not name", each
    told = "".join(each.sentence for each in found.collectives)
    missing = [
        p for p in program.parts if not any(p.line in line for line in lines) and f"reasons.py:{p.line}" not in told
    ]
    # Where several became one, not every line is kept.
    combined = sum(
        int(count) - 1 for each in found.collectives for count in re.findall(r"combined (\d+)", each.sentence)
    )
    for part in missing[combined:]:  # the program does not communicate as its part says
        yield f"no collective at line {part.line}", found.collectives[0] if found.collectives else None  # pyright: ignore[reportReturnType]


MESHES: tuple[tuple[dict[str, int], AxisType], ...] = (
    ({"a": 8}, AxisType.Auto),
    ({"a": 4, "b": 2}, AxisType.Auto),
    ({"b": 2, "a": 4}, AxisType.Auto),
    ({"b": 2, "a": 2, "c": 2}, AxisType.Auto),
    ({"a": 4, "b": 2}, AxisType.Explicit),
    ({"a": 8}, AxisType.Explicit),
)


def mesh_of(number: int) -> Mesh:
    """One of the meshes of eight devices, with an axis `a` over which the parts are sharded."""
    axes, kind = MESHES[number]
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=(kind,) * len(axes))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    wb.simulate_devices(8)
    random = np.random.default_rng(asked.seed)
    counts: dict[str, int] = {}
    for number in range(asked.programs):
        at = number % (len(MESHES) + 1)
        mesh = mesh_of(at) if at < len(MESHES) else None  # None: under `jax.pmap`
        program = draw(random, mesh) if mesh is not None else draw_mapped(random)
        for kind, each in faults(program, mesh):
            counts[kind] = counts.get(kind, 0) + 1
            where = "pmap" if mesh is None else dict(mesh.shape)
            print(f"{kind}: {program.name} on {where}: {each and (each.kind, each.reason)} {each and each.sentence}")
    print(f"{asked.programs} programs: {counts or 'nothing wrong, nothing unknown'}")


if __name__ == "__main__":
    main()
