"""`compare`: shows functions, programs, profiles, runs and sweeps side by side."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, overload

import jax
import numpy as np

from workbench._types import Argument
from workbench.api._options import asked
from workbench.api._questions import inspect
from workbench.api._things import is_program, record_of_thing
from workbench.errors import InspectionError, ProgramError
from workbench.inspection import compare as compare_records
from workbench.measurement import History, Results, Run, RunComparison, StoredRun, compare_runs, is_runs
from workbench.records.advice import ComparisonRecord
from workbench.records.compiled import ProgramRecord

Runs = Run | StoredRun[Any] | History


@overload
def compare(
    *things: Results | Mapping[str, Any] | Runs | Sequence[Runs], metric: str | None = None, **options: Any
) -> RunComparison: ...
@overload
def compare(
    first: Callable[..., Any], second: Callable[..., Any], /, *more: Callable[..., Any], **options: Any
) -> Callable[..., ComparisonRecord]: ...
@overload
def compare(*things: object) -> ComparisonRecord: ...
def compare(*things: object, metric: str | None = None, **options: Any) -> Any:
    """Compares functions, programs, profiles, or runs.

    **Functions:** `compare(before, after)(*args)` inspects each function with the same arguments and compares the
    programs. NNX and Equinox modules are called like functions.

    **Programs:** compares versions of a program: before and after an edit, on two meshes, or with and without
    annotations. A program can also be compared with its gradient. Stages are matched by kind and name, in order (the
    second `broadcast` in one program with the second `broadcast` in the other). Collectives are counted per call by
    kind and mesh axes, including all iterations of loops. Collectives that Shardy requests are never compared with
    compiled collectives. Lines are matched by function and code.

    **Measured runs and watched loops:** figures per call, for each stage and line. Times are treated as equal if the
    ranges of their calls overlap.

    **Profiles:** measured time per device by call path, category and program.

    **Runs:** means over seeds with intervals, paired tests, cost to a target, fairness, figures.

    Args:
        *things: Two or more functions or modules; programs (a `ProgramRecord`, or anything that `inspect` accepts
            without arguments: `Traced`, `Lowered`, `Compiled`, exported programs, HLO and StableHLO text, files);
            profiles from `open_profile`; runs of `measure` or loops of `watch`; or training runs: a sweep, a dictionary
            of runs by name, or several objects such as `Run`, `StoredRun`, `History` and lists of these, with one entry
            per seed.
        metric: The metric to compare; only for runs. Default: "loss" if available, otherwise the first metric.
        **options: For functions, the options of `inspect`. For runs, `minimize` (default: True); `last`, the number of
            last rounds whose mean is the final value (1); `confidence` of intervals (0.95); `resamples` (9999); `test`
            ("permutation", "t" or "wilcoxon"); and `correction` ("holm" or "benjamini-hochberg").

    Returns:
        For functions, a function that accepts their arguments. For programs and profiles, a record with one row per
        quantity; `differences` omits rows whose values are identical. For runs, a comparison with `table()`, `tests()`,
        `figure(kind)` and more.

    Raises:
        InspectionError: if fewer than two programs were given, or an argument is neither a program nor runs.
        DataError: if no run has the metric, or an option for runs is out of range.
        ProgramError: if options for runs were given with programs.

    Example:
        >>> print(compare(lambda x: x @ x, lambda x: (x @ x) @ x)(jnp.ones((4, 4))).differences[1].name)
        FLOPs
        >>> once, twice = (jax.jit(lambda x: x @ x).lower(jnp.ones((n, n))).compile() for n in (4, 8))
        >>> [row.values for row in compare(once, twice).rows if row.name == "FLOPs"]
        [(128.0, 1024.0)]
    """
    # A module is called: as a value, it would be read as a tree of arrays.
    functions = [x if is_program(x) else x.__call__ for x in things if is_program(x, "compare")]
    if len(functions) == len(things) > 1:

        def compare_calls(*args: Argument, **keywords: Argument) -> ComparisonRecord:
            """Compares the functions for one call."""
            with asked("compare"):
                return compare_records(*[inspect(fn, **options)(*args, **keywords) for fn in functions])

        return compare_calls
    runs = things[0] if len(things) == 1 else list(things)
    of_arrays = isinstance(runs, Mapping) and any(
        isinstance(value, jax.Array | np.ndarray | ProgramRecord) for value in runs.values()
    )
    if is_runs(runs) or (isinstance(runs, Mapping) and not of_arrays):
        return compare_runs(runs, metric=metric, **options)
    if metric is not None or options:
        names = [*([] if metric is None else ["metric"]), *options]
        message = (
            f"`compare` was given {', '.join(f'`{name}=`' for name in names)} without runs. These options apply only "
            "to runs: omit them, or pass a sweep, a dictionary of runs by name, or several runs."
        )
        raise ProgramError(message)
    if functions:
        message = (
            "`compare` was given functions together with other objects, or a single function. A function still needs "
            "arguments, and a record has them already: either pass two or more functions, as in "
            "`compare(f, g)(*args)`, or pass records, as in `compare(inspect(f)(*args), record)`."
        )
        raise InspectionError(message)
    with asked("compare"):
        records: list[Any] = [record_of_thing(x, "compare") for x in things]  # checked there
        return compare_records(*records)
