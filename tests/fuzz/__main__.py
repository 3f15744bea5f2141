"""Runs the fuzz targets for a time: `python -m tests.fuzz --seconds 600 --target hlo`."""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # the tests import each other without a package

from fuzz.driver import fuzz
from fuzz.targets import TARGETS


def main() -> int:
    """The number of findings."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together")
    parser.add_argument("--target", action="append", choices=sorted(TARGETS), help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--findings", type=Path, default=Path("fuzz-findings"), help="where inputs that break are kept")
    given = parser.parse_args()
    names = given.target or list(TARGETS)
    found = 0
    for name in names:
        report = fuzz(TARGETS[name], given.seconds / len(names), given.seed, given.findings)
        print(report, flush=True)
        found += len(report.findings)
    return min(found, 100)


if __name__ == "__main__":
    sys.exit(main())
