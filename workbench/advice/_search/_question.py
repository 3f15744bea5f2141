"""One search for shardings, meshes and slices: `on=` decides what is searched."""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from workbench._jax_compat import is_pmapped
from workbench._types import Spec
from workbench.advice._search._mesh import search_meshes, search_slices
from workbench.advice._search._suggest import search_shardings
from workbench.aot import is_target, parse_target
from workbench.cost import error_bar, known_chip
from workbench.errors import InspectionError, ProgramError
from workbench.inspection import On, TracedCall, machine_of, parts_of
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
    """Searches shardings on a mesh, meshes for a target, or slices of families; see `Traced.search`."""
    if is_pmapped(call.fn):
        message = (
            f"`search` was given `{call.name}`, which is a `jax.pmap`. `jax.pmap` places one slice of each mapped "
            "argument on each device, so there are no shardings to choose. Move the function to `jax.jit` on a mesh."
        )
        raise InspectionError(message)
    record = _search(
        call, on=on, axes=axes, lock=lock, seconds=seconds, compiled=compiled, compiler=compiler,
        memory_bytes=memory_bytes, progress=progress, cancel=cancel, on_record=found, measure=measure,
    )  # fmt: skip
    return record.replace(error_bar=_error_bar(record))


def _error_bar(record: SearchRecord) -> str:
    """Formats the error of predicted times, for choices that were compiled for their chip."""
    rows = [(row.chip, row.how) for row in record.slices] or [(record.chip, record.best.how)]
    if all(how != "compiled" for _, how in rows) or record.target.startswith("cpu"):
        return f"{error_bar(None, 'training step')}: not compiled for the chip"
    bars = {name: error_bar(known_chip(name), "training step") for name, how in rows if how == "compiled"}
    return "; ".join(f"{name}: {bar}" if len(bars) > 1 else bar for name, bar in bars.items())


def _search(
    call: TracedCall,
    *,
    on: On,
    axes: Sequence[str] | None,
    lock: Mapping[str, Spec] | None,
    seconds: float | None,
    compiled: bool,
    compiler: Literal["auto", "cpu"],
    memory_bytes: int | None,
    progress: Callable[[str, float], None] | None,
    cancel: threading.Event | None,
    on_record: Callable[[SearchRecord], None] | None,
    measure: bool,
) -> SearchRecord:
    parts = parts_of(on)
    common: dict[str, Any] = {"compiled": compiled, "progress": progress, "cancel": cancel}
    common |= {} if seconds is None else {"seconds": seconds}
    if not parts or any(not isinstance(part, str) for part in parts):
        _refuse("shardings on one mesh", axes=axes is not None)
        machine = machine_of(on, "search")
        target = None if machine.target is None else parse_target(machine.target)
        return search_shardings(
            call, mesh=machine.mesh, chip=machine.chip, target=target, lock=lock, compiler=compiler,
            memory_bytes=memory_bytes, found=on_record, measure=measure, **common,
        )  # fmt: skip
    names = [str(part) for part in parts]
    if isinstance(on, str) and is_target(on):
        _refuse("meshes of one target", found=on_record is not None, measure=measure)
        return search_meshes(
            call, target=on, axes=axes, lock=lock, compiler=compiler, memory_bytes=memory_bytes, **common
        )
    _refuse(
        "slices of chip families",
        lock=lock is not None,
        compiler=compiler != "auto",
        memory_bytes=memory_bytes is not None,
        found=on_record is not None,
        measure=measure,
    )
    return search_slices(call, targets=names, axes=axes, **common)


def _refuse(kind: str, **options: bool) -> None:
    """Raises an error for options that this kind of search does not use."""
    unused = [name for name, is_given in options.items() if is_given]
    if unused:
        message = (
            f"`search` was given {', '.join(f'`{name}`' for name in unused)}, which a search for {kind} does not use. "
            'Set `on=` to a mesh to search shardings, to a target such as "v5e:4x4" to search meshes and shardings, or '
            "to a chip or a list of chips to search for the smallest slices. Omit these options, or change `on=`."
        )
        raise ProgramError(message)
