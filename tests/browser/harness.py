"""Mounts a real widget, the Python object, in a bare page: no server, no kernel, no JupyterLab.

The comm between the widget and the page is replaced: what the kernel sends is evaluated in the page, and what the page
sends is a function call whose result carries the kernel's answers (a page must not be used from inside such a call).
What another thread of the kernel sends waits until the page asks for it, since a page may be used from its own thread
only.
"""

import base64
import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import comm.base_comm
from ipywidgets.widgets.widget import _remove_buffers
from playwright.sync_api import Locator, Page

PAGE_SCRIPT = (Path(__file__).parent / "fake_comm.js").read_text(encoding="utf-8")


class PageComm(comm.base_comm.BaseComm):
    """A comm whose other end is a page."""

    harness: "Harness | None" = None

    def publish_msg(
        self, msg_type: str, data: Any = None, metadata: Any = None, buffers: Any = None, **keys: Any
    ) -> None:
        if msg_type == "comm_msg" and self.harness is not None:
            self.harness.deliver(self.comm_id, data or {}, buffers or [])


class Harness:
    """One page and the widgets in it; `errors` collects whatever the page complains about, `sent` what kernels sent."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.widgets: dict[str, Any] = {}
        self.errors: list[str] = []
        self.sent: list[tuple[str, dict[str, Any]]] = []
        self.requests: list[str] = []
        self._answers: list[Any] | None = None
        self._thread = threading.current_thread()
        self._from_threads: queue.SimpleQueue[Any] = queue.SimpleQueue()
        PageComm.harness = self
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto("about:blank")
        page.expose_function("wbToKernel", self._to_kernel)
        page.expose_function("wbFromThreads", self._taken_from_threads)
        page.evaluate(PAGE_SCRIPT)

    def close(self) -> None:
        """Closes the page once it no longer asks for messages."""
        self.page.evaluate("wbStopAsking()")
        self.page.close()
        PageComm.harness = None

    def mount(self, widget: Any) -> Locator:
        """Shows the widget; returns its place in the page."""
        name = widget.comm.comm_id
        state, paths, buffers = _remove_buffers(widget.get_state())
        state.pop("layout", None)
        self.widgets[name] = widget
        self.page.evaluate("([i, s, b, p]) => wbMount(i, s, b, p)", [name, state, _encode(buffers), paths])
        return self.page.locator(f"#w-{name}")

    def unmount(self, widget: Any) -> None:
        """Takes the widget off the page, as closing its cell's output would."""
        self.page.evaluate("i => wbUnmount(i)", widget.comm.comm_id)

    def deliver(self, name: str, data: dict[str, Any], buffers: Sequence[Any]) -> None:
        """Brings a message of the kernel to the page, or keeps it as an answer to the call in progress."""
        if name not in self.widgets:
            return
        message = [name, data, _encode(buffers)]
        self.sent.append((name, data))
        if threading.current_thread() is not self._thread:
            self._from_threads.put(message)
        elif self._answers is not None:
            self._answers += [*self._taken_from_threads(), message]
        else:
            self.page.evaluate("m => wbApply(m)", [*self._taken_from_threads(), message])

    def _taken_from_threads(self) -> list[Any]:
        return [self._from_threads.get() for _ in range(self._from_threads.qsize())]

    def _to_kernel(self, name: str, data: dict[str, Any], buffers: Sequence[str]) -> list[Any]:
        self._answers = []
        try:
            decoded = [memoryview(base64.b64decode(each)) for each in buffers]
            message = {"content": {"comm_id": name, "data": data}, "buffers": decoded}
            self.widgets[name].comm.handle_msg(message)
        finally:
            answers, self._answers = self._answers, None
        return answers


def _encode(buffers: Sequence[Any]) -> list[str]:
    return [base64.b64encode(bytes(each)).decode() for each in buffers]
