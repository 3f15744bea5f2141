"""Output of nodes: captured in logs on threads, and echoed with node names."""

import sys
import threading
from collections.abc import Sequence
from typing import Any, TextIO

from workbench.launch._context import CURRENT
from workbench.launch._engine import Host

_LOOK_SECONDS = 0.2
_LOCK = threading.Lock()


class NodeOutput:
    """Standard output that also copies lines from nodes on threads and clusters to the nodes' logs."""

    users = 0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes text, and adds it to the log of this thread's node."""
        context = CURRENT.get(None)
        if context is None:
            return self._stream.write(text)
        begins = not context.partial
        *lines, context.partial = (context.partial + text).split("\n")
        context.add(lines)
        if context.echo:
            name = f"[{context.label}] "
            written = text.removesuffix("\n").replace("\n", f"\n{name}") + "\n" * text.endswith("\n")
            text = name + written if begins else written
        return self._stream.write(text)


def install() -> None:
    """Wraps `sys.stdout` in `NodeOutput` until the matching call of `uninstall`."""
    with _LOCK:
        NodeOutput.users += 1
        if not isinstance(sys.stdout, NodeOutput):
            sys.stdout = NodeOutput(sys.stdout)


def uninstall() -> None:
    """Restores `sys.stdout` after the last program."""
    with _LOCK:
        NodeOutput.users -= 1
        if not NodeOutput.users and isinstance(sys.stdout, NodeOutput):
            sys.stdout = sys.stdout._stream


class Echo:
    """Prints new log lines from hosts with node names, in a separate thread."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts, self._shown = hosts, [0] * len(hosts)
        self._lock, self._end = threading.Lock(), threading.Event()
        threading.Thread(target=self._run, name="echo of nodes", daemon=True).start()

    def show(self) -> None:
        """Prints the new lines."""
        with self._lock:
            for number, host in enumerate(self._hosts):
                labels = [spec.label for spec in host.specs]
                lines = host.log_lines(labels[0])
                for line in lines[self._shown[number] :]:
                    print(f"[{', '.join(labels)}] {line}", flush=True)
                self._shown[number] = max(len(lines), self._shown[number])

    def end(self) -> None:
        """Prints the last lines and stops the thread."""
        self._end.set()
        self.show()

    def _run(self) -> None:
        while not self._end.wait(_LOOK_SECONDS):
            self.show()
