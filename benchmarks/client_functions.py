"""All client functions of the tests in all ways of running them: `python benchmarks/client_functions.py`.

A line for each that raises or gives other numbers than plain `vmap`, then the counts; the exit status is their number.
"""

import argparse
import os
import sys
import time
import warnings
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("NPROC", "64")  # more threads than simulated devices
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import jax

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

from client_functions import FUNCTIONS, WAYS, difference  # noqa: E402


def main() -> int:
    """Runs the product of the functions and ways that are named, or of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--functions", nargs="*", default=list(FUNCTIONS))
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    equal, impossible, wrong, began = 0, 0, 0, time.monotonic()
    for function in asked.functions:
        expected = {}
        for way in asked.ways:
            try:
                found = difference(function, way, expected)
            except Exception as error:
                found = f"{type(error).__name__}: {error}"[:400]
            if found:
                print(f"{function} [{way}]: {found}", flush=True)
            equal, impossible, wrong = equal + (found == ""), impossible + (found is None), wrong + bool(found)
        jax.clear_caches()
    seconds = time.monotonic() - began
    print(f"{equal} equal, {wrong} wrong, {impossible} that plain vmap cannot; {seconds:.0f} s")
    return min(wrong, 99)


if __name__ == "__main__":
    raise SystemExit(main())
