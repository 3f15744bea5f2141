"""Assertions about programs: collectives, memory, FLOPs, compilations, and record snapshots.

Each assertion accepts a traced call (`wb.trace(fn)(*args)`), a record from `inspect`, or anything else that `inspect`
accepts: a `jax.stages.Lowered` or `Compiled`, HLO text, a file. With `pytest_plugins = ["workbench.testing"]` in a
`conftest.py`, tests can use the fixture `record_snapshot`, and `pytest --workbench-update` rewrites the files.
"""

import contextlib
import dataclasses
import difflib
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench._types import Argument
from workbench.api import Traced
from workbench.errors import InspectionError
from workbench.inspection import compare as _compare, inspect_given
from workbench.measurement import watch_compilations
from workbench.records import Record
from workbench.records.compiled import CollectiveRecord, ModuleRecord, ProgramRecord
from workbench.render.units import amount_texts, bytes_text, flops_text

_UPDATE = "WORKBENCH_UPDATE_SNAPSHOTS"
_MOST_LINES = 60
_MOST_FIGURES = 20
# Fields that change with every XLA release but carry no new information; omitted from snapshots.
_LEFT_OUT = {"text": "", "stablehlo": "", "jaxpr": "", "instructions": (), "edges": (), "values": (), "timeline": ()}


def assert_collectives(program: object, expected: Mapping[str, Mapping[str, float | tuple[float, int | str]]]) -> None:
    """Fails unless a program executes exactly the `expected` collectives per call.

    Args:
        program: A traced call, a record, or another argument of `inspect`.
        expected: Executions per call by kind and mesh axes; several axes of one collective are joined by "+":
            `{"all-reduce": {"clients": 1}, "all-gather": {"data+model": 12}}`. `{}` means no communication. To also
            check bytes, replace the number with a pair, as in `{"all-reduce": {"clients": (1, "2 MiB")}}`. The pair's
            second entry is the number of bytes that one device sends per call for these collectives.

    Raises:
        AssertionError: if collectives differ; the message lists every difference, with the source lines of unexpected
            collectives.
        InspectionError: if a number of bytes is invalid.

    Example:
        >>> import jax, workbench as wb
        >>> mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> x = jax.ShapeDtypeStruct((8, 3), "float32", sharding=jax.NamedSharding(mesh, jax.P("data")))
        >>> assert_collectives(wb.trace(lambda x: x.sum(0))(x), {"all-reduce": {"data": 1}})
    """
    by_key: dict[tuple[str, str], list[CollectiveRecord]] = {}
    for collective in _module(program, "assert_collectives").collectives:
        by_key.setdefault((collective.kind, "+".join(collective.axes)), []).append(collective)
    entries = {(kind, axes): entry for kind, by_axes in expected.items() for axes, entry in by_axes.items()}
    wrong = []
    for key in sorted({*by_key, *entries}):
        collectives, entry = by_key.get(key, []), entries.get(key, 0)
        count, size = entry if isinstance(entry, tuple) else (entry, None)
        executions = [collective.executions for collective in collectives]
        total = None if None in executions else sum(e for e in executions if e is not None)
        if total != count:
            wrong.append(_difference(key, count, total, collectives))
        elif size is not None and (now := _sent(collectives)) != _bytes(size, "assert_collectives"):
            has = "an unknown number of bytes" if now is None else _exact_bytes(now)
            wrong.append(f"  {key[0]} over {key[1] or 'no mesh axis'}: expected {size} sent by a device, found {has}")
    if wrong:
        message = "The program's collectives differ from those expected:\n" + "\n".join(wrong)
        raise AssertionError(message)


def _difference(key: tuple[str, str], count: float, total: float | None, collectives: list[CollectiveRecord]) -> str:
    kind, axes = key
    has = "an unknown number (in a loop of unknown length)" if total is None else _exact(total)
    lines = [f"  {kind} over {axes or 'no mesh axis'}: expected {_exact(count)}, found {has}"]
    for collective in collectives:
        where = f" at {collective.sources[0]}" if collective.sources else ""
        times = "?" if collective.executions is None else _exact(collective.executions)
        lines.append(f"    {times} × {collective.name}, {_exact_bytes(collective.payload_bytes)} per device{where}")
    return "\n".join(lines)


def assert_bytes_sent(program: object, at_most: int | str, *, axis: str | None = None) -> None:
    """Fails if a device sends more bytes than `at_most` in one call, over all collectives.

    Args:
        program: A traced call, a record, or another argument of `inspect`.
        at_most: Bytes per device and call, as a number or as text: `"16 MiB"`.
        axis: Count only collectives over this mesh axis, alone or combined with other axes. Default: all collectives.

    Raises:
        AssertionError: if more bytes are sent; the message states the bytes and the largest collectives.
        InspectionError: if `at_most` is not a number of bytes.

    Example:
        >>> import jax, workbench as wb
        >>> mesh = jax.make_mesh((4,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        >>> x = jax.ShapeDtypeStruct((8, 3), "float32", sharding=jax.NamedSharding(mesh, jax.P("data")))
        >>> assert_bytes_sent(wb.trace(lambda x: x.sum(0))(x), "24 B")
    """
    limit = _bytes(at_most, "assert_bytes_sent")
    collectives = [
        collective
        for collective in _module(program, "assert_bytes_sent").collectives
        if axis is None or axis in collective.axes
    ]
    total = _sent(collectives)
    if total is None or total > limit:
        has = "an unknown number of bytes" if total is None else _exact_bytes(total)
        over = "" if axis is None else f" over {axis}"
        ranked = sorted(collectives, key=lambda collective: -(_sent([collective]) or math.inf))
        lines = [
            f"    {'? B' if (size := _sent([collective])) is None else _exact_bytes(size)} {collective.kind} over "
            f"{'+'.join(collective.axes) or 'no mesh axis'}"
            + (f" at {collective.sources[0]}" if collective.sources else "")
            for collective in ranked[:8]
        ]
        message = "\n".join(
            [f"A device sends {has}{over} in a call, more than {_exact_bytes(limit)}. Largest:", *lines]
        )
        raise AssertionError(message)


def _exact(amount: float) -> str:
    """Writes all digits of a number, so that two different numbers never look the same."""
    return f"{amount:.0f}" if float(amount).is_integer() else repr(float(amount))


def _exact_bytes(amount: float) -> str:
    return f"{_exact(amount)} B" + (f" ({bytes_text(amount)})" if amount >= 1024 else "")


def _sent(collectives: Sequence[CollectiveRecord]) -> float | None:
    """Bytes that one device sends in a call; None if unknown."""
    if any(c.wire_bytes is None or (c.executions is None and c.wire_bytes) for c in collectives):
        return None
    return sum((collective.wire_bytes or 0.0) * (collective.executions or 0.0) for collective in collectives)


def assert_peak_memory(program: object, at_most: int | str) -> None:
    """Fails if a program needs more memory per device than `at_most`, according to the compiler's plan.

    Args:
        program: A traced call, a record, or another argument of `inspect`.
        at_most: Bytes per device, as a number or as text: `"16 GiB"`, `"80 GB"`.

    Raises:
        AssertionError: if the peak is larger; the message states the peak and its largest buffers.
        InspectionError: if the memory is unknown, as it is for HLO text, or if `at_most` is not a number of bytes.
    """
    limit, memory = _bytes(at_most, "assert_peak_memory"), _module(program, "assert_peak_memory").memory
    if memory.peak_bytes is None:
        message = (
            "`assert_peak_memory` received a program whose peak memory is not known: its compiler did not report "
            "it. Only a compiled program has a peak: pass a traced call, or `jax.jit(fn).lower(*args).compile()`."
        )
        raise InspectionError(message)
    if memory.peak_bytes > limit:
        buffers = [
            f"    {_exact_bytes(buffer.size_bytes)} {buffer.name} {buffer.shape}"
            f"{f' at {buffer.source}' if buffer.source else ''}"
            for buffer in memory.largest[:8]
        ]
        message = "\n".join(
            [
                f"The peak is {_exact_bytes(memory.peak_bytes)} per device, more than {_exact_bytes(limit)}. Largest:",
                *buffers,
            ]
        )
        raise AssertionError(message)


def assert_flops(
    program: object, expected: float | None = None, *, at_most: float | None = None, rtol: float = 0.0
) -> None:
    """Fails unless a program executes this many FLOPs of products and convolutions per device and call.

    Args:
        program: A traced call, a record, or another argument of `inspect`.
        expected: FLOPs per device, including all iterations of loops. Default: only `at_most` is checked.
        at_most: The maximum number of FLOPs per device.
        rtol: Tolerance relative to `expected`.

    Raises:
        AssertionError: if the FLOPs differ; the message states both numbers.
        InspectionError: if neither `expected` nor `at_most` was given.
    """
    if expected is None and at_most is None:
        message = (
            "`assert_flops` was given only a program. `assert_flops` compares FLOPs with a number, so pass "
            "`expected` or `at_most`."
        )
        raise InspectionError(message)
    module = _module(program, "assert_flops")
    flops = module.flops
    if at_most is not None and (flops is None or flops > at_most):
        has = "an unknown number of matrix FLOPs" if flops is None else _exact_flops(flops)
        message = f"Found {has} per device, more than {_exact_flops(at_most)}."
        raise AssertionError("\n".join([message, *_flops_lines(module)]))
    if expected is None:
        return
    if flops is None or not math.isclose(flops, expected, rel_tol=rtol, abs_tol=0.0):
        has = "an unknown number (a loop of unknown length contains some)" if flops is None else _exact(flops)
        share = "" if not flops or not expected else f", {flops / expected:.4g} × as many"
        message = f"Expected {_exact(expected)} matrix FLOPs per device, found {has}{share}."
        raise AssertionError("\n".join([message, *_flops_lines(module)]))


def _exact_flops(amount: float) -> str:
    return f"{_exact(amount)} matrix FLOPs" + (f" ({flops_text(amount)})" if amount >= 1000 else "")


def _flops_lines(module: ModuleRecord) -> list[str]:
    """The lines with the most FLOPs in products, largest first."""
    by_line: dict[str, float] = {}
    for instruction in module.instructions:
        work = (instruction.flops or 0.0) * (instruction.executions or 0.0)
        if work and instruction.source is not None:
            by_line[str(instruction.source)] = by_line.get(str(instruction.source), 0.0) + work
    ranked = sorted(by_line.items(), key=lambda item: -item[1])[:8]
    return [f"    {_exact_flops(work)} at {line}" for line, work in ranked]


@contextlib.contextmanager
def assert_no_compilation() -> Iterator[None]:
    """Fails if the block recompiles or retraces a function; make each function's first call before the block.

    Raises:
        AssertionError: if functions were recompiled; the message lists each with the reason, the time and the line of
            the call.

    Example:
        >>> import jax, jax.numpy as jnp
        >>> double = jax.jit(lambda x: 2 * x)
        >>> x = double(jnp.ones(3))
        >>> with assert_no_compilation():
        ...     x = double(x)
    """
    with watch_compilations(quiet=True) as watch:
        yield
    lines = [
        f"  {retrace.function} ({retrace.defined}) was traced again {retrace.count} times at {retrace.called}: {reason}"
        for retrace in watch.record.retraces
        for reason, _ in retrace.reasons
    ]
    lines += [
        f"  {c.function} was compiled {c.count} times in {c.seconds:.2g} s, called at {c.called or '?'}"
        for c in watch.record.compilations
    ]
    if lines:
        message = "\n".join(["The block compiles:", *lines])
        raise AssertionError(message)


def assert_snapshot(record: Record, path: str | os.PathLike[str], *, update: bool | None = None) -> None:
    """Fails if a record differs from a file; writes the file if it does not exist.

    Texts of modules, individual instructions and folders of source files are omitted. A snapshot therefore contains
    stages, shardings, collectives, memory, other figures and source lines.

    Args:
        record: Any record.
        path: A JSON file, kept in version control.
        update: Whether to rewrite the file. Default: whether the environment sets `WORKBENCH_UPDATE_SNAPSHOTS`.

    Raises:
        AssertionError: if the record differs; the message lists the figures and the lines that differ.
    """
    path, short = Path(path), _short_record(record)
    text = short.to_json(indent=1) + "\n"
    if update is None:
        update = os.environ.get(_UPDATE, "") not in ("", "0")
    if update or not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return
    file_text = path.read_text()
    if json.loads(file_text) == json.loads(text):
        return
    rows, lines = snapshot_differences(file_text, text)
    more = [f"… {len(lines) - _MOST_LINES} more lines"] if len(lines) > _MOST_LINES else []
    parts = [
        f"The {type(record).__name__} differs from {path}.",
        *(f"  {name}: {before} → {now}" for name, before, now in rows[:_MOST_FIGURES]),
        *([f"  … {len(rows) - _MOST_FIGURES} more figures"] if len(rows) > _MOST_FIGURES else []),
        *lines[:_MOST_LINES],
        *more,
        f"If the change is intended: `pytest --workbench-update`, or set {_UPDATE}=1.",
    ]
    raise AssertionError("\n".join(parts))


def snapshot_differences(file_text: str, now: str) -> tuple[list[tuple[str, str, str]], list[str]]:
    """Differences between two snapshot texts: differing figures, as `compare` lists them, and differing lines.

    Args:
        file_text: JSON of the stored record, from `assert_snapshot`.
        now: JSON of the current record.

    Returns:
        First, the name, old value and new value of each differing figure (only for programs); second, the lines of a
        unified diff.
    """
    lines = list(difflib.unified_diff(file_text.splitlines(), now.splitlines(), "kept", "now", lineterm=""))
    try:
        differences = _compare(ProgramRecord.from_json(file_text), ProgramRecord.from_json(now)).differences
    except (ValueError, InspectionError):  # a different record or version, so compare only lines
        return [], lines
    rows = []
    for row in differences:
        before, now = amount_texts((row.values[0], row.values[-1]), row.unit)
        rows.append((f"{row.group}: {row.name}", before, now))
    return rows, lines


def _short_record(record: Record) -> Record:
    """A record without its compiler-dependent parts: texts, individual instructions, folders of files."""
    changes: dict[str, Any] = {}
    for entry in dataclasses.fields(record):
        value = getattr(record, entry.name)
        if entry.name in ("call_tree", "traced_call_tree"):  # its figures are the module's figures, by line
            changes[entry.name] = None
        elif entry.name in _LEFT_OUT and isinstance(value, type(_LEFT_OUT[entry.name])):
            changes[entry.name] = _LEFT_OUT[entry.name]
        elif entry.name == "file" and isinstance(value, str):
            changes["file"] = Path(value).name
        else:
            changes[entry.name] = _shortened(value)
    return record.replace(**changes)


def _shortened(value: object) -> object:
    if isinstance(value, Record):
        return _short_record(value)
    if isinstance(value, tuple):
        return tuple(_shortened(item) for item in value)
    if isinstance(value, dict):
        return {key: _shortened(item) for key, item in value.items()}
    return value


def _module(program: Argument, function: str) -> ModuleRecord:
    if isinstance(program, ModuleRecord):
        return program
    record: Argument = program
    if isinstance(program, Traced):
        record = program.inspect()
    elif not isinstance(program, Record):
        record = inspect_given(program)
    if isinstance(record, ProgramRecord) and record.module is not None:
        return record.module
    if isinstance(record, ProgramRecord):
        message = (
            f"`{function}` received the record of `{record.name}`, for which nothing was compiled "
            f"({'; '.join(record.notes) or record.target}). Assertions apply only to compiled programs: inspect the "
            "program on a mesh of devices, or for a target."
        )
        raise InspectionError(message)
    message = (
        f"`{function}` received an object of type {type(program).__name__}, which is not a program. `{function}` "
        "accepts a traced call (`wb.trace(fn)(*args)`), a record from `inspect`, a `Lowered` or `Compiled`, HLO text, "
        "or a file: pass one of these."
    )
    raise InspectionError(message)


_UNITS = {"": 1, "B": 1} | {
    f"{prefix}{end}": base**power for power, prefix in enumerate("KMGT", 1) for end, base in (("B", 1000), ("iB", 1024))
}


def _bytes(value: int | str, function: str) -> int:
    if not isinstance(value, str):
        return int(value)
    match = re.fullmatch(r"\s*([\d.]+)\s*([A-Za-z]*)\s*", value)
    if match is None or match[2] not in _UNITS:
        message = (
            f"`{function}` received {value!r}, which is not a number of bytes. Write a number and one "
            f'of {", ".join(unit for unit in _UNITS if unit)}, such as "16 GiB".'
        )
        raise InspectionError(message)
    return int(float(match[1]) * _UNITS[match[2]])


# The plugin for pytest: `pytest_plugins = ["workbench.testing"]`.


def pytest_addoption(parser: "pytest.Parser") -> None:
    """Adds `--workbench-update` to pytest."""
    parser.addoption("--workbench-update", action="store_true", help="rewrite the files of `record_snapshot`")


class RecordSnapshot:
    """Fixture `record_snapshot`: compares records with files next to the test."""

    def __init__(self, folder: Path, name: str, update: bool | None) -> None:
        self.folder: Path = folder
        self.name: str = name
        self.update: bool | None = update
        self.count: int = 0

    def __call__(self, record: Record, name: str | None = None) -> None:
        """Compares one record with `snapshots/<test>[-<name>].json`; see `assert_snapshot`."""
        self.count += 1
        ending = name if name is not None else str(self.count) if self.count > 1 else ""
        file = "-".join(filter(None, (self.name, ending)))
        assert_snapshot(record, self.folder / f"{file}.json", update=self.update)


def _snapshots(request: "pytest.FixtureRequest") -> Iterator[RecordSnapshot]:
    """Compares records with files in `snapshots/` next to the test."""
    name = re.sub(r"[^\w.-]+", "_", request.node.name)
    update = True if request.config.getoption("--workbench-update", default=False) else None
    yield RecordSnapshot(Path(request.node.path).parent / "snapshots", name, update)


try:
    import pytest
except ImportError:  # the assertions work without pytest
    pass
else:
    record_snapshot: Callable[..., RecordSnapshot] = pytest.fixture(name="record_snapshot")(_snapshots)
