"""The one-line forms: `wb.measure(fn, rounds=5)(*args)` means `wb.trace(fn)(*args).measure(rounds=5)`."""

from workbench._open_types import Option
from workbench.advice import advise_record
from workbench.api import _show
from workbench.api._forms import open_question, question
from workbench.api._things import record_of_thing, refuse_options
from workbench.api._traced import Traced
from workbench.errors import InspectionError
from workbench.inspection import explain_program
from workbench.records.advice import AdviceRecord
from workbench.records.compiled import ProgramRecord
from workbench.records.sharding import WhyRecord


def _explained(x: object, *, large_bytes: int | None = None, **options: Option) -> WhyRecord:
    return explain_program(_program_of(x, "why", **options), large_bytes=large_bytes)


def _advised(x: object, *, verify: bool = False, **options: Option) -> AdviceRecord:
    waiting = {name: options.pop(name) for name in ("progress", "cancel", "found") if name in options}
    if verify:
        refuse_options("advise", x, {"verify": verify})
    return advise_record(_program_of(x, "advise", **options), **waiting)


def _program_of(x: object, name: str, **options: Option) -> ProgramRecord:
    record = record_of_thing(x, name, **options)
    if isinstance(record, ProgramRecord):
        return record
    message = (
        f"`{name}` received an object of type {type(x).__name__}, which is not a program: its record has "
        f"type {type(record).__name__}. `{name}` reads the collectives of a program: pass a function or the result of "
        f"`jax.jit`, as in `{name}(fn)(*args)`."
    )
    raise InspectionError(message)


_PROGRAMS = (
    "a stage of `jax.jit` (`Traced`, `Lowered`, `Compiled`), a `jax.export.Exported`, an HLO or StableHLO module (as "
    "text, as a proto, or as the path of a file), or the path of a directory that `xla_dump_to` filled"
)
_SHOWN = (
    "A function; or a mesh, an array, a pytree of arrays, any record, a `Run`, several runs (a sweep, a comparison, a "
    "list of runs, a dictionary of runs by name), a device monitor, a program of nodes before launch, or the "
    "result of `launch`."
)

inspect = open_question(
    lambda x, **options: record_of_thing(x, "inspect", **options),
    f"A function; or a mesh, an array, a pytree with arrays (a module, an optimizer state), or {_PROGRAMS}. For a "
    "mesh, the result is a `MeshRecord`; for arrays, a `ShardingRecord`; otherwise, a `ProgramRecord`.",
)(Traced.inspect)
show = open_question(_show.show_thing, _SHOWN)(Traced.show)
explore = open_question(lambda x, **options: _show.view_of_thing("explore", x, **options), _SHOWN)(Traced.explore)
why = open_question(_explained, f"A function; or a `ProgramRecord`, {_PROGRAMS}.")(Traced.why)
advise = open_question(
    _advised, f"A function; or a `ProgramRecord`, {_PROGRAMS}. Only the changes of a function are verified."
)(Traced.advise)
measure = question(Traced.measure)
search = question(Traced.search)
