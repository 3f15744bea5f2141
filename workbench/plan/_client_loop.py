"""One pass over the clients: in chunks on every device, with running reductions; memory does not grow with them."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal, Var, jaxpr_as_fun
from jax.sharding import NamedSharding, PartitionSpec as P

from workbench import _jax_compat
from workbench.mesh import Layout
from workbench.plan._inline import uses_primitives
from workbench.plan._phases import Phase
from workbench.plan._plan import Step
from workbench.plan._rebase import rebase, sharding_here
from workbench.plan._reductions import REDUCTION_OF


@dataclasses.dataclass(frozen=True)
class PassOptions:
    """How a pass is made: `scope_of` names a step's stage, `inner` runs a client's own program, `bind` an equation."""

    chunk_size: Callable[[Phase, int], int]
    scope_of: Callable[[Step], str]
    inner: Callable[[Step, Sequence[Any]], list[Any]]
    bind: Callable[[Any, Sequence[Any]], list[Any]]


def run_pass(phase: Phase, rows: Sequence[Any], shared: Sequence[Any], options: PassOptions) -> dict[Var, Any]:
    """Runs a phase; returns the rows that are kept and the results of its reductions, by variable."""
    if not phase.divisible and not phase.one_per_device:
        return _run_whole(phase, rows, shared, options)
    clients, layout = phase.placement.size, phase.layout
    shares = 1 if layout is None else layout.size
    per_share = math.ceil(clients / shares)
    chunk_size = max(1, min(options.chunk_size(phase, per_share), per_share))
    chunk_size = _even(per_share, chunk_size)
    per_share = math.ceil(per_share / chunk_size) * chunk_size
    scope = options.scope_of(next((step for step in phase.steps if step.kind == "clients"), phase.steps[0]))
    share = _Share(phase, chunk_size, per_share, clients if shares * per_share != clients else None, options)
    with jax.named_scope(scope):
        padded = [_pad(x, shares * per_share, layout) for x in rows]
    alone = layout is None or (layout.size == 1 and not layout.explicit and phase.divisible)
    if alone:
        with jax.named_scope(scope):
            kept, totals = share.run(padded, shared, None)
    else:
        assert layout is not None
        kept, totals = _spread_over(layout, share, padded, shared, scope)
    with jax.named_scope(scope):
        results = {v: _unpad(x, clients, layout) for v, x in zip(phase.kept, kept, strict=True)}
    for step, total in zip(phase.reductions, totals, strict=True):
        with jax.named_scope(options.scope_of(step)), _jax_compat.source_of(step.equation, mesh=False):
            results[step.equation.outvars[0]] = REDUCTION_OF[step.equation.primitive].finish(step.equation, total)
    return results


def _even(per_share: int, chunk_size: int) -> int:
    """The largest divisor of the share from half of what was asked for on, so that nothing is padded; else that."""
    return next((k for k in range(chunk_size, (chunk_size + 1) // 2 - 1, -1) if k and per_share % k == 0), chunk_size)


@dataclasses.dataclass(frozen=True)
class _Share:
    """The clients of one device (or all of them): `per_share` seats, `chunk_size` of them computed together."""

    phase: Phase
    chunk_size: int
    per_share: int
    clients: int | None  # set when some seats are padding
    options: PassOptions

    def run(self, rows: Sequence[Any], shared: Sequence[Any], share_index: Any) -> tuple[list[Any], list[Any]]:
        """Kept rows and totals of this share; totals are merged over `axes` by the caller."""
        chunks, one = self.per_share // self.chunk_size, self.chunk_size == 1
        starts = tuple(_start(step.equation) for step in self.phase.reductions)
        first_seat = None
        if self.clients is not None:
            first_seat = 0 if share_index is None else share_index.astype(jnp.int32) * self.per_share
        if chunks == 1:
            totals, kept = self._chunk(
                starts, [jax.lax.squeeze(x, (0,)) for x in rows] if one else rows, shared, first_seat
            )
            return [jax.lax.expand_dims(x, (0,)) for x in kept] if one else kept, list(totals)

        def turn(totals: Any, chunk: Any) -> Any:
            index, chunk_rows = chunk
            return self._chunk(
                totals, chunk_rows, shared, None if index is None else first_seat + index * self.chunk_size
            )

        # A single row needs no axis of its own: with one, XLA's CPU copies all rows into another layout (JAX 0.10).
        stacked = rows if one else [x.reshape(chunks, self.chunk_size, *x.shape[1:]) for x in rows]
        numbers = None if self.clients is None else jnp.arange(chunks, dtype=jnp.int32)
        totals, kept = jax.lax.scan(turn, starts, (numbers, list(stacked)), length=chunks)
        return kept if one else [x.reshape(self.per_share, *x.shape[2:]) for x in kept], list(totals)

    def _chunk(self, totals: Any, rows: Sequence[Any], shared: Sequence[Any], first_seat: Any) -> tuple[Any, list[Any]]:
        """Adds the rows of `chunk_size` clients to the totals; those of a single one are without an axis of clients."""
        one, mask = self.chunk_size == 1, None
        if self.clients is not None:
            seats = first_seat if one else first_seat + jnp.arange(self.chunk_size, dtype=jnp.int32)
            mask = seats < self.clients
        values: dict[Var, tuple[Any, bool]] = {v: (x, False) for v, x in zip(self.phase.shared, shared, strict=True)}
        values.update((v, (x, not one)) for v, x in zip(self.phase.rows, rows, strict=True))
        added = list(totals)
        position = 0
        for step in self.phase.steps:
            with jax.named_scope(self.options.scope_of(step)):
                if step.kind == "clients":
                    operands = [
                        _read(values, atom)
                        for atom in step.equation.invars
                        if not (step.glue and isinstance(atom, Literal))
                    ]
                    made = zip(step.outputs, self._client(step, operands), strict=True)
                    values.update((v, y) for v, y in made if v not in values)
                else:
                    operands = [self._as_rows(*_read(values, atom)) for atom in step.equation.invars]
                    reduction = REDUCTION_OF[step.equation.primitive]
                    add = reduction.add_one if one else reduction.add
                    with _jax_compat.source_of(step.equation, mesh=False):
                        added[position] = add(step.equation, added[position], operands, mask)
                    position += 1
        return tuple(added), [self._as_rows(*values[v]) for v in self.phase.kept]

    def _client(self, step: Step, operands: Sequence[tuple[Any, bool]]) -> list[tuple[Any, bool]]:
        assert step.jaxpr is not None
        call = functools.partial(_call_client, step, self.options.inner)
        batched = [is_batched for _, is_batched in operands]
        if not any(batched) and (self.chunk_size == 1 or not step.jaxpr.effects):
            return [(y, False) for y in call(*(x for x, _ in operands))]
        axes = tuple(0 if is_batched else None for is_batched in batched)
        ys = jax.vmap(call, in_axes=axes, axis_size=self.chunk_size)(*(x for x, _ in operands))
        return [(y, True) for y in ys]

    def _as_rows(self, x: Any, batched: bool) -> Any:
        return x if batched or self.chunk_size == 1 else jnp.broadcast_to(x[None], (self.chunk_size, *x.shape))


def _start(equation: Any) -> Any:
    """An empty accumulator, explicitly sharded as the result will be: a loop keeps the types of what it carries."""
    start = REDUCTION_OF[equation.primitive].start(equation)
    sharding = sharding_here(equation.outvars[0].aval.sharding)
    if sharding.mesh.empty or not any(sharding.spec):
        return start
    return jax.sharding.reshard(start, sharding)


def _read(values: dict[Var, tuple[Any, bool]], atom: Any) -> tuple[Any, bool]:
    return (atom.val, False) if isinstance(atom, Literal) else values[atom]


def _call_client(step: Step, inner: Callable, *operands: Any) -> list[Any]:
    assert step.jaxpr is not None
    if any(uses_primitives(equation) for equation in step.jaxpr.eqns):
        return inner(step, operands)
    jaxpr = rebase(step.jaxpr) if _jax_compat.has_manual_axes() else step.jaxpr
    return jaxpr_as_fun(jaxpr)(*operands)


def _spread_over(
    layout: Layout, share: _Share, rows: Sequence[Any], shared: Sequence[Any], scope: str
) -> tuple[list[Any], list[Any]]:
    """Every mesh position along the layout takes its share; totals are merged by one collective per reduction."""

    def per_device(rows: Any, shared: Any) -> Any:
        with jax.named_scope(scope):
            index = None if share.clients is None else jax.lax.axis_index(layout.axes)
            kept, totals = share.run(rows, shared, index)
        merged = []
        for step, total in zip(share.phase.reductions, totals, strict=True):
            with jax.named_scope(share.options.scope_of(step)), _jax_compat.source_of(step.equation, mesh=False):
                merged.append(REDUCTION_OF[step.equation.primitive].across(total, layout.axes))
        return kept, merged

    spread = jax.shard_map(
        per_device,
        mesh=layout.mesh if jax.sharding.get_abstract_mesh().empty else None,
        in_specs=(P(layout.entry), P()),
        out_specs=(P(layout.entry), P()),
        axis_names=set(layout.axes),
        check_vma=False,
    )
    return spread(list(rows), list(shared))


def _pad(x: Any, seats: int, layout: Layout | None) -> Any:
    """Fills empty seats with copies of the first clients, whose results are masked: zeros could make NaNs."""
    if seats != x.shape[0]:
        if layout is not None and layout.explicit:
            x = _replicate_leading(x, layout)
        x = jnp.take(x, jnp.arange(seats) % x.shape[0], axis=0, mode="clip")
    if layout is not None and layout.explicit:
        spec = tuple(jax.typeof(x).sharding.spec)[1:]
        return jax.sharding.reshard(x, NamedSharding(layout.mesh, P(layout.entry, *spec)))
    return x


def _unpad(x: Any, clients: int, layout: Layout | None) -> Any:
    if x.shape[0] == clients:
        return x
    if layout is not None and layout.explicit:
        x = _replicate_leading(x, layout)
    return x[:clients]


def _replicate_leading(x: Any, layout: Layout) -> Any:
    spec = tuple(jax.typeof(x).sharding.spec)[1:]
    return jax.sharding.reshard(x, NamedSharding(layout.mesh, P(None, *spec)))


def _run_whole(phase: Phase, rows: Sequence[Any], shared: Sequence[Any], options: PassOptions) -> dict[Var, Any]:
    """Clients that talk to each other inside their function (named-axis collectives) are computed all together."""
    values: dict[Var, Any] = dict(zip(phase.rows, rows, strict=True))
    for v, x in zip(phase.shared, shared, strict=True):
        values[v] = jnp.broadcast_to(x[None], (phase.placement.size, *x.shape))
    for step in phase.steps:
        operands = [atom.val if isinstance(atom, Literal) else values[atom] for atom in step.equation.invars]
        with jax.named_scope(options.scope_of(step)):
            values.update(zip(step.outputs, options.bind(step.equation, operands), strict=True))
    wanted = [*phase.kept, *(step.equation.outvars[0] for step in phase.reductions)]
    return {v: values[v] for v in wanted}
