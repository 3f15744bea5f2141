"""Exportable functions that compute a batch of clients; the batch size is fixed, and all values are plain arrays."""

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Sequence
from typing import Any, overload

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal, Var

from workbench import _jax_compat
from workbench._types import AnyArray, Atom, Aval, type_of
from workbench.engines._artifact import pack
from workbench.errors import EngineError
from workbench.plan import REDUCTION_OF, ClientLoop, Phase, Plan, Step, evaluate, plan_jaxpr


class BatchFunction(ClientLoop):
    """`(batch index, *rows, *shared) -> (*kept rows, *partial results)` for `size` clients; all are plain arrays.

    Partial results are the accumulators of the phase's reductions; batches send them instead of all clients' rows.
    """

    def __init__(self, plan: Plan, phase: Phase, path: str, size: int) -> None:
        self.plan, self.phase, self.path, self.size = plan, phase, path, size
        self.travelling: tuple[str, bytes] | None = None
        self.streamed: object = None  # compiled function of an engine that streams its clients
        clients = phase.placement.size
        self._shard = self.shard(phase, size, size, None if clients % size == 0 else clients)
        self.row_avals = [jax.ShapeDtypeStruct((size, *type_of(v).shape[1:]), type_of(v).dtype) for v in phase.rows]
        self.shared_avals = [_plain(atom.aval) for atom in phase.shared.values()]
        self._typed = [dtype_of(v) for v in (*phase.rows, *phase.shared.values())]
        self.in_avals = [jax.ShapeDtypeStruct((), jnp.int32), *map(edge_aval, [*self.row_avals, *self.shared_avals])]

    @property
    def name(self) -> str:
        return self.plan.stages[leading(self.phase).stage].name

    def __call__(self, index: jax.Array | None, *operands: jax.Array) -> list[jax.Array]:
        values = [from_edge(x, dtype) for x, dtype in zip(operands, self._typed, strict=True)]
        count = len(self.phase.rows)
        rows, totals = self._shard.run(values[:count], values[count:], index)
        return [*map(to_edge, rows), *totals]

    @functools.cached_property
    def compiled(self) -> jax.stages.Compiled:
        return jax.jit(self.__call__).lower(*self.in_avals).compile()

    def exported(self, platforms: Sequence[str] | None) -> tuple[str, bytes]:
        return exported_stage(self.__call__, self.in_avals, self.name, self.stage, platforms)

    @property
    def stage(self) -> str:
        """The path of the first client stage."""
        return f"{self.path}{leading(self.phase).stage}"

    @property
    def out_names(self) -> list[str]:
        reductions = [f"the partial result of `{step.equation.primitive.name}`" for step in self.phase.reductions]
        return [*(f"output {i} of `{self.name}`" for i in range(len(self.phase.kept))), *reductions]

    def chunk_size_of(self, phase: Phase, per_shard: int) -> int:
        """The batch size, because all clients of a batch form one chunk."""
        return self.size

    def scope_of(self, step: Step) -> str:
        """The scope of a step, in the plan to which this batch belongs."""
        return self.plan.scope_of(step, self.path)

    def run_client_program(self, step: Step, operands: Sequence[jax.Array]) -> list[jax.Array]:
        """Runs a program nested in a client function, according to the program's plan."""
        assert step.jaxpr is not None
        inner = plan_jaxpr(step.jaxpr, self.plan.stages[step.stage].name)
        return evaluate(inner, operands, path=f"{self.path}{step.stage}.")


class WholeFunction(BatchFunction):
    """Function of a phase whose clients communicate with each other; it computes all clients together."""

    def __init__(self, plan: Plan, phase: Phase, path: str) -> None:
        super().__init__(plan, phase, path, phase.placement.size)

    def __call__(self, index: jax.Array | None, *operands: jax.Array) -> list[jax.Array]:
        values = [from_edge(x, dtype) for x, dtype in zip(operands, self._typed, strict=True)]
        count, reductions = len(self.phase.rows), [step.equation for step in self.phase.reductions]
        # The server finishes reductions, so this function returns their accumulators, like any other batch.
        reduced = [v for equation in reductions for v in equation.invars if isinstance(v, Var)]
        steps = tuple(step for step in self.phase.steps if step.kind != "reduce")
        phase = dataclasses.replace(self.phase, steps=steps, kept=(*self.phase.kept, *reduced))
        rows = self.run_phase(phase, values[:count], values[count:])
        totals = [
            REDUCTION_OF[e.primitive].add(
                e,
                REDUCTION_OF[e.primitive].start(e),
                [v.val if isinstance(v, Literal) else rows[v] for v in e.invars],
                None,
            )
            for e in reductions
        ]
        return [*(to_edge(rows[v]) for v in self.phase.kept), *totals]


def exported_stage(
    function: Callable[..., Sequence[jax.Array]],
    avals: Sequence[jax.ShapeDtypeStruct],
    name: str,
    stage: str,
    platforms: Sequence[str] | None = None,
) -> tuple[str, bytes]:
    try:
        module = jax.export.export(jax.jit(function), platforms=platforms)(*avals)
        data = pack(module, name=name)
    except Exception as error:
        message = (
            f"stage {stage} (`{name}`) could not be exported for other processes: jax.export raised "
            f"{type(error).__name__}: {error}. Stages are sent as StableHLO, which contains no Python, so stages "
            "cannot have callbacks: remove `jax.debug.print`, `jax.pure_callback` and `io_callback` from the client "
            "function, or run it with `workbench.engines.Sequential()` or on threads."
        )
        raise EngineError(message, stage=stage) from error
    return hashlib.sha256(data).hexdigest(), data


def leading(phase: Phase) -> Step:
    """The step that a pass is named after: the user's first client function, if there is one."""
    steps = [step for step in phase.steps if step.kind == "clients" and not step.glue]
    return next(iter(steps), next((step for step in phase.steps if step.kind == "clients"), phase.steps[0]))


class Totals:
    """The server's side of reductions: compiled functions that merge and finish partial results."""

    def __init__(self, phase: Phase) -> None:
        equations = [step.equation for step in phase.reductions]
        reductions = [REDUCTION_OF[equation.primitive] for equation in equations]
        self._starts = [functools.partial(r.start, e) for r, e in zip(reductions, equations, strict=True)]
        self.merge = jax.jit(lambda a, b: [r.merge(x, y) for r, x, y in zip(reductions, a, b, strict=True)])
        self.finish = jax.jit(
            lambda totals: [r.finish(e, total) for r, e, total in zip(reductions, equations, totals, strict=True)]
        )

    @functools.cached_property
    def partial_avals(self) -> list[jax.ShapeDtypeStruct]:
        return [_plain(aval) for aval in map(jax.eval_shape, self._starts)]


def _plain(aval: Aval) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


# numpy cannot represent the dtype of PRNG keys, so inputs and outputs use their integer data instead.
def edge_aval(aval: Aval) -> jax.ShapeDtypeStruct:
    """The type that a value has outside the function."""
    return _plain(jax.eval_shape(jax.random.key_data, aval) if is_key(aval.dtype) else aval)


def at_edges(fn: Callable[[list[Any]], Sequence[Any]], inputs: Sequence[Atom]) -> Callable[..., list[Any]]:
    """Wraps a function of a list so that it takes plain arrays, with PRNG keys as integers."""
    return lambda *values: [to_edge(y) for y in fn([*map(from_edge, values, map(dtype_of, inputs))])]


def to_edge(x: jax.Array) -> jax.Array:
    return jax.random.key_data(x) if is_key(x.dtype) else x


@overload
def from_edge(x: jax.Array, dtype: np.dtype) -> jax.Array: ...
@overload
def from_edge(x: np.ndarray, dtype: np.dtype) -> AnyArray: ...
def from_edge(x: AnyArray, dtype: np.dtype) -> AnyArray:
    if is_key(dtype):
        return jax.random.wrap_key_data(jnp.asarray(x), impl=_jax_compat.key_implementation(dtype))
    return x


def to_host(x: object) -> np.ndarray:
    return np.asarray(to_edge(x) if isinstance(x, jax.Array) else x)


def dtype_of(v: Atom) -> np.dtype:
    return type_of(v).dtype


def is_key(dtype: np.dtype) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)
