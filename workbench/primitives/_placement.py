"""Placements (named groups of clients), and the active placements of the running code."""

import dataclasses
from collections.abc import Mapping, Sequence
from contextvars import ContextVar

import jax.export

from workbench import _jax_compat
from workbench.errors import PlacementError
from workbench.mesh import check_axis_names


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """A named group of `size` clients, spread over `mesh_axes` if the current mesh has these axes."""

    name: str
    size: int
    mesh_axes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"{self.name}={self.size}"


@dataclasses.dataclass(frozen=True, slots=True)
class ProgramScope:
    """The placements of the innermost program, outermost first; `entered` is the number of enclosing maps."""

    placements: tuple[Placement, ...]
    entered: int = 0


_SCOPE: ContextVar[ProgramScope | None] = ContextVar("workbench_scope", default=None)


def make_placements(
    placements: Mapping[str, int] | None, clients: int | None, axes: Mapping[str, str | tuple[str, ...]] | None
) -> tuple[Placement, ...]:
    """Checks the arguments that the user passed to `program`, and creates the placements."""
    if clients is not None and placements is not None:
        message = (
            f"`program` was given both `clients={clients}` and `placements={dict(placements)}`. `clients=n` is short "
            "for "
            '`placements={"clients": n}`: pass only one of these arguments.'
        )
        raise PlacementError(message)
    sizes = {"clients": clients} if clients is not None else dict(placements or {})
    if not sizes:
        message = (
            "`program` was given no placement. A program needs at least one group of clients: "
            'write `program(clients=64)` or `program(placements={"pods": 4, "clients": 16})`.'
        )
        raise PlacementError(message)
    wrong = {name: size for name, size in sizes.items() if not _is_count(size) or not isinstance(name, str)}
    if wrong:
        message = (
            f"`program` was given placements {wrong}. The size of a placement is its number of clients, a positive int "
            "known before tracing, and its name is a string: "
            'for example `program(placements={"clients": 64})`.'
        )
        raise PlacementError(message)
    unknown = sorted(set(axes or {}) - set(sizes))
    if unknown:
        message = (
            f"`program` was given mesh axes for {unknown}, but its placements are {sorted(sizes)}. `axes` maps a "
            "placement to its mesh axes: use one of these names, or omit `axes`."
        )
        raise PlacementError(message)
    held_by = {name: _as_axes((axes or {}).get(name, name)) for name in sizes}
    check_axis_names("program", [*sizes, *(axis for names in held_by.values() for axis in names)])
    counts = {name: size if _is_symbolic(size) else int(size) for name, size in sizes.items()}
    return tuple(Placement(name, size, held_by[name]) for name, size in counts.items())


def _is_count(size: object) -> bool:
    plain = isinstance(size, int) and not isinstance(size, bool) and size >= 1
    return plain or _is_numpy_count(size) or _is_symbolic(size)


def _is_symbolic(size: object) -> bool:
    return jax.export.is_symbolic_dim(size)  # pyright: ignore[reportArgumentType]


def _is_numpy_count(size: object) -> bool:
    return type(size).__module__ == "numpy" and hasattr(size, "__index__") and int(size) >= 1  # pyright: ignore[reportArgumentType]


def _as_axes(axes: str | tuple[str, ...]) -> tuple[str, ...]:
    return (axes,) if isinstance(axes, str) else tuple(axes)


class active:
    """Makes `scope` active in this thread, task or generator step; a class, because that is faster."""

    __slots__ = ("_key", "_scope", "_token")

    def __init__(self, scope: ProgramScope | None) -> None:
        self._scope = scope

    def __enter__(self) -> None:
        self._token = _SCOPE.set(self._scope)
        # A function under `jax.jit` that is called in two programs is traced once for each program.
        is_default = self._scope is None and not _jax_compat.has_jit_keys()
        self._key = None if is_default else _jax_compat.jit_keys().program(self._scope)
        if self._key is not None:
            self._key.__enter__()

    def __exit__(self, *raised: object) -> None:
        if self._key is not None:
            self._key.__exit__(*raised)
        _SCOPE.reset(self._token)


def current_scope() -> ProgramScope | None:
    """The scope of the innermost running program or client function, or None."""
    return _SCOPE.get()


def resolve(operation: str, name: str | None) -> tuple[Placement, tuple[Placement, ...]]:
    """The placement that a primitive acts on, and the outer placements around it (outermost first)."""
    scope = current_scope()
    if scope is None:
        message = (
            f"`{operation}` was called outside a program, so there are no clients. Primitives need a placement: "
            "decorate the calling function with `@workbench.program(clients=64)`, or open `with "
            "workbench.program(clients=64):` around the call."
        )
        raise PlacementError(message)
    available: Sequence[Placement] = scope.placements[scope.entered :]
    if not available:
        inside = scope.placements[scope.entered - 1].name
        message = (
            f'`{operation}` was called inside the function of one client of "{inside}", which has no placement inside '
            "it. A client cannot communicate with other clients from there: return the value from `map_fn` and reduce "
            "it outside, "
            f'or add an inner placement after "{inside}" to the program\'s `placements`.'
        )
        raise PlacementError(message)
    if name is None:
        if len(available) > 1:
            message = (
                f"`{operation}` was called without a placement, but this program has {len(available)}: "
                f"{', '.join(map(repr, available))}. With several placements, each primitive must name its own: "
                f'pass {_keyword(operation)}="{available[-1].name}", for example.'
            )
            raise PlacementError(message)
        return next(iter(available)), ()
    for position, placement in enumerate(available):
        if placement.name == name:
            return placement, tuple(available[:position])
    message = (
        f'`{operation}` was called for the placement "{name}", but the placements active here are '
        f"{', '.join(map(repr, available))}. A primitive can only use these placements: use one of their names, or add "
        f'"{name}" to the `placements` of the program.'
    )
    raise PlacementError(message)


def _keyword(operation: str) -> str:
    return "to" if operation == "broadcast" else "over"
