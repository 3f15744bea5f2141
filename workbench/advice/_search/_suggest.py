"""Searches shardings on one mesh."""

import difflib
import fnmatch
import threading
import time
from collections.abc import Mapping
from typing import Any, Literal

from jax.sharding import AbstractMesh, Mesh

from workbench.advice._search._chunked import compile_best, joined_record, with_chunk_sizes
from workbench.advice._search._groups import SpecGroup, fits
from workbench.advice._search._program import SearchProgram
from workbench.advice._search._run import median_interval, run_interleaved, with_specs
from workbench.advice._search._search import Found, Progress, Search
from workbench.errors import MeshError, WorkbenchError
from workbench.inspection import TracedCall, current_mesh, mesh_of_values
from workbench.records.advice import SearchRecord
from workbench.records.compiled import TargetRecord

DEFAULT_CHIP = "v5e"
_FOR_SPECS = 0.6  # share of the time, if chunk sizes are searched as well
_BEST = 3  # number of choices to compile and to try with other chunk sizes


def search_shardings(
    call: TracedCall,
    *,
    mesh: Mesh | AbstractMesh | None = None,
    chip: str | None = None,
    target: TargetRecord | None = None,
    lock: Mapping[str, Any] | None = None,
    seconds: float = 60.0,
    compiled: bool = True,
    compiler: Literal["auto", "cpu"] = "auto",
    memory_bytes: int | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    found: Found | None = None,
    measure: bool = False,
) -> SearchRecord:
    """Searches the specs of a traced call's arguments on one mesh; see `Traced.search`."""
    mesh = mesh if mesh is not None else current_mesh() or call.mesh or mesh_of_values(call.leaves)
    if mesh is None or mesh.empty or mesh.size < 2:
        message = (
            f"`search` was given `{call.name}` without a mesh of several devices. Specs name axes of a mesh: pass "
            "`on=jax.sharding.AbstractMesh((4, 2), ('data', 'model'))`, which needs no devices, or set a mesh with "
            '`jax.set_mesh`. A target such as `on="v5e:4x4"` makes `search` choose the mesh too.'
        )
        raise MeshError(message)
    if measure and not isinstance(mesh, Mesh):
        message = (
            f"`search` was given measure=True for `{call.name}` and an abstract mesh. The best choices are run on "
            "attached devices: pass a mesh of attached devices, or omit `measure`."
        )
        raise MeshError(message)
    if target is not None and target.devices != mesh.size:
        message = (
            f"`search` was given a mesh of {mesh.size} devices and the target {target.name}, which has "
            f"{target.devices} devices. A program is compiled for all devices of a target: either pass a mesh "
            "of that size, or pass only the target, so that meshes are searched too."
        )
        raise MeshError(message)
    chip = chip or (None if target is None else target.chip)
    program = SearchProgram(
        call, mesh, chip or DEFAULT_CHIP, compiler=compiler, memory_bytes=memory_bytes, target=target
    )
    lock_patterns(program, lock or {})
    began = time.monotonic()
    share = _FOR_SPECS if call.holds_clients else 1.0
    search = Search(program, seconds=share * seconds, compiled=compiled, progress=progress, cancel=cancel, found=found)
    record = search.run()
    if call.holds_clients and record.ended != "stopped":
        record = _chunked(search, record, began + seconds, compiled=compiled, progress=progress, cancel=cancel)
    if chip is None:
        note = f"no chip was named: seconds are predicted for a {DEFAULT_CHIP}"
        record = record.replace(notes=(note, *record.notes))
    if measure and isinstance(mesh, Mesh):
        if progress is not None:
            progress(f"running the best {_BEST}", time.monotonic() - began)
        record = _measured(record, call, mesh, cancel)
    return record


def _measured(record: SearchRecord, call: TracedCall, mesh: Mesh, cancel: threading.Event | None) -> SearchRecord:
    """The record, with measured times for its best choices, fastest first."""
    best = [choice for choice in record.choices if choice.fits is not False][:_BEST]
    try:
        programs = []
        for choice in best:
            groups = [g for g in record.groups if g.pattern in choice.specs]
            specs = {leaf: choice.specs[g.pattern] for g in groups for leaf in g.leaves}
            specs |= {leaf: () for g in record.groups for leaf in g.leaves if g.pattern not in choice.specs}
            size = call.chunk_size if choice.chunk_size is None else choice.chunk_size
            programs.append(with_specs(call, mesh, specs, size))
        walls = run_interleaved(programs, cancel)
    except (WorkbenchError, ValueError, TypeError, RuntimeError) as error:
        return record.replace(notes=(*record.notes, f"the best choices were not run: {str(error)[:300]}"))
    times = [median_interval(wall) for wall in walls]
    ran = [
        choice.replace(measured_seconds=time.median, measured_interval=(time.low, time.high))
        for choice, time in zip(best, times, strict=True)
    ]
    ran.sort(key=lambda choice: choice.measured_seconds or 0.0)
    note = (
        f"the best {len(ran)} choices were run, with {len(walls[0])} interleaved calls each; "
        "the measured medians have 95 % intervals"
    )
    others = [choice for choice in record.choices if choice not in best]
    return record.replace(choices=(*ran, *others), notes=(*record.notes, note))


def _chunked(
    search: Search,
    record: SearchRecord,
    until: float,
    *,
    compiled: bool,
    progress: Progress | None,
    cancel: threading.Event | None,
) -> SearchRecord:
    """Searches other chunk sizes for the best specs, and compiles the best choices of the extended search."""
    began = time.monotonic()
    notes: list[str] = []

    def say(phase: str) -> None:
        if progress is not None:
            progress(phase, record.seconds_spent + time.monotonic() - began)

    searches = with_chunk_sizes([search], best=_BEST, until=until, progress=say, notes=notes, cancel=cancel)
    if compiled:
        compile_best(searches, count=_BEST, until=until, progress=say, cancel=cancel)
    ended = "stopped" if cancel is not None and cancel.is_set() else "time" if notes else record.ended
    spent = record.seconds_spent + time.monotonic() - began
    return joined_record(
        record.name,
        record.target,
        searches,
        spent,
        ended=ended,
        notes=notes,
        by_mesh=False,
        full_count=1,
        shown=len(record.choices),
    )


def lock_patterns(program: SearchProgram, lock: Mapping[str, Any]) -> None:
    """Fixes the specs that the user gave for a pattern, an argument or a leaf."""
    wrong = []
    chosen = {}
    for pattern, lock_spec in lock.items():
        groups = [group for group in program.groups if _matches(pattern, group, program)]
        if not groups:
            near = difflib.get_close_matches(pattern, [group.pattern for group in program.groups], n=2)
            wrong.append(f"{pattern!r} matches no argument (near: {', '.join(near) or 'none'})")
        for group in groups:
            entries = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in lock_spec]
            spec = (*entries, *[()] * (len(group.shape) - len(entries)))
            if fits(spec, group.shape, program.axes):
                chosen[id(group)] = spec
            else:
                wrong.append(f"{group.pattern} {list(group.shape)} cannot be sharded as {tuple(lock_spec)}")
    if wrong:
        axes = " x ".join(f"{name}={size}" for name, size in program.axes.items())
        message = (
            f"`search` was given a `lock` that does not fit: {'; '.join(wrong)}. The mesh is {axes}; use the "
            "patterns that the search prints (`*` matches any text), and axes whose sizes divide the dimensions."
        )
        raise MeshError(message)
    for group in program.groups:
        group.locked = chosen.get(id(group), group.locked)


def _matches(pattern: str, group: SpecGroup, program: SearchProgram) -> bool:
    """Returns whether a pattern, which may contain wildcards, matches the group, its argument or one of its leaves."""
    if pattern in (group.pattern, group.argument):
        return True
    literal = pattern.replace("[*]", "[[]*]").replace("['", "[[]'") if "[" in pattern else pattern
    names = [program.leaves[i].name for i in group.leaves]
    return pattern in names or any(fnmatch.fnmatchcase(name, literal) for name in names)
