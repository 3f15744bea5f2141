"""Parses target names: `v5e:16x16*4` to a `TargetRecord`."""

import difflib
import math
import re

from workbench.aot._chips import ALIASES, FAMILIES, ChipFamily
from workbench.errors import MeshError
from workbench.records.compiled import TargetRecord

_SHAPE = re.compile(r"(?P<chip>[^:]+):(?P<topology>\d{1,6}(?:x\d{1,6})*)(?:\*(?P<slices>\d{1,6}))?")
_SLICE = re.compile(r"(?P<chip>\w+)-(?P<count>\d{1,6})(?:\*(?P<slices>\d{1,6}))?")
_COUNTED_IN_CORES = frozenset(("v2", "v3", "v4", "v5p"))  # in Google Cloud's count, two cores per chip
_COUNTED_IN_CHIPS = frozenset(("v5e", "v6e"))
_LONGEST = 100
_SLICES_SEEN = 8
_DEVICES_SEEN = 8192
_CHIPS_PER_HOST = 4
_GPUS_PER_HOST = 8


def parse_target(target: str, *, force: bool = False) -> TargetRecord:
    """Parses the name of a target.

    Args:
        target: `chip:topology`, with `*slices` for several slices over the data-centre network. The topology of a TPU
            is its torus in chips (`"v5e:16x16"`, `"v5p:8x8x16"`, `"v5e:16x16*4"`); the topology of GPUs is hosts x GPUs
            per host (`"b200:4x8"`) or the number of GPUs in one host (`"h100:8"`). Google Cloud's slice names are also
            accepted: `"v5e-16"` and `"v6e-16"` count chips, `"v4-16"` and `"v5p-16"` count cores, of which each chip
            has two.
        force: Whether to accept an untested topology. On some topologies the compiler crashes instead of raising an
            error; the next compilation starts a new compiler process.

    Returns:
        The target, with its number of hosts, chips and JAX devices over all slices.

    Raises:
        MeshError: if the chip is unknown, the topology is malformed, or it is untested and `force` is False.

    Example:
        >>> parse_target("tpu7x:4x4x4").devices
        128
        >>> parse_target("b200:4x8").hosts
        4
        >>> parse_target("v5e-16").name, parse_target("v5p-16").name
        ('v5e:4x4', 'v5p:2x2x2')
    """
    chip, topology, slices = _split(target)
    family = _family(chip, target)
    sizes = _sizes(family, topology, slices, target)
    if slices < 1 or min(sizes) < 1:
        message = (
            f"`parse_target` was given {target!r}, in which a size is 0. Every size of a topology and the number of "
            f"slices must be at least 1: write, for example, {_example(family)!r}."
        )
        raise MeshError(message)
    topology = "x".join(map(str, sizes))
    chips = math.prod(sizes) * slices
    devices = chips * family.devices_per_chip
    seen = topology in family.topologies and slices <= _SLICES_SEEN and devices <= _DEVICES_SEEN
    if not (seen or force):
        raise MeshError(_not_seen(family, sizes, slices, target))
    short = str(sizes[1]) if family.platform == "cuda" and sizes[0] == 1 else topology
    return TargetRecord(
        name=f"{family.name}:{short}" + (f"*{slices}" if slices > 1 else ""),
        chip=family.name,
        platform=family.platform,
        topology=topology,
        slices=slices,
        hosts=slices * (sizes[0] if family.platform == "cuda" else max(1, math.prod(sizes) // _CHIPS_PER_HOST)),
        chips=chips,
        devices=devices,
        available_bytes=family.available_bytes,
        seen=seen,
        notes=()
        if seen
        else ("this topology has never been tested: the compiler may crash instead of raising an error",),
    )


def _split(target: str) -> tuple[str, str, int]:
    text = target.strip().lower().replace(" ", "") if isinstance(target, str) else ""
    match = _SHAPE.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        named = _named_slice(text)
        if named is not None:
            return named
        message = (
            f"`parse_target` was given {target!r:.120}, which is not of the form chip:topology. A target names a chip "
            f"and its topology, with *slices for several slices: {_near_form(text[:_LONGEST])}."
        )
        raise MeshError(message)
    return match["chip"], match["topology"], int(match["slices"] or 1)


def _named_slice(text: str) -> tuple[str, str, int] | None:
    """The slice with a Google Cloud name (`v5litepod-16`, `v5p-16`), if only one topology has that many chips."""
    match = _SLICE.fullmatch(text) if len(text) <= _LONGEST else None
    family = None if match is None else FAMILIES.get(ALIASES.get(match["chip"], match["chip"]))
    if match is None or family is None or family.name not in _COUNTED_IN_CHIPS | _COUNTED_IN_CORES:
        return None
    cores = 2 if family.name in _COUNTED_IN_CORES else 1
    shapes = [shape for shape in family.topologies if _count(shape) * cores == int(match["count"])]
    return (family.name, shapes[0], int(match["slices"] or 1)) if len(shapes) == 1 else None


def _near_form(text: str) -> str:
    """Example targets; for a name that resembles a Google Cloud slice (`v5e-12`), examples for that chip come first."""
    examples = "'v5e:16x16', 'v5p:4x4x4', 'v5e:16x16*4' or 'h100:8'"
    chip, _, count = text.partition("-")
    family = FAMILIES.get(ALIASES.get(chip, chip))
    if family is None:
        return f"write {examples}"
    if not count.isdigit() or family.platform != "tpu":
        shape = count if _SHAPE.fullmatch(f"{family.name}:{count}") else None
        written = f"{family.name}:{shape}" if shape else _example(family)
        return f"write {written!r}, or, for other machines, {examples}"
    cores = 2 if family.name in _COUNTED_IN_CORES else 1
    sizes = ", ".join(str(_count(shape) * cores) for shape in family.topologies)
    named = {1: "chips", 2: "cores (two per chip)"}[cores]
    hint = f"in {family.name}-N, N is the number of {named}: {sizes}; " if family.name != "tpu7x" else ""
    near = min(family.topologies, key=lambda shape: abs(_count(shape) * cores - int(count)))
    return f"{hint}write {f'{family.name}:{near}'!r}, or, for other machines, {examples}"


def _count(topology: str) -> int:
    return math.prod(map(int, topology.split("x")))


def _family(chip: str, target: str) -> ChipFamily:
    if chip in FAMILIES:
        return FAMILIES[chip]
    near = ALIASES.get(chip) or next(
        iter(difflib.get_close_matches(chip, [*FAMILIES, *ALIASES], n=1, cutoff=0.5)), None
    )
    near = ALIASES.get(near, near) if near else None
    hint = f"did you mean {target.strip().lower().replace(chip, near, 1)!r}? " if near else ""
    message = (
        f"`parse_target` was given {target!r}, but {chip!r} is not a known chip: {hint}Known chips, by the "
        f"compilers' names: {', '.join(FAMILIES)}."
    )
    raise MeshError(message)


def _sizes(family: ChipFamily, topology: str, slices: int, target: str) -> tuple[int, ...]:
    sizes = tuple(map(int, topology.split("x")))
    if family.platform == "cuda" and len(sizes) == 1:
        sizes = (1, *sizes)
    if len(sizes) != family.dimensions:
        form = (
            "a number of GPUs, or hosts x GPUs per host"
            if family.platform == "cuda"
            else f"{family.dimensions} sizes in chips"
        )
        message = (
            f"`parse_target` was given {target!r} with {len(sizes)} sizes, but a topology of {family.name} "
            f"({family.description}) is {form}: write, for example, {_example(family)!r}."
        )
        raise MeshError(message)
    if family.platform == "cuda" and slices != 1:
        message = (
            f"`parse_target` was given {target!r} with {slices} slices, but only TPUs come in slices: GPU hosts are "
            "connected by one network. Write hosts x GPUs per host: "
            f"'{family.name}:{sizes[0] * max(slices, 1)}x{sizes[1]}'."
        )
        raise MeshError(message)
    if family.platform == "cuda" and sizes[1] > _GPUS_PER_HOST:
        message = (
            f"`parse_target` was given {target!r} with {sizes[1]} GPUs in one host, but a host has at most "
            f"{_GPUS_PER_HOST}. Write hosts x GPUs per host, for example "
            f"'{family.name}:{-(-sizes[0] * sizes[1] // _GPUS_PER_HOST)}x{_GPUS_PER_HOST}'."
        )
        raise MeshError(message)
    return sizes


def _example(family: ChipFamily) -> str:
    return f"{family.name}:{family.topologies[min(2 + family.dimensions, len(family.topologies) - 1)]}"


def _not_seen(family: ChipFamily, sizes: tuple[int, ...], slices: int, target: str) -> str:
    chips = math.prod(sizes)
    nearest = sorted(family.topologies, key=lambda shape: abs(math.prod(map(int, shape.split("x"))) - chips))[:3]
    several = f" in up to {_SLICES_SEEN} slices and {_DEVICES_SEEN} devices"
    return (
        f"`parse_target` was given {target!r}, an untested topology; for some untested topologies, the compiler "
        f"crashes without an error. Tested for {family.name}{several if slices > 1 else ''}: "
        f"{', '.join(family.topologies)}. Use a tested topology (nearest: "
        f"{', '.join(f'{family.name}:{shape}' for shape in nearest)}), or try this one with `inspect(…, force=True)`: "
        "if the worker process dies, the next request starts a new worker."
    )


def is_target(name: str) -> bool:
    """Returns whether a name has a topology ("v5e:4x4") or names a Google Cloud slice ("v5e-16")."""
    if name.endswith(".json"):  # the rates from a calibration; its path may contain a colon
        return False
    if ":" in name:
        return True
    try:
        parse_target(name)
    except MeshError:
        return False
    return True
