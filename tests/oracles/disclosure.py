"""What a plan says that clients disclose, against an interpreter that marks clients' values: `python -m
tests.oracles.disclosure --programs 400`.

Programs are drawn from masks (comparisons, `where`, `at[].set`, one-hot rows, sorts, gathers, …), their uses, and
numbers of the caller. The interpreter carries with every element the clients on whose data it depends, through each
equation, for every number that the caller can pass. A sum that depends on one client alone, for every such number,
must be named so in `plan.disclosed`, and no other; rows that the server reads must be listed as rows. Prints how many
programs were right and wrong; the exit status is the number of wrong ones.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal

import workbench as wb
from workbench._jax_compat import bind_equation
from workbench.primitives import REDUCTIONS, broadcast_p, map_p

CLIENTS, FEATURES = 4, 3

# Masks of one number per client, from a number `i` of the caller and a constant `k`.
MASKS: dict[str, Callable[[Any, int], Any]] = {
    "equal": lambda i, k: jnp.arange(CLIENTS) == i,
    "equal to a constant": lambda i, k: jnp.arange(CLIENTS) == k,
    "set": lambda i, k: jnp.zeros(CLIENTS).at[i].set(2.0),
    "set a constant": lambda i, k: jnp.zeros(CLIENTS).at[k].set(1.0),
    "add": lambda i, k: jnp.zeros(CLIENTS, jnp.int32).at[i].add(3),
    "row of eye": lambda i, k: jnp.eye(CLIENTS)[i],
    "row of eye by a constant": lambda i, k: jnp.eye(CLIENTS)[k],
    "column of eye": lambda i, k: jnp.eye(CLIENTS)[:, i],
    "one-hot": lambda i, k: jax.nn.one_hot(i, CLIENTS),
    "one-hot and its square": lambda i, k: jax.nn.one_hot(k, CLIENTS) ** 2,
    "product of one-hots": lambda i, k: jax.nn.one_hot(i, CLIENTS) @ jnp.eye(CLIENTS),
    "dynamic update": lambda i, k: jax.lax.dynamic_update_slice(jnp.zeros(CLIENTS), jnp.ones(1), (i,)),
    "dynamic slice": lambda i, k: jax.lax.dynamic_slice(jnp.eye(CLIENTS), (i, 0), (1, CLIENTS))[0],
    "sorted": lambda i, k: jnp.sort(jnp.zeros(CLIENTS).at[i].set(1.0)),
    "by rank": lambda i, k: jnp.argsort(jnp.arange(CLIENTS)[::-1]) == k,
    "taken": lambda i, k: jnp.take(jnp.eye(CLIENTS), i, axis=0),
    "taken along": lambda i, k: jnp.take_along_axis(jnp.eye(CLIENTS), jnp.full((CLIENTS, 1), k), axis=1)[:, 0],
    "where of where": lambda i, k: jnp.where(jnp.arange(CLIENTS) > k, 0, jnp.where(jnp.arange(CLIENTS) < k, 0, 1)),
    "reversed": lambda i, k: jnp.zeros(CLIENTS).at[i].set(1.0)[::-1],
    "permuted": lambda i, k: (jnp.arange(CLIENTS) == i)[jnp.array([2, 0, 3, 1])],
    "rolled": lambda i, k: jnp.roll(jnp.eye(CLIENTS)[0], k),
    "difference": lambda i, k: (jnp.arange(CLIENTS) >= k).astype("float32") - (jnp.arange(CLIENTS) > k),
    "distance": lambda i, k: jnp.maximum(0, 1 - abs(jnp.arange(CLIENTS) - i)),
    "product": lambda i, k: (jnp.arange(CLIENTS) >= k) * (jnp.arange(CLIENTS) <= k),
    "complement": lambda i, k: 1 - jnp.ones(CLIENTS).at[i].set(0.0),
    "first": lambda i, k: jnp.cumsum(jnp.ones(CLIENTS)) == 1,
    # Several clients.
    "at least": lambda i, k: jnp.arange(CLIENTS) >= 2,
    "others": lambda i, k: 1 - jnp.eye(CLIENTS)[i],
    "weights": lambda i, k: jnp.arange(1.0, CLIENTS + 1),
    "sorted weights": lambda i, k: jnp.sort(jnp.array([3.0, 1.0, 2.0, 4.0])),
    "set two": lambda i, k: jnp.zeros(CLIENTS).at[jnp.array([0, 2])].set(1.0),
    "set and one more": lambda i, k: jnp.zeros(CLIENTS).at[i].set(1.0).at[(i + 1) % CLIENTS].set(1.0),
    "parity": lambda i, k: jnp.arange(CLIENTS) % 2,
    "all": lambda i, k: jnp.ones(CLIENTS),
}

# How a mask `m` keeps values `x` of all clients.
USES: dict[str, Callable[[Any, Any], Any]] = {
    "product": lambda x, m: wb.reduce_sum(x * m[:, None]),
    "product, mask first": lambda x, m: wb.reduce_sum(m[:, None] * x),
    "where": lambda x, m: wb.reduce_sum(jnp.where((m != 0)[:, None], x, 0.0)),
    "where not": lambda x, m: wb.reduce_sum(jnp.where((m == 0)[:, None], 0.0, x)),
    "inside": lambda x, m: wb.reduce_sum(wb.map_fn(lambda row, m: row * m, (x, m))),
    "where inside": lambda x, m: wb.reduce_sum(wb.map_fn(lambda row, m: jnp.where(m > 0, row, 0.0), (x, m))),
    "mean": lambda x, m: wb.reduce_mean(x * m[:, None]),
    "work after": lambda x, m: wb.reduce_sum(wb.map_fn(lambda row, m: -(row * m) / 2, (x, m))),
    "work before": lambda x, m: wb.reduce_sum(wb.map_fn(lambda row, m: jnp.tanh(row) * m, (x, m))),
    "sum of the row": lambda x, m: wb.reduce_sum(wb.map_fn(lambda row, m: row.sum() * m, (x, m))),
    "sorted row": lambda x, m: wb.reduce_sum(wb.map_fn(lambda row, m: jnp.sort(row) * m, (x, m))),
    "one number of the row": lambda x, m: wb.reduce_sum(wb.map_fn(lambda row, m: row[1] * m, (x, m))),
    "compiled": lambda x, m: wb.reduce_sum(jax.jit(lambda x, m: x * m[:, None])(x, m)),
    "two sums": lambda x, m: (
        wb.reduce_sum(y := wb.map_fn(jnp.tanh, x)),
        wb.reduce_sum(wb.map_fn(lambda row, m: row * m, (y, m))),
    ),
    # The server reads rows.
    "sum at the server": lambda x, m: jnp.sum(wb.map_fn(jnp.tanh, x) * m[:, None], axis=0),
    "product at the server": lambda x, m: m.astype("float32") @ wb.map_fn(jnp.tanh, x),
    "gathered by the server": lambda x, m: wb.map_fn(jnp.tanh, x)[jnp.argmax(m)],
    "sorted at the server": lambda x, m: jnp.sort(wb.map_fn(jnp.tanh, x) * m[:, None], axis=0)[0],
}


class Marked(NamedTuple):
    """A value, and of each element the clients on whose data it depends: bool `[clients, *shape]`."""

    value: Any
    marks: np.ndarray


def unmarked(value: Any) -> Marked:
    """A value that depends on no client."""
    return Marked(value, np.zeros((CLIENTS, *np.shape(value)), bool))


class Interpreter:
    """Evaluates a program with marks; `sums` are the marks of each reduction's result, in order."""

    def __init__(self) -> None:
        self.sums: list[set[int]] = []

    def run(self, closed: ClosedJaxpr, args: Sequence[Marked]) -> list[Marked]:
        """Evaluates the equations one by one."""
        jaxpr = closed.jaxpr
        values: dict[Any, Marked] = dict(zip(jaxpr.constvars, map(unmarked, closed.consts), strict=True))
        values |= dict(zip(jaxpr.invars, args, strict=True))
        read = lambda v: unmarked(v.val) if isinstance(v, Literal) else values[v]  # noqa: E731
        for equation in jaxpr.eqns:
            values |= dict(zip(equation.outvars, self.equation(equation, [*map(read, equation.invars)]), strict=True))
        return [read(v) for v in jaxpr.outvars]

    def equation(self, equation: JaxprEqn, args: list[Marked]) -> list[Marked]:
        """The results of one equation, by the rule of its primitive."""
        name, params = equation.primitive.name, equation.params
        if equation.primitive is map_p:
            rows = [self.run(params["jaxpr"], [_row(x, c) for x in args]) for c in range(CLIENTS)]
            stacked = [(np.stack([x.value for x in each]), [x.marks for x in each]) for each in zip(*rows, strict=True)]
            return [Marked(value, np.stack(marks, axis=1)) for value, marks in stacked]
        inner = params.get("jaxpr", params.get("call_jaxpr"))
        if inner is not None and name in ("jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"):
            return self.run(inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ()), args)
        values = [np.asarray(x) for x in bind_equation(equation, [jnp.asarray(x.value) for x in args])]
        if equation.primitive in REDUCTIONS:
            marks = np.asarray(args[0].marks.any(1))
            self.sums.append({c for c in range(CLIENTS) if marks[c].any()})
            return [Marked(values[0], marks)]
        if equation.primitive is broadcast_p:
            return [Marked(values[0], np.broadcast_to(args[0].marks[:, None], (CLIENTS, *values[0].shape)))]
        return [*map(Marked, values, _marks(equation, args, values))]


def _row(x: Marked, client: int) -> Marked:
    return Marked(np.asarray(x.value)[client], x.marks[:, client])


# Operations that are linear in their first operand, or only move its elements: a mark goes where a number 1 goes.
_MOVING = frozenset(
    "broadcast_in_dim reshape transpose squeeze expand_dims slice rev concatenate pad dynamic_slice copy copy_p "
    "dynamic_update_slice gather scatter scatter-add reduce_sum cumsum convert_element_type reshard".split()
)
_INDICES = {"gather": (1,), "scatter": (1,), "scatter-add": (1,)}


def _marks(equation: JaxprEqn, args: list[Marked], values: list[np.ndarray]) -> list[np.ndarray]:
    name = equation.primitive.name
    shapes = [(CLIENTS, *value.shape) for value in values]
    everything = np.zeros(CLIENTS, bool) if not args else np.any([x.marks.reshape(CLIENTS, -1).any(1) for x in args], 0)
    everywhere = [np.broadcast_to(everything.reshape(-1, *[1] * (len(s) - 1)), s) for s in shapes]
    if not everything.any():
        return everywhere
    if name in ("mul", "and"):
        x, y = args
        ndim = values[0].ndim
        kept = [_aligned(x, ndim) & _not_certainly_zero(y), _aligned(y, ndim) & _not_certainly_zero(x)]
        return [np.broadcast_to(kept[0] | kept[1], shapes[0])]
    if name == "select_n":
        which, *cases = args
        chosen = np.asarray(which.value).astype(int)
        picked = np.stack([np.broadcast_to(_aligned(case, values[0].ndim), shapes[0]) for case in cases])
        index = np.broadcast_to(chosen, values[0].shape)[None, None]
        return [
            np.take_along_axis(picked, np.broadcast_to(index, (1, *shapes[0])), 0)[0] | _aligned(which, values[0].ndim)
        ]
    if name == "dot_general":
        x, y = args
        weigh = lambda a, b: np.asarray(bind_equation(equation, [jnp.asarray(a), jnp.asarray(b)])[0]) != 0  # noqa: E731
        of = lambda v: np.abs(np.asarray(v.value, np.float32)) + v.marks.any(0)  # noqa: E731
        planes = [weigh(x.marks[c].astype("f4"), of(y)) | weigh(of(x), y.marks[c].astype("f4")) for c in range(CLIENTS)]
        return [np.stack(planes)]
    if name == "sort":
        keys = args[: equation.params["num_keys"]]
        axis = equation.params["dimension"]
        if any(key.marks.any() for key in keys):
            along = np.any([x.marks.any(axis + 1, keepdims=True) for x in args], 0)
            return [np.broadcast_to(along, shape) for shape in shapes]
    if name in _MOVING:
        indices = _INDICES.get(name, range(1, len(args)) if name == "dynamic_slice" else ())
        indices = range(2, len(args)) if name == "dynamic_update_slice" else indices
        if not any(args[n].marks.any() for n in indices):
            planes = []
            for c in range(CLIENTS):
                ones = [jnp.asarray(x.value if n in indices else _plane(x, c)) for n, x in enumerate(args)]
                planes.append(np.asarray(bind_equation(equation, ones)[0]) != 0)
            return [np.stack(planes)]
        return everywhere
    if all(np.shape(x.value) in ((), values[0].shape) for x in args):  # elementwise
        return [np.any([np.broadcast_to(_aligned(x, values[0].ndim), shapes[0]) for x in args], 0) for _ in values]
    return everywhere


def _aligned(x: Marked, ndim: int) -> np.ndarray:
    return x.marks.reshape(CLIENTS, *([1] * (ndim - (x.marks.ndim - 1))), *x.marks.shape[1:])


def _plane(x: Marked, client: int) -> np.ndarray:
    return x.marks[client].astype(np.asarray(x.value).dtype)


def _not_certainly_zero(x: Marked) -> np.ndarray:
    """Elements that are not zero whatever the clients' data are."""
    return (np.asarray(x.value) != 0) | x.marks.any(0)


def drawn_programs(count: int, seed: int) -> list[tuple[str, str, int]]:
    """Masks, uses and constants: pairs in an order drawn by chance, each once before one comes again."""
    generator = np.random.default_rng(seed)
    pairs = [(mask, use) for mask in MASKS for use in USES]
    chosen = [n for _ in range(-(-count // len(pairs))) for n in generator.permutation(len(pairs))][:count]
    return [(*pairs[n], int(generator.integers(CLIENTS))) for n in chosen]


def mistake(mask: str, use: str, k: int) -> str:
    """What the plan of one program says wrong; "" where it is right."""

    def reduced(x: Any, i: Any) -> Any:
        return USES[use](x, MASKS[mask](i, k))

    program = wb.program(clients=CLIENTS)(reduced)
    x = np.random.default_rng(1).uniform(0.5, 1.5, (CLIENTS, FEATURES)).astype(np.float32)
    own = np.broadcast_to(np.eye(CLIENTS, dtype=bool)[:, :, None], (CLIENTS, CLIENTS, FEATURES))
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        disclosed = wb.trace(program)(x, jnp.int32(1)).plan.disclosed
        closed = jax.make_jaxpr(program)(x, jnp.int32(1))
        runs = []
        for i in range(CLIENTS):
            interpreter = Interpreter()
            interpreter.run(closed, [Marked(x, own), unmarked(np.int32(i))])
            runs.append(interpreter.sums)
    found = [each.single_client for each in disclosed if each.kind == "partial result"]
    rows = [each for each in disclosed if each.kind == "row"]
    due = [_due([run[n] for run in runs]) for n in range(len(runs[0]))]
    if "server" in use:
        return "" if rows and not found else f"rows {rows} and sums {found}, and the server reads rows"
    if rows or len(found) != len(due) or any(a not in b for a, b in zip(found, due, strict=True)):
        return f"said {found} and rows {rows}, and the sums depend on {runs}"
    return ""


def _due(clients: list[set[int]]) -> tuple[str, ...]:
    """What may be said of a sum that depends on these clients, for each number of the caller."""
    if max(map(len, clients)) > 1:
        return ("",)
    if all(each == clients[0] for each in clients):
        return (f"client {next(iter(clients[0]))}", "one client")
    return ("one client",)


def main() -> int:
    """The number of programs whose plan is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    wrong = []
    for mask, use, k in drawn_programs(given.programs, given.seed):
        if text := mistake(mask, use, k):
            wrong.append(f"{mask}, {use}, k = {k}: {text}")
    print(f"{given.programs} programs, {given.programs - len(wrong)} right, {len(wrong)} wrong")
    print("\n".join(wrong))
    return min(len(wrong), 100)


if __name__ == "__main__":
    sys.exit(main())
