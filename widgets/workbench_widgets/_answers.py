"""The kernel's answers to requests from a program's views: other targets and specs, advice, searches and values."""

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeVar

from workbench import render
from workbench.cost import CHIPS, estimate_scaled
from workbench.records.advice import AdviceRecord, SearchRecord
from workbench.records.compiled import ProgramRecord, WhatIfRecord
from workbench.records.live import TapRecord
from workbench.records.run import PlayRecord
from workbench.records.sharding import PropagationRecord, WhyRecord
from workbench.render import play_back, render_tap_html, trace_axes
from workbench_widgets._advice_state import advice_state, search_state
from workbench_widgets._base import Answering, WorkbenchWidget
from workbench_widgets._cost_state import target_state
from workbench_widgets._job import Job, Work
from workbench_widgets._player import player_state
from workbench_widgets._propagation import propagation_page
from workbench_widgets._scaling_state import scaled_state
from workbench_widgets._trial_state import trial_state, tried_propagation
from workbench_widgets.states import ClientValues, PlayerState, PropagationState, ScaledState

LONGEST_TEXT = 200_000

_F = TypeVar("_F")
Specs = Mapping[str, Sequence[Sequence[str]]]
Tap = Callable[[int], TapRecord]


class CompileFor(Protocol):
    """Compiles the displayed program for another machine; stops once `cancel` is set."""

    def __call__(
        self, target: str, *, order: object, progress: Callable[[str, float], None], cancel: threading.Event
    ) -> ProgramRecord:
        """The program compiled for `target`."""
        ...


class TriesSpecs(Protocol):
    """Interface for trying other shardings."""

    def plan(self, specs: Mapping[str, Any]) -> WhatIfRecord:
        """Plans the program with different specs."""
        ...

    def compile(
        self, tried: WhatIfRecord, *, progress: Callable[[str, float], None], cancel: threading.Event
    ) -> WhatIfRecord:
        """Adds compiled results."""
        ...


class Advises(Protocol):
    """Protocol of a function that finds advice about the displayed program."""

    def __call__(
        self, *, found: Callable[[AdviceRecord], None], progress: Callable[[str, float], None], cancel: threading.Event
    ) -> AdviceRecord:
        """Returns the findings.

        Calls `found` with the record so far, and `progress` with the phase and the elapsed seconds.
        """
        ...


class Searches(Protocol):
    """Protocol of a function that searches shardings of the displayed program."""

    def __call__(
        self,
        *,
        lock: Mapping[str, Any],
        compiled: bool,
        found: Callable[[SearchRecord], None],
        progress: Callable[[str, float], None],
        cancel: threading.Event,
    ) -> SearchRecord:
        """Returns the choices; calls `found` with the record whenever it finds a better choice."""
        ...


class Answers(Answering):
    """Answers of the kernel to the views of one program.

    Compiling, trying, advising and searching run in threads, one job of each kind at a time. All jobs stop when the
    view is closed or no longer used.

    Args:
        view: The view that shows the answers; only a weak reference is kept.
        record: The program.
        others: The same program compiled for other targets.
        prefixed: Whether the view contains several views; its live values then have names such as "cost/job".
        compile_for, what_if, tap, play, advise, search, explain: As in `Explorer`.
        propagation: The propagation of the program's shardings; by default, that of `record`.

    Attributes:
        compiled: The compiled programs, keyed by the name of the target.
        tried: Result of the most recently finished trial of other specs.
        advice: Result of the last request for advice.
        search: Result of the last search for shardings.
    """

    requests: ClassVar[dict[str, str]] = {
        "compile": "start_compiling",
        "forget": "forget_target",
        "scale": "scale",
        "what_if": "start_trial",
        "propagation_page": "propagation_page",
        "tried_propagation": "tried_propagation",
        "why": "why",
        "advise": "start_advice",
        "search_shardings": "start_search",
        "stop_work": "stop",
        "open_client": "open_client",
        "play_round": "play_round",
    }
    background: ClassVar[frozenset[str]] = frozenset({"open_client", "play_round", "why"})

    def __init__(
        self,
        view: WorkbenchWidget,
        record: ProgramRecord | None = None,
        others: Sequence[ProgramRecord] = (),
        *,
        prefixed: bool = False,
        compile_for: CompileFor | None = None,
        what_if: TriesSpecs | None = None,
        tap: Tap | None = None,
        play: Callable[[], PlayRecord] | None = None,
        advise: Advises | None = None,
        search: Searches | None = None,
        explain: Callable[[], WhyRecord] | None = None,
        propagation: PropagationRecord | None = None,
    ) -> None:
        self.compiled: dict[str, ProgramRecord] = {}
        self.tried: WhatIfRecord | None = None
        self.advice: AdviceRecord | None = None
        self.search: SearchRecord | None = None
        self._record, self._prefixed = record, prefixed
        self._programs = {program.target: program for program in (record, *others) if program is not None}
        self._propagation = propagation if propagation is not None or record is None else record.propagation
        self._compile_for, self._what_if, self._tap, self._play = compile_for, what_if, tap, play
        self._advises, self._searches = advise, search
        self._explain = explain
        self._reasons: dict[str, str] | None = None
        self._trials = 0
        self._jobs: dict[str, Job] = {}
        jobs = self._jobs  # the callback must not keep the answers alive
        self._view = weakref.ref(view, lambda _: _cancel(jobs))

    # Jobs

    def stop(self, work: str) -> None:
        """Stops the job "compile", "trial", "advice" or "search" if it is running; keeps its results so far."""
        if (job := self._jobs.get(work)) is not None:
            job.cancel.set()

    def wait(self, timeout_seconds: float | None = None) -> bool:
        """Waits until all jobs have finished and sends their last states; returns False on timeout."""
        over = all(job.wait(timeout_seconds) for job in tuple(self._jobs.values()))
        if over and (view := self._view()) is not None:
            view.flush()
        return over

    def close(self) -> None:
        """Stops all jobs."""
        _cancel(self._jobs)

    def _start(self, kind: str, place: str, work: Work, *, phase: str, status: str = "running", **about: object) -> Job:
        """Starts a job, which reports to the live value `place` until a newer job of its kind replaces it."""

        def report(job: Job, state: dict[str, Any], live: Mapping[str, Any]) -> None:
            if self._jobs.get(kind) is job:
                self._show({place: state, **live})

        self.stop(kind)
        job = self._jobs[kind] = Job(kind, work, report, **about)
        job.start(phase, status)
        return job

    def _show(self, live: Mapping[str, Any]) -> None:
        if (view := self._view()) is not None:
            names = live if self._prefixed else {name.split("/", 1)[1]: value for name, value in live.items()}
            view.update_live(**names)

    # Other targets and sizes

    def start_compiling(self, target: str, order: str = "topology") -> None:
        """Starts compiling for `target` in the background.

        Raises:
            RuntimeError: if a compilation is running, or the view shows a record without its program.
        """
        compile_for = _needed(self._compile_for, f"`start_compiling` was given target={target!r}")
        job = self._jobs.get("compile")
        if job is not None and job.is_running:
            message = (
                f"`start_compiling` was given target={target!r} while {job.about['target']} is being compiled. A view "
                'compiles for one target at a time: wait, or call `stop("compile")` first.'
            )
            raise RuntimeError(message)

        def work(job: Job) -> Mapping[str, Any]:
            record = compile_for(target, order=order, progress=job.progress, cancel=job.cancel)
            self.compiled = {**self.compiled, record.target: record}
            return self._compiled_state()

        self._start("compile", "cost/job", work, phase="reading the program", target=target)

    def forget_target(self, target: str) -> None:
        """Removes a compiled target from the view."""
        self.compiled.pop(target, None)
        self._show(self._compiled_state())

    def _compiled_state(self) -> dict[str, Any]:
        records = self.compiled.values()
        return {"cost/compiled": [target_state(record, record.cost) for record in records if record.cost is not None]}

    def scale(
        self,
        target: str,
        *,
        clients: int | None = None,
        model: float = 1.0,
        chunk_size: int | None = None,
        devices: int | None = None,
        chip: str | None = None,
    ) -> ScaledState:
        """State of the program on `target`, scaled to another size; see `estimate_scaled`."""
        record = {**self._programs, **self.compiled}[target]
        priced_on = CHIPS.get(chip or "")
        scaled = estimate_scaled(
            record, clients=clients, model=model, chunk_size=chunk_size, devices=devices, on=priced_on
        )
        as_is = estimate_scaled(record, on=priced_on)
        return scaled_state(record, scaled, as_is)

    # Other specs

    def start_trial(self, specs: Specs, compiled: bool = True) -> None:
        """Starts a trial of different specs in the background; stops the trial in progress.

        Args:
            specs: Mesh axes per dimension, for each leaf.
            compiled: Whether to compile; if not, the program is only planned.

        Raises:
            RuntimeError: if the view shows a record without its program.
        """
        what_if = _needed(self._what_if, f"`start_trial` was given specs for {', '.join(specs) or 'no leaf'}")

        def work(job: Job) -> Mapping[str, Any]:
            tried = what_if.plan(specs)
            if compiled and not job.cancel.is_set():
                phase = "waiting for the compiler"
                job.report("compiling", phase=phase, seconds=0.0, **trial_state(tried))
                tried = what_if.compile(tried, progress=job.progress, cancel=job.cancel)
            if not job.cancel.is_set():
                self.tried, self._trials = tried, self._trials + 1
                job.report(number=self._trials, **trial_state(tried))
            return {}

        self._start("trial", "sharding/trial", work, phase="tracing and planning", status="planning")

    def tried_propagation(self) -> PropagationState | None:
        """Reasons for the shardings in the most recently tried program."""
        return tried_propagation(self.tried)

    def propagation_page(self, first: int) -> str:
        """The picture of one page of the propagation's values; the page starts with value number `first`."""
        tried = None if self.tried is None else self.tried.after.propagation
        record = tried or self._propagation or PropagationRecord()
        return propagation_page(play_back(record, trace_axes(record)), first)

    def why(self, report: Callable[[str], None]) -> dict[str, str]:
        """The reason for every collective, keyed by its instruction's name; empty if the view has only a record."""
        if self._reasons is None and self._explain is not None:
            report("Reading the reasons for the collectives")
            self._reasons = {why.instruction: f"{why.sentence} {why.advice}" for why in self._explain().collectives}
        return self._reasons or {}

    # Advice

    def start_advice(self) -> None:
        """Starts computing advice in the background; does nothing while advice is being computed.

        Raises:
            RuntimeError: if the view shows a record without its program.
        """
        advises = _needed(self._advises, "`start_advice` was called")
        if (job := self._jobs.get("advice")) is not None and job.is_running:
            return

        def work(job: Job) -> Mapping[str, Any]:
            def on_record(record: AdviceRecord) -> None:
                self._show(self._advised(record))

            return self._advised(advises(found=on_record, progress=job.progress, cancel=job.cancel))

        self._start("advice", "advice/job", work, phase="reading the program")

    def _advised(self, record: AdviceRecord) -> dict[str, Any]:
        self.advice = record
        tree, names = (None, {}) if self._record is None else (self._record.call_tree, leaf_names(self._record))
        return {"advice/report": advice_state(record, tree, names)}

    def start_search(self, lock: Mapping[str, Any] | None = None, compiled: bool = True) -> None:
        """Starts a search for shardings in the background; stops the search in progress.

        Args:
            lock: Mesh axes per dimension that the search must keep, keyed by patterns that match argument names.
            compiled: Whether to compile the best choices; if not, they are only planned.

        Raises:
            RuntimeError: if the view shows a record without its program or without a mesh.
        """
        searches = _needed(self._searches, "`start_search` was called", mesh=True)

        def work(job: Job) -> Mapping[str, Any]:
            def on_record(record: SearchRecord) -> None:
                if self._jobs.get("search") is job:
                    self._show(self._searched(record))

            record = searches(
                lock=lock or {}, compiled=compiled, found=on_record, progress=job.progress, cancel=job.cancel
            )
            return self._searched(record) if self._jobs.get("search") is job else {}

        self._start("search", "advice/search_job", work, phase="reading the program")

    def _searched(self, record: SearchRecord) -> dict[str, Any]:
        self.search = record
        return {"advice/search": search_state(record)}

    # Values

    def open_client(self, client: int, report: Callable[[str], None] | None = None) -> ClientValues:
        """Every value that a client computes, shown as a separate page and as text.

        Raises:
            RuntimeError: if the view shows a record without its program.
        """
        tap = _needed(self._tap, f"`open_client` was given client={client}")
        follow = report or (lambda phase: None)
        follow("Evaluating the program: this client runs one operation at a time")
        tapped = tap(client)
        follow("Drawing its values")
        return {"html": render_tap_html(tapped), "text": render.text(tapped)[:LONGEST_TEXT]}

    def play_round(self, report: Callable[[str], None]) -> PlayerState:
        """The stages of one evaluation and their values, for the player.

        Raises:
            RuntimeError: if the view shows a record without its program.
        """
        play = _needed(self._play, "`play_round` was called")
        report("Evaluating the program")
        return player_state(play())


def leaf_names(record: ProgramRecord) -> dict[str, str]:
    """Maps the paths of the arguments' arrays to their names in the sharding view."""
    leaves = record.inputs.leaves if record.inputs is not None else ()
    names = [value.name for value in record.plan.inputs]
    return dict(zip([leaf.path for leaf in leaves], names, strict=True)) if len(names) == len(leaves) else {}


def _cancel(jobs: Mapping[str, Job]) -> None:
    for job in tuple(jobs.values()):
        job.cancel.set()


def _needed(function: _F | None, call: str, *, mesh: bool = False) -> _F:
    """Returns `function`; raises an error if it is None, because the view shows only a record."""
    if function is not None:
        return function
    without, on = (", or a program without a mesh of several devices", ", on=…") if mesh else ("", "")
    message = (
        f"{call}, but this view shows a record without its program{without}, so there is nothing to run. Open the view "
        f"from the program: `workbench.explore(fn{on})(*args)`."
    )
    raise RuntimeError(message)
