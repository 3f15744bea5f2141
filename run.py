"""Runs this clone from nothing: `python3 run.py demo` trains and writes a report, `python3 run.py test` runs all tests.

Both make the environment `.venv` from the lock, with the hashes that it names, and only what changed is installed
again. Words after the command go to it: `python3 run.py demo --rounds 3`, `python3 run.py test tests/primitives`.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")
PYTHON = BIN / ("python.exe" if os.name == "nt" else "python")
STAMP = VENV / "workbench-installed.json"  # what was installed: the hash of each lock, and of the package's own files
OLDEST = (3, 11)
COMMANDS = {
    "demo": ("requirements.lock", [str(PYTHON), "-m", "workbench", "demo"]),
    "test": ("requirements-test.lock", [str(PYTHON), "-m", "pytest"]),
}


class SetupError(Exception):
    """Something is missing or failed; the message says what to do."""


def main(words):
    """Installs what the command needs and runs it; returns its exit status."""
    if not words or words[0] not in COMMANDS:
        print(__doc__)
        return 0 if words in (["-h"], ["--help"]) else 2
    lock, command = COMMANDS[words[0]]
    try:
        require_python()
        prepare(lock)
    except SetupError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1
    asked = words[1:] or (["--everything"] if words[0] == "test" else [])
    try:
        return subprocess.call([*command, *asked], cwd=str(ROOT))
    except KeyboardInterrupt:
        return 130


def require_python():
    """Refuses a Python that the lock does not cover, or that cannot create environments.

    Raises:
        SetupError: with the command that helps.
    """
    if sys.version_info < OLDEST:
        newer = [found for found in map(shutil.which, ("python3.13", "python3.12", "python3.11")) if found]
        here, oldest = (".".join(map(str, version)) for version in (sys.version_info[:2], OLDEST))
        help = f"Run: {newer[0]} run.py demo" if newer else "Install one first."
        message = f"`run.py` runs on Python {here}. The workbench needs Python {oldest} or newer. {help}"
        raise SetupError(message)
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        message = "This Python cannot create environments: `venv` is missing. Run: apt install python3-venv"
        raise SetupError(message) from None


def prepare(lock):
    """Makes the environment, and installs the lock and this clone where they changed since the last time.

    Raises:
        SetupError: if a step fails.
    """
    done = read_stamp()
    wanted = {lock: digest([ROOT / lock]), "workbench": digest(own_files()), "python": sys.version.split()[0]}
    if done.get("python") != wanted["python"] or not PYTHON.is_file():
        done = {"python": wanted["python"]}
        step(f"Making .venv for Python {wanted['python']}", [sys.executable, "-m", "venv", "--clear", str(VENV)])
    uv = shutil.which("uv")
    install = [uv, "pip", "install", "--python", str(PYTHON)] if uv else [str(PYTHON), "-m", "pip", "install"]
    if done.get(lock) != wanted[lock]:
        total = sum("==" in line and not line.startswith(" ") for line in (ROOT / lock).read_text().splitlines())
        step(f"Installing {total} packages of {lock}", [*install, "--require-hashes", "-r", lock], total)
        done[lock] = wanted[lock]
        write_stamp(done)
    if done.get("workbench") != wanted["workbench"]:
        own = ["--no-deps", "--no-build-isolation", "--editable", "."]
        step("Installing the workbench and its JupyterLab extension", [*install, *own])
        write_stamp({**done, **wanted})


def own_files():
    """The files that an editable installation copies or reads: the metadata, and what JupyterLab serves."""
    built = ROOT / "widgets" / "workbench_widgets"
    served = [*(built / "static" / "built").glob("*"), *(built / "labextension").rglob("*")]
    return [ROOT / "pyproject.toml", ROOT / "setup.py", *sorted(path for path in served if path.is_file())]


def digest(files):
    """One hash of the contents of files."""
    return hashlib.sha256(b"".join(hashlib.sha256(path.read_bytes()).digest() for path in files)).hexdigest()


def read_stamp():
    """What was installed at the last time; nothing where that is not known."""
    try:
        return json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}


def write_stamp(done):
    """Remembers what is installed."""
    STAMP.write_text(json.dumps(done, indent=1))


def step(title, command, total=0):
    """Runs one step of the installation with a line of progress; its output is shown only where it fails.

    Raises:
        SetupError: if the command fails, with the end of its output.
    """
    began, said, count = time.monotonic(), [], 0
    live = sys.stdout.isatty()
    print(title, "…", end="" if live else "\n", flush=True)
    with subprocess.Popen(
        command, cwd=str(ROOT), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as running:
        for line in running.stdout:
            said.append(line.rstrip())
            count += line.startswith(("Collecting ", "Requirement already satisfied: "))
            if live and total:
                print(f"\r{title} … {min(count, total)}, {time.monotonic() - began:.0f} s", end="", flush=True)
    seconds = time.monotonic() - began
    if running.returncode:
        end = "\n".join(said[-25:])
        message = (
            f"{end}\n\n`{' '.join(command)}` failed after {seconds:.0f} s, with the output above. The installation "
            "downloads from the package index that pip is set to. Check the network, and run the same command again."
        )
        raise SetupError(message)
    print(f"\r{title}: {seconds:.0f} s      " if live else f"  {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
