"""Measures how much of the public interface has known types, by `pyright --verifytypes`, and fails below 99.9 %."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent.parent
LEAST = 0.999
PACKAGES = ("workbench", "workbench_widgets")


def main() -> int:
    """Prints the share of each package, and what it lacks."""
    low = False
    for package in PACKAGES:
        done = subprocess.run(
            ["pyright", "--verifytypes", package, "--ignoreexternal", "--outputjson"],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE / "widgets")])},
        )
        found = json.loads(done.stdout).get("typeCompleteness")
        if found is None:
            print(done.stdout, done.stderr)
            return 1
        score = found["completenessScore"]
        low |= score < LEAST
        print(
            f"{package}: {100 * score:.1f} % of {sum(found['exportedSymbolCounts'].values())} public names have types"
        )
        for symbol in found["symbols"]:
            if not symbol["isTypeKnown"]:
                for each in symbol["diagnostics"]:
                    print(f"  {symbol['name']}: {each['message'].splitlines()[0]}")
    return int(low)


if __name__ == "__main__":
    sys.exit(main())
