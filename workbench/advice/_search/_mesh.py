"""Searches meshes together with shardings, and finds the smallest slices on which a program fits."""

import itertools
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from jax.sharding import AbstractMesh

from workbench.advice._search._chunked import compile_best, joined_record, mesh_text, ranked, with_chunk_sizes
from workbench.advice._search._program import SearchProgram
from workbench.advice._search._search import Progress, Search
from workbench.advice._search._suggest import lock_patterns
from workbench.aot import list_targets, parse_target
from workbench.errors import MeshError, WorkbenchError
from workbench.inspection import TracedCall, current_mesh, plan_call
from workbench.records.advice import JitRecord, SearchRecord, ShardingChoiceRecord, SliceRecord
from workbench.records.compiled import TargetRecord
from workbench.render.units import bytes_text

_COMPILED = 3  # number of compiled choices over all meshes and chunk sizes
_FOR_SPECS = 0.7  # share of the planning time, if chunk sizes are searched as well
_SHOWN = 4  # number of choices per mesh and chunk size
_MOST_COMPILED_SIZES = 4  # number of compiled slices per family


def search_meshes(
    call: TracedCall,
    *,
    target: str,
    axes: Sequence[str] | None = None,
    lock: Mapping[str, Any] | None = None,
    seconds: float = 120.0,
    compiled: bool = True,
    compiler: Literal["auto", "cpu"] = "auto",
    memory_bytes: int | None = None,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> SearchRecord:
    """Searches mesh shapes and specs; see `Traced.search`."""
    machine = parse_target(target)
    names = _axes_of(call, axes)
    began = time.monotonic()
    share = (0.5 if compiled else 1.0) * (_FOR_SPECS if call.holds_clients else 1.0)  # share of the time spent on specs
    meshes = list(mesh_shapes(machine.devices, len(names)))
    searches: list[Search] = []
    notes: list[str] = []
    for number, sizes in enumerate(meshes):
        budget = began + share * seconds - time.monotonic()
        if searches and (budget <= 0 or (cancel is not None and cancel.is_set())):
            notes.append(f"not tried for lack of time: {', '.join(map(mesh_text, meshes[number:]))}")
            break
        if progress is not None:
            progress(f"mesh {mesh_text(sizes)}, {number + 1} of {len(meshes)}", time.monotonic() - began)
        try:
            program = SearchProgram(
                call,
                AbstractMesh(sizes, names),
                machine.chip,
                compiler=compiler,
                memory_bytes=memory_bytes,
                target=machine,
            )
            lock_patterns(program, lock or {})
            search = Search(program, seconds=budget / (len(meshes) - number), compiled=False, cancel=cancel)
            search.run()
        except WorkbenchError as error:
            notes.append(f"{mesh_text(sizes)}: {str(error).splitlines()[0][:200]}")
            continue
        searches.append(search)
    if not searches:
        message = (
            f"`search` was given on={target!r}, but `{call.name}` could not be planned on any of its meshes: "
            f"{'; '.join(notes)}. Every axis must suit the program: set `axes=` to the axis names that the program "
            "uses."
        )
        raise MeshError(message)

    def spent() -> float:
        return time.monotonic() - began

    def say(phase: str) -> None:
        if progress is not None:
            progress(phase, spent())

    full_count = len(searches)
    planned = seconds * (0.6 if compiled else 1.0)
    searches = with_chunk_sizes(
        searches, best=_COMPILED, until=began + planned, progress=say, notes=notes, cancel=cancel
    )
    if compiled:
        compile_best(searches, count=_COMPILED, until=began + seconds, progress=say, cancel=cancel)
    ended = "stopped" if cancel is not None and cancel.is_set() else "time" if notes else "complete"
    return joined_record(
        call.name,
        machine.name,
        searches,
        spent(),
        ended=ended,
        notes=notes,
        by_mesh=True,
        full_count=full_count,
        shown=_SHOWN,
    )


def search_slices(
    call: TracedCall,
    *,
    targets: Sequence[str],
    axes: Sequence[str] | None = None,
    seconds: float = 60.0,
    compiled: bool = True,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> SearchRecord:
    """Searches for the smallest slice of each family on which a program fits; see `Traced.search`."""
    rows: list[SliceRecord] = []
    records: list[SearchRecord] = []
    began = time.monotonic()
    for number, name in enumerate(targets):
        if cancel is not None and cancel.is_set():
            break
        names = _first_axes(call) if axes is None else tuple(axes)
        row, record = _smallest(call, name, names, seconds / max(len(targets), 1), compiled, progress, cancel)
        rows.append(row)
        records += [] if record is None else [record]
        if progress is not None:
            progress(f"{number + 1} of {len(targets)} families", time.monotonic() - began)
    records.sort(key=lambda record: (not record.best.fits, record.best.seconds or math.inf))
    best = records[0] if records else None
    return SearchRecord(
        name=call.name,
        chip=best.chip if best else "",
        target=best.target if best else "",
        choices=tuple(record.best for record in records),
        groups=best.groups if best else (),
        planned_count=sum(record.planned_count for record in records),
        compiled_count=sum(record.compiled_count for record in records),
        seconds_spent=time.monotonic() - began,
        ended="complete" if len(rows) == len(targets) else "stopped",
        arguments=best.arguments if best else (),
        jit=best.jit if best else JitRecord(),
        slices=tuple(rows),
        # the last note of a search compares its planned peaks with its compiled peaks
        notes=tuple(f"{record.target}: {record.notes[-1]}" for record in records),
    )


def mesh_shapes(devices: int, count: int) -> Iterator[tuple[int, ...]]:
    """Every way to write a number of devices as a product of `count` sizes, in decreasing order of the first axis.

    Example:
        >>> list(mesh_shapes(8, 2))
        [(8, 1), (4, 2), (2, 4), (1, 8)]
    """
    divisors = [n for n in range(devices, 0, -1) if devices % n == 0]
    for sizes in itertools.product(divisors, repeat=count):
        if math.prod(sizes) == devices:
            yield sizes


def _smallest(
    call: TracedCall,
    target: str,
    axes: tuple[str, ...],
    seconds: float,
    compiled: bool,
    progress: Progress | None,
    cancel: threading.Event | None,
) -> tuple[SliceRecord, SearchRecord | None]:
    """The smallest slice of one family, and the search on it; slices are planned first, then compiled."""
    machines = _slices(target)
    tried: list[str] = []
    row: SliceRecord | None = None
    best_record: SearchRecord | None = None
    compilations = 0
    began = time.monotonic()
    total_bytes = 0
    for machine in machines:
        if row is not None and (compilations >= _MOST_COMPILED_SIZES or (cancel is not None and cancel.is_set())):
            break
        if total_bytes > machine.devices * machine.available_bytes and machine is not machines[-1]:
            tried.append(_too_small(machine, total_bytes))
            continue
        if progress is not None:
            progress(f"trying {machine.name}", time.monotonic() - began)
        sizes = (machine.devices, *[1] * (len(axes) - 1))
        try:
            program = SearchProgram(call, AbstractMesh(sizes, axes), machine.chip, target=machine)
        except WorkbenchError as error:
            tried.append(f"{machine.name}: {str(error).splitlines()[0][:160]}")
            continue
        total_bytes = sum(group.size_bytes for group in program.groups)
        if total_bytes > machine.devices * machine.available_bytes and machine is not machines[-1]:
            tried.append(_too_small(machine, total_bytes))
            continue
        search = Search(program, seconds=seconds / 4, compiled=False, cancel=cancel)
        search.run()
        until = time.monotonic() + seconds / 4
        searches = with_chunk_sizes([search], best=1, until=until, progress=_silent, notes=[], cancel=cancel)
        search, _ = ranked(searches, 1)[0]
        if compiled and program.target is not None:
            compilations += 1
            until = time.monotonic() + seconds / 4
            compile_best(searches, count=1, until=until, progress=_silent, cancel=cancel)
            search, _ = ranked(searches, 1)[0]
        record = search.record()
        choice = record.best
        best_record = record.replace(target=machine.name, choices=(choice.replace(name=machine.name),))
        tried.append(machine.name if choice.fits else _too_full(machine, choice))
        row = SliceRecord(
            chip=machine.chip,
            target=machine.name,
            fits=bool(choice.fits),
            chips=machine.chips,
            devices=machine.devices,
            peak_bytes=choice.peak_bytes,
            available_bytes=machine.available_bytes,
            seconds=choice.seconds,
            specs=choice.specs,
            mesh=choice.mesh,
            chunk_size=choice.chunk_size,
            tried=tuple(tried),
            how=choice.how,
            note=choice.note,
        )
        if row.fits:
            return row, best_record
    if row is None:
        last = machines[-1]
        return SliceRecord(
            chip=last.chip, target=last.name, fits=False, chips=last.chips, devices=last.devices, peak_bytes=None,
            available_bytes=last.available_bytes, seconds=None, tried=tuple(tried), note="could not be planned",
        ), None  # fmt: skip
    return row, best_record


def _too_small(machine: TargetRecord, total_bytes: int) -> str:
    """Returns the reason why a slice was not planned: its memory is smaller than the arguments."""
    memory = bytes_text(machine.devices * machine.available_bytes)
    arguments = bytes_text(total_bytes)
    return f"{machine.name}: the arguments alone need {arguments}, but all its devices together have {memory}"


def _too_full(machine: TargetRecord, choice: ShardingChoiceRecord) -> str:
    """Returns the reason why the best choice on a slice does not fit."""
    peak, available = choice.peak_bytes, bytes_text(machine.available_bytes)
    needs = f"more than {available}" if peak is None else f"{bytes_text(peak)}, but has {available}"
    reason = f": {choice.note}" if choice.note and peak is None else ""
    return f"{machine.name}: a device needs {needs} ({choice.how}){reason}"


def _silent(_phase: str) -> None:
    """Ignores the phase."""


def _slices(target: str) -> list[TargetRecord]:
    """The slices of a family by size, one for each number of devices, up to a named slice."""
    chip, _, _ = target.partition(":")
    family = next((entry for entry in list_targets() if entry.chip == chip), None)
    if family is None:
        parse_target(target if ":" in target else f"{target}:1x1")  # raises an error that lists the known names
        message = f"`search` was given on={target!r}, which has no known slices. Pass a chip family such as 'v5e'."
        raise MeshError(message)
    limit = parse_target(target).devices if ":" in target else None
    machines: dict[int, TargetRecord] = {}
    for topology in family.topologies:
        machine = parse_target(f"{chip}:{topology}")
        if limit is None or machine.devices <= limit:
            machines.setdefault(machine.devices, machine)
    return [machines[devices] for devices in sorted(machines)]


def _axes_of(call: TracedCall, axes: Sequence[str] | None) -> tuple[str, ...]:
    """Axes whose sizes vary: given axes, axes of the mesh, or the client axis ("data" without clients) and "model"."""
    if axes is not None:
        return tuple(axes)
    mesh = current_mesh() or call.mesh
    return tuple(mesh.axis_names) if mesh is not None and not mesh.empty else (*_first_axes(call), "model")


def _first_axes(call: TracedCall) -> tuple[str, ...]:
    """The client axes, or "data" in a program without clients."""
    return tuple(placement.name for placement in plan_call(call).placements) or ("data",)
