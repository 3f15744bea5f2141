"""`compare`: programs, profiles, runs and sweeps side by side."""

from collections.abc import Mapping, Sequence
from typing import Any, overload

from workbench.api._things import is_program, record_of_thing
from workbench.errors import InspectionError, ProgramError
from workbench.inspection import compare as compare_records
from workbench.measurement import History, Results, Run, RunComparison, StoredRun, compare_runs, is_runs, named_runs
from workbench.records.advice import ComparisonRecord

Runs = Run | StoredRun | History


@overload
def compare(
    *things: Results | Mapping[str, Any] | Runs | Sequence[Runs], metric: str | None = None, **options: Any
) -> RunComparison: ...
@overload
def compare(*things: object) -> ComparisonRecord: ...
def compare(*things: object, metric: str | None = None, **options: Any) -> ComparisonRecord | RunComparison:
    """Compares programs, profiles, or runs.

    **Programs:** before and after an edit, on two meshes, with and without annotations, with the gradient. Stages are
    matched by kind and name, in order (the second `broadcast` with the second `broadcast`). Collectives are counted
    per call by kind and mesh axes, all iterations of loops included. Planned collectives are never compared with
    compiled ones.

    **Measured runs and watched loops:** figures of one call, per stage and line. Seconds of calls whose ranges overlap
    count as equal.

    **Profiles:** measured seconds per device by call path, category and program.

    **Runs:** means over seeds with intervals, paired tests, cost to a target, fairness, figures.

    Args:
        *things: Two or more programs (a `ProgramRecord`, or what `inspect` makes a record of without arguments:
            `Traced`, `Lowered`, `Compiled`, exported programs, HLO and StableHLO text, files); two or more profiles,
            from `open_profile`; two or more runs of `measure` or loops of `watch`; or runs: a sweep, a dictionary of
            runs by name, or several of `Run`, `StoredRun`, `History` and lists of these, one per seed.
        metric: With runs: the compared metric. Default: "loss" where there is one, else the first.
        **options: With runs, `minimize` (default: True), `last` rounds whose mean is the final value (1),
            `confidence` of intervals (0.95), `resamples` (2000), `test` ("permutation", "t" or "wilcoxon") and
            `correction` ("holm" or "benjamini-hochberg").

    Returns:
        Of programs and profiles a record with one row per quantity; `differences` leaves out equal rows. Of runs a
        comparison with `table()`, `tests()`, `figure(kind)` and more.

    Raises:
        InspectionError: if fewer than two programs were given, or an argument is neither a program nor runs.
        DataError: if no run has the metric.
        ProgramError: for options of runs that were given with programs.

    Example:
        >>> once, twice = (jax.jit(lambda x: x @ x).lower(jnp.ones((n, n))).compile() for n in (4, 8))
        >>> [row.values for row in compare(once, twice).rows if row.name == "FLOPs"]
        [(128.0, 1024.0)]
    """
    runs = things[0] if len(things) == 1 else list(things)
    if isinstance(runs, Results | Mapping) or is_runs(runs):
        return compare_runs(named_runs(runs), metric=metric, **options)
    if metric is not None or options:
        given = [*([] if metric is None else ["metric"]), *options]
        message = (
            f"`compare` was given {', '.join(f'`{name}=`' for name in given)} with no runs to apply them to. They are "
            "options for runs: leave them out, or pass a sweep, runs by name or several runs."
        )
        raise ProgramError(message)
    functions = [number for number, x in enumerate(things) if is_program(x, "compare")]
    if functions:
        several = len(functions) > 1
        message = (
            f"`compare` was given {'functions' if several else 'a function'} as argument{'s' * several} "
            f"{' and '.join(map(str, functions))}. A program is a function with its arguments: pass "
            "`inspect(f)(*args)` for each."
        )
        raise InspectionError(message)
    records: list[Any] = [record_of_thing(x, "compare") for x in things]  # checked there
    return compare_records(*records)
