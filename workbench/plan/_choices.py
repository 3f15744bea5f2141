"""Measured choices stored on disk, keyed by program, shapes, devices and versions."""

import functools
import hashlib
import importlib.metadata
import math
import re
from pathlib import Path
from typing import Any

import jax

from workbench._cache import DiskCache, cache_directory
from workbench._open_types import Option
from workbench.errors import MissingDependencyError, RecordError
from workbench.plan._chunk_size import usable_cores
from workbench.plan._loop_form import LoopForm
from workbench.plan._plan import Plan
from workbench.records.program import PlanChoiceRecord

_LIMIT_BYTES = 4 << 20


def load_choice(plan: Plan, form: LoopForm) -> PlanChoiceRecord | None:
    """Loads the choice that this user measured, in any process, for a plan on these devices."""
    if jax.process_count() > 1:  # disks may differ between hosts, but all processes must run the same program
        return None
    cache = _cache()
    # Most programs have never been measured. If no stored choice has such arguments, the program is neither printed nor
    # hashed.
    if cache is None or not (names := _names(cache.directory)):
        return None
    like_these = _shapes(plan)
    if not any(name.startswith(like_these) for name in names):
        return None
    if (data := cache.load(_key(plan, form))) is None:
        return None
    try:
        choice = PlanChoiceRecord.from_dict(data)
    except RecordError:  # from another version, so measure again
        return None
    return choice.replace(source="cache", why=f"Measured before by this user on the same devices: {choice.why}")


def choose_loop(plan: Plan, chunk_size: object, form: LoopForm, *, program: str) -> PlanChoiceRecord:
    """The client loop of a program, and its source: the user, an earlier measurement, or the default rule."""
    if chunk_size != "auto":
        return choice_record(chunk_size, form, program=program, source="given", why="Passed by the caller.")
    if (choice := load_choice(plan, form)) is not None:
        return choice.replace(program=program)
    why = "The rule decides: no tuning result exists for this program and these shapes."
    return choice_record(chunk_size, form, program=program, source="rule", why=why)


def store_choice(plan: Plan, form: LoopForm, choice: PlanChoiceRecord) -> None:
    """Stores a choice; if storing fails, the choice is measured again next time."""
    cache = _cache()
    if cache is not None:
        cache.store(_key(plan, form), choice.to_dict())


def loop_fields(chunk_size: object, form: LoopForm) -> dict[str, Any]:
    """The parameters of a client loop by field name; a chunk size chosen by a function becomes "auto"."""
    return {
        "chunk_size": "auto" if callable(chunk_size) else chunk_size,
        "spread": form.spread,
        "kept_bytes": None if math.isinf(form.kept_bytes) else int(form.kept_bytes),
        "unroll": form.unroll,
    }


def choice_record(chunk_size: object, form: LoopForm, **fields: Option) -> PlanChoiceRecord:
    return PlanChoiceRecord(**loop_fields(chunk_size, form), **fields)


def _names(directory: Path) -> list[str]:
    try:
        return [path.name for path in directory.iterdir()]
    except OSError:
        return []


def _cache() -> DiskCache | None:
    try:
        return DiskCache(cache_directory("plans"), limit_bytes=_LIMIT_BYTES)
    except MissingDependencyError:  # the package is missing, so measure once per process
        return None


def _key(plan: Plan, form: LoopForm) -> str:
    """A hash of the program (excluding addresses in this process), its mesh, the devices and versions.

    A plan depends on the program's equations and on the mesh, but not on where arguments are placed. Retracing with
    other arguments of the same shapes therefore finds the same choice.
    """
    devices = usable_cores(), sorted(device.device_kind for device in jax.devices())
    parts = [str(plan.closed.jaxpr), devices, str(jax.sharding.get_abstract_mesh()), repr(form), _versions()]
    program = hashlib.sha256(re.sub(r"0x[0-9a-f]+", "", repr(parts)).encode()).hexdigest()
    return f"{_shapes(plan)}-{program}"


@functools.cache
def _versions() -> list[str]:
    return [importlib.metadata.version(package) for package in ("jax", "jaxlib")]


def _shapes(plan: Plan) -> str:
    return hashlib.sha256(str(plan.closed.in_avals).encode()).hexdigest()[:16]
