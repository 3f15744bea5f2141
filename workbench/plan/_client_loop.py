"""The loop over the clients in a phase: chunks per device, running reductions, constant memory."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Literal, Var, jaxpr_as_fun
from jax.sharding import NamedSharding, PartitionSpec as P
from jax.typing import DTypeLike

from workbench import _jax_compat
from workbench._types import Atom, Aval, AxisNames, type_of
from workbench.mesh import chunk_shard
from workbench.plan._callbacks import call_present
from workbench.plan._chunk_size import ChunkSize, resolve_chunk_size
from workbench.plan._differs import Differs
from workbench.plan._inline import uses_primitives
from workbench.plan._loop_form import LoopForm
from workbench.plan._phases import Phase
from workbench.plan._plan import Step
from workbench.plan._reductions import REDUCTION_OF
from workbench.plan._spread import choose_spread, manual_axes, other_axes
from workbench.primitives import Layout, bind_here, calls_back, rebase, sharding_here


class ClientLoop:
    """Runs the phases of a plan; subclasses name the stages."""

    form: LoopForm = LoopForm()
    chunk_size: ChunkSize = None

    def chunk_size_of(self, phase: Phase, per_shard: int) -> int:
        """Number of clients computed together on a device that has `per_shard` clients."""
        return resolve_chunk_size(self.chunk_size, phase, per_shard)

    def scope_of(self, step: Step) -> str:
        """The name scope for a step's stage."""
        raise NotImplementedError

    def run_client_program(self, step: Step, operands: Sequence[Any]) -> list[Any]:
        """The outputs of a client function that is itself a program."""
        raise NotImplementedError

    def shard(self, phase: Phase, chunk_size: int, per_shard: int, clients: int | None = None) -> "ClientShard":
        """The clients on one device; if some slots are padding, `clients` is the number of clients on all devices."""
        return ClientShard(phase, chunk_size, per_shard, clients, self)

    def run_phase(self, phase: Phase, rows: Sequence[jax.Array], shared: Sequence[jax.Array]) -> dict[Var, jax.Array]:
        """Runs a phase; returns the rows kept for later steps and the reductions' results, by variable."""
        layout = phase.layout
        way = choose_spread(phase, self.form.spread)
        if not phase.divisible and not (phase.one_per_device and way == "shard_map"):
            return _run_whole(phase, rows, shared, self)
        clients = phase.placement.size
        shards = 1 if layout is None else layout.size
        per_shard = math.ceil(clients / shards)
        chunk_size, per_shard = chunk_shard(per_shard, self.chunk_size_of(phase, per_shard))
        scope = self.scope_of(next((step for step in phase.steps if step.kind == "clients"), phase.steps[0]))
        shard = self.shard(phase, chunk_size, per_shard, clients if shards * per_shard != clients else None)
        with jax.named_scope(scope):
            padded = [_pad(x, shards * per_shard, layout) for x in rows]
        alone = layout is None or (layout.size == 1 and not layout.explicit and phase.divisible)
        if alone:
            with jax.named_scope(scope):
                row_outputs, totals = shard.run(padded, shared, None)
        else:
            assert layout is not None
            over = _spread_by_shard_map if way == "shard_map" else _spread_by_vmap
            row_outputs, totals = over(layout, shard, padded, shared, scope)
        with jax.named_scope(scope):
            results = {v: _unpad(x, clients, layout) for v, x in zip(phase.kept, row_outputs, strict=True)}
        for step, total in zip(phase.reductions, totals, strict=True):
            with jax.named_scope(self.scope_of(step)), _jax_compat.source_of(step.equation, mesh=False):
                results[step.equation.outvars[0]] = REDUCTION_OF[step.equation.primitive].finish(step.equation, total)
        return results

    def run_batch(
        self, phase: Phase, rows: Sequence[jax.Array], shared: Sequence[jax.Array], *, number: jax.Array, size: int
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """Runs one batch of a divisible phase, batch `number`; its `size` clients fill all devices evenly.

        Returns this batch's kept rows and totals, merged over the mesh but not finished.
        """
        layout, clients = phase.layout, phase.placement.size
        shards = 1 if layout is None else layout.size
        assert size % shards == 0, (size, shards)
        per_shard = size // shards
        chunk_size = math.gcd(per_shard, self.chunk_size_of(phase, per_shard))
        shard = self.shard(phase, chunk_size, per_shard, None if clients % size == 0 else clients)
        if layout is None:
            return shard.run(rows, shared, number)
        over = _spread_by_shard_map if choose_spread(phase, self.form.spread) == "shard_map" else _spread_by_vmap
        scope = self.scope_of(next((step for step in phase.steps if step.kind == "clients"), phase.steps[0]))
        return over(layout, shard, rows, shared, scope, number * shards)


@dataclasses.dataclass(frozen=True)
class ClientShard:
    """The clients on one device (or all clients): `per_shard` slots in chunks of `chunk_size`."""

    phase: Phase
    chunk_size: int
    per_shard: int
    clients: int | None  # set when some slots are padding
    loop: ClientLoop
    hidden: tuple[str, ...] = ()  # axes of the traced mesh that types here do not mention

    def run(
        self, rows: Sequence[jax.Array], shared: Sequence[jax.Array], shard_index: jax.Array | None
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        """This shard's kept rows and totals; the caller merges the totals over the mesh."""
        chunks, is_single = self.per_shard // self.chunk_size, self.chunk_size == 1
        starts = tuple(_start(step.equation, self.hidden) for step in self.phase.reductions)
        first_slot: jax.Array | int = 0
        if self.clients is not None and shard_index is not None:
            first_slot = shard_index.astype(jnp.int32) * self.per_shard
        if chunks == 1:
            totals, row_outputs = self._chunk(
                starts, [jax.lax.squeeze(x, (0,)) for x in rows] if is_single else rows, shared, first_slot
            )
            return [jax.lax.expand_dims(x, (0,)) for x in row_outputs] if is_single else row_outputs, list(totals)

        def iteration(
            totals: tuple[jax.Array, ...], chunk: tuple[jax.Array | None, list[jax.Array]]
        ) -> tuple[tuple[jax.Array, ...], list[jax.Array]]:
            index, chunk_rows = chunk
            return self._chunk(
                totals, chunk_rows, shared, first_slot if index is None else first_slot + index * self.chunk_size
            )

        # A single row has no client axis, because with it, XLA's CPU compiler would copy all rows to another layout
        # (JAX 0.10).
        stacked = rows if is_single else [x.reshape(chunks, self.chunk_size, *x.shape[1:]) for x in rows]
        numbers = None if self.clients is None else jnp.arange(chunks, dtype=jnp.int32)
        unroll = min(self.loop.form.unroll, chunks)
        totals, row_outputs = jax.lax.scan(iteration, starts, (numbers, list(stacked)), length=chunks, unroll=unroll)
        return row_outputs if is_single else [x.reshape(self.per_shard, *x.shape[2:]) for x in row_outputs], list(
            totals
        )

    def _chunk(
        self,
        totals: Sequence[jax.Array],
        rows: Sequence[jax.Array],
        shared: Sequence[jax.Array],
        first_slot: jax.Array | int,
    ) -> tuple[tuple[jax.Array, ...], list[jax.Array]]:
        """Adds the rows of `chunk_size` clients to the totals; a single client's rows have no client axis."""
        is_single, mask = self.chunk_size == 1, None
        if self.clients is not None:
            slots = jnp.asarray(first_slot) if is_single else first_slot + jnp.arange(self.chunk_size, dtype=jnp.int32)
            mask = slots < self.clients
        values: dict[Var, tuple[jax.Array, bool]] = {
            v: (x, False) for v, x in zip(self.phase.shared, shared, strict=True)
        }
        values.update((v, (x, not is_single)) for v, x in zip(self.phase.rows, rows, strict=True))
        added = list(totals)
        position = 0
        for step in self.phase.steps:
            with jax.named_scope(self.loop.scope_of(step)):
                if step.kind == "clients":
                    operands = [
                        _read(values, atom)
                        for atom in step.equation.invars
                        if not (step.glue and isinstance(atom, Literal))
                    ]
                    outputs = zip(step.outputs, self._client(step, operands, mask), strict=True)
                    values.update((v, y) for v, y in outputs if v not in values)
                else:
                    operands = [self._as_rows(*_read(values, atom)) for atom in step.equation.invars]
                    reduction = REDUCTION_OF[step.equation.primitive]
                    add = reduction.add_one if is_single else reduction.add
                    with _jax_compat.source_of(step.equation, mesh=False):
                        added[position] = add(step.equation, added[position], operands, mask)
                    position += 1
        return tuple(added), [self._as_rows(*values[v]) for v in self.phase.kept]

    def _client(
        self, step: Step, operands: Sequence[tuple[jax.Array, bool]], mask: jax.Array | None
    ) -> list[tuple[jax.Array, bool]]:
        assert step.jaxpr is not None
        call, arguments = functools.partial(self._call, step, None), operands
        if mask is not None and calls_back(step.jaxpr):
            arguments = [(mask, self.chunk_size != 1), *operands]
            call = functools.partial(self._call, step)
        batched = [is_batched for _, is_batched in arguments]
        if not any(batched) and (self.chunk_size == 1 or not step.jaxpr.effects):
            return [(y, False) for y in call(*(x for x, _ in arguments))]
        axes = tuple(0 if is_batched else None for is_batched in batched)
        # Client-invariant values, such as shared weights for a second pass, are computed only once.
        differs = [True] * len(step.outputs) if step.jaxpr.effects else Differs().run(step.jaxpr, batched)
        out_axes = [0 if is_different else None for is_different in differs]
        ys = jax.vmap(call, in_axes=axes, out_axes=out_axes, axis_size=self.chunk_size)(*(x for x, _ in arguments))
        return list(zip(ys, differs, strict=True))

    def _call(self, step: Step, present: jax.Array | None, *operands: jax.Array) -> list[jax.Array]:
        """Runs one client; its callbacks run only if the client is `present`."""
        jaxpr = step.jaxpr
        assert jaxpr is not None
        if any(uses_primitives(equation) for equation in jaxpr.eqns):
            return self.loop.run_client_program(step, operands)
        if _jax_compat.has_manual_axes() or self.hidden:
            jaxpr = rebase(jaxpr, self.hidden)
        if present is not None:
            return call_present(jaxpr, present, operands)
        return jaxpr_as_fun(jaxpr)(*operands)

    def _as_rows(self, x: jax.Array, batched: bool) -> jax.Array:
        return x if batched or self.chunk_size == 1 else jax.lax.broadcast(jnp.asarray(x), (self.chunk_size,))


def _start(equation: JaxprEqn, hidden: Sequence[str]) -> jax.Array:
    """An empty accumulator with the result's explicit sharding, so that the loop's carry keeps its type."""
    start = REDUCTION_OF[equation.primitive].start(equation)
    sharding = sharding_here(type_of(equation.outvars[0]).sharding, hidden)
    if sharding.mesh.empty or not any(sharding.spec):
        return start
    return jax.sharding.reshard(start, sharding)


def _read(values: dict[Var, tuple[jax.Array, bool]], atom: Atom) -> tuple[jax.Array, bool]:
    return (atom.val, False) if isinstance(atom, Literal) else values[atom]


def _spread_by_shard_map(
    layout: Layout,
    shard: ClientShard,
    rows: Sequence[jax.Array],
    shared: Sequence[jax.Array],
    scope: str,
    *first: jax.Array,
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Runs each shard at its mesh position; totals are merged by one collective per reduction.

    `first` is the shard number of the first position; it is omitted if this number is 0.
    """

    def per_device(
        rows: Sequence[jax.Array], shared: Sequence[jax.Array], *first: jax.Array
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        with jax.named_scope(scope):
            index = None if shard.clients is None else sum(first, jax.lax.axis_index(layout.axes))
            row_outputs, totals = shard.run(rows, shared, index)
        return row_outputs, _merged(shard, totals, layout.axes)

    over = jax.shard_map(
        per_device,
        mesh=layout.mesh if jax.sharding.get_abstract_mesh().empty else None,
        in_specs=(P(layout.entry), P(), *(P() for _ in first)),
        out_specs=(P(layout.entry), P()),
        axis_names=manual_axes(shard.phase),
        check_vma=False,
    )
    return over(list(rows), list(shared), *first)


_SHARDS = "workbench shards"  # the name of the axis that `_spread_by_vmap` adds


def _spread_by_vmap(
    layout: Layout,
    shard: ClientShard,
    rows: Sequence[jax.Array],
    shared: Sequence[jax.Array],
    scope: str,
    *first: jax.Array,
) -> tuple[list[jax.Array], list[jax.Array]]:
    """Like `_spread_by_shard_map`, but the shards are rows of a `vmap`, and the compiler partitions all axes.

    Each iteration computes one chunk of every shard; each shard has a running total that stays on its devices.
    """
    size = layout.size
    hidden = layout.axes if layout.explicit else ()
    shard = dataclasses.replace(shard, hidden=hidden)

    def pinned(x: jax.Array) -> jax.Array:
        if not hasattr(x, "ndim") or layout.mesh.empty:
            return x
        open_spec = P(*(P.UNCONSTRAINED,) * x.ndim)
        mesh = layout.mesh if jax.sharding.get_abstract_mesh().empty else jax.sharding.get_abstract_mesh()
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, open_spec))

    def per_shard(
        index: jax.Array, rows: Sequence[jax.Array], shared: Sequence[jax.Array]
    ) -> tuple[list[jax.Array], list[jax.Array]]:
        with jax.named_scope(scope):
            row_outputs, totals = shard.run([pinned(x) for x in rows], shared, index)
            row_outputs, totals = [pinned(x) for x in row_outputs], [pinned(x) for x in totals]
        return row_outputs, _merged(shard, totals, _SHARDS)

    def everywhere(rows: Sequence[jax.Array], shared: Sequence[jax.Array]) -> tuple[list[jax.Array], list[jax.Array]]:
        apart = [x.reshape(size, x.shape[0] // size, *x.shape[1:]) for x in rows]
        index = sum(first, jnp.arange(size, dtype=jnp.int32))
        mapped = jax.vmap(
            per_shard,
            in_axes=(0, 0, None),
            out_axes=(0, None),
            axis_name=_SHARDS,
            axis_size=size,
            spmd_axis_name=layout.entry,
        )
        row_outputs, totals = mapped(index, apart, shared)
        return [x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]) for x in row_outputs], totals

    if not layout.explicit:
        return everywhere(list(rows), list(shared))
    kept_specs = [_explicit_spec(v.aval, layout, rows=True) for v in shard.phase.kept]
    total_specs = [_explicit_spec(step.equation.outvars[0].aval, layout, rows=False) for step in shard.phase.reductions]
    spread: Callable = jax.sharding.auto_axes(everywhere, axes=layout.axes, out_sharding=(kept_specs, total_specs))
    return spread(list(rows), list(shared))


def _explicit_spec(aval: Aval, layout: Layout, *, rows: bool) -> P:
    spec = list(aval.sharding.spec)
    if rows:
        return P(layout.entry, *spec[1:])
    return P(*spec)


def _merged(shard: ClientShard, totals: Sequence[jax.Array], axes: AxisNames) -> list[jax.Array]:
    merged = []
    for step, total in zip(shard.phase.reductions, totals, strict=True):
        with jax.named_scope(shard.loop.scope_of(step)), _jax_compat.source_of(step.equation, mesh=False):
            across = REDUCTION_OF[step.equation.primitive].across
            merged.append(across(total.astype(_exchanged_dtype(shard, total)), axes).astype(total.dtype))
    return merged


def _exchanged_dtype(shard: ClientShard, total: jax.Array) -> DTypeLike:
    """The dtype in which totals are exchanged: float32 where XLA:CPU would abort on bfloat16.

    That is an all-reduce in a partly manual program (`AllReducePromotion`, jaxlib 0.10).
    """
    layout = shard.phase.layout
    is_partly_manual = layout is not None and bool(other_axes(layout))
    return jnp.float32 if total.dtype == jnp.bfloat16 and is_partly_manual else total.dtype


def _pad(x: jax.Array, slots: int, layout: Layout | None) -> jax.Array:
    """Fills empty slots with copies of the first clients, because zeros could cause NaNs; callers mask them."""
    if slots != x.shape[0]:
        if layout is not None and layout.explicit:
            x = _replicate_leading(x, layout)
        x = jnp.take(x, jnp.arange(slots) % x.shape[0], axis=0, mode="clip")
    if layout is not None and layout.explicit:
        spec = tuple(jax.typeof(x).sharding.spec)[1:]
        return jax.sharding.reshard(x, NamedSharding(layout.mesh, P(layout.entry, *spec)))
    return x


def _unpad(x: jax.Array, clients: int, layout: Layout | None) -> jax.Array:
    if x.shape[0] == clients:
        return x
    if layout is not None and layout.explicit:
        x = _replicate_leading(x, layout)
    return x[:clients]


def _replicate_leading(x: object, layout: Layout) -> jax.Array:
    spec = tuple(jax.typeof(x).sharding.spec)[1:]
    return jax.sharding.reshard(x, NamedSharding(layout.mesh, P(None, *spec)))


def _run_whole(
    phase: Phase, rows: Sequence[jax.Array], shared: Sequence[jax.Array], loop: ClientLoop
) -> dict[Var, jax.Array]:
    """Runs clients together if they communicate inside their function (through named-axis collectives)."""
    values: dict[Var, jax.Array] = dict(zip(phase.rows, rows, strict=True))
    for v, x in zip(phase.shared, shared, strict=True):
        values[v] = jnp.broadcast_to(x[None], (phase.placement.size, *x.shape))
    for step in phase.steps:
        operands = [atom.val if isinstance(atom, Literal) else values[atom] for atom in step.equation.invars]
        with jax.named_scope(loop.scope_of(step)):
            values.update(zip(step.outputs, bind_here(step.equation, operands), strict=True))
    variables = [*phase.kept, *(step.equation.outvars[0] for step in phase.reductions)]
    return {v: values[v] for v in variables}
