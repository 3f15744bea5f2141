"""Traces in Chrome's JSON format (`*.trace.json.gz`), read as planes of a profile."""

import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from workbench.errors import ProfileError
from workbench.measurement._xplane import EventKind, PlaneEvent

_CHUNK = 1 << 20
_LARGEST_EVENT = 1 << 24
MOST_EVENTS = 2_000_000  # XProf writes at most a million
_DAMAGE = (EOFError, OSError, zlib.error, ValueError, ArithmeticError, TypeError, AttributeError, RecursionError)


class _Row(NamedTuple):
    name: str
    start_ps: int
    events: list[PlaneEvent]


class TracePlane:
    """One process of a trace: a device or a host."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.stats: dict[str, Any] = {}
        self.rows: dict[int, _Row] = {}

    def lines(self) -> Iterator[_Row]:
        """The threads of the process."""
        yield from self.rows.values()

    def events(self, line: _Row) -> Iterator[PlaneEvent]:
        """The events of a thread, in time order; enclosing events precede enclosed events."""
        yield from sorted(line.events, key=lambda event: (event.start_ps, -event.duration_ps))


def read_trace(path: Path) -> tuple[list[TracePlane], str]:
    """Reads a trace as a stream.

    Returns: The trace's planes, and a description of damage in the file ("" if there is none); events before the damage
        are included.
    """
    processes: dict[int, str] = {}
    threads: dict[tuple[int, int], str] = {}
    by_thread: defaultdict[tuple[int, int], list[PlaneEvent]] = defaultdict(list)
    kinds: dict[str, EventKind] = {}
    damage, count = "", 0
    try:
        for event in _objects(path):
            place = (_number(event.get("pid")), _number(event.get("tid")))
            if event.get("ph") == "M":
                name = str((event.get("args") or {}).get("name", ""))
                if event.get("name") == "process_name":
                    processes[place[0]] = name
                elif event.get("name") == "thread_name":
                    threads[place] = name
            elif event.get("ph") == "X":
                by_thread[place].append(_event(event, kinds))
                count += 1
                if count >= MOST_EVENTS:
                    damage = f"only its first {MOST_EVENTS} events were read"
                    break
    except _DAMAGE as error:
        damage = f"{type(error).__name__}: {error}"
    if not by_thread:
        msg = (
            f"`open_profile` was given `{path}`, which is not a trace: {damage or 'it has no events'}. A trace is "
            "the `*.trace.json.gz` that XProf or `jax.profiler.start_trace(create_perfetto_trace=True)` writes: copy "
            "it again in binary mode, or open the `*.xplane.pb` next to it."
        )
        raise ProfileError(msg)
    planes = {pid: TracePlane(processes.get(pid, f"process {pid}")) for pid, _ in by_thread}
    for (pid, tid), events in by_thread.items():
        planes[pid].rows[tid] = _Row(threads.get((pid, tid), str(tid)), 0, events)
    return list(planes.values()), damage


def _event(event: dict[str, Any], kinds: dict[str, EventKind]) -> PlaneEvent:
    args = event.get("args") or {}
    name = str(event.get("name", ""))
    key = f"{name}\0{args.get('hlo_category', '')}\0{args.get('program_id', '')}"
    kind = kinds.get(key)
    if kind is None:
        on_device = "hlo_category" in args or "long_name" in args
        kind = kinds[key] = EventKind(name, name if on_device else "", dict(args) if on_device else {})
    start, duration = float(event.get("ts", 0.0)), float(event.get("dur", 0.0))
    return PlaneEvent(kind, round(start * 1e6), round(duration * 1e6), args)


def _objects(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the objects of the list `traceEvents`, or of a file that is itself a list."""
    decoder = json.JSONDecoder()
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        text = file.read(_CHUNK)
        begin = text.find('"traceEvents"')
        at = text.find("[", max(begin, 0)) + 1
        if at == 0:
            raise ValueError("it has no list of events")
        while True:
            while at < len(text) and text[at] in " \t\r\n,":
                at += 1
            if at < len(text) and text[at] == "]":
                return
            try:
                value, at = decoder.raw_decode(text, at)
            except json.JSONDecodeError:
                more = file.read(_CHUNK)
                if not more or len(text) - at > _LARGEST_EVENT:
                    raise
                text, at = text[at:] + more, 0
                continue
            if isinstance(value, dict):
                yield value
            if at > _CHUNK:
                text, at = text[at:], 0


def _number(value: object) -> int:
    return int(value) if isinstance(value, int | float) else 0
