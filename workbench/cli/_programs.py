"""`workbench inspect` and `workbench compare`: inspect and compare programs in files."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any


def add_program_commands(commands: "argparse._SubParsersAction[Any]") -> None:
    """Adds the commands to the command-line parser."""
    inspect = commands.add_parser(
        "inspect", help="read an HLO, StableHLO, exported or record file, or a dump directory"
    )
    inspect.add_argument("file", help="the file, a dump directory of xla_dump_to, or - for standard input")
    inspect.add_argument("--on", help="estimate seconds for a chip, such as v5e or h100")
    inspect.add_argument("--why", action="store_true", help="explain why it communicates (StableHLO and record files)")
    inspect.add_argument("--json", action="store_true", help="print the whole record as JSON")
    inspect.set_defaults(start=_start_inspect)

    compare = commands.add_parser("compare", help="compare programs, profiles, measured runs or watched loops in files")
    compare.add_argument("files", nargs="*", help="files as for `workbench inspect`")
    compare.add_argument(
        "--since", metavar="REF", help="compare snapshot files of `workbench.testing` with a commit, as Markdown"
    )
    compare.add_argument("--all", action="store_true", help="also print equal figures, as JSON")
    compare.add_argument("--check", action="store_true", help="exit with status 1 if something differs")
    compare.add_argument("--json", action="store_true", help="print the comparison as JSON")
    compare.set_defaults(start=_start_compare)


def _start_inspect(arguments: argparse.Namespace) -> int:
    from workbench import api, render
    from workbench.cli._absent_tpu import choose_platform
    from workbench.records.compiled import ProgramRecord

    choose_platform()
    source = _source(arguments.file)
    record: Any = api.inspect(source, on=arguments.on) if arguments.on else api.inspect(source)
    if arguments.why:
        record = api.why(record)
    if arguments.json:
        print(record.to_json(indent=1))
    elif isinstance(record, ProgramRecord) and record.module is not None and not record.plan.stages:
        print(render.text(record.module))
        for note in record.notes:
            print(f"Note: {note}")
    else:
        print(render.text(record))
    return 0


def _source(file: str) -> bytes | Path:
    return sys.stdin.buffer.read() if file == "-" else Path(file)


def _start_compare(arguments: argparse.Namespace) -> int:
    from workbench import api
    from workbench.cli._absent_tpu import choose_platform

    choose_platform()
    if arguments.since is not None:
        from workbench.cli._snapshots import describe_since

        print(describe_since(arguments.since, arguments.files))
        return 0
    record = api.compare(*[_source(file) for file in arguments.files])
    if arguments.json:
        print(record.to_json(indent=1))
    elif arguments.all:
        print(json.dumps(record.to_dict()["rows"], indent=1))
    else:
        print(record)
    return 1 if arguments.check and record.differences else 0
