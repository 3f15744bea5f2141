"""Starts the `workbench` command, also where the workbench cannot be imported: `workbench doctor` is for that case."""

import importlib.util
import sys
import types


def main() -> int:
    """Runs the command line; without a package that imports, only `doctor`.

    Returns:
        The exit status.
    """
    try:
        import workbench  # noqa: F401
    except Exception as error:
        if sys.argv[1:] != ["doctor"]:
            print(f"workbench: cannot be imported here: {type(error).__name__}: {error}", file=sys.stderr)
            print("Run `workbench doctor`, which names the line that repairs it.", file=sys.stderr)
            return 1
        _stand_in(error)
    from workbench._cli import main as start  # noqa: PLC2701 (one distribution)

    return start()


def _stand_in(error: Exception) -> None:
    # A package with nothing but a path, so that its modules can be imported one by one.
    spec = importlib.util.find_spec("workbench")
    if spec is None:
        raise error
    package = types.ModuleType("workbench", f"Stands in for the package, which failed: {error}")
    package.__path__ = list(spec.submodule_search_locations or [])
    package.__file__ = spec.origin
    package.import_error = error  # type: ignore[attr-defined]
    sys.modules["workbench"] = package
