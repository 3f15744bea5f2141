"""The errors of the workbench, organized as a small tree.

WorkbenchError
├── PlacementError (ValueError)      clients, placements, weights, keys
├── MeshError (ValueError)           meshes, axes, devices, targets
├── ProgramError (TypeError)         the user's function and what it returns
├── InspectionError (ValueError)     arguments from which no record can be made
├── EngineError (RuntimeError)       a run that failed: carries `.stage`, `.client`
│   ├── CompilerDiedError            a compiler's worker process died; this process is unharmed
│   ├── RoundError                   a round that failed: carries `.round` and `.run`, with the state before it
│   └── NodeError                    a node of a launched program failed or cannot be reached
│       └── NodeTimeoutError (TimeoutError)  a node did not answer in time
├── RecordError (ValueError)         JSON that is not a record of this version
├── MeasureError (ValueError)        measuring, watching or simulating with impossible settings
├── ProfileError (ValueError)        profiles that cannot be read, or that lack what was requested
├── DataError (ValueError)           files and arrays of client data
├── CommandError (RuntimeError)      the `workbench` command: ports, files, browsers
├── CourseError (ValueError)         exercises of the course that do not exist
├── WrongAnswerError (AssertionError)  an answer to an exercise that is not right yet
└── MissingDependencyError (ImportError)
"""

import contextlib
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path


class WorkbenchError(Exception):
    """Base class of all errors that the workbench raises."""


class PlacementError(WorkbenchError, ValueError):
    """Values, weights or keys do not fit the clients of a placement, or no placement is active."""


class MeshError(WorkbenchError, ValueError):
    """A mesh, mesh axis or hardware target does not exist or does not fit the request."""


class ProgramError(WorkbenchError, TypeError):
    """A user's function cannot be part of a program in its present form."""


class InspectionError(WorkbenchError, ValueError):
    """An inspector received an argument that it cannot read."""


class RecordError(WorkbenchError, ValueError):
    """JSON text does not describe a record of the expected class and of this version."""


class MeasureError(WorkbenchError, ValueError):
    """A measurement, monitor, run of rounds or simulation was given impossible settings."""


class ProfileError(WorkbenchError, ValueError):
    """A file is not a recorded profile, or the profile is damaged or lacks the requested data."""


class DataError(WorkbenchError, ValueError):
    """Client data are missing, truncated or have the wrong format."""


class CommandError(WorkbenchError, RuntimeError):
    """The `workbench` command cannot do what was requested on this machine."""


class CourseError(WorkbenchError, ValueError):
    """The course has no exercise with this id."""


class WrongAnswerError(WorkbenchError, AssertionError):
    """An answer to a course exercise is not right yet; the message gives a hint."""


class EngineError(WorkbenchError, RuntimeError):
    """A run failed; `stage` and `client` identify the place, and `__cause__` is the original exception.

    If an engine was running a plan, `run` is the record of the finished part. The record's `results` are the carried
    values after the last finished round.
    """

    def __init__(
        self, message: str, *, stage: str | None = None, client: int | str | None = None, run: object = None
    ) -> None:
        super().__init__(message)
        self.stage = stage
        self.client = client
        self.run = run


class CompilerDiedError(EngineError):
    """The worker process that runs a compiler died during `stage`; this process is unharmed."""


class NodeError(EngineError):
    """A node of a launched program failed, or a call did not reach it; `stage` is the node's label."""


class NodeTimeoutError(NodeError, TimeoutError):
    """A node did not answer within the caller's time limit."""


class RoundError(EngineError):
    """A round of a `Run` failed; `run.state` is the state before that round, and `__cause__` the original error."""

    def __init__(self, message: str, *, round: int, run: object) -> None:
        super().__init__(message)
        self.round = round
        self.run = run


def pip_command() -> str:
    """Returns the command of this Python's pip: `pip` if the search path finds it, otherwise `PYTHON -m pip`."""
    program = shutil.which("pip")
    is_own = program is not None and Path(program).parent == Path(sys.executable).parent
    return "pip" if is_own else f"{shlex.quote(sys.executable)} -m pip"


class MissingDependencyError(WorkbenchError, ImportError):
    """An optional library is not installed; the message contains the install command.

    For a program that is not a Python package, `fact` states what is missing, and `install` states how to get the
    program.
    """

    def __init__(
        self, library: str, *, needed_for: str, extra: str | None = None, fact: str = "", install: str | None = None
    ) -> None:
        self.library = library
        self.extra = extra
        if install is not None:
            message = (
                f"{needed_for} needs {library}, which was not found: {fact}. Install it ({install}) and try again."
            )
            super().__init__(message, name=library)
            return
        if extra is None:  # installed by default, but not in this environment
            source, command = "It is one of the workbench's dependencies", f"{pip_command()} install {library}"
        else:
            source = f"It comes with the optional extra{'s' * (',' in extra)} `{extra}`"
            command = f'{pip_command()} install "mapreduce-workbench[{extra}]"'
        super().__init__(
            f"{needed_for} needs the library `{library}`, which is not installed here. {source}: run `{command}`, "
            "and in a notebook restart the kernel.",
            name=library,
        )


@contextlib.contextmanager
def needs_library(library: str, *, needed_for: str, extra: str | None = None) -> Iterator[None]:
    """Guards an import: reports a missing library together with its install command.

    Args:
        library: The distribution name for `pip install`.
        needed_for: The feature that needs the library; used as the subject of the message.
        extra: The optional extra that includes the library; None for a default dependency.

    Raises:
        MissingDependencyError: if the import fails because a module is not installed.

    Example:
        >>> with needs_library("colour-of-magic", needed_for="`paint`", extra="paint"):  # doctest: +ELLIPSIS
        ...     import colour_of_magic
        Traceback (most recent call last):
        ...
        workbench.errors.MissingDependencyError: `paint` needs the library `colour-of-magic`, which is not installed ...
    """
    try:
        yield
    except ModuleNotFoundError as missing:
        if isinstance(missing, WorkbenchError):
            raise
        raise MissingDependencyError(library, extra=extra, needed_for=needed_for) from missing


def check_settings(operation: str, *rules: tuple[bool, str, str], error: type[WorkbenchError] = ProgramError) -> None:
    """Raises an error that states only the broken rules and the arguments that break them.

    Args:
        operation: The function or class that received the arguments.
        *rules: For each rule, whether it is kept, the arguments that it concerns, and the rule as a sentence.
        error: The class of the error.

    Example:
        >>> check_settings("draw", (True, "seed=0", "`seed` must be an integer."), (False, "n=0", "Pass `n` above 0."))
        Traceback (most recent call last):
        ...
        workbench.errors.ProgramError: `draw` received n=0. Pass `n` above 0.
    """
    broken = [(received, rule) for is_kept, received, rule in rules if not is_kept]
    if broken:
        *others, last = dict.fromkeys(received for received, _ in broken)
        received = f"{', '.join(others)} and {last}" if others else last
        message = f"`{operation}` received {received}. {' '.join(rule for _, rule in broken)}"
        raise error(message)
