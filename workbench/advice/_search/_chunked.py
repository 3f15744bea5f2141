"""Combines searches that differ in mesh or chunk size: ranks all choices and compiles the best."""

import copy
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

from workbench.advice._search._groups import Spec
from workbench.advice._search._program import SearchProgram
from workbench.advice._search._search import UNCOMPARED, Search, pareto
from workbench.errors import WorkbenchError
from workbench.inspection import plan_call
from workbench.mesh import chunk_shard
from workbench.plan import ChunkSize
from workbench.records.advice import SearchRecord, ShardingChoiceRecord

_MOST = 5
_WHOLE_RANGE = 10.0  # powers of two
_EQUAL = 0.02  # share of the seconds: the accuracy of the model


def chunk_candidates(program: SearchProgram) -> list[int]:
    """Candidate chunk sizes: the program's own, the choice of "auto", 1, all clients, and sizes in between."""
    if not program.call.holds_clients:
        return []
    everything = _planned(program, 2**30)
    if everything is None:
        return []
    named = {1, everything, program.chunk_size or everything, _planned(program, "auto") or everything}
    between = [chunk_shard(everything, 2**power)[0] for power in range(1, max(everything.bit_length(), 2))]
    while len(named) < _MOST and (candidates := [size for size in between if size not in named]):
        # the size that is farthest, by ratio, from the named sizes
        named.add(max(candidates, key=lambda size: min(abs(math.log(size / neighbour)) for neighbour in named)))
    return sorted(named)


def chunk_penalty(chunk: int | None, usual: int | None) -> float:
    """Factor by which predicted times are multiplied for ranking, so that sizes near the usual size win ties.

    The model, which uses peaks and bandwidths, ignores how well a small chunk fills a device. `jit` uses as many
    clients as fit in a quarter of the memory; a different choice must save 2 % of the time.

    Example:
        >>> chunk_penalty(4, 4), chunk_penalty(1, 1024)
        (1.0, 1.02)
    """
    if not chunk or not usual:
        return 1.0
    return 1.0 + _EQUAL * min(1.0, abs(math.log2(chunk / usual)) / _WHOLE_RANGE)


def usual_chunk(program: SearchProgram) -> int | None:
    """The chunk size that `jit` would use on the chip; None without clients."""
    return _planned(program, "auto") if program.call.holds_clients else None


def _planned(program: SearchProgram, chunk_size: ChunkSize) -> int | None:
    call = copy.copy(program.call)
    call.chunk_size = program.chunk_rule(chunk_size)
    return plan_call(call, program.mesh).chunk_size


_REHEARSED = 16  # choices at most
_HOW = ("compiled", "rehearsed", "planned")

Choice = tuple[Search, tuple[Spec, ...]]


def with_chunk_sizes(
    searches: Sequence[Search],
    *,
    best: int,
    until: float,
    progress: Callable[[str], None],
    notes: list[str],
    cancel: threading.Event | None,
) -> list[Search]:
    """Adds searches for other chunk sizes, using the meshes and specs of the best choices."""
    all_searches = list(searches)
    chosen: dict[int, list[tuple[Spec, ...]]] = {}
    for search, specs in ranked(searches)[:best]:
        chosen.setdefault(searches.index(search), []).append(specs)
    for number, specs in chosen.items():
        program = searches[number].program
        for chunk in chunk_candidates(program):
            if chunk == program.chunk_size:
                continue
            budget = until - time.monotonic()
            if budget <= 0 or (cancel is not None and cancel.is_set()):
                notes.append(f"not tried for lack of time: chunk_size={chunk}")
                continue
            progress(f"chunks of {chunk} clients")
            try:
                variant = Search(program.with_chunk_size(chunk), seconds=budget, compiled=False, cancel=cancel)
                variant.consider(searches[number].names_of(specs))
            except WorkbenchError as error:
                notes.append(f"chunk_size={chunk}: {str(error).splitlines()[0][:200]}")
                continue
            if variant.best(1):
                all_searches.append(variant)
    return all_searches


def ranked(searches: Sequence[Search], per_search: int = 4) -> list[Choice]:
    """The best planned choices of all searches: fitting choices first, then by predicted time."""
    usual = {id(search): usual_chunk(search.program) for search in searches}

    def rank(choice: Choice) -> tuple[bool, float]:
        search, specs = choice
        over, seconds = search.rank_of(specs)
        return over, seconds * chunk_penalty(search.program.chunk_size, usual[id(search)])

    return sorted(((search, specs) for search in searches for specs in search.best(per_search)), key=rank)


def compile_best(
    searches: Sequence[Search],
    *,
    count: int,
    until: float,
    progress: Callable[[str], None],
    cancel: threading.Event | None,
) -> None:
    """Compiles the best choices of all searches; for a chip whose compiler is installed, first for CPU devices."""
    now = time.monotonic()
    rehearsed = now + 0.5 * (until - now) if searches[0].program.target is not None else until
    for number in range(_REHEARSED):
        first = next(((s, specs) for s, specs in ranked(searches)[:count] if not s.is_rehearsed(specs)), None)
        if first is None or _is_over(rehearsed, cancel, number):
            break
        progress(f"compiling choice {number + 1} for CPU devices")
        first[0].rehearse(first[1])
    for number, (search, specs) in enumerate(ranked(searches)[:count]):
        if search.program.target is None or _is_over(until, cancel, number):
            break
        if not search.is_compiled(specs):
            progress(f"compiling choice {number + 1} of {count} for {search.program.where}")
            search.compile(specs)


def _is_over(until: float, cancel: threading.Event | None, number: int) -> bool:
    """Returns whether to stop compiling; at least one choice is compiled unless the search is cancelled."""
    return (cancel is not None and cancel.is_set()) or (number > 0 and time.monotonic() > until)


def joined_record(
    name: str,
    target: str,
    searches: Sequence[Search],
    seconds: float,
    *,
    ended: Literal["complete", "time", "stopped"],
    notes: Sequence[str],
    by_mesh: bool,
    full_count: int,
    shown: int,
) -> SearchRecord:
    """One record for all searches; choices are named by mesh if the meshes differ.

    Args:
        name: Name of the program.
        target: Compilation target.
        searches: First the searches over meshes, then the searches with other chunk sizes.
        seconds: Total time spent.
        ended: How the search ended.
        notes: Notes about untried candidates.
        by_mesh: Whether the meshes differ.
        full_count: Number of searches that contribute `shown` choices; later searches contribute their best and
            compiled choices.
        shown: Number of choices per search.
    """
    records = [search.record() for search in searches]
    choices: list[tuple[tuple[bool, int, float], ShardingChoiceRecord]] = []
    for number, (search, record) in enumerate(zip(searches, records, strict=True)):
        usual = usual_chunk(search.program)
        selection = record.choices[:shown] if number < full_count else record.choices[: max(1, record.compiled_count)]
        for choice in selection:
            named = f"{mesh_text(tuple(choice.mesh.values()))}: {choice.name}" if by_mesh else choice.name
            choices.append((_rank(choice, usual), choice.replace(name=named)))
    choices.sort(key=lambda entry: entry[0])
    front = pareto([choice for _, choice in choices])
    of_all = list(dict.fromkeys(note for record in records for note in record.notes))
    if any(note.startswith("planned peaks:") for note in of_all):
        of_all = [note for note in of_all if note != UNCOMPARED]
    return records[0].replace(
        name=name,
        target=target,
        choices=tuple(choice.replace(pareto=at in front) for at, (_, choice) in enumerate(choices)),
        planned_count=sum(record.planned_count for record in records),
        compiled_count=sum(record.compiled_count for record in records),
        seconds_spent=seconds,
        ended=ended,
        notes=(*notes, *of_all),
    )


def mesh_text(sizes: Sequence[int]) -> str:
    """Sizes formatted as text: "4 x 2"."""
    return " x ".join(map(str, sizes))


def _rank(choice: ShardingChoiceRecord, usual: int | None) -> tuple[bool, int, float]:
    seconds = math.inf if choice.seconds is None else choice.seconds
    return choice.fits is False, _HOW.index(choice.how), seconds * chunk_penalty(choice.chunk_size, usual)
