"""Attributes the figures of published programs to the user's lines, and to functions or modules.

`python -m benchmarks.attribution --write docs/attribution.md` writes the table; without `--write`, the command prints
the table. Programs of packages that are not installed are omitted and listed. Nothing runs or is timed: the programs
are compiled for eight simulated devices.
"""

import argparse
import contextlib
import importlib.metadata
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import jax

FIGURES = {
    "flops_matmul": "FLOPs",
    "flops_elementwise": "elementwise",
    "traffic_bytes": "memory traffic",
    "sent_bytes": "bytes sent",
    "collectives": "collectives",
    "peak_bytes": "peak memory",
}
_PACKAGES = ("jax", "flax", "optax", "equinox", "dm-haiku", "keras", "numpyro", "blackjax")
_HEAD = """# Attribution of figures to source lines

Every figure of the call tree (`inspect(fn)(*args).call_tree`) is assigned to a line of your own code, and to a
function or module. The table states, for programs that use published libraries, the fraction of each figure that could
be assigned. The first number is the fraction assigned to a line of the user's code, and the second number is the
fraction assigned to a function or module. The number in brackets is the inferred part of the first number. A dash means
that the program has no such figure. `python -m benchmarks.attribution --write docs/attribution.md` writes this page.

A figure counts as attributed if the compiled instruction has a Python call path. If the compiler dropped this path, the
report uses the path of an operand, or of an instruction that reads the result, and counts the figure as inferred.
Arguments count at the line that reads them first (this attribution is also inferred). Fused work counts at the lines of
its parts.
"""


def main() -> None:
    """Prints or writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="a file for the table")
    given = parser.parse_args()
    jax.config.update("jax_num_cpu_devices", 8)
    page = "\n".join(_page())
    if given.write is None:
        print(page)
    else:
        given.write.write_text(page + "\n", encoding="utf-8")


@contextlib.contextmanager
def as_libraries_expect() -> Iterator[None]:
    """JAX and Python settings as outside tests, because libraries promote dtypes and ranks, and warn."""
    with warnings.catch_warnings(), jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        warnings.simplefilter("ignore")
        yield


def _page() -> Iterator[str]:
    import workbench as wb
    from benchmarks.attribution_programs import ELSEWHERE, installed, summary_of

    yield _HEAD
    yield f"| program | {' | '.join(FIGURES.values())} |"
    yield "|" + "---|" * (len(FIGURES) + 1)
    programs = installed()
    for make in programs:
        with as_libraries_expect():
            call = make()
            record = wb.trace(call.fn)(*call.args).inspect(on=call.mesh)
        tree = record.call_tree
        assert tree is not None
        cells = []
        for figure in FIGURES:
            shares = tree.attributed_to_line.get(figure), tree.attributed_to_module.get(figure)
            written = " / ".join(f"{100 * share:.1f}" for share in shares if share is not None)
            cells.append(f"{written} % ({100 * tree.inferred.get(figure, 0.0):.0f} %)" if written else "–")
        yield f"| {summary_of(make)} | {' | '.join(cells)} |"
        print(make.__name__, file=sys.stderr)
    yield ""
    missing = [package for make, package in ELSEWHERE.items() if make not in programs]
    if missing:
        yield f"Left out, not installed: {', '.join(missing)}."
    found = []
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{package} {importlib.metadata.version(package)}")
    yield f"Versions: {', '.join(found)}; XLA's CPU compiler, eight simulated devices."


if __name__ == "__main__":
    main()
