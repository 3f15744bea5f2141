"""Failures of nodes: tracebacks with notebook lines, and the error that `wait` raises."""

import re
from collections.abc import Mapping

from workbench.errors import NodeError
from workbench.records import cell_name, read_source_line

_FRAME = re.compile(r'(?P<indent> *)File "(?P<file>[^"]+)", line (?P<line>\d+)')


def with_source_lines(traceback: str) -> str:
    """Names notebook cells by their numbers and adds source lines from the notebook."""
    lines = traceback.splitlines()
    source_lines = []
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        frame = _FRAME.match(line)
        cell = None if frame is None else cell_name(frame["file"])
        source_lines.append(line if frame is None or cell is None else line.replace(frame["file"], cell, 1))
        if frame is None or following.startswith(f"{frame['indent']}  "):
            continue
        source = read_source_line(frame["file"], int(frame["line"])).strip()
        if source:
            source_lines.append(f"{frame['indent']}  {source}")
    return "\n".join(source_lines)


def failure_error(
    program: str, engine: str, failed: Mapping[str, str], states: Mapping[str, str], on_failure: str
) -> NodeError:
    """Creates the error that lists all failed nodes, with reasons and tracebacks."""
    first = next(iter(failed))
    ends = ", ".join(f"{label!r} ({states[label]})" for label in failed)
    outcome = "was stopped" if on_failure == "stop" else "went on"
    details = "\n\n".join(f"--- {label} ---\n{text.rstrip()}" for label, text in failed.items())
    message = (
        f"`wait` for program {program!r} on {engine} found failed nodes: {ends}. The other nodes are notified of a "
        f"permanent failure, and the program {outcome} (on_failure={on_failure!r}). See `Launched.logs({first!r})`, "
        f"correct the node, or give it a `Restart(limit=...)`.\n\n{details}"
    )
    return NodeError(message, stage=first)
