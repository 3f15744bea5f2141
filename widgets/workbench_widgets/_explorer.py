"""The explorer: every view of one program in one widget, as tabs in four places that share one selection."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from workbench import render
from workbench.records import without_collections
from workbench.records.compiled import ProgramRecord
from workbench.records.live import TimelineRecord
from workbench.records.run import PlayRecord, RunOverlayRecord, RunRecord
from workbench.records.sharding import WhyRecord
from workbench.render import GLOSSARY, display_record
from workbench_widgets._answers import Advises, Answers, CompileFor, Searches, Tap, TriesSpecs
from workbench_widgets._base import require_dock
from workbench_widgets._cells import cells_of, code_of, files_of
from workbench_widgets._client_courses import ClientCourses
from workbench_widgets._devices import Monitor, devices_state
from workbench_widgets._headline import headline
from workbench_widgets._run import RunDigest
from workbench_widgets._run_controller import RunController, RunLike
from workbench_widgets._tabs import Sources, tab_states


class Explorer(RunController):
    """Live views of a program, combined in one widget with linked selection.

    Args:
        record: The program.
        gradient: A second program to show next to the first, for example its `jax.grad`.
        others: The same program compiled for other targets; their costs are shown next to the program's own cost.
        run: A measured run, which adds the measured time of each client and a timeline per device.
        monitor: A source of device samples, such as `workbench.measurement.watch_devices()`.
        rounds: A run of many rounds, such as `workbench.measurement.Run`, whose curves and clients per round are shown.
        timeline: A simulated round, with its stragglers.
        runs: Runs to compare, such as `wb.compare(…).record`; their curves are shown in a separate tab.
        tap: Evaluates the program and returns the values of a client; without it, clients cannot be opened.
        view: The tab to open first.
        compile_for: Compiles the program for a target selected in the cost view.
        what_if: An object that tries other shardings of the program's arguments, such as
            `workbench.inspection.what_if.WhatIf`.
        play: Evaluates the program and returns the values of every stage, so that the round can be played.
        advise: Finds advice about the program on request.
        rules: What `advise` looks for, one sentence per rule.
        dock: "right" shows the explorer next to the notebook, if JupyterLab has the package's extension.
        search: Searches shardings of the program's arguments on request.
        explain: Explains why each collective is there, on request.

    Attributes:
        answers: The kernel's answers: `compiled` programs by target, the last `tried` specs, `advice` and `search`.
        courses: The clients' metrics over the latest rounds.
    """

    view_name = "explorer"

    @without_collections()
    def __init__(
        self,
        record: ProgramRecord,
        *,
        gradient: ProgramRecord | None = None,
        others: Sequence[ProgramRecord] = (),
        run: RunRecord | None = None,
        monitor: Monitor | None = None,
        rounds: RunLike | None = None,
        timeline: TimelineRecord | None = None,
        runs: RunOverlayRecord | None = None,
        tap: Tap | None = None,
        view: str | None = None,
        compile_for: CompileFor | None = None,
        what_if: TriesSpecs | None = None,
        play: Callable[[], PlayRecord] | None = None,
        advise: Advises | None = None,
        rules: Sequence[str] = (),
        dock: Literal["right"] | None = None,
        search: Searches | None = None,
        explain: Callable[[], WhyRecord] | None = None,
    ) -> None:
        require_dock(dock)
        self.record: ProgramRecord = record
        self._subject = record
        self.gradient: ProgramRecord | None = gradient
        self.monitor: Monitor | None = monitor
        self.dock: Literal["right"] | None = dock
        advise = advise if record.module is not None else None
        functions = {
            "compile_for": compile_for, "what_if": what_if, "tap": tap, "play": play, "advise": advise,
            "search": search, "explain": explain,
        }  # fmt: skip
        sources = Sources(
            record=record,
            gradient=gradient,
            others=others,
            run=run,
            monitor=monitor,
            rounds=rounds,
            timeline=timeline,
            runs=runs,
            can=frozenset(name for name, function in functions.items() if function is not None),
            rules=rules,
        )
        tabs, parts, arrays = tab_states(sources)
        if view is not None and view not in parts:
            message = (
                f"`Explorer` was given view={view!r}, but its record of {record.name} has the views "
                f"{', '.join(parts)}. Pass one of these views, or omit `view=` to start with the first view."
            )
            raise ValueError(message)
        files = files_of(record)
        data = {
            **parts,
            "cells": cells_of(files),
            "code": code_of(files),
            "views": tabs,
            "title": record.name,
            "target": record.target,
            "headline": headline(record, list(parts), run),
            "glossary": GLOSSARY,
        }
        live = {} if monitor is None else _devices(monitor)
        settings = {} if view is None else {"view": view}
        super().__init__(data=data, arrays=arrays, label=render.describe(record), live=live, settings=settings)
        self.answers = Answers(
            self,
            record,
            others,
            prefixed=True,
            compile_for=compile_for,
            what_if=what_if,
            tap=tap,
            play=play,
            advise=advise,
            search=search,
            explain=explain,
        )
        self.courses = ClientCourses(parts["clients"]["count"] if "clients" in parts else 0)
        self._answering = (self.answers, self.courses)
        self._unsubscribe = None if monitor is None else self._listen(monitor)
        self._digest = RunDigest()
        if rounds is not None:
            self.follow(rounds)
            self.live = live | self._rounds_state()
            self.observe(self._turned, "settings")

    def refresh(self) -> None:
        """Sends the run's state if a page shows the explorer and a tab of the run is open."""
        if self.followed is not None and self.is_open and self.settings.get("view") in ("run", "clients"):
            self.update_live(**self._rounds_state())

    def _rounds_state(self) -> dict[str, Any]:
        assert self.followed is not None
        self.courses.read(self.followed.history)
        digest = self._digest.state(self.followed)
        state: dict[str, Any] = {f"run/{name}": value for name, value in digest.items()}
        state.update((f"clients/{name}", value) for name, value in self.courses.state().items())
        return state

    def _turned(self, change: Mapping[str, Mapping[str, object]]) -> None:
        """Updates a newly opened tab, which may have missed rounds."""
        if change["new"].get("view") != change["old"].get("view"):
            self.refresh()

    def _listen(self, monitor: Monitor) -> Callable[[], None]:
        me = weakref.ref(self)

        def arrived(_sample: object) -> None:
            if (explorer := me()) is not None and explorer.is_open and explorer.monitor is not None:
                explorer.update_live(**_devices(explorer.monitor))

        return monitor.subscribe(arrived)

    def static_html(self) -> str:
        """The record's card and its largest functions and lines; if there are clients, the stages come first."""
        picture = super().static_html() if self.record.plan.placements else ""
        return picture + display_record(self.record)["text/html"]


def _devices(monitor: Monitor) -> dict[str, Any]:
    return {f"devices/{name}": value for name, value in devices_state(tuple(monitor.history())).items()}
