"""`workbench runs`: the runs of a registry, listed, compared and shown."""

import argparse
import html
import json
from pathlib import Path
from typing import Any

from workbench.errors import CommandError


def add_run_commands(commands: Any) -> None:
    """Adds `runs` with its own commands to the parser of the command line."""
    runs = commands.add_parser("runs", help="list, compare and open runs that `run_rounds(log=FOLDER)` wrote")
    actions = runs.add_subparsers(dest="action", metavar="action", required=True)

    listed = actions.add_parser("list", help="one line per run: status, rounds, last metrics")
    listed.add_argument("folder", type=Path, help="the registry")
    listed.add_argument("--json", action="store_true", help="print the table as JSON")
    listed.set_defaults(start=_list)

    compare = actions.add_parser("compare", help="runs of one name are seeds: means, intervals and paired tests")
    compare.add_argument("folder", type=Path, help="the registry")
    compare.add_argument("--metric", required=True, help="the metric")
    compare.add_argument("--maximize", action="store_true", help="large is good")
    compare.add_argument("--figure", type=Path, help="also write the curves: a .pdf, .svg or .png file")
    compare.set_defaults(start=_compare)

    opened = actions.add_parser("open", help="write a page with one run's provenance and curves")
    opened.add_argument("folder", type=Path, help="the registry")
    opened.add_argument("run", help="the run's folder in it, or its beginning, or its name if only one run has it")
    opened.add_argument("--out", type=Path, default=Path("run.html"), help="the page (default: run.html)")
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
    from workbench.federated.experiments import compare_runs

    results: dict[str, list[Any]] = {}
    for run in _runs(arguments.folder):
        results.setdefault(run.about["name"], []).append(run.history)
    compared = compare_runs(results, metric=arguments.metric, minimize=not arguments.maximize)
    print(compared.table().to_string(index=False, float_format="{:.4g}".format))
    if len(results) > 1:
        print(compared.tests().to_string(index=False, float_format="{:.4g}".format))
    if arguments.figure:
        compared.figure("curves", arguments.figure)
    return 0


def _open(arguments: argparse.Namespace) -> int:
    from workbench.records import write_whole
    from workbench.render import plot_rounds

    found = [
        run
        for run in _runs(arguments.folder)
        if run.path.name.startswith(arguments.run) or run.about["name"] == arguments.run
    ]
    if len(found) != 1:
        names = ", ".join(run.path.name for run in found) or "none"
        message = (
            f"`runs open` received {arguments.run!r}, which names {len(found)} runs ({names}). It opens one: pass the "
            "name of its folder, as `workbench runs list` prints it."
        )
        raise CommandError(message)
    import io

    run, picture = found[0], io.StringIO()
    plot_rounds(run.history, dark=False).savefig(picture, format="svg")
    svg = picture.getvalue()[picture.getvalue().index("<svg") :]
    facts = {name: value for name, value in run.about.items() if name != "code"}
    rows = "".join(
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(json.dumps(value))}</td></tr>"
        for name, value in facts.items()
    )
    title = html.escape(run.about["name"])
    page = (
        f'<!doctype html><meta charset="utf-8"><title>{title}</title><style>body{{font:14px sans-serif;margin:2em}}'
        "th{text-align:left;vertical-align:top;padding-right:1em}svg{max-width:100%}</style>"
        f"<h1>{title}</h1>{svg}<table>{rows}</table><pre>{html.escape(run.about['code'])}</pre>"
    )
    write_whole(arguments.out, page)
    print(arguments.out)
    return 0


def _registry(folder: Path) -> Path:
    if not folder.is_dir():
        message = (
            f"`runs` received the folder {str(folder)!r}, which does not exist. A registry is the folder that "
            "`run_rounds(log=…)` was given: pass that."
        )
        raise CommandError(message)
    return folder


def _runs(folder: Path) -> list[Any]:
    from workbench.measurement import Run

    return [Run.load(file.parent) for file in sorted(_registry(folder).glob("*/run.json"))]
