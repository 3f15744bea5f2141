"""The call tree of a jaxpr, before compilation."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from workbench import _jax_compat
from workbench._types import type_of
from workbench.inspection._call_tree._build import build_tree
from workbench.inspection._call_tree._frames import Frame, split_stack, trim
from workbench.inspection._call_tree._items import Amounts, Item, Scope
from workbench.inspection._call_tree._op_names import pass_of, read_op_name
from workbench.plan import walk_jaxpr_work
from workbench.records.call_tree import CallTreeRecord
from workbench.records.sharding import CollectiveKind

_LOOPS = frozenset(("scan", "while", "cond"))
_MARKED = frozenset(("shard_map", "pallas_call", "custom_vjp_call", "custom_vjp_call_jaxpr"))
_COLLECTIVES: dict[str, CollectiveKind] = {
    "psum": "all-reduce", "psum2": "all-reduce", "psum_invariant": "all-reduce", "pmax": "all-reduce",
    "pmin": "all-reduce", "all_gather": "all-gather", "all_gather_invariant": "all-gather",
    "reduce_scatter": "reduce-scatter", "all_to_all": "all-to-all", "ppermute": "collective-permute",
    "ragged_all_to_all": "ragged-all-to-all",
}  # fmt: skip
_NOTES = (
    "figures come from the jaxpr, for all devices together, before XLA optimizes, partitions and fuses it",
    "peak memory is known only for compiled modules",
)


class _Site(NamedTuple):
    """The place of an equation: its frames, scopes and loops."""

    stack: tuple[Frame, ...]
    scopes: tuple[Scope, ...]
    name_stack: str
    sizes: dict[str, int]  # sizes of the mesh axes of the enclosing `shard_map`s


def read_jaxpr_tree(jaxpr: Jaxpr | ClosedJaxpr, *, name: str) -> CallTreeRecord:
    """The call tree of a traced program.

    Returns:
        The tree, with FLOPs, memory traffic (as if elementwise operations were fused), and the collectives that the
        program itself requests. A jaxpr does not contain the collectives that a partitioner will insert.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> def layer(w, x):
        ...     return x @ w
        >>> tree = read_jaxpr_tree(jax.make_jaxpr(layer)(jnp.ones((3, 4)), jnp.ones((2, 3))), name="layer")
        >>> tree.root.total.flops_matmul
        48.0
    """
    sites: dict[tuple[int, ...], _Site] = {(): _Site((), (), "", {})}

    def site(chain: tuple[Any, ...]) -> _Site:
        key = tuple(map(id, chain))
        if key not in sites:
            sites[key] = _entered(site(chain[:-1]), chain[-1], name)
        return sites[key]

    items: list[Item] = []
    for work in walk_jaxpr_work(jaxpr):
        amounts = Amounts(work.flops, work.elementwise_flops, work.accessed_bytes)
        item = _item(work.chain[-1], amounts, work.executions / work.copies, site(work.chain[:-1]), name)
        item.at_least = work.at_least
        items.append(item)
    items += _constants(jaxpr, site, name)
    notes: list[str] = list(_NOTES)
    if any(item.at_least for item in items):
        notes.append("a loop of unknown length is counted as one iteration")
    return build_tree([i for i in items if i.amounts.any], name=name, made_from="jaxpr", notes=tuple(notes))


def _entered(outer: _Site, equation: JaxprEqn, name: str) -> _Site:
    """The place of the equations inside an equation that contains another jaxpr."""
    stack = trim((*outer.stack, *_frames(equation)), name)
    primitive = str(equation.primitive.name)
    scopes = (*outer.scopes, *_named(equation))
    depth = len(split_stack(stack)[0])
    sizes = outer.sizes
    if primitive in _LOOPS:
        scopes += (Scope(primitive, "loop", depth, _length(equation)),)
    elif primitive in _MARKED:
        grid = getattr(equation.params.get("grid_mapping"), "grid", None)
        iterations = float(math.prod(grid)) if grid else None
        scopes += (Scope(primitive.removesuffix("_jaxpr"), "loop" if grid else "scope", depth, iterations),)
    if primitive == "shard_map":
        sizes = {**sizes, **dict(equation.params["mesh"].shape)}
    return _Site(stack, scopes, f"{outer.name_stack}/{equation.source_info.name_stack}", sizes)


def _item(equation: JaxprEqn, amounts: Amounts, executions: float, outer: _Site, name: str) -> Item:
    frames, inside = split_stack(trim((*outer.stack, *_frames(equation)), name))
    kind = _COLLECTIVES.get(str(equation.primitive.name))
    if kind is not None and outer.sizes:
        _communicate(amounts, kind, equation, outer.sizes, executions)
    return Item(
        frames,
        inside,
        (*outer.scopes, *_named(equation)),
        pass_of(f"{outer.name_stack}/{equation.source_info.name_stack}"),
        str(equation.primitive.name),
        amounts,
    )


def _communicate(
    amounts: Amounts, kind: CollectiveKind, equation: JaxprEqn, sizes: dict[str, int], executions: float
) -> None:
    """Adds the bytes that one device sends in a ring, by mesh axis, computed as for compiled collectives."""
    named = equation.params.get("axes", equation.params.get("axis_name", ()))
    axes = tuple(str(axis) for axis in (named if isinstance(named, tuple | list) else (named,)))
    size = math.prod(sizes.get(axis, 1) for axis in axes)
    avals = [type_of(v) for v in equation.invars]
    payload = sum(math.prod(aval.shape) * aval.dtype.itemsize for aval in avals if hasattr(aval, "shape"))
    if size < 2:
        wire_bytes = 0.0
    elif kind == "all-gather":
        wire_bytes = float(payload * (size - 1))
    elif kind == "collective-permute":
        wire_bytes = float(payload)
    else:
        wire_bytes = payload * (size - 1) / size * (2 if kind == "all-reduce" else 1)
    wire_bytes *= executions
    amounts.collectives[kind, axes] = [1.0, executions, payload * executions, wire_bytes, float(payload)]
    if wire_bytes:
        amounts.sent_bytes["+".join(axes)] = wire_bytes


def _constants(jaxpr: Jaxpr | ClosedJaxpr, site: Callable[..., _Site], name: str) -> list[Item]:
    """The arrays that the program closes over, as items at the line that first reads them."""
    inner = getattr(jaxpr, "jaxpr", jaxpr)
    items = []
    for variable in inner.constvars:
        size = math.prod(getattr(variable.aval, "shape", ())) * getattr(
            getattr(variable.aval, "dtype", None), "itemsize", 0
        )
        reader = next((e for e in inner.eqns if any(v is variable for v in e.invars)), None)
        if size and reader is not None:
            frames, inside = split_stack(trim(_frames(reader), name))
            amounts = Amounts(constant_bytes=size)
            items.append(Item(frames, inside, (*site(()).scopes, *_named(reader)), "forward", "constant", amounts))
    return items


def _length(equation: JaxprEqn) -> float | None:
    length = equation.params.get("length")
    return None if length is None else float(length)


def _named(equation: JaxprEqn) -> tuple[Scope, ...]:
    stack = str(equation.source_info.name_stack)
    return tuple(Scope(n, "scope") for n in read_op_name(f"{stack}/x").scopes if n not in _LOOPS) if stack else ()


def _frames(equation: JaxprEqn) -> tuple[Frame, ...]:
    """The user's frames of an equation, outermost first."""
    return tuple(
        Frame(file, function, line, column)
        for file, line, column, _, _, function in reversed(_jax_compat.user_frames(equation.source_info))
    )
