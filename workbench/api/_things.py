"""Records of values that are not functions: meshes, arrays, modules, compiled programs and files."""

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeGuard

import jax
import jax.export
from jax.sharding import AbstractMesh, Mesh

from workbench._open_types import Foreign, Option
from workbench.api._export import ExportedProgram, load
from workbench.api._options import InspectOptions, inspect_options
from workbench.errors import InspectionError, ProgramError
from workbench.inspection import Inspected, On, inspect_given, inspect_mesh, inspect_sharding, machine_of
from workbench.measurement import History, Run, StoredRun, Watch, is_runs, overlay_runs
from workbench.plan import nesting_problem
from workbench.records import Record

_STAGES = (jax.stages.Traced, jax.stages.Lowered, jax.stages.Compiled, jax.export.Exported)


def is_program(x: object, question: str = "") -> TypeGuard[Callable]:
    """Returns whether `x` is a function rather than an array, a record or a module of arrays."""
    if isinstance(x, Watch):  # `show` displays the loop; other questions inspect the function
        return question not in ("show", "explore", "compare")
    if not callable(x) or isinstance(x, (jax.Array, Record, Mesh, AbstractMesh, *_STAGES)) or hasattr(x, "record"):
        return False
    if _is_linen(x):
        return False
    if _lowers(x) or isinstance(x, functools.partial | jax.tree_util.Partial | type) or hasattr(x, "__func__"):
        return True
    # An NNX or Equinox module: questions that show arrays read the module, the other questions call the module.
    return question not in ("inspect", "show", "explore", "") or _arrays_in(x) is None


def record_of_thing(x: object, question: str, **options: Option) -> Record:  # the value's own record
    if isinstance(x, Inspected):
        return x.inspect(**options)
    record = _record_as_it_is(x)
    if record is not None:
        refuse_options(question, record, options)
        return record
    if isinstance(x, ExportedProgram):
        return record_of_thing(load(x).module, question, **options)
    if problem := nesting_problem(x):
        message = (
            f"`{question}` received an object of type {type(x).__name__}, {problem}. Pass the arrays, or a finite tree "
            "of arrays."
        )
        raise InspectionError(message)
    program = inspect_given(x, **_for_text(question, x, options))
    if program is not None:
        return program
    bound: Foreign = x
    arrays = _arrays_in(bound.variables if _is_linen(x) and bound.scope is not None else x)
    if arrays is not None:
        refuse_options(question, x, options)
        return inspect_sharding(arrays)
    message = (
        f"`{question}` received an object of type {type(x).__name__}, which {_fact(x)}. `{question}` reads functions, "
        f"as in `{question}(fn)(*args)`; meshes; arrays and pytrees with arrays (modules, optimizer states); stages of "
        "`jax.jit` (`Traced`, `Lowered`, `Compiled`); exported programs; HLO and StableHLO as text, proto or file; "
        "sweeps and lists of runs: pass one of these."
    )
    raise InspectionError(message)


def _record_as_it_is(x: object) -> Record | None:
    """The record of a mesh or of runs, the value's own `record`, or the value itself if it is a record."""
    if isinstance(x, Record):
        return x
    if isinstance(x, Mesh | AbstractMesh):
        return inspect_mesh(x)
    if is_runs(x) or isinstance(x, Run | StoredRun | History):
        return overlay_runs(x if is_runs(x) else [x])
    record = getattr(x, "record", None)
    return record if isinstance(record, Record) else None


def refuse_options(question: str, x: object, options: Mapping[str, Any]) -> None:
    """Raises an error if options for programs were given with a value that is not a program."""
    if options:
        message = (
            f"`{question}` was given {', '.join(f'`{name}=`' for name in options)} with an object of type "
            f"{type(x).__name__}. These options need a function, which is traced and compiled: omit them, or pass the "
            f"function, as in `{question}(fn, …)(*args)`."
        )
        raise ProgramError(message)


def _for_text(question: str, x: object, options: Mapping[str, Any]) -> dict[str, Any]:
    """Options for a lowered or compiled program or its text (only `on`), or for a traced program (all options)."""
    rest = dict(options)
    on: On = rest.pop("on", None)
    machine = machine_of(on, question)
    machine_options = {"mesh": machine.mesh, "target": machine.target, "chip": machine.chip}
    selection = {name: value for name, value in machine_options.items() if value is not None}
    if isinstance(x, jax.stages.Traced | jax.export.Exported):
        refuse_options(question, x, {name: rest[name] for name in rest if name not in InspectOptions.__annotations__})
        inspect_options(question, on=on, **rest)  # raises errors for options that only a target uses
        return {**selection, **rest}
    waiting = ("progress", "cancel", "timeout_seconds")
    refuse_options(question, x, {name: value for name, value in rest.items() if name not in waiting})
    if machine.target is not None and isinstance(x, str | bytes | bytearray | Path):
        refuse_options(question, x, {"on": on})
    return selection


def _is_linen(x: object) -> bool:
    return any(kind.__module__ == "flax.linen.module" for kind in type(x).__mro__)


def _fact(x: object) -> str:
    if _is_linen(x):
        return "is a linen module, which contains no arrays itself (`model.init(...)` returns its variables)"
    leaves = jax.tree.leaves(x)
    kinds = sorted({type(leaf).__name__ for leaf in leaves})
    return "contains no arrays" + (f" ({len(leaves)} leaves of the types {', '.join(kinds)})" if leaves else "")


def _lowers(x: object) -> bool:
    return callable(getattr(x, "lower", None)) and not isinstance(x, str | bytes)


def _arrays_in(x: object) -> dict[str, Any] | Any:
    """The pytree with only its array leaves; unchanged if all leaves are arrays."""
    try:
        leaves, structure = jax.tree_util.tree_flatten_with_path(x)
    except (TypeError, ValueError):  # cannot be flattened, so there are no arrays to show
        return None
    if not any(_is_array(leaf) for _, leaf in leaves):
        return None
    if all(_is_array(leaf) for _, leaf in leaves):
        return x
    arrays = [leaf if _is_array(leaf) else None for _, leaf in leaves]
    try:
        return jax.tree.unflatten(structure, arrays)
    except Exception:  # classes that check their fields, so use paths
        return {jax.tree_util.keystr(path): leaf for path, leaf in leaves if _is_array(leaf)}


def _is_array(x: object) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype") and not isinstance(x, type)
