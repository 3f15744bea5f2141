"""Runs programs of nodes in tests, on threads and with a deadline."""

import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from typing import TYPE_CHECKING

from workbench.launch._launch import launch
from workbench.launch._launched import Launched
from workbench.launch._program import Program

if TYPE_CHECKING:  # spawned processes do not need records
    from workbench.records.launch import NodeStateRecord


@contextlib.contextmanager
def launched_on_threads(program: Program, *, seconds: float = 60.0) -> Iterator[Launched]:
    """Runs a program of nodes on threads of this process; fails if its nodes do not finish in time.

    The block may call the services. After the block, all nodes with their own work must finish. The program is always
    stopped.

    Args:
        program: A program of `workbench.launch`.
        seconds: Time limit from the launch until every node with its own work has finished.

    Returns:
        The running program.

    Raises:
        AssertionError: if nodes are still running; the message names each node, with its stack and the end of its log.
        NodeError: if a node failed.

    Example:
        >>> from workbench.launch import Program, PyNode
        >>> program = Program("short")
        >>> _ = program.add_node(PyNode(print, "hello"))
        >>> with launched_on_threads(program, seconds=10.0) as launched:
        ...     launched.wait()
        hello
        {'main/0': 0}
    """
    started = time.monotonic()
    with launch(program, "threads") as launched:
        yield launched
        launched.wait(max(0.0, started + seconds - time.monotonic()))
        late = [node for node in launched.state() if node.state not in ("serving", "finished", "stopped")]
        if late:
            texts = "\n".join(_late(program.name, node) for node in late)
            message = (
                f"{len(late)} of {len(launched.state())} nodes of {program.name!r} had not ended after {seconds:g} s."
                f"\n{texts}"
            )
            raise AssertionError(message)


def _late(program: str, node: "NodeStateRecord") -> str:
    frames = sys._current_frames()
    idents = [thread.ident for thread in threading.enumerate() if thread.name == f"{program}:{node.label}"]
    stacks = ["".join(traceback.format_stack(frames[ident])[-4:]) for ident in idents if ident in frames]
    return "\n".join([f"{node.label} is {node.state}:", *stacks, *node.log_tail[-5:]])
