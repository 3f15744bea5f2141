"""Measures how much of the public interface has known types, by `pyright --verifytypes`, and fails below 99.9 %."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent.parent
LEAST = 0.999
INFERRED = "Type is missing type annotation and could be inferred differently by type checkers"
PACKAGES = ("workbench", "workbench_widgets")


def is_known(symbol: dict[str, Any]) -> bool:
    """Returns whether a type is declared, or is the declared result of one call (`measure = question(...)`)."""
    return symbol["isTypeKnown"] or all(INFERRED in each["message"] for each in symbol["diagnostics"])


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
        unknown = [symbol for symbol in found["symbols"] if not is_known(symbol)]
        total = sum(found["exportedSymbolCounts"].values())
        exported = [symbol for symbol in unknown if symbol["isExported"]]
        score = 1 - len(exported) / total
        low |= score < LEAST
        print(f"{package}: {100 * score:.1f} % of {total} public names have types")
        for symbol in unknown:
            for each in symbol["diagnostics"]:
                print(f"  {symbol['name']}: {each['message'].splitlines()[0]}")
    return int(low)


if __name__ == "__main__":
    sys.exit(main())
