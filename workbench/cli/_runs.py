"""`workbench runs`: lists, compares and opens the runs in a registry."""

import argparse
from pathlib import Path
from typing import Any

from workbench.errors import CommandError


def add_run_commands(commands: "argparse._SubParsersAction[Any]") -> None:
    """Adds `runs` and its subcommands to the command-line parser."""
    runs = commands.add_parser("runs", help="list, compare and open runs that `run_rounds(log=FOLDER)` wrote")
    actions = runs.add_subparsers(dest="action", metavar="action", required=True)

    listed = actions.add_parser("list", help="one line per run: status, rounds, last metrics")
    listed.add_argument("folder", type=Path, help="the registry")
    listed.add_argument("--json", action="store_true", help="print the table as JSON")
    listed.set_defaults(start=_list)

    compare = actions.add_parser(
        "compare",
        help="compare runs (those with the same name are treated as seeds of one result): means, intervals and paired "
        "tests",
    )
    compare.add_argument("folder", type=Path, help="the registry")
    compare.add_argument("--metric", required=True, help="the metric")
    compare.add_argument("--maximize", action="store_true", help="larger values are better")
    compare.add_argument("--figure", type=Path, help="also write the curves: a .pdf, .svg or .png file")
    compare.set_defaults(start=_compare)

    opened = actions.add_parser("open", help="write an interactive page: one run, or several runs overlaid")
    opened.add_argument("folder", type=Path, help="the registry")
    opened.add_argument(
        "runs",
        nargs="*",
        metavar="run",
        help="run folders or their prefixes, or names of runs (runs with the same name are treated as seeds of one "
        "result); default: all runs",
    )
    opened.add_argument("--metric", help="the metric to show first (default: loss, otherwise the first)")
    opened.add_argument("--maximize", action="store_true", help="larger values are better")
    opened.add_argument("--out", type=Path, default=Path("runs.html"), help="the page (default: runs.html)")
    opened.set_defaults(start=_open)


def _list(arguments: argparse.Namespace) -> int:
    from workbench.measurement import list_runs

    table = list_runs(_registry(arguments.folder))
    if arguments.json:
        print(table.to_json(orient="records", indent=1))
    else:
        print(table.to_string(index=False, float_format="{:.4g}".format) if len(table) else "no runs")
    return 0


def _compare(arguments: argparse.Namespace) -> int:
    from workbench.api import compare

    results: dict[str, list[Any]] = {}
    for run in _runs(arguments.folder):
        results.setdefault(run.about["name"], []).append(run.history)
    compared = compare(results, metric=arguments.metric, minimize=not arguments.maximize)
    print(compared.table().to_string(index=False, float_format="{:.4g}".format))
    if len(results) > 1:
        print(compared.tests().to_string(index=False, float_format="{:.4g}".format))
    if arguments.figure:
        compared.figure("curves", arguments.figure)
    return 0


def _open(arguments: argparse.Namespace) -> int:
    from workbench.api import write_runs_page

    runs = _runs(arguments.folder)
    chosen = _chosen(runs, arguments.runs)
    write_runs_page(chosen, arguments.out, metric=arguments.metric, minimize=not arguments.maximize)
    print(arguments.out)
    return 0


def _chosen(runs: list[Any], words: list[str]) -> list[Any]:
    """Selects runs by folder, prefix or name, in registry order; selects all runs if no words are given."""
    selection = [
        run
        for run in runs
        if not words or any(run.path.name.startswith(word) or run.about["name"] == word for word in words)
    ]
    missing = [word for word in words if not any(r.path.name.startswith(word) or r.about["name"] == word for r in runs)]
    if missing or not selection:
        names = ", ".join(run.path.name for run in runs) or "none"
        message = (
            f"`runs open` received {', '.join(map(repr, missing)) or 'a registry'}, but no run matches. The registry "
            f"has {names}: pass run names, folders, or prefixes of folders, as printed by `workbench runs list`."
        )
        raise CommandError(message)
    return selection


def _registry(folder: Path) -> Path:
    if not folder.is_dir():
        message = (
            f"`runs` received the folder {str(folder)!r}, which does not exist. A registry is the folder that was "
            "passed to `run_rounds(log=…)`: pass the same folder."
        )
        raise CommandError(message)
    return folder


def _runs(folder: Path) -> list[Any]:
    from workbench.measurement import Run

    return [Run.load(file.parent) for file in sorted(_registry(folder).glob("*/run.json"))]
