"""Background work for `watch`: one thread waits for results, another thread records them."""

import collections
import contextlib
import math
import queue
import re
import statistics
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from workbench._open_types import Foreign
from workbench._types import Device
from workbench.cost import known_chip, largest_dtype, seconds_at_peak
from workbench.errors import MissingDependencyError
from workbench.inspection import TracedCall, codes_of, compare_measured, inspect_call, measured_tree
from workbench.measurement._explain import Heard, added_compilations, added_retraces
from workbench.measurement._history import History
from workbench.measurement._join import join_profile
from workbench.measurement._memory import device_label
from workbench.measurement._profile import RunningProfile
from workbench.measurement._progress import Progress
from workbench.measurement._run_log import Tracker
from workbench.measurement._watch_outputs import Mean
from workbench.mesh import read_here
from workbench.records.call_tree import CallTreeRecord
from workbench.records.compiled import CollectiveRecord, ProgramRecord
from workbench.records.live import CompilationRecord, ProblemRecord, RetraceRecord, RoundRecord, WatchRecord
from workbench.render.units import amount_text

WatchStatus = Literal["ready", "running", "waiting", "paused", "finished", "failed"]

RECENT = 1000  # steps for medians
_TOGETHER = 10  # steps per mean
_KEPT, _WHOLE = 4096, 2048  # maximum number of steps in the history, and number of latest steps that are all kept
_MOST_PROBLEMS = 100
_MOST_VERSIONS = 8  # maximum number of programs of one function, for arguments of different shapes
_MOST_CHANGED_LINES = 12
_MOST_REASONS = 3  # maximum number of reasons in the message about a compilation
_TIMED_STEPS = 5  # fewer steps do not show whether a time differs
_TIMES = frozenset(("time of a call", "time until the call returns", "time between calls"))
_MOST_WAITING = 10_000  # maximum number of calls whose results are not ready yet
_NOTIFY_SECONDS = 0.25
_MEMORY_SECONDS = 0.25
_PATIENCE_AT_EXIT_SECONDS = 60.0
_WAITING_SHARE = 0.3  # of the time of a step: devices that wait longer wait for the host
_ARGUMENTS = re.compile(r"; (?=argument `)")  # between the parts of a reason
_IN_PMAP = "_fun"  # the function that `jax.pmap` compiles


class WatchedStep:
    """One call on its way from the user's thread to the record."""

    __slots__ = (
        "between", "called", "changed", "end", "heard", "index", "probe", "profile", "ready", "returned", "values",
        "version",
    )  # fmt: skip

    def __init__(self, index: int, called: float, between: float | None) -> None:
        self.index, self.called, self.between = index, called, between
        self.returned = called
        self.ready: float | None = None  # as seen by the user's thread at the next call
        self.end = called  # when the results were ready
        self.probe: jax.Array | None = None
        self.values: dict[str, Any] = {}
        self.heard: Heard | None = None
        self.changed = ""  # arguments that differ from those of the compilation before
        self.profile: RunningProfile | None = None
        self.version: tuple[Any, ...] = ()  # shapes of the arguments


class StepProgram:
    """Data about the program for one set of argument shapes; parts are None or empty until they are known."""

    __slots__ = ("call_tree", "codes", "program", "rates")

    def __init__(self) -> None:
        self.program: ProgramRecord | None = None
        self.call_tree: CallTreeRecord | None = None  # with the measured seconds of the latest profile
        self.codes: Mapping[tuple[str, int], str] = {}  # the source when the step was compiled
        self.rates: dict[str, float] = {}  # per second of a step


class Core:
    """The record of a watched loop, filled by two background threads.

    The user's thread only puts steps into a queue. One thread waits for the results of the steps and another records
    the steps, because reading a profile takes longer than a step. Of each step, the watch keeps one small array, which
    shows when the step is done. It keeps the chosen outputs until they are read.
    """

    def __init__(self, name: str, trackers: list[Tracker]) -> None:
        self.name, self.trackers = name, trackers
        self.previous: Core | None = None  # the previous version, without its steps
        self.status: WatchStatus = "ready"
        self.callbacks: list[Callable[[Any], object]] = []  # called at most four times a second, and at the end
        self.donated: set[str] = set()  # outputs that were donated before they could be read
        self.progress: Progress | None = None
        self._queue: queue.SimpleQueue[WatchedStep | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[WatchedStep | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._count = 0
        self._done = 0
        self._history: list[RoundRecord] = []
        self._problems: list[ProblemRecord] = []
        self._shown_problems = 0  # in the terminal
        self._notes: dict[str, None] = {}
        self._compilations: tuple[CompilationRecord, ...] = ()
        self._retraces: tuple[RetraceRecord, ...] = ()
        self._recent: collections.deque[tuple[float, float, float | None, float, float, tuple[Any, ...]]] = (
            collections.deque(maxlen=RECENT)
        )
        self._versions: dict[tuple[Any, ...], StepProgram] = {}
        # Steps that finished before the cost of their program was known.
        self._unrated: collections.deque[tuple[int, tuple[Any, ...]]] = collections.deque(maxlen=_KEPT)
        self._last_ready: float | None = None
        self._devices: list[Device] = []
        self._memory: tuple[int, int | None] | None = None
        self._memory_read = 0.0
        self._notified = 0.0
        self._paused = False

    # Called from the user's thread.

    def next_index(self) -> int:
        with self._lock:
            self._count += 1
            if self.status == "waiting":
                self.status = "running"
            return self._count - 1

    def put(self, step: WatchedStep) -> None:
        """Queues a call; the first call starts the threads."""
        if self._thread is None:
            self._begin()
        if step.index - self._done > _MOST_WAITING:
            self.note(f"more than {_MOST_WAITING:,} calls were waiting for results: some were not recorded")
            self.settle()
            return
        self._queue.put(step)

    def skip(self) -> None:
        """Drops the latest call, because it only traced the function inside another function."""
        with self._lock:
            self._count -= 1

    def settle(self) -> None:
        """Counts a call as done, without recording anything else."""
        with self._lock:
            self._done += 1

    def _begin(self) -> None:
        with self._lock:
            if self._thread is not None:
                return
            self.status = "running"
            waiting = threading.Thread(target=self._see, name="workbench-watch-wait", daemon=True)
            thread = threading.Thread(target=self._work, name="workbench-watch", daemon=True)
            weakref.finalize(self, _end, self._queue, waiting, thread)  # a thread killed inside JAX aborts Python
            self._thread = thread
            waiting.start()
            thread.start()

    def close(self, status: WatchStatus = "finished", *, wait: bool = True) -> None:
        """Ends the record once all calls so far are recorded."""
        if self.status in ("finished", "failed"):
            return
        self._ends = status
        thread = self._thread
        if thread is None:
            self._finish()
            return
        self._queue.put(None)
        if wait and thread is not threading.current_thread():
            thread.join(_PATIENCE_AT_EXIT_SECONDS)

    _ends: WatchStatus = "finished"

    def flush(self, seconds: float = 10.0) -> None:
        """Waits until the calls so far are recorded."""
        deadline = time.monotonic() + seconds
        while self._thread is not None and self._done < self._count and time.monotonic() < deadline:
            time.sleep(0.002)

    def note(self, text: str) -> None:
        """Adds a note to the record, unless the record already has it."""
        self._notes[text] = None

    def problem(self, step: int, text: str, *, metric: str | None = None, value: str | None = None) -> None:
        """Adds a problem in a step; the first hundred problems are kept."""
        if len(self._problems) < _MOST_PROBLEMS:
            self._problems.append(ProblemRecord(round=step, what=text, metric=metric, value=value))
        else:
            self.note(f"only the first {_MOST_PROBLEMS} problems are kept")

    def pause(self, paused: bool) -> None:
        """Pauses or resumes drawing; steps are still recorded."""
        self._paused = paused
        self._notify(force=True)

    @property
    def drawn_status(self) -> WatchStatus:
        """The status that views show: a paused view hides whether the loop runs or waits."""
        return "paused" if self._paused and self.status in ("running", "waiting") else self.status

    def rest(self) -> None:
        """Marks a loop whose cell has ended: the next call, if any, is in another cell."""
        if self.status == "running":
            self.status = "waiting"
            self._notify(force=True)

    def inspect(self, call: TracedCall, shapes: tuple[Any, ...]) -> None:
        """Inspects the compiled step in a thread; JAX already has the executable."""
        devices = jax.local_devices()[:1]

        def read() -> None:
            try:
                self._know(inspect_call(call), devices[0], shapes)
            except Exception as error:
                self.note(f"the cost of `{self.name}` is unknown ({type(error).__name__}: {str(error)[:200]})")

        thread = threading.Thread(target=read, name="workbench-watch-cost", daemon=True)
        weakref.finalize(call, _join, thread)
        thread.start()
        self._reading = thread

    _reading: threading.Thread | None = None

    # Runs in the waiting thread.

    def _see(self) -> None:
        """Records when the results of each step were ready.

        If several steps are ready when the thread wakes, only the end of the last step is known, so the time is divided
        among these steps.
        """
        last = -math.inf
        waiting: list[WatchedStep | None] = [self._queue.get()]
        while (step := waiting.pop()) is not None:
            self._wait(step)
            together = [step]
            with contextlib.suppress(queue.Empty):
                while not waiting:
                    following = self._queue.get_nowait()
                    if following is not None and _is_ready(following):
                        together.append(following)
                    else:
                        waiting.append(following)
            now = time.perf_counter()
            begin = max(step.called, last)
            for number, watched in enumerate(together, 1):
                end = begin + (now - begin) * number / len(together)
                end = (
                    watched.returned
                    if watched.probe is None
                    else end
                    if watched.ready is None
                    else min(end, watched.ready)
                )
                watched.end = last = max(end, watched.called, last)
                self._ready.put(watched)
            if not waiting:
                waiting.append(self._queue.get())
        self._ready.put(None)

    def _wait(self, step: WatchedStep) -> None:
        if step.probe is None:
            self.note("the seconds cover only the calls: the results have no array to wait for")
        elif step.ready is None:
            try:
                step.probe.block_until_ready()
            except RuntimeError as error:
                if "deleted" not in str(error):  # the computation failed; the user's loop receives the exception
                    self.problem(step.index, f"step {step.index} failed: {str(error).splitlines()[0][:200]}")
                else:
                    self.donated.add("")

    # Runs in the recording thread.

    def _work(self) -> None:
        dirty = False
        while True:
            try:
                step = self._ready.get(timeout=_NOTIFY_SECONDS if dirty else None)
            except queue.Empty:
                self._notify(force=True)
                dirty = False
                continue
            if step is None:
                break
            try:
                self._record(step)
            except Exception as error:  # the record may be incomplete, but the user's loop continues
                self.note(f"step {step.index} could not be recorded ({type(error).__name__}: {str(error)[:200]})")
            step.probe, step.values = None, {}  # release the user's arrays
            self.settle()
            del step
            dirty = True
            self._notify()
        if self._reading is not None:
            self._reading.join(_PATIENCE_AT_EXIT_SECONDS)
        self._fill_rates()
        self._finish()

    def _finish(self) -> None:
        for tracker in list(self.trackers):
            self._with_tracker(tracker, lambda tracker: tracker.finish(self._ends))
        self.status = self._ends
        if self.progress is not None:
            self.progress.close(self.status)
        self._notify(force=True)

    def _record(self, step: WatchedStep) -> None:
        ready, last = step.end, self._last_ready
        began = step.called if last is None else max(step.called, last)
        seconds = max(ready - began, 0.0)
        idle = 0.0 if last is None else max(step.called - last, 0.0)
        self._last_ready = ready if last is None else max(ready, last)
        compiled = self._hear(step)
        dispatch = step.returned - step.called
        outputs = self._read(step)
        metrics = outputs | {"dispatch_seconds": dispatch, "idle_seconds": idle}
        if step.between is not None:
            metrics["between_seconds"] = step.between
        if compiled:
            metrics["compile_seconds"] = compiled
        elif seconds > 0.0:
            period = ready - (last if last is not None else step.called)
            self._recent.append((seconds, dispatch, step.between, idle, max(period, 1e-9), step.version))
            metrics |= {name: rate / seconds for name, rate in self._of(step.version).rates.items()}
            if step.version not in self._versions:
                self._unrated.append((step.index, step.version))
        metrics |= self._memory_now(step)
        if step.profile is not None:
            metrics |= self._join(step)
        record = RoundRecord(
            round=step.index, seconds=seconds, metrics=metrics, unix_seconds=time.time() - (time.perf_counter() - ready)
        )
        self._keep(record)
        for tracker in list(self.trackers):
            self._with_tracker(tracker, lambda tracker: tracker.log(record))
        if self.progress is not None:
            new = tuple(self._problems[self._shown_problems :])
            self._shown_problems += len(new)
            self.progress.update(record.replace(metrics=outputs, problems=new))

    def _read(self, step: WatchedStep) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for name, leaf in step.values.items():
            try:
                value = _numbers_of(leaf)
            except RuntimeError as error:
                if "deleted" not in str(error):
                    continue
                self.donated.add(name)
                self.note(f"{name} was donated to the next call before it could be read; `watch` copies it from now on")
                continue
            except (TypeError, ValueError):
                self.note(f"{name} is an object of type {type(leaf).__name__}, which is not a number")
                continue
            values[name] = value
            numbers = value if isinstance(value, tuple) else (value,)
            wrong = next((number for number in numbers if not math.isfinite(number)), None)
            if wrong is not None and not any(problem.metric == name for problem in self._problems):
                text = f"{name} is {wrong} in step {step.index}"
                self.problem(step.index, text, metric=name, value=str(wrong))
        step.values = {}
        return values

    def _hear(self, step: WatchedStep) -> float:
        """The time that the call spent compiling, in seconds."""
        if step.heard is None or not step.heard:
            return 0.0
        compilations = step.heard.compilations()
        # A function inside the step may be traced several times in one compilation, which is not a reason for it.
        retraces = step.heard.retraces(compiled_only=True) if step.index else ()
        self._compilations = added_compilations(self._compilations, compilations)
        self._retraces = added_retraces(self._retraces, retraces)
        seconds = sum(compilation.seconds for compilation in compilations)
        if step.index and compilations:
            functions = [compilation.function for compilation in compilations[:3]]
            names = ", ".join(f"`{self.name if name == _IN_PMAP else name}`" for name in functions)
            parts = [part for retrace in retraces for reason, _ in retrace.reasons for part in _ARGUMENTS.split(reason)]
            more = f"; and {len(parts) - _MOST_REASONS} more" if len(parts) > _MOST_REASONS else ""
            reasons = "; ".join(parts[:_MOST_REASONS]) + more or step.changed
            self.problem(
                step.index, f"step {step.index} compiled {names} in {seconds:.2g} s" + (f": {reasons}" * bool(reasons))
            )
        return seconds

    def _memory_now(self, step: WatchedStep) -> dict[str, float]:
        now = time.monotonic()
        if now - self._memory_read < _MEMORY_SECONDS or step.probe is None:
            return {}
        self._memory_read = now
        here = jax.process_index()
        with contextlib.suppress(RuntimeError):
            self._devices = [device for device in step.probe.sharding.device_set if device.process_index == here]
        stats = [stat for device in self._devices if (stat := device.memory_stats())]
        if not stats:
            return {}
        used = max(int(stat.get("bytes_in_use", 0)) for stat in stats)
        peaks = [int(stat["peak_bytes_in_use"]) for stat in stats if "peak_bytes_in_use" in stat]
        self._memory = used, max(peaks, default=None)
        return {"memory_bytes": float(used)} | ({"peak_bytes": float(max(peaks))} if peaks else {})

    def _keep(self, record: RoundRecord) -> None:
        with self._lock:
            self._history.append(record)
            if len(self._history) >= _KEPT:
                self._history = [*self._history[: _KEPT - _WHOLE : 2], *self._history[_KEPT - _WHOLE :]]

    def _fill_rates(self) -> None:
        """Adds the rates of steps that finished before the cost of their program was known."""
        with self._lock:
            if not any(version in self._versions for _, version in self._unrated):
                return
            waiting = dict(self._unrated)
            for place, record in enumerate(self._history):
                version = self._versions.get(waiting.get(record.round, _NO_VERSION))
                if version is not None and record.seconds:
                    rates = {name: rate / record.seconds for name, rate in version.rates.items()}
                    self._history[place] = record.replace(metrics={**record.metrics, **rates})
            rest = [entry for entry in self._unrated if entry[1] not in self._versions]
            self._unrated.clear()
            self._unrated.extend(rest)

    def _of(self, shapes: tuple[Any, ...]) -> StepProgram:
        return self._versions.get(shapes, _UNKNOWN)

    def _know(self, program: ProgramRecord, device: Device, shapes: tuple[Any, ...]) -> None:
        module, version = program.module, StepProgram()
        if module is not None and module.call_tree is not None:
            version.call_tree, version.codes = module.call_tree, codes_of(module.call_tree)
        version.program = program
        with self._lock:
            self._versions[shapes] = version
            while len(self._versions) > _MOST_VERSIONS:
                del self._versions[next(iter(self._versions))]
        if module is None:
            self.note("the cost is unknown: nothing was compiled on these devices")
            return
        rates: dict[str, float] = {}
        if module.flops:
            rates["flops_per_second"] = module.flops
        if module.accessed_bytes:
            rates["bytes_per_second"] = module.accessed_bytes
        for note in module.notes if module.flops is None or module.accessed_bytes is None else ():
            self.note(note)
        try:
            chip = known_chip(str(device.device_kind))
        except Exception:
            chip = None
        if chip is not None:
            at_peak = seconds_at_peak(module.instructions, chip, largest_dtype(program.plan, chip))
            if at_peak:
                rates["peak_flops_share"] = at_peak
            if "bytes_per_second" in rates:
                bandwidth = chip.hbm_bytes_per_second / chip.devices_per_chip
                rates["peak_bandwidth_share"] = rates["bytes_per_second"] / bandwidth
        else:
            self.note(f"fractions of peak are unknown: no peak is published for {device.device_kind!r}")
        version.rates = rates

    def _join(self, step: WatchedStep) -> dict[str, float]:
        """Matches a step's profile to lines; returns the mean compute and collective time per device in seconds."""
        assert step.profile is not None
        try:
            profile = step.profile.stop()
            version = self._of(step.version)
            module = version.program.module if version.program is not None else None
            if module is None or module.call_tree is None:
                self.note("a profile could not be matched to source lines, because the step's cost was not yet known")
                return {}
            joined = join_profile(profile, module, mesh=version.program.mesh if version.program else None)
            counts: dict[tuple[str, int], float] = collections.defaultdict(float)
            for leaf in joined.leaves:
                counts[leaf.event.name, leaf.event.device] += leaf.execution_share
            once = {
                (leaf.event.name, leaf.event.device)
                for leaf in joined.leaves
                if leaf.instruction is not None and leaf.instruction.executions == 1
            }
            typical = max(1.0, statistics.median(counts[operation] for operation in once) if once else 1.0)
            # The ends of earlier calls and the starts of later calls are profiled too.
            calls = {operation: count if operation in once else typical for operation, count in counts.items()}
            seconds: dict[str, dict[str, float]] = {}
            for leaf in joined.leaves:
                place = seconds.setdefault(leaf.event.name, {})
                label = self._label(leaf.event.device)
                place[label] = place.get(label, 0.0) + leaf.event.seconds / calls[leaf.event.name, leaf.event.device]
            version.call_tree = measured_tree(module.call_tree, seconds)
            devices = len({leaf.event.device for leaf in joined.leaves})
            if not devices:
                self.note(f"a profile contains no operation of the step: {' '.join(joined.notes)}")
                return {}
            parts = {"compute_seconds": 0.0, "collective_seconds": 0.0}
            for leaf in joined.leaves:
                of_call = leaf.event.seconds / calls[leaf.event.name, leaf.event.device]
                parts[f"{leaf.kind}_seconds"] += of_call / devices
            return parts
        except Exception as error:  # for example, another profiler is running
            self.note(f"a profile could not be read ({type(error).__name__}: {str(error)[:200]})")
        return {}

    def _label(self, number: int) -> str:
        device = next((device for device in jax.local_devices() if device.id == number), None)
        return str(number) if device is None else device_label(device)

    def _with_tracker(self, tracker: Tracker, do: Callable[[Tracker], None]) -> None:
        try:
            do(tracker)
        except MissingDependencyError:
            self.trackers.remove(tracker)
            raise
        except Exception as error:  # a full disk or a lost connection must not stop the loop
            self.trackers.remove(tracker)
            text = f"{type(tracker).__name__} failed and was removed ({type(error).__name__}: {error})"
            self.problem(max(self.finished - 1, 0), text)

    def start_trackers(self, about: Mapping[str, Any]) -> None:
        program = {"cannot": "a watched loop is user code: run its cell or script again"}
        for tracker in list(self.trackers):
            self._with_tracker(tracker, lambda tracker: tracker.start({**about, "earlier": []}, program))

    def _notify(self, *, force: bool = False) -> None:
        now = time.monotonic()
        if not force and (self._paused or now - self._notified < _NOTIFY_SECONDS):
            return
        self._notified = now
        for callback in list(self.callbacks):
            try:
                callback(self)
            except Exception as error:  # a broken display must not stop the recording
                with contextlib.suppress(ValueError):
                    self.callbacks.remove(callback)
                self.note(f"a display failed and was removed ({type(error).__name__}: {error})")

    # The record.

    @property
    def history(self) -> History:
        """The kept steps."""
        self._fill_rates()
        return History(tuple(self._history))

    @property
    def problems(self) -> tuple[ProblemRecord, ...]:
        """Problems, in step order."""
        return tuple(self._problems)

    @property
    def started(self) -> bool:
        """True if a call was recorded."""
        return self._count > 0

    @property
    def finished(self) -> int:
        """Number of recorded steps."""
        return self._done

    @property
    def step_seconds(self) -> float | None:
        """The typical time of a step in seconds."""
        return _typical([entry[0] for entry in tuple(self._recent)])

    @property
    def shown(self) -> StepProgram:
        """The program that most of the recent steps ran; among equally frequent programs, the latest."""
        counts = collections.Counter(entry[5] for entry in tuple(self._recent))
        with self._lock:
            versions = list(self._versions.items())
        return max(reversed(versions), key=lambda item: counts[item[0]], default=((), _UNKNOWN))[1]

    def record(self, *, history: bool = True) -> WatchRecord:
        """Everything so far."""
        self._fill_rates()
        recent, shown = tuple(self._recent), self.shown
        module = None if shown.program is None else shown.program.module
        step_seconds = self.step_seconds
        durations = [entry[0] for entry in recent if self._of(entry[5]) is shown]
        periods = sum(entry[4] for entry in recent)
        own_seconds = _typical(durations)
        rates = {name: rate / own_seconds for name, rate in shown.rates.items() if own_seconds}
        notes = list(self._notes)
        if len(self._versions) > 1 and len(durations) < len(recent):
            notes.append(
                f"{len(self._versions)} programs ran, because shapes or static arguments changed: FLOPs, rates, "
                f"planned memory and collectives describe {len(durations)} of the {len(recent)} latest steps"
            )
        record = WatchRecord(
            name=self.name,
            status=self.drawn_status,
            steps=self._done,
            history=tuple(self._history) if history else (),
            step_seconds=step_seconds,
            dispatch_seconds=_median(entry[1] for entry in recent),
            between_seconds=_median(entry[2] for entry in recent if entry[2] is not None),
            idle_share=sum(entry[3] for entry in recent) / periods if periods else None,
            idle_steps_share=(
                sum(entry[3] > _WAITING_SHARE * entry[4] for entry in recent) / len(recent) if recent else None
            ),
            flops=None if module is None else module.flops,
            accessed_bytes=None if module is None else module.accessed_bytes,
            flops_per_second=rates.get("flops_per_second"),
            bytes_per_second=rates.get("bytes_per_second"),
            peak_flops_share=rates.get("peak_flops_share"),
            peak_bandwidth_share=rates.get("peak_bandwidth_share"),
            planned_peak_bytes=None if module is None else module.memory.peak_bytes,
            memory_bytes=None if self._memory is None else self._memory[0],
            peak_bytes=None if self._memory is None else self._memory[1],
            collectives=None if module is None else _executions(module.collectives),
            sent_bytes=None if module is None else _sent(module.collectives),
            compilations=self._compilations,
            retraces=self._retraces,
            problems=self.problems,
            call_tree=shown.call_tree,
            notes=tuple(notes),
        )
        if self.previous is None:
            return record
        before = self.previous.record(history=False)
        codes = [self.previous.shown.codes, shown.codes]
        is_timed = min(len(recent), len(self.previous._recent)) >= _TIMED_STEPS
        return record.replace(changes=changes_of(before, record, codes, is_timed=is_timed))

    def forget(self) -> None:
        """Drops the steps and earlier versions; keeps the data for comparisons."""
        self._history, self.previous = [], None


def _numbers_of(leaf: Foreign) -> float | tuple[float, ...]:
    """Converts an output to Python numbers; returns one number if all are equal, as under `pmap`."""
    if isinstance(leaf, Mean):
        return float(np.mean(_numbers_of(leaf.total))) / max(float(np.mean(_numbers_of(leaf.count))), 1.0)
    if getattr(leaf, "shape", ()) == () and getattr(leaf, "is_fully_addressable", True):
        return float(leaf)  # fast path for nearly all outputs, without a numpy array
    data = read_here(leaf)
    array = np.asarray(data.compressed() if isinstance(data, np.ma.MaskedArray) else data, np.float64)
    if array.size and np.all(array == array.flat[0]):
        return float(array.flat[0])
    return tuple(array.reshape(-1).tolist())


def copy_of(leaf: Any) -> Any:
    """Copies an output on the devices, without waiting, because the next call may donate its arrays."""
    return jax.tree.map(jnp.copy, leaf)


def changes_of(
    old: WatchRecord,
    new: WatchRecord,
    codes: Sequence[Mapping[tuple[str, int], str]] | None = None,
    *,
    is_timed: bool = True,
) -> tuple[str, ...]:
    """Describes differences between two versions of a step: the whole call first, then a few lines."""
    totals, lines = [], []
    for row in compare_measured([old, new], codes).differences:
        if row.name in _TIMES and not is_timed:
            continue
        before, now = (0.0 if value is None and row.status in ("added", "removed") else value for value in row.values)
        if before is None or now is None:
            continue
        ratio = "" if row.ratio is None else f" ({100 * (row.ratio - 1):+.0f} %)"
        texts = amount_text(before, row.unit), amount_text(now, row.unit)
        if texts[0] == texts[1]:
            continue
        text = f"{texts[0]} → {texts[1]}{ratio}"
        if row.group.endswith("per line"):
            lines.append(f"{row.name}: {row.group.removesuffix(' per line')} {text}")
        else:
            totals.append(f"{row.name}: {text}")
    return (*totals, *lines[:_MOST_CHANGED_LINES])


def _median(values: Any) -> float | None:
    numbers = list(values)
    return statistics.median(numbers) if numbers else None


_UNKNOWN = StepProgram()
_NO_VERSION = (object(),)


def _typical(seconds: list[float]) -> float | None:
    """The median of ten-step means; a single step looks short if the end of the previous step was noticed late."""
    if len(seconds) < 2 * _TOGETHER:
        return statistics.fmean(seconds) if seconds else None
    last = len(seconds) - len(seconds) % _TOGETHER
    return statistics.median(statistics.fmean(seconds[i : i + _TOGETHER]) for i in range(0, last, _TOGETHER))


def _executions(collectives: tuple[CollectiveRecord, ...]) -> int | None:
    counts = [collective.executions for collective in collectives]
    return None if any(count is None for count in counts) else round(sum(count or 0 for count in counts))


def _sent(collectives: tuple[CollectiveRecord, ...]) -> float | None:
    if any(c.wire_bytes is None or (c.executions is None and c.wire_bytes) for c in collectives):
        return None
    return sum((collective.wire_bytes or 0.0) * (collective.executions or 0.0) for collective in collectives)


def _is_ready(step: WatchedStep) -> bool:
    probe: Foreign = step.probe  # `is_ready` has no stub
    try:
        return probe is not None and step.ready is None and bool(probe.is_ready())
    except RuntimeError:  # donated or failed; waiting will show which
        return False


def _end(steps: "queue.SimpleQueue[WatchedStep | None]", *threads: threading.Thread) -> None:
    steps.put(None)
    for thread in threads:
        _join(thread)


def _join(thread: threading.Thread) -> None:
    if thread is not threading.current_thread() and thread.is_alive():
        thread.join(_PATIENCE_AT_EXIT_SECONDS)
