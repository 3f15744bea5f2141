"""Runs one node in a thread of the notebook's process or a child process."""

import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from workbench.launch._context import CURRENT, NodeContext
from workbench.launch._nodes import Handle, NodeSpec, dereference
from workbench.launch._service import Service

Emit = Callable[[str, str, Any], None]  # label, event, detail


class NodeRunner:
    """Runs one node in a daemon thread, tracks its heartbeats and reports its end.

    Events: "running", "serving", ("finished", exit code), ("stopped", None), ("raised", traceback), "stop_program".
    """

    def __init__(
        self,
        spec: NodeSpec,
        client_of: Callable[[Handle], Any],
        emit: Emit,
        *,
        write: Callable[[str], None] | None = None,
    ) -> None:
        self.spec = spec
        self.service = Service(spec) if spec.kind == "service" else None
        self.context: NodeContext | None = None
        self.thread: threading.Thread | None = None
        self.echo = False
        self._client_of = client_of
        self._emit = emit
        self._write = write

    def start(self, attempt: int) -> None:
        """Starts the node again, in a new thread and with a new context."""
        context = NodeContext(
            self.spec.label,
            self.spec.program,
            attempt,
            lambda label: self._emit(label, "stop_program", None),
            self._write,
        )
        context.echo = self.echo
        if self.context is not None:
            context.lines.extend(self.context.lines)
        self.context = context
        name = f"{self.spec.program}:{self.spec.label}"
        self.thread = threading.Thread(target=self._body, args=(context,), name=name, daemon=True)
        self.thread.start()

    def request_stop(self) -> None:
        """Asks the node to stop; its service continues to answer."""
        if self.context is not None:
            self.context.request_stop()

    def close(self, reason: str) -> None:
        """Ends the service."""
        if self.service is not None:
            self.service.close(reason)

    def obey(self, order: str, *details: str) -> None:
        """Executes an order: "stop", "close" (reason), or "failed" (other node, reason)."""
        if order == "stop":
            self.request_stop()
        elif order == "close":
            self.close(details[0])
        elif order == "failed" and self.context is not None:
            self.context.report_failed(*details)

    def abandon(self) -> None:
        """Abandons the thread, which cannot be killed; the program ignores it from now on."""
        if self.context is not None:
            self.context.request_stop()
            self.context.attempt = -1
        if self.service is not None:
            self.service.pause()

    def silent_seconds(self) -> float:
        """Returns the seconds since the last heartbeat of a working node; 0 for an idle service."""
        context, thread = self.context, self.thread
        if context is None or thread is None or not thread.is_alive():
            return 0.0
        silent = time.monotonic() - context.last_beat
        if self.service is not None and not self.spec.runs:
            return min(silent, self.service.tally()["oldest_call_seconds"])
        return silent

    def stack(self) -> str:
        """Returns the current stack of the node's threads."""
        idents = [self.thread.ident] if self.thread is not None else []
        idents += self.service.threads() if self.service is not None else []
        frames = sys._current_frames()
        stack_frames = [frames[ident] for ident in dict.fromkeys(idents) if ident in frames]
        return "\n".join("".join(traceback.format_stack(frame)) for frame in stack_frames)

    def snapshot(self) -> dict[str, Any]:
        """Returns the numbers of a `NodeStateRecord` that the node's process knows."""
        context, thread = self.context, self.thread
        now = time.monotonic()
        until = context.ended_at if context is not None and context.ended_at is not None else now
        tally = self.service.tally() if self.service is not None else {}
        tally.pop("oldest_call_seconds", None)
        return tally | {
            "heartbeat_age_seconds": max(now - context.last_beat, 0.0) if context else None,
            "uptime_seconds": until - context.started_at if context else None,
            "log_tail": tuple(context.lines)[-5:] if context else (),
            "native_id": thread.native_id if thread is not None and thread.is_alive() else None,
        }

    def report(self) -> dict[str, Any]:
        """Returns the numbers of `snapshot` for another process, with the stack of a hung node."""
        numbers, silent, limit = self.snapshot(), self.silent_seconds(), self.spec.hang_seconds
        del numbers["native_id"]
        stack = self.stack() if limit is not None and silent > limit else None
        return numbers | {"silent_seconds": silent, "stack": stack}

    def _body(self, context: NodeContext) -> None:
        CURRENT.set(context)
        try:
            code = self._work(context)
            event, detail = ("stopped", None) if context.stop_requested and code == 0 else ("finished", code)
        except BaseException as error:  # report every end of the node
            text = _traceback_of(error)
            context.log(text)
            event, detail = ("stopped", None) if context.stop_requested else ("raised", text)
        context.ended_at = time.monotonic()
        if context.attempt >= 0:
            if event == "raised" and self.service is not None:
                self.service.pause()
            self._emit(self.spec.label, event, detail)

    def _work(self, context: NodeContext) -> int:
        try:
            args = dereference(tuple(self.spec.args), self._client_of)
            kwargs = dereference(dict(self.spec.kwargs), self._client_of)
            target = dereference(self.spec.target, self._client_of)
            if self.spec.kind == "function":
                self._emit(self.spec.label, "running", None)
                target(*args, **kwargs)
                return 0
            instance = target(*args, **kwargs)
            if context.attempt < 0:
                return 0
            if self.service is not None:
                self.service.open(instance, context)
            self._emit(self.spec.label, "running" if self.spec.runs else "serving", None)
            if self.spec.runs:
                instance.run()
            elif self.service is not None:
                self.service.wait_until_closed()
        except SystemExit as leave:
            return leave.code if isinstance(leave.code, int) else int(leave.code is not None)
        return 0


def _traceback_of(error: BaseException) -> str:
    where = error.__traceback__
    while where is not None and where.tb_frame.f_code.co_filename == __file__:
        where = where.tb_next  # skip this module's frames
    return "".join(traceback.format_exception(type(error), error, where or error.__traceback__))
