"""Searches the mesh together with the shardings, and the smallest machine that a program fits on."""

import itertools
import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from jax.sharding import AbstractMesh

from workbench.advice.search._program import SearchProgram
from workbench.advice.search._search import Progress, Search
from workbench.advice.search._suggest import lock_patterns
from workbench.aot import list_targets, parse_target
from workbench.errors import MeshError, WorkbenchError
from workbench.inspection import Call, current_mesh
from workbench.records import (
    FitRecord,
    FitTableRecord,
    ShardingChoiceRecord,
    ShardingSearchRecord,
    TargetRecord,
)

_COMPILED = 3  # of the best choices over all meshes
_MOST_COMPILED_SIZES = 4  # slices of one family that are compiled for


def suggest_mesh(
    call: Call,
    *,
    chips: str,
    axes: Sequence[str] | None = None,
    lock: Mapping[str, Any] | None = None,
    seconds: float = 120.0,
    compiled: bool = True,
    compiler: Literal["auto", "cpu"] = "auto",
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> ShardingSearchRecord:
    """Searches mesh shapes and specs; see `Traced.suggest_mesh`."""
    machine = parse_target(chips)
    names = _axes_of(call, axes)
    began = time.monotonic()
    meshes = list(mesh_shapes(machine.devices, len(names)))
    searches: list[Search] = []
    notes: list[str] = []
    for number, sizes in enumerate(meshes):
        left = began + seconds * (0.5 if compiled else 1.0) - time.monotonic()
        if searches and (left <= 0 or (cancel is not None and cancel.is_set())):
            notes.append(f"not tried for lack of time: {', '.join(map(_mesh_text, meshes[number:]))}")
            break
        if progress is not None:
            progress(f"mesh {_mesh_text(sizes)}, {number + 1} of {len(meshes)}", time.monotonic() - began)
        try:
            program = SearchProgram(call, AbstractMesh(sizes, names), machine.chip, compiler=compiler, target=machine)
            lock_patterns(program, lock or {})
            search = Search(program, seconds=left / (len(meshes) - number), compiled=False, cancel=cancel)
            search.run()
        except WorkbenchError as error:
            notes.append(f"{_mesh_text(sizes)}: {str(error).splitlines()[0][:200]}")
            continue
        searches.append(search)
    if not searches:
        message = (
            f"`suggest_mesh` was given chips={chips!r}, on no mesh of which `{call.name}` could be planned: "
            f"{'; '.join(notes)}. Every axis must suit the program: pass `axes=` with the names that it uses."
        )
        raise MeshError(message)
    ranked = sorted(
        ((search, specs) for search in searches for specs in search.best(4)), key=lambda e: e[0].rank_of(e[1])
    )
    for number, (search, specs) in enumerate(ranked[:_COMPILED] if compiled else ()):
        if (cancel is not None and cancel.is_set()) or (number and time.monotonic() - began > seconds):
            break
        if progress is not None:
            progress(f"compiling choice {number + 1} of {_COMPILED}", time.monotonic() - began)
        search.compile(specs)
    return _joined_record(call.name, machine, searches, time.monotonic() - began, cancel, notes)


def fit(
    call: Call,
    *,
    targets: Sequence[str],
    axes: Sequence[str] = ("data",),
    seconds: float = 60.0,
    compiled: bool = True,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
) -> FitTableRecord:
    """The smallest slice of each family on which a program fits; see `Traced.fit`."""
    rows = []
    for number, name in enumerate(targets):
        if cancel is not None and cancel.is_set():
            break
        rows.append(_smallest(call, name, tuple(axes), seconds / max(len(targets), 1), compiled, progress, cancel))
        if progress is not None:
            progress(f"{number + 1} of {len(targets)} families", 0.0)
    return FitTableRecord(name=call.name, rows=tuple(rows))


def mesh_shapes(devices: int, count: int) -> Iterator[tuple[int, ...]]:
    """Every way to write a number of devices as `count` sizes, the first axis largest first.

    Example:
        >>> list(mesh_shapes(8, 2))
        [(8, 1), (4, 2), (2, 4), (1, 8)]
    """
    divisors = [n for n in range(devices, 0, -1) if devices % n == 0]
    for sizes in itertools.product(divisors, repeat=count):
        if math.prod(sizes) == devices:
            yield sizes


def _smallest(
    call: Call,
    target: str,
    axes: tuple[str, ...],
    seconds: float,
    compiled: bool,
    progress: Progress | None,
    cancel: threading.Event | None,
) -> FitRecord:
    """The smallest slice of one family; compilers decide, the plan only says where to begin."""
    machines = _slices(target)
    tried: list[str] = []
    row: FitRecord | None = None
    compilations = 0
    began = time.monotonic()
    whole = 0
    for machine in machines:
        if row is not None and (compilations >= _MOST_COMPILED_SIZES or (cancel is not None and cancel.is_set())):
            break
        if whole > machine.devices * machine.available_bytes and machine is not machines[-1]:
            continue  # its arguments alone are more than all devices together have
        if progress is not None:
            progress(f"trying {machine.name}", time.monotonic() - began)
        sizes = (machine.devices, *[1] * (len(axes) - 1))
        try:
            program = SearchProgram(call, AbstractMesh(sizes, axes), machine.chip, target=machine)
        except WorkbenchError as error:
            tried.append(f"{machine.name}: {str(error).splitlines()[0][:160]}")
            continue
        whole = sum(group.size_bytes for group in program.groups)
        if whole > machine.devices * machine.available_bytes and machine is not machines[-1]:
            tried.append(machine.name)
            continue
        search = Search(program, seconds=seconds / 4, compiled=False, cancel=cancel)
        search.run()
        best = search.best(1)[0]
        if compiled and program.target is not None:
            compilations += 1
            search.compile(best)
        choice = search.record().best
        tried.append(machine.name)
        row = FitRecord(
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
            tried=tuple(tried),
            how=choice.how,
            note=choice.note,
        )
        if row.fits:
            return row
    if row is None:
        last = machines[-1]
        return FitRecord(
            chip=last.chip, target=last.name, fits=False, chips=last.chips, devices=last.devices, peak_bytes=None,
            available_bytes=last.available_bytes, seconds=None, tried=tuple(tried), note="could not be planned",
        )  # fmt: skip
    return row


def _slices(target: str) -> list[TargetRecord]:
    """The slices of a family by size, one per number of devices; of a named slice those up to it."""
    chip, _, _ = target.partition(":")
    known = next((each for each in list_targets() if each.chip == chip), None)
    if known is None:
        parse_target(target if ":" in target else f"{target}:1x1")  # raises with the names that there are
        message = f"`fit` was given {target!r}, of which no slices are known. Name a family such as 'v5e'."
        raise MeshError(message)
    limit = parse_target(target).devices if ":" in target else None
    found: dict[int, TargetRecord] = {}
    for topology in known.topologies:
        machine = parse_target(f"{chip}:{topology}")
        if limit is None or machine.devices <= limit:
            found.setdefault(machine.devices, machine)
    return [found[devices] for devices in sorted(found) if devices > 1]


def _axes_of(call: Call, axes: Sequence[str] | None) -> tuple[str, ...]:
    """The axes to be sized: as given, those of the mesh, or "data" and "model"."""
    if axes is not None:
        return tuple(axes)
    mesh = current_mesh() or call.mesh
    return tuple(mesh.axis_names) if mesh is not None and not mesh.empty else ("data", "model")


def _joined_record(
    name: str,
    machine: TargetRecord,
    searches: Sequence[Search],
    seconds: float,
    cancel: threading.Event | None,
    notes: Sequence[str],
) -> ShardingSearchRecord:
    records = [search.record() for search in searches]
    choices: list[ShardingChoiceRecord] = []
    for record in records:
        for choice in record.choices[:4]:
            choices.append(choice.replace(name=f"{_mesh_text(tuple(choice.mesh.values()))}: {choice.name}"))
    choices.sort(key=_rank_choice)
    first = records[0]
    return first.replace(
        name=name,
        target=machine.name,
        choices=tuple(choices),
        planned_count=sum(record.planned_count for record in records),
        compiled_count=sum(record.compiled_count for record in records),
        seconds_spent=seconds,
        ended="stopped" if cancel is not None and cancel.is_set() else "time" if notes else "complete",
        notes=(*notes, *dict.fromkeys(note for record in records for note in record.notes)),
    )


def _rank_choice(choice: ShardingChoiceRecord) -> tuple[bool, bool, float]:
    seconds = math.inf if choice.seconds is None else choice.seconds
    return choice.fits is False, choice.how != "compiled", seconds


def _mesh_text(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))
