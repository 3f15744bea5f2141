"""Watches a block of code for retraces, slow compilations and out-of-memory errors."""

import collections
import contextlib
import contextvars
import logging
import re
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import jax

from workbench import render
from workbench._jax_compat.profiler import user_frame_of
from workbench._processes import SharedChange
from workbench.measurement._memory import bytes_per_device, own_arrays
from workbench.plan import is_user_file
from workbench.records.live import (
    CompilationRecord,
    ExplanationRecord,
    LiveArrayRecord,
    OutOfMemoryRecord,
    RetraceRecord,
)

_MISS = "TRACING CACHE MISS"
_MISS_AT = re.compile(r"TRACING CACHE MISS at (?P<line>[^\n]*?)(?::\d+)? \((?P<function>[^)]*)\)")
_SEEN = re.compile(r"^\s+for (?P<name>.+) defined at (?P<defined>.+)$", re.MULTILINE)
_NEW = re.compile(r"^\s+(?P<name>.+) id=\d+ defined at (?P<defined>.+)$", re.MULTILINE)
_CHANGE = re.compile(
    r"^\s+\* at (?P<what>.+?), now (?P<now>.+?) and before (?P<before>.+?)(?:https?://.*)?$", re.MULTILINE
)
_BULLET = re.compile(r"^\s+\* (?P<text>.+?)(?:https?://.*)?$", re.MULTILINE)
_PATH = re.compile(r"input path \[(?P<kind>[01])\](?:\['?(?P<name>\w+)'?\](?P<inner>.*))?")
_STATIC = re.compile(r"<class '(?:[^']*\.)?(?P<type>\w+)'> with pytree metadata (?P<value>.*?)(?:, so the .*)?$")
_TYPE = re.compile(r"^(?P<dtype>[a-z]+[0-9]*\w*?)\[(?P<dims>[^\]]*)\](?P<rest>.*)$")
_DURATIONS = {
    "/jax/core/compile/jaxpr_trace_duration": "trace",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lower",
    "/jax/core/compile/backend_compile_duration": "compile",
}
_OUT_OF_MEMORY = ("RESOURCE_EXHAUSTED", "Out of memory", "out of memory")
_MOST_ARRAYS = 8


class watch_compilations:
    """Prints a block's retraces with their reasons, and its slow compilations.

    If memory runs out in the block, the live arrays are listed, largest first, with the lines that created them and the
    variables that refer to them.

    The block behaves as if it were not watched: its exceptions propagate, and the watcher itself raises no exceptions.
    Only the block's own thread or asyncio task is watched; blocks may overlap and nest. Implicit copies between host
    and devices are not counted, because XLA reports them only on the standard error of the process, with
    `jax.transfer_guard("log")`.

    Args:
        slow_seconds: Minimum duration in seconds of the compilations that are reported as slow.
        quiet: Whether to suppress printed output; the results are still available in `record`.

    Example:
        >>> scaled = jax.jit(lambda x, factor: x * factor)
        >>> with watch_compilations(quiet=True) as seen:
        ...     _ = scaled(jnp.ones(3), 2.0), scaled(jnp.ones(3), jnp.float32(2.0))
        >>> [retrace.reasons for retrace in seen.record.retraces]
        [(('argument `factor`: its weak type changed (now not weak)', 1),)]
    """

    record: ExplanationRecord

    def __init__(self, *, slow_seconds: float = 1.0, quiet: bool = False) -> None:
        self.slow_seconds: float = slow_seconds
        self.quiet: bool = quiet
        self.record = ExplanationRecord(seconds=0.0)
        self._inside = contextlib.ExitStack()
        self._notes: list[str] = []

    def __enter__(self) -> Self:
        self._heard = Heard()
        self._started = time.perf_counter()
        try:
            self._watch()
        except Exception as error:  # report what cannot be watched, and run the block
            self._notes.append(f"not everything could be watched: {type(error).__name__}: {error}")
        return self

    def _watch(self) -> None:
        self._inside.enter_context(LOG)
        self._inside.enter_context(_CACHE_MISSES_OF_THREAD.change)
        heard = self._heard
        _BLOCKS.set((*_BLOCKS.get(), heard))
        self._inside.callback(lambda: _BLOCKS.set(tuple(block for block in _BLOCKS.get() if block is not heard)))

    def __exit__(self, kind: object, error: BaseException | None, trace: types.TracebackType | None) -> None:
        seconds = time.perf_counter() - self._started
        try:
            self._inside.close()
            self.record = ExplanationRecord(
                seconds=seconds,
                retraces=self._heard.retraces(),
                compilations=self._heard.compilations(),
                out_of_memory=_out_of_memory(error, trace) if error is not None else None,
                slow_seconds=self.slow_seconds,
                notes=tuple(self._notes),
            )
            if not self.quiet:
                print(render.text(self.record))
        except Exception as failure:  # errors of the watcher must not end the block
            if not self.quiet:
                print(f"watch_compilations: the results cannot be shown ({type(failure).__name__}: {failure})")


# Watching.


class Heard:
    """JAX's reports during a block: trace cache misses, and compilation seconds."""

    __slots__ = ("durations", "misses")

    def __init__(self) -> None:
        self.misses: list[tuple[str, str]] = []  # JAX's message, and the user's calling line
        self.durations: list[tuple[str, str, float, str]] = []

    def __bool__(self) -> bool:
        return bool(self.misses or self.durations)

    def note_duration(self, event: str, seconds: float, **reported: object) -> None:
        """Records one phase of a compilation."""
        if event in _DURATIONS:
            name = re.sub(r"^jit\((.*)\)$", r"\1", str(reported.get("fun_name", "?")))
            self.durations.append((_DURATIONS[event], name, seconds, _user_line(sys._getframe())))

    def compilations(self) -> tuple[CompilationRecord, ...]:
        """Seconds by function, slowest first."""
        return _compilations(self.durations)

    def retraces(self, *, compiled_only: bool = False) -> tuple[RetraceRecord, ...]:
        """Retraced functions, with reasons."""
        retraces = _retraces(self.misses)
        if not compiled_only:
            return retraces
        compiled = {name for phase, name, _, _ in self.durations if phase != "trace"}
        return tuple(retrace for retrace in retraces if retrace.function in compiled)


def start_hearing(heard: Heard) -> "contextvars.Token[tuple[Heard, ...]]":
    """Collects JAX's reports in this thread or task until `stop_hearing`; needs an entered `LOG`."""
    _CACHE_MISSES_OF_THREAD.change.__enter__()
    return _BLOCKS.set((*_BLOCKS.get(), heard))


def stop_hearing(token: "contextvars.Token[tuple[Heard, ...]]") -> None:
    """Ends `start_hearing`."""
    _BLOCKS.reset(token)
    _CACHE_MISSES_OF_THREAD.change.__exit__()


_BLOCKS: contextvars.ContextVar[tuple[Heard, ...]] = contextvars.ContextVar("workbench_explain", default=())
"""The active blocks of this thread or task, outermost first."""


def _note_duration(event: str, duration_secs: float, **kwargs: str | int) -> None:
    for block in _BLOCKS.get():
        block.note_duration(event, duration_secs, **kwargs)


def _keep(record: logging.LogRecord) -> bool:
    """Removes cache-miss messages from JAX's log, unless the user enabled them."""
    blocks = _BLOCKS.get()
    if not blocks or not (text := record.getMessage()).startswith(_MISS):
        return True
    for block in blocks:
        block.misses.append((text, _user_line(sys._getframe())))
    return _CACHE_MISSES_OF_THREAD.wanted


def _watch_log() -> Callable[[], None]:
    loggers = [
        logger
        for name, logger in list(logging.root.manager.loggerDict.items())
        if name.startswith("jax") and isinstance(logger, logging.Logger)
    ]
    jax.monitoring.register_event_duration_secs_listener(_note_duration)
    for logger in loggers:
        logger.addFilter(_keep)

    def undo() -> None:
        for logger in loggers:
            logger.removeFilter(_keep)
        jax.monitoring.unregister_event_duration_listener(_note_duration)

    return undo


LOG = SharedChange(_watch_log)


class _CacheMisses(threading.local):
    """JAX's thread-local setting for cache-miss logging."""

    def __init__(self) -> None:
        self.wanted = False
        self.change = SharedChange(self._turn_on)

    def _turn_on(self) -> Callable[[], None]:
        self.wanted = bool(jax.config.jax_explain_cache_misses)  # pyright: ignore[reportAttributeAccessIssue]
        on = jax.explain_cache_misses(True)
        on.__enter__()
        return lambda: on.__exit__(None, None, None)


_CACHE_MISSES_OF_THREAD = _CacheMisses()


# Evaluation of the reports.


def _retraces(misses: list[tuple[str, str]]) -> tuple[RetraceRecord, ...]:
    reasons: dict[tuple[str, str], collections.Counter[str]] = {}
    called: dict[tuple[str, str], str] = {}
    new: collections.Counter[tuple[str, str]] = collections.Counter()
    for text, line in misses:
        match = _SEEN.search(text) or _NEW.search(text)
        if match is None or not is_user_file(match["defined"]):
            continue
        key = match["name"], match["defined"]
        at = _MISS_AT.search(text)
        called[key] = line or (_short(at["line"]) if at else "")
        if "never seen function" in text:
            new[key] += 1
            if new[key] > 1:
                reason = "it is a new function object each time: define and jit it once, outside the loop"
                reasons.setdefault(key, collections.Counter())[reason] += 1
            continue
        changes = [_change(c["what"], c["now"].strip(), c["before"].strip()) for c in _CHANGE.finditer(text)]
        changes = changes or [_long_change(match["text"].strip()) for match in _BULLET.finditer(text)]
        reasons.setdefault(key, collections.Counter())["; ".join(changes) or text.splitlines()[-1].strip()] += 1
    return tuple(
        RetraceRecord(
            function=key[0],
            defined=_short(key[1]),
            called=called[key],
            count=counted.total(),
            reasons=tuple(counted.most_common()),
        )
        for key, counted in sorted(reasons.items(), key=lambda item: -item[1].total())
    )


def added_compilations(
    one: tuple[CompilationRecord, ...], other: tuple[CompilationRecord, ...]
) -> tuple[CompilationRecord, ...]:
    """Merges compilations of two blocks by function, slowest first."""
    sums = {compilation.function: compilation for compilation in one}
    for compilation in other:
        total = sums.get(compilation.function)
        sums[compilation.function] = compilation if total is None else compilation.replace(
            count=total.count + compilation.count,
            trace_seconds=total.trace_seconds + compilation.trace_seconds,
            lower_seconds=total.lower_seconds + compilation.lower_seconds,
            compile_seconds=total.compile_seconds + compilation.compile_seconds,
        )  # fmt: skip
    return tuple(sorted(sums.values(), key=lambda compilation: -compilation.seconds))


def added_retraces(one: tuple[RetraceRecord, ...], other: tuple[RetraceRecord, ...]) -> tuple[RetraceRecord, ...]:
    """Merges retraces of two blocks by function, most frequent first."""
    sums = {(retrace.function, retrace.defined): retrace for retrace in one}
    for retrace in other:
        key = retrace.function, retrace.defined
        total = sums.get(key)
        reasons = collections.Counter(dict(retrace.reasons if total is None else total.reasons))
        if total is not None:
            reasons.update(dict(retrace.reasons))
        count = retrace.count + (0 if total is None else total.count)
        sums[key] = retrace.replace(count=count, reasons=tuple(reasons.most_common()))
    return tuple(sorted(sums.values(), key=lambda retrace: -retrace.count))


def _change(argument: str, now: str, before: str) -> str:
    here, there = _TYPE.match(now), _TYPE.match(before)
    prefix = f"{_argument_name(argument)}: "
    new, old = _STATIC.match(now), _STATIC.match(before)
    if new is not None and old is not None and new["type"] == old["type"]:
        part = "its keys changed (" if new["type"] == "dict" else f"its static part changed (`{new['type']}`, "
        return f"{prefix}{part}now {new['value']}, before {old['value']})"
    if here is None or there is None:
        return f"{prefix}{now}, before {before}"
    if here["dims"] != there["dims"]:
        return f"{prefix}its shape changed (now [{here['dims']}], before [{there['dims']}])"
    if here["dtype"] != there["dtype"]:
        return f"{prefix}its dtype changed (now {here['dtype']}, before {there['dtype']})"
    if "weak_type" in now or "weak_type" in before:
        weak = "weak_type=True" in now
        return f"{prefix}its weak type changed (now {'weak, as for a Python number' if weak else 'not weak'})"
    return f"{prefix}now {now}, before {before}"


def _long_change(text: str) -> str:
    """Shortens a change of static parts, which JAX prints over many lines; `text` is the first of these lines."""
    path, _, now = text.removeprefix("at ").partition(", now ")
    static = _STATIC.match(now)
    return text if static is None else f"{_argument_name(path)}: its static part changed (`{static['type']}`)"


def _argument_name(path: str) -> str:
    """Names an argument; JAX calls a second positional argument without a known name `input path [0][1]`."""
    match = _PATH.fullmatch(path)
    if match is None:
        return f"argument `{path}`"
    kind = "positional" if match["kind"] == "0" else "keyword"
    if match["name"] is None:
        return f"{kind} arguments"
    name = f"positional argument {int(match['name']) + 1}" if kind == "positional" else f"argument `{match['name']}`"
    return f"{name}, `{match['inner'].removeprefix('.')}`" if match["inner"] else name


def _compilations(durations: list[tuple[str, str, float, str]]) -> tuple[CompilationRecord, ...]:
    sums: dict[str, dict[str, float]] = {}
    counts: collections.Counter[str] = collections.Counter()
    lines: dict[str, str] = {}
    for phase, name, seconds, line in durations:
        phases = sums.setdefault(name, dict.fromkeys(("trace", "lower", "compile"), 0.0))
        phases[phase] += seconds
        counts[name] += phase == "compile"
        lines[name] = line or lines.get(name, "")
    records = [
        CompilationRecord(
            function=name,
            count=counts[name],
            trace_seconds=phases["trace"],
            lower_seconds=phases["lower"],
            compile_seconds=phases["compile"],
            called=lines[name],
        )
        for name, phases in sums.items()
        if counts[name]
    ]
    return tuple(sorted(records, key=lambda record: -record.seconds))


def _out_of_memory(error: BaseException, trace: TracebackType | None) -> OutOfMemoryRecord | None:
    text = str(error)
    if isinstance(error, MemoryError):
        text = text or "MemoryError"
    elif not any(word in text for word in _OUT_OF_MEMORY):
        return None
    frames = [frame for frame, _ in traceback.walk_tb(trace)]
    user_frames = [frame for frame in frames if is_user_file(frame.f_code.co_filename)]
    names = _variables(user_frames)
    groups: dict[tuple[Any, ...], list[Any]] = {}
    for array in own_arrays(jax.live_arrays()):
        groups.setdefault((array.shape, str(array.dtype), array.sharding, _made_at(array)), []).append(array)
    arrays = []
    for (shape, dtype, _, made_at), members in groups.items():
        per_device = max((size for _, size in bytes_per_device(members[0])), default=0)
        labels = [name for array in members for name in names.get(id(array), ())]
        arrays.append(
            LiveArrayRecord(
                shape=tuple(shape),
                dtype=dtype,
                count=len(members),
                device_bytes=per_device * len(members),
                names=tuple(dict.fromkeys(labels))[:4],
                made_at=made_at,
            )
        )
    arrays.sort(key=lambda record: -record.device_bytes)
    stats = jax.local_devices()[0].memory_stats() or {}
    return OutOfMemoryRecord(
        message=" ".join(text.split())[:400],
        line=_line_of(user_frames[-1]) if user_frames else "",
        in_use_bytes=stats.get("bytes_in_use"),
        limit_bytes=stats.get("bytes_limit"),
        arrays=tuple(arrays[:_MOST_ARRAYS]),
    )


def _made_at(array: object) -> str:
    """The user's line that created an array; "" if JAX did not record it."""
    frame = user_frame_of(array, is_user_file)
    return "" if frame is None else f"{Path(frame[0]).name}:{frame[1]} in {frame[2]}"


def _variables(frames: list[types.FrameType]) -> dict[int, list[str]]:
    """Names of the variables in the user's functions that refer to arrays, innermost function first."""
    names: dict[int, list[str]] = {}
    for frame in reversed(frames):
        where = f" in {frame.f_code.co_name} ({_line_of(frame)})"
        for name, value in list(frame.f_locals.items()):
            if name.startswith("_"):
                continue
            try:
                leaves = jax.tree_util.tree_flatten_with_path(value)[0]
            except (TypeError, ValueError):
                continue
            for path, leaf in leaves[:10_000]:
                if isinstance(leaf, jax.Array):
                    names.setdefault(id(leaf), []).append(f"{name}{jax.tree_util.keystr(path)}{where}")
    return names


def _line_of(frame: types.FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _user_line(frame: types.FrameType | None) -> str:
    """The innermost line of user code on the stack."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_file(file):
            return _line_of(frame)
        frame = frame.f_back
    return ""


def _short(place: str) -> str:
    return Path(place).name
