"""One search for shardings, meshes and slices: `on=` decides which of these are free."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from workbench._types import Spec
from workbench.advice.search._mesh import search_meshes, search_slices
from workbench.advice.search._suggest import search_shardings
from workbench.aot import parse_target
from workbench.errors import ProgramError
from workbench.inspection import On, TracedCall, is_target, machine_of, parts_of
from workbench.records.advice import SearchRecord


def search_call(
    call: TracedCall,
    *,
    on: On = None,
    axes: Sequence[str] | None = None,
    lock: Mapping[str, Spec] | None = None,
    seconds: float | None = None,
    compiled: bool = True,
    compiler: Literal["auto", "cpu"] = "auto",
    memory_bytes: int | None = None,
    progress: Callable[[str, float], None] | None = None,
    cancel: threading.Event | None = None,
    found: Callable[[SearchRecord], None] | None = None,
    measure: bool = False,
) -> SearchRecord:
    """Searches shardings on a mesh, meshes of a target, or slices of families; see `Traced.search`.

    Raises:
        ProgramError: for options that the kind of search has no use for.
    """
    parts = parts_of(on)
    common: dict[str, Any] = {"compiled": compiled, "progress": progress, "cancel": cancel}
    common |= {} if seconds is None else {"seconds": seconds}
    if not parts or any(not isinstance(part, str) for part in parts):
        _refuse("shardings on one mesh", axes=axes is not None)
        machine = machine_of(on, "search")
        target = None if machine.target is None else parse_target(machine.target)
        return search_shardings(
            call, mesh=machine.mesh, chip=machine.chip, target=target, lock=lock, compiler=compiler,
            memory_bytes=memory_bytes, found=found, measure=measure, **common,
        )  # fmt: skip
    names = [str(part) for part in parts]
    if isinstance(on, str) and is_target(on):
        _refuse("meshes of one target", found=found is not None, measure=measure)
        return search_meshes(
            call, target=on, axes=axes, lock=lock, compiler=compiler, memory_bytes=memory_bytes, **common
        )
    _refuse(
        "slices of chip families",
        lock=lock is not None,
        compiler=compiler != "auto",
        memory_bytes=memory_bytes is not None,
        found=found is not None,
        measure=measure,
    )
    return search_slices(call, targets=names, axes=axes, **common)


def _refuse(kind: str, **given: bool) -> None:
    """Raises for options that a kind of search has no use for."""
    unused = [name for name, is_given in given.items() if is_given]
    if unused:
        message = (
            f"`search` was given {', '.join(f'`{name}`' for name in unused)}, which a search for {kind} does not use. "
            '`on=` decides what is searched: a mesh for shardings, a target such as "v5e:4x4" for meshes too, a chip '
            "or a list for the smallest slices. Leave these options out, or pass another `on=`."
        )
        raise ProgramError(message)
