"""Reads the command line and starts the command that it names."""

import argparse
import contextlib
import difflib
import errno
import importlib.metadata
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from workbench.cli._course import add_course_commands
from workbench.cli._name import DISTRIBUTION
from workbench.cli._programs import add_program_commands
from workbench.cli._runs import add_run_commands
from workbench.errors import WorkbenchError

_CLOSED_PIPE = 141  # exit status that a shell reports for SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status.

    Args:
        argv: The arguments after the program's name; `None` reads them from the process.

    Returns:
        0 on success, 1 if the command failed and printed the reason on stderr, 141 if its output is no longer read, as
        in `workbench doctor | head -1`. Incorrect usage exits with status 2.
    """
    try:
        status = _run(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()
        return _CLOSED_PIPE
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _forget_output()
        print(
            f"workbench: {error}. The disk is full; existing files are unchanged. Free some space, and run the "
            "command again.",
            file=sys.stderr,
        )
        return 1
    return status


def _forget_output() -> None:
    """Drops buffered output, which Python would otherwise write again at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(argv: Sequence[str] | None) -> int:
    parser = make_parser()
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help()
        return 0
    if arguments.debug:
        logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
        logging.getLogger("workbench").setLevel(logging.DEBUG)
    try:
        return arguments.start(arguments)
    except WorkbenchError as error:
        print(f"workbench {arguments.command}: {error}", file=sys.stderr)
        return 1
    except ImportError as error:
        print(
            f"workbench {arguments.command}: {error}. A library cannot be imported. Run `workbench doctor`, "
            "which names the command that fixes it.",
            file=sys.stderr,
        )
        return 1


# Each command's module is imported only when the command is called, because `doctor` must work even if JupyterLab is
# broken.


def _start_lab(arguments: argparse.Namespace) -> int:
    from workbench.cli._absent_tpu import choose_platform
    from workbench.cli._lab import open_lab

    choose_platform()
    browser = not arguments.no_browser
    return open_lab(arguments.notebook, folder=arguments.folder, port=arguments.port, browser=browser)


def _start_demo(arguments: argparse.Namespace) -> int:
    from workbench.cli._absent_tpu import choose_platform
    from workbench.cli._demo import write_demo

    choose_platform()
    return write_demo(arguments.out, rounds=arguments.rounds)


def _start_doctor(arguments: argparse.Namespace) -> int:
    from workbench.cli._doctor import report_health

    return report_health(form="json" if arguments.json else "long" if arguments.verbose else "short")


def _start_engines(arguments: argparse.Namespace) -> int:
    from workbench.cli._engines import list_engines

    return list_engines(as_json=arguments.json)


def _start_record(arguments: argparse.Namespace) -> int:
    from workbench.cli._absent_tpu import choose_platform
    from workbench.cli._record import write_recording

    choose_platform()
    return write_recording(arguments.out, profile=arguments.profile)


def _start_calibrate(arguments: argparse.Namespace) -> int:
    from workbench.cli._absent_tpu import choose_platform
    from workbench.cli._calibrate import write_calibration

    choose_platform()
    return write_calibration(arguments.out, seconds=arguments.seconds)


class _Parser(argparse.ArgumentParser):
    """Suggests the nearest valid choice for a misspelt choice."""

    def error(self, message: str) -> NoReturn:
        if "invalid choice: '" in message and "(choose from" in message:
            wrong = message.split("invalid choice: '")[1].split("'")[0]
            choices = message.split("(choose from ")[1].rstrip(")").replace("'", "").split(", ")
            near = difflib.get_close_matches(wrong, choices, n=1)
            message += f". Did you mean `{near[0]}`?" if near else ""
        super().error(message)


def make_parser() -> argparse.ArgumentParser:
    """Creates the command-line parser, from which shell completion is also generated."""
    parser = _Parser(prog="workbench", description="A Jupyter workbench for sharded, differentiable MapReduce in JAX.")
    parser.add_argument("--version", action="version", version=f"{DISTRIBUTION} {_version()}")
    parser.add_argument("--debug", action="store_true", help="log restarts, cache hits and workers to stderr")
    parser.add_argument(
        "--print-completion",
        action=_PrintCompletion,
        choices=("bash", "zsh", "tcsh"),
        help='shell completion: eval "$(workbench --print-completion bash)"',
    )
    commands = parser.add_subparsers(dest="command", metavar="command")

    lab = commands.add_parser("lab", help="open JupyterLab on a copy of the course (this machine only, with a token)")
    lab.add_argument("notebook", nargs="?", help="a notebook to open, by name, number or path")
    lab.add_argument(
        "--folder",
        type=Path,
        default=Path("workbench-course"),
        help="the folder for the copy of the course; existing files are kept (default: workbench-course)",
    )
    lab.add_argument("--port", type=_port, help="the port to listen on (default: a free port)")
    lab.add_argument("--no-browser", action="store_true", help="print the address instead of opening a browser")
    lab.set_defaults(start=_start_lab)

    demo = commands.add_parser("demo", help="train on 64 clients, look inside, write one HTML report")
    demo.add_argument("--out", type=Path, default=Path("report.html"), help="file to write (default: report.html)")
    demo.add_argument("--rounds", type=_rounds, default=30, help="rounds of federated averaging (default: 30)")
    demo.set_defaults(start=_start_demo)

    doctor = commands.add_parser("doctor", help="check the installation and name the command that fixes it")
    form = doctor.add_mutually_exclusive_group()
    form.add_argument("--verbose", action="store_true", help="list every check")
    form.add_argument("--json", action="store_true", help="print every check as JSON")
    doctor.set_defaults(start=_start_doctor)

    engines = commands.add_parser("engines", help="list where a program can run, and what each engine needs")
    engines.add_argument("--json", action="store_true", help="print the list as JSON")
    engines.set_defaults(start=_start_engines)

    record = commands.add_parser("record", help="measure and profile the attached devices, and write one file to share")
    record.add_argument("--out", type=Path, default=Path("recording.zip"), help="(default: recording.zip)")
    record.add_argument("--profile", type=Path, help="trim this existing profile instead of running programs")
    record.set_defaults(start=_start_record)

    rates = commands.add_parser("calibrate", help="measure the rates of the attached devices, for predictions")
    rates.add_argument("--out", type=Path, help="also write the rates to this JSON file")
    rates.add_argument("--seconds", type=_seconds, default=30.0, help="measuring time (default: 30)")
    rates.set_defaults(start=_start_calibrate)

    add_program_commands(commands)
    add_run_commands(commands)
    add_course_commands(commands)
    return parser


class _PrintCompletion(argparse.Action):
    """Prints a shell's completion script and exits."""

    def __call__(self, parser, namespace, values, option_string=None) -> NoReturn:
        from workbench.errors import needs_library

        with needs_library("shtab", needed_for="`workbench --print-completion`"):
            import shtab
        print(shtab.complete(parser, shell=str(values)))
        parser.exit()


def _version() -> str:
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        message = f"{text!r} is not a port: ports range from 1 to 65535"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        message = f"{text!r} is not a number of seconds: pass a number above 0"
        raise argparse.ArgumentTypeError(message)
    return seconds


def _rounds(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        message = f"{text!r} is not a number of rounds: pass 1 or more"
        raise argparse.ArgumentTypeError(message)
    return int(text)
