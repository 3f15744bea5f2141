"""The shardings that XLA assigns before it partitions a program, read from its own dump."""

import contextlib
import itertools
import math
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from workbench.inspection.hlo._frames import Frames
from workbench.inspection.hlo._text import parse_hlo
from workbench.records.sharding import PlannedValueRecord

Groups = tuple[frozenset[frozenset[int]], ...]  # for each dimension, the devices that have the same part of it
Assigned = dict[tuple[str, int | None, tuple[int, ...]], set[Groups]]  # by name, line and shape of an operation
_TILES = re.compile(r"devices=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")


def assigned(fn: Any, args: Sequence[Any], mesh: Mesh | None) -> Assigned:
    """The shardings of all operations of a program; `fn` may be jitted already."""
    with tempfile.TemporaryDirectory() as folder, contextlib.nullcontext() if mesh is None else jax.set_mesh(mesh):
        call = fn if hasattr(fn, "lower") else jax.jit(fn)
        options = {"xla_dump_to": folder, "xla_dump_hlo_as_text": True, "xla_dump_hlo_pass_re": "shardy-xla"}
        call.lower(*args).compile(compiler_options=options)
        (dump,) = Path(folder).glob("*after_shardy-xla*.txt")
        return read(dump.read_text())


def read(text: str) -> Assigned:
    """The shardings in the text of a module that is not yet partitioned."""
    hlo = parse_hlo(text)
    frames, shardings = Frames(hlo), Assigned()
    for instruction in hlo.instructions():
        shape = re.match(r"\w+\[([\d,]*)\]", instruction.shape_text)
        tiles = re.search(r"sharding=\{([^{}]*)\}", instruction.attributes)
        if shape is None or not instruction.op_name:
            continue
        sizes = tuple(map(int, filter(None, shape[1].split(","))))
        source = frames.source(instruction)
        groups = _groups("" if tiles is None else tiles[1], len(sizes))
        key = instruction.op_name, None if source is None else source.line, sizes
        shardings.setdefault(key, set()).add(groups)
    return shardings


def groups_of(value: PlannedValueRecord, mesh: Mesh) -> Groups:
    """The devices with the same parts of a value, for its mesh axes."""
    names, places = list(mesh.shape), list(np.ndindex(*mesh.shape.values()))
    return tuple(
        _alike(
            (tuple(place[names.index(axis)] for axis in axes if mesh.shape[axis] > 1), device)
            for device, place in enumerate(places)
        )
        for axes in itertools.islice(itertools.chain(value.spec, itertools.repeat(())), len(value.shape))
    )


def agree(one: frozenset[frozenset[int]], other: frozenset[frozenset[int]]) -> bool:
    """Returns whether one division of the devices only divides the groups of the other further."""
    return any(all(any(part <= group for group in few) for part in many) for many, few in ((one, other), (other, one)))


def _groups(text: str, rank: int) -> Groups:
    match = _TILES.search(text)
    if match is None:
        everywhere = frozenset((frozenset(range(jax.device_count())),))
        return (everywhere,) * rank
    tiles, order = (tuple(map(int, part.split(","))) for part in match.groups()[:2])
    order_of_axes = tuple(map(int, match[3].split(","))) if match[3] else tuple(range(len(order)))
    devices = np.arange(math.prod(order)).reshape(order).transpose(order_of_axes).reshape(tiles)
    return tuple(_alike((place[dim], int(devices[place])) for place in np.ndindex(*tiles)) for dim in range(rank))


def _alike(places: Iterator[tuple[Any, int]]) -> frozenset[frozenset[int]]:
    parts: dict[Any, set[int]] = {}
    for place, device in places:
        parts.setdefault(place, set()).add(device)
    return frozenset(map(frozenset, parts.values()))
