"""Reads the command line and starts the command that was asked for."""

import argparse
import importlib.metadata
import sys
from collections.abc import Sequence
from pathlib import Path

from workbench.cli._metadata import DISTRIBUTION
from workbench.errors import WorkbenchError


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status.

    Args:
        argv: The arguments after the program's name; `None` reads them from the process.

    Returns:
        0 when all went well, 1 when the command failed and said why on stderr. Wrong usage ends in status 2 (argparse).
    """
    arguments = _parser().parse_args(argv)
    try:
        return arguments.start(arguments)
    except WorkbenchError as error:
        print(f"workbench {arguments.command}: {error}", file=sys.stderr)
        return 1


# Each command imports its own module only when it is asked for: `doctor` has to work where JupyterLab is broken.


def _start_lab(arguments: argparse.Namespace) -> int:
    from workbench.cli._absent_tpu import choose_platform
    from workbench.cli._lab import open_lab

    choose_platform()
    return open_lab(arguments.notebook, port=arguments.port, browser=not arguments.no_browser)


def _start_demo(arguments: argparse.Namespace) -> int:
    from workbench.cli._absent_tpu import choose_platform
    from workbench.cli._demo import write_demo

    choose_platform()
    return write_demo(arguments.out, rounds=arguments.rounds)


def _start_doctor(arguments: argparse.Namespace) -> int:
    from workbench.cli._doctor import report_health

    return report_health()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="workbench", description="A Jupyter workbench for sharded, differentiable MapReduce in JAX."
    )
    parser.add_argument("--version", action="version", version=f"{DISTRIBUTION} {_version()}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")

    lab = commands.add_parser("lab", help="open JupyterLab on the notebooks (this machine only, with a token)")
    lab.add_argument("notebook", nargs="?", help="a notebook to open, by name or path")
    lab.add_argument("--port", type=_port, help="the port to listen on; without it, a free one is taken")
    lab.add_argument("--no-browser", action="store_true", help="print the address instead of opening a browser")
    lab.set_defaults(start=_start_lab)

    demo = commands.add_parser("demo", help="train on 64 clients, look inside, write one HTML report")
    demo.add_argument("--out", type=Path, default=Path("report.html"), help="where to write it (default: report.html)")
    demo.add_argument("--rounds", type=_rounds, default=30, help="rounds of federated averaging (default: 30)")
    demo.set_defaults(start=_start_demo)

    doctor = commands.add_parser("doctor", help="say what is installed, which devices are there, and what is wrong")
    doctor.set_defaults(start=_start_doctor)
    return parser


def _version() -> str:
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _port(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 65535:
        msg = f"{number} is not a port: ports go from 1 to 65535"
        raise argparse.ArgumentTypeError(msg)
    return number


def _rounds(text: str) -> int:
    number = int(text)
    if number < 1:
        msg = f"{number} rounds train nothing: give 1 or more"
        raise argparse.ArgumentTypeError(msg)
    return number
