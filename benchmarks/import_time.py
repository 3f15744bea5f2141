"""Processor time of `import workbench` compared with `import jax`: `python -m benchmarks.import_time [--repeats 15]`.

Every repetition starts one fresh interpreter per statement, in turn, so that a busy machine disturbs all statements
equally. The time is the child process's user and system time, as reported by the operating system.
"""

import argparse
import os
import statistics
import subprocess
import sys

STATEMENTS = {
    "python": "pass",
    "import jax": "import jax",
    "import workbench": "import workbench",
    "import workbench, then wb.program and the primitives": "import workbench as wb; wb.program, wb.map_fn",
    "import workbench, then wb.trace and all that it can open": "import workbench as wb; wb.trace, wb.show",
}


def processor_seconds(code: str) -> float:
    """User and system seconds of a fresh interpreter that runs `code`."""
    before = os.times()
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "JAX_PLATFORMS": "cpu"})
    after = os.times()
    return (after.children_user - before.children_user) + (after.children_system - before.children_system)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=15)
    repeats = parser.parse_args().repeats
    for code in STATEMENTS.values():
        processor_seconds(code)  # bytecode and the disk's cache
    seconds: dict[str, list[float]] = {name: [] for name in STATEMENTS}
    for _ in range(repeats):
        for name, code in STATEMENTS.items():
            seconds[name].append(processor_seconds(code))
    print(
        "| statement | median seconds | lowest | highest | over `import jax` (median of pairs) |\n|---|---|---|---|---|"
    )
    for name, taken in seconds.items():
        ratio = statistics.median(ours / jax for ours, jax in zip(taken, seconds["import jax"], strict=True))
        print(f"| {name} | {statistics.median(taken):.2f} | {min(taken):.2f} | {max(taken):.2f} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
