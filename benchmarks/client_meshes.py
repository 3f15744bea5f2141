"""Runs all client operations of the tests on all kinds of meshes: `python benchmarks/client_meshes.py`.

Each operation is compiled separately. Prints a line for each operation, then the counts. The exit status is the number
of operations that give other numbers than plain `vmap`, raise, or end their process.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from mesh_operations import MESHES, OPERATIONS, answer


def main() -> int:
    """Runs the product."""
    began = time.monotonic()
    found = answer([(kind, [operation]) for kind in MESHES for operation in OPERATIONS], say=print)
    wrong = {key: why for key, why in found.items() if why}
    print(f"{len(found)} programs, {len(wrong)} wrong; {time.monotonic() - began:.0f} s")
    return min(len(wrong), 99)


if __name__ == "__main__":
    raise SystemExit(main())
