"""Chunk sizes in a search: the candidates, and their order if their predicted times are equal."""

import copy
import math

from workbench.advice._search._program import SearchProgram
from workbench.inspection import plan_call
from workbench.mesh import chunk_shard
from workbench.plan import ChunkSize

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
