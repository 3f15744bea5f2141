"""Starting a program."""

from typing import Literal

from workbench.errors import ProgramError
from workbench.launch._engine import LaunchEngine
from workbench.launch._launched import Launched
from workbench.launch._processes import Processes
from workbench.launch._program import Program
from workbench.launch._threads import Threads

_ENGINES = {"threads": Threads, "processes": Processes}


def launch(
    program: Program,
    on: Literal["threads", "processes"] | LaunchEngine = "threads",
    *,
    on_failure: Literal["stop", "continue"] = "stop",
    echo: bool = False,
) -> Launched:
    """Starts every node of `program`.

    "threads" starts the nodes immediately, with one shared JIT cache. "processes" starts one process per node (or per
    set of colocated nodes) on this machine; these processes exit when this process exits. In a script, launch processes
    under `if __name__ == "__main__":`, because spawned processes import the script.

    Args:
        program: The program.
        on: "threads", "processes", or an engine such as `DaskEngine(client)`.
        on_failure: What happens after a node fails permanently: "stop" stops the program, and "continue" lets the other
            nodes continue. The other nodes are notified in both cases (`current_node().failed_peers`), and calls to the
            failed node raise an error.
        echo: Whether to also print the nodes' output here, with the node's label before each line. `Launched.logs`
            always has these lines.

    Returns:
        The running program.

    Raises:
        ProgramError: if the program has no nodes, the engine is unknown, or the engine cannot run a node.

    Example:
        >>> from workbench.launch import Program, PyNode, ServiceNode, launch
        >>> class Sum:
        ...     total = 0
        ...     def add(self, n): self.total += n; return self.total
        >>> program = Program("sum")
        >>> total = program.add_node(ServiceNode(Sum))
        >>> _ = program.add_node(PyNode(lambda total: total.add(2), total))
        >>> with launch(program) as launched:
        ...     codes = launched.wait()
        ...     print(launched.client(total).add(3), codes["main/1"])
        5 0
    """
    if not program.specs:
        message = (
            f"`launch` was given program {program.name!r}, which has no nodes. A program needs at least one node: add "
            "a node with `program.add_node(PyNode(function))`."
        )
        raise ProgramError(message)
    if on_failure not in ("stop", "continue"):
        message = (
            f"`launch` was given on_failure={on_failure!r}. After a failure a program either stops or continues: pass "
            '"stop" or "continue".'
        )
        raise ProgramError(message)
    if isinstance(on, str):
        if on not in _ENGINES:
            message = (
                f"`launch` was given on={on!r}. The available engine names are {' and '.join(map(repr, _ENGINES))}: "
                "use one of these, or pass an engine such as `DaskEngine(client)`."
            )
            raise ProgramError(message)
        return Launched(program, _ENGINES[on](), on_failure, echo=echo)
    return Launched(program, on, on_failure, echo=echo)
