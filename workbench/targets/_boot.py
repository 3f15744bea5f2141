"""Starts the worker without the rest of the workbench: it needs none of it, and would take twice as long to start.

Run as a script; `python -m workbench.targets.worker` does the same after importing everything.
"""

import sys
import types
from pathlib import Path


def bare_packages() -> None:
    """Makes `workbench` and `workbench.targets` packages whose own code is not run."""
    here = Path(__file__).parent
    for name, where in (("workbench", here.parent), ("workbench.targets", here)):
        package = types.ModuleType(name)
        package.__path__ = [str(where)]
        sys.modules[name] = package


if __name__ == "__main__":
    bare_packages()
    from workbench.targets.worker import main

    main()
