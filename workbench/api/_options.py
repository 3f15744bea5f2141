"""Options of the questions, with their types and checks."""

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeAlias, TypedDict

import numpy as np

from workbench._open_types import AS_GIVEN, AsGiven, Examples, Progress
from workbench.errors import ProgramError, WorkbenchError
from workbench.inspection import On, machine_of
from workbench.measurement import DeviceMonitor, Run
from workbench.plan import ChunkSize, check_chunk_size
from workbench.records.compiled import ProgramRecord
from workbench.records.live import TimelineRecord
from workbench.records.run import RunRecord

Layout: TypeAlias = Any  # an `ipywidgets.Layout` (an untyped package), or a mapping of its fields


class InspectOptions(TypedDict, total=False):
    """Options of `Traced.inspect`, for questions that inspect first."""

    on: On
    chunk_size: ChunkSize | AsGiven
    examples_per_client: Examples | None
    order: Literal["topology", "naive"]
    force: bool
    progress: Progress | None
    cancel: threading.Event | None
    timeout_seconds: float | None


class ViewOptions(InspectOptions, total=False):
    """Options of `Traced.explore`, for `show`."""

    view: str | None
    gradient: Callable[..., Any] | ProgramRecord | None
    rounds: Run | None
    monitor: DeviceMonitor | None
    run: RunRecord | None
    timeline: TimelineRecord | None
    runs: object
    dock: Literal["right"] | None
    layout: Layout | None


_INNER = frozenset(
    "advise compare estimate_cost explore inspect known_chip measure measure_compiled parse_target search show "
    "why".split()
)


@contextlib.contextmanager
def asked(question: str) -> Iterator[None]:
    """Makes errors name the question that the user asked, instead of a function that the question calls."""
    try:
        yield
    except WorkbenchError as error:
        named = re.match(r"`(\w+)`", str(error))
        if named and named[1] in _INNER:
            error.args = (str(error).replace(named[0], f"`{question}`"), *error.args[1:])
        raise


def inspect_options(
    question: str,
    *,
    on: On = None,
    chunk_size: ChunkSize | AsGiven = AS_GIVEN,
    examples_per_client: Examples | None = None,
    order: Literal["topology", "naive"] = "topology",
    force: bool = False,
    progress: Progress | None = None,
    cancel: threading.Event | None = None,
    timeout_seconds: float | None = None,
) -> dict[str, Any]:
    """Converts options of `Traced.inspect` to options of `workbench.inspection.inspect_call`."""
    machine = machine_of(on, question)
    if chunk_size is not AS_GIVEN:
        check_chunk_size(question, chunk_size)
    if isinstance(examples_per_client, int | float | np.number):
        message = (
            f"`{question}` was given examples_per_client={examples_per_client!r}. This option is the true number of "
            "examples of every client: pass one number per client."
        )
        raise ProgramError(message)
    of_targets = {"order": order != "topology", "force": force, "timeout_seconds": timeout_seconds is not None}
    if question != "advise":  # which also verifies changes
        of_targets |= {"progress": progress is not None, "cancel": cancel is not None}
    unused = [name for name, is_given in of_targets.items() if is_given]
    if unused and machine.target is None:
        message = (
            f"`{question}` was given {', '.join(f'`{name}`' for name in unused)} without a target. Only compilation "
            'for a target uses these options: pass `on="v5e:4x4"` or another target, or omit these options.'
        )
        raise ProgramError(message)
    return {
        "mesh": machine.mesh,
        "target": machine.target,
        "chip": machine.chip,
        "chunk_size": None if chunk_size is AS_GIVEN else (chunk_size,),
        "examples_per_client": examples_per_client,
        "order": order,
        "force": force,
        "waiting": {"progress": progress, "cancel": cancel, "timeout_seconds": timeout_seconds},
    }
