"""Text that nodes print: in their logs on threads too, and with their names where the program was launched."""

import sys
import threading
from collections.abc import Sequence
from typing import Any, TextIO

from workbench.launch._context import CURRENT
from workbench.launch._engine import Host

_LOOK_SECONDS = 0.2
_LOCK = threading.Lock()


class NodeOutput:
    """Standard output of a process with nodes on its threads: their lines go into their logs as well."""

    users = 0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Writes text, and adds it to the log of the node that runs in this thread."""
        context = CURRENT.get(None)
        if context is None:
            return self._stream.write(text)
        begins = not context.partial
        *lines, context.partial = (context.partial + text).split("\n")
        context.lines.extend(lines)
        if context.echo:
            name = f"[{context.label}] "
            written = text.removesuffix("\n").replace("\n", f"\n{name}") + "\n" * text.endswith("\n")
            text = name + written if begins else written
        return self._stream.write(text)


def install() -> None:
    """Puts `NodeOutput` in front of `sys.stdout`, until as many calls of `uninstall`."""
    with _LOCK:
        NodeOutput.users += 1
        if not isinstance(sys.stdout, NodeOutput):
            sys.stdout = NodeOutput(sys.stdout)


def uninstall() -> None:
    """Takes it away again after the last program."""
    with _LOCK:
        NodeOutput.users -= 1
        if not NodeOutput.users and isinstance(sys.stdout, NodeOutput):
            sys.stdout = sys.stdout._stream


class Echo:
    """Prints new lines of the logs of hosts, with the names of their nodes, from a thread of its own."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts, self._shown = hosts, [0] * len(hosts)
        self._lock, self._end = threading.Lock(), threading.Event()
        threading.Thread(target=self._run, name="echo of nodes", daemon=True).start()

    def show(self) -> None:
        """Prints the lines that are new."""
        with self._lock:
            for number, host in enumerate(self._hosts):
                labels = [spec.label for spec in host.specs]
                lines = host.log_lines(labels[0])
                for line in lines[self._shown[number] :]:
                    print(f"[{', '.join(labels)}] {line}", flush=True)
                self._shown[number] = max(len(lines), self._shown[number])

    def end(self) -> None:
        """Prints the last lines, and ends the thread."""
        self._end.set()
        self.show()

    def _run(self) -> None:
        while not self._end.wait(_LOOK_SECONDS):
            self.show()
