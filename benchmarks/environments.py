"""Ordinary work on a faulty machine: `python -m benchmarks.environments [CASE...]`.

Each case makes the calls of `public_calls` in a child process. A call has one of three outcomes: the answer of an
undisturbed process ("right"), an error from the library or the system that names the cause ("refused"), or any other
outcome ("lost"). `--python PATH` uses other interpreters, such as Python 3.13 with the newest JAX.
"""

import argparse
import ctypes
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

WORK = """
import hashlib, json, os, sys
from pathlib import Path

import workbench as wb
from benchmarks.public_calls import W, X, average, calls

def answer(call):
    try:
        text = json.dumps(call(), sort_keys=True, default=str)
        return text if len(text) < 100 else hashlib.sha256(text.encode()).hexdigest()  # all fit into a pipe
    except Exception as error:
        text = str(error)
        known = isinstance(error, (wb.errors.WorkbenchError, OSError, MemoryError))
        return f"refused: {type(error).__name__}: {text.splitlines()[0][:160]}" if known and text else (
            f"lost: {type(error).__name__}: {text[:160]}")

known = calls(Path(sys.argv[1]), wb.inspect(average())(W, X))
answers = {name: answer(call) for name, call in known.items() if name != "show"}  # it prints
with open(3, "wb") as results:
    results.write(json.dumps(answers).encode())
"""


@dataclass(frozen=True)
class Fault:
    """The fault of one case."""

    options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[int, int] = field(default_factory=dict)
    before: Callable[[Path], None] | None = None  # in the child, with the folder of the case
    other_figures: bool = False  # right are answers of any figures: other types of numbers, another JAX
    disk: str = ""  # options of a tmpfs that holds home, cache, temporary folder and the folder of the case


def _no_folder(folder: Path) -> None:
    gone = folder / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()


def _umask(folder: Path) -> None:
    os.umask(0o777)


def _closed(*numbers: int) -> Callable[[Path], None]:
    def close(folder: Path) -> None:
        for number in numbers:
            os.close(number)

    return close


_NEW_MOUNTS, _PRIVATE = 0x00020000, (1 << 18) | (1 << 14)


def _mount(folder: Path, options: str) -> None:
    """Mounts a file system on a folder, visible only to this process; needs administrator rights."""
    system = ctypes.CDLL(None, use_errno=True)
    read_only = options == "ro"
    done = (
        system.unshare(_NEW_MOUNTS) == 0
        and system.mount(b"none", b"/", None, _PRIVATE, None) == 0
        and system.mount(b"tmpfs", bytes(folder), b"tmpfs", int(read_only), b"" if read_only else options.encode()) == 0
    )
    if not done:
        raise OSError(ctypes.get_errno(), "mount")


NOWHERE = "/proc/nowhere"  # where nobody can write, the superuser included
FAULTS = {
    "nothing": Fault(),
    "files cannot grow, as on a full disk": Fault(limits={resource.RLIMIT_FSIZE: 0}),
    "a disk of 64 KiB that is full": Fault(disk="size=64k"),
    "a disk that is read-only": Fault(disk="ro"),
    "32 open files": Fault(limits={resource.RLIMIT_NOFILE: 32}),
    "6 GiB of addresses": Fault(limits={resource.RLIMIT_AS: 6 * 2**30}),
    "3 GiB of addresses": Fault(limits={resource.RLIMIT_AS: 3 * 2**30}),
    "home cannot be written": Fault(environment={"HOME": NOWHERE, "XDG_CACHE_HOME": ""}),
    "no home": Fault(environment={"HOME": "", "XDG_CACHE_HOME": ""}),
    "cache cannot be written": Fault(environment={"WORKBENCH_CACHE": NOWHERE}),
    "cache is a file": Fault(environment={"WORKBENCH_CACHE": "/etc/hostname"}),
    "TMPDIR does not exist": Fault(environment={"TMPDIR": NOWHERE}),
    "locale C without UTF-8": Fault(environment={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}),
    "output in ASCII": Fault(environment={"PYTHONIOENCODING": "ascii:strict"}),
    "Turkish locale": Fault(environment={"LC_ALL": "tr_TR.UTF-8", "LANG": "tr_TR.UTF-8"}),
    "-O": Fault(options=("-O",)),
    "-OO": Fault(options=("-OO",)),
    "-X dev": Fault(options=("-X", "dev")),
    "warnings are errors": Fault(options=("-W", "error")),
    "no working folder": Fault(before=_no_folder),
    "umask 777": Fault(before=_umask),
    "no standard input": Fault(before=_closed(0)),
    "no standard streams": Fault(before=_closed(0, 1, 2)),
    "float64": Fault(environment={"JAX_ENABLE_X64": "1"}, other_figures=True),
    "nan checks and leak checks": Fault(environment={"JAX_DEBUG_NANS": "1", "JAX_CHECK_TRACER_LEAKS": "1"}),
    "one column": Fault(environment={"COLUMNS": "1", "LINES": "1"}),
    "an unknown user": Fault(environment={"USER": "", "LOGNAME": "", "USERNAME": ""}),
}


def run(fault: Fault, folder: Path, python: str = sys.executable) -> dict[str, object]:
    """The answers of all calls under a fault."""
    reading, writing = os.pipe()

    def prepare() -> None:
        os.dup2(writing, 3)
        os.set_inheritable(3, True)
        if fault.disk:
            _mount(folder, fault.disk)
        if fault.before is not None:
            fault.before(folder)
        for limit, value in fault.limits.items():
            resource.setrlimit(limit, (value, value))

    command = [python, *fault.options, "-c", WORK, str(folder)]
    places = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "WORKBENCH_CACHE"), str(folder)) if fault.disk else {}
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", **places, **fault.environment}
    environment["PYTHONPATH"] = os.pathsep.join(str(Path(each).absolute()) for each in (Path(), Path("widgets")))
    known = {name: value for name, value in environment.items() if value}
    pipe = subprocess.PIPE
    child = subprocess.Popen(command, env=known, preexec_fn=prepare, close_fds=False, stdout=pipe, stderr=pipe)
    os.close(writing)
    try:
        _, errors = child.communicate(timeout=300)
    except subprocess.TimeoutExpired:
        child.kill()
        child.communicate()
        os.close(reading)
        return {"all": "lost: no answer in 300 s"}
    with os.fdopen(reading, "rb") as opened:
        text = opened.read()
    if not text:
        return {"all": f"lost: ended with {child.returncode}: {errors.decode(errors='replace').strip()[-300:]}"}
    return json.loads(text)


def main() -> int:
    """Runs the cases and prints a line for each; the status is 1 if an answer was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("faults", nargs="*", help="names of cases; default: all")
    parser.add_argument(
        "--python", action="append", default=[], help="other interpreters; each also runs without a fault"
    )
    given = parser.parse_args()
    chosen = [(name, sys.executable) for name in given.faults or FAULTS if name != "nothing"]
    chosen += [(name, python) for python in given.python for name in ("nothing", "-O", "-X dev")]
    lost, totals = 0, [0, 0, 0]
    with tempfile.TemporaryDirectory() as place:
        due = run(FAULTS["nothing"], _new(Path(place), 0))
        failed = [answer for answer in due.values() if str(answer).startswith(("lost", "refused"))]
        print(f"undisturbed: {len(due)} calls, {len(failed)} without an answer {failed or ''}\n", flush=True)
        for number, (name, python) in enumerate(chosen):
            began = time.monotonic()
            answers = run(FAULTS[name], _new(Path(place), number + 1), python)
            any_figures = FAULTS[name].other_figures or python != sys.executable
            name = name if python == sys.executable else f"{_version(python)}: {name}"
            as_due = [call for call, answer in answers.items() if answer == due.get(call)]
            refused = [
                f"{call}: {answer}"
                for call, answer in answers.items()
                if call not in as_due and str(answer).startswith("refused")
            ]
            wrong = [
                f"{call}: {str(answer)[:200]}"
                for call, answer in answers.items()
                if call not in as_due
                and not str(answer).startswith("refused")
                and (str(answer).startswith("lost") if any_figures else answer != due.get(call))
            ]
            right = len(answers) - len(refused) - len(wrong)
            print(
                f"{name}: {right} right, {len(refused)} refused, {len(wrong)} lost ({time.monotonic() - began:.0f} s)",
                flush=True,
            )
            print("".join(f"    {line}\n" for line in (*refused, *wrong)), end="", flush=True)
            lost += len(wrong)
            totals = [a + b for a, b in zip(totals, (right, len(refused), len(wrong)), strict=True)]
    print("all: {} faults, {} right, {} refused, {} lost".format(len(chosen), *totals))
    return int(lost > 0)


def _version(python: str) -> str:
    asked = "import sys, jax; print(f'Python {sys.version_info[0]}.{sys.version_info[1]}, JAX {jax.__version__}')"
    return subprocess.run([python, "-c", asked], capture_output=True, text=True, check=True).stdout.strip()


def _new(place: Path, number: int) -> Path:
    folder = place / str(number)
    folder.mkdir()
    return folder


if __name__ == "__main__":
    sys.exit(main())
