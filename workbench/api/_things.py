"""What is no function: records of meshes, arrays, modules, compiled programs and files."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeGuard

import jax
import jax.export
import numpy as np
from jax.sharding import AbstractMesh, Mesh

from workbench._open_types import Foreign, Option
from workbench.api._export import ExportedProgram, load
from workbench.errors import InspectionError
from workbench.federated.experiments import is_runs, overlay_runs
from workbench.inspection import (
    compare as compare_records,
    inspect_mesh,
    inspect_sharding,
    inspect_source,
    inspect_stage,
    is_program_text,
)
from workbench.plan import nesting_problem
from workbench.records import ComparisonRecord, Record

_STAGES = (jax.stages.Traced, jax.stages.Lowered, jax.stages.Compiled, jax.export.Exported)


def is_program(x: object) -> TypeGuard[Callable]:
    """Whether `x` is a function to be called with arguments, and not an array, a record or a module of arrays."""
    if not callable(x) or isinstance(x, (jax.Array, Record, Mesh, AbstractMesh, *_STAGES)) or hasattr(x, "record"):
        return False
    if _is_linen(x):
        return False
    if _lowers(x) or isinstance(x, functools.partial | jax.tree_util.Partial | type) or hasattr(x, "__func__"):
        return True
    return (
        _arrays_in(x) is None
    )  # an NNX or Equinox module is a pytree: its arrays are shown, its call is `model.__call__`


def record_of_thing(x: object, question: str, **options: Option) -> Record:  # the record that the thing has
    """The record of what is no function.

    Raises:
        InspectionError: if nothing is known of `x`.
    """
    if isinstance(x, Record):
        return x
    if isinstance(x, Mesh | AbstractMesh):
        return inspect_mesh(x)
    if is_runs(x):
        return overlay_runs(x)
    traced: Foreign = x  # `wb.trace(fn)(*args)`, which is made of this module
    if hasattr(x, "plan") and callable(getattr(x, "inspect", None)):
        return traced.inspect(**options)
    record = getattr(x, "record", None)
    if isinstance(record, Record):
        return record
    if isinstance(x, ExportedProgram):
        return record_of_thing(load(x).module, question, **options)
    if problem := nesting_problem(x):
        message = (
            f"`{question}` received a {type(x).__name__}, {problem}. Pass the arrays, or a tree of them that ends."
        )
        raise InspectionError(message)
    staged = inspect_stage(x, **options)
    if staged is not None:
        return staged
    if isinstance(x, str | bytes | bytearray | Path) and is_program_text(x) and not isinstance(x, np.bytes_ | np.str_):
        return inspect_source(x, **options)
    bound: Foreign = x
    arrays = _arrays_in(bound.variables if _is_linen(x) and bound.scope is not None else x)
    if arrays is not None:
        return inspect_sharding(arrays)
    message = (
        f"`{question}` received a {type(x).__name__}, which {_fact(x)}. It reads functions, `{question}(fn)(*args)`; "
        "meshes; arrays and pytrees with arrays (modules, optimizer states); what `jax.jit` gives on the way (`Traced`,"
        " `Lowered`, `Compiled`); exported programs; HLO and StableHLO as text, proto or file; sweeps and lists of "
        "runs: pass one of these."
    )
    raise InspectionError(message)


def compare(*programs: object) -> ComparisonRecord:
    """Compares programs: before and after an edit, on two meshes, with and without annotations, with its gradient.

    Stages are matched by kind and name, in order (the second `broadcast` with the second `broadcast`). Collectives
    are counted per call by kind and mesh axes, all iterations of loops included. Planned collectives are never
    compared with compiled ones.

    Args:
        *programs: Two or more: a `ProgramRecord` from `inspect`, or whatever `inspect` makes one of without arguments
            (`Traced`, `Lowered`, `Compiled`, exported programs, HLO and StableHLO text, files).

    Returns:
        One row per quantity with a value for every program; `differences` leaves out what is alike.

    Raises:
        InspectionError: if fewer than two were given, or one is no program.

    Example:
        >>> once, twice = (jax.jit(lambda x: x @ x).lower(jnp.ones((n, n))).compile() for n in (4, 8))
        >>> [row.values for row in compare(once, twice).rows if row.name == "FLOPs"]
        [(128.0, 1024.0)]
    """
    records: list[Any] = [x if is_program(x) else record_of_thing(x, "compare") for x in programs]  # checked there
    return compare_records(*records)


def _is_linen(x: object) -> bool:
    return any(kind.__module__ == "flax.linen.module" for kind in type(x).__mro__)


def _fact(x: object) -> str:
    if _is_linen(x):
        return "is a linen module, which holds no arrays itself (its variables are what `model.init(...)` returns)"
    leaves = jax.tree.leaves(x)
    kinds = sorted({type(leaf).__name__ for leaf in leaves})
    return f"holds no array ({len(leaves)} leaves of the types {', '.join(kinds)})" if leaves else "holds no array"


def _lowers(x: object) -> bool:
    return callable(getattr(x, "lower", None)) and not isinstance(x, str | bytes)


def _arrays_in(x: object) -> dict[str, Any] | Any:
    """The arrays of a pytree: as it is where all leaves are arrays, else without those that are none."""
    try:
        found, structure = jax.tree_util.tree_flatten_with_path(x)
    except (TypeError, ValueError):  # a pytree that cannot be flattened has no arrays to show
        return None
    if not any(_is_array(leaf) for _, leaf in found):
        return None
    if all(_is_array(leaf) for _, leaf in found):
        return x
    kept = [leaf if _is_array(leaf) else None for _, leaf in found]
    try:
        return jax.tree.unflatten(structure, kept)
    except Exception:  # classes that check their fields: then by path
        return {jax.tree_util.keystr(path): leaf for path, leaf in found if _is_array(leaf)}


def _is_array(x: object) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype") and not isinstance(x, type)
