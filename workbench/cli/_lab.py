"""`workbench lab`: JupyterLab on a copy of the course, reachable from this machine only."""

import os
import shutil
import socket
from pathlib import Path

from workbench.cli._name import REINSTALL
from workbench.errors import CommandError, needs_library

LOOPBACK = "127.0.0.1"
# The wheel contains the course; in a clone of the repository it is next to the package.
COURSES = (Path(__file__).parents[1] / "course", Path(__file__).parents[2] / "notebooks")
CONFIG = Path(__file__).parent / "jupyter"


def open_lab(
    notebook: str | None = None,
    *,
    folder: Path = Path("workbench-course"),
    port: int | None = None,
    browser: bool = True,
) -> int:
    """Copies the course to a user folder, runs JupyterLab there, and returns when it stops.

    JupyterLab listens on the loopback address, requires a token (part of the printed address), and fetches neither news
    nor updates. The user's JupyterLab settings take precedence.

    Returns:
        0, the exit status of the command.
    """
    path = find_notebook(notebook, folder)
    root = Path.cwd() if path.is_relative_to(Path.cwd()) else path if path.is_dir() else path.parent
    port = require_free_port(port)
    # An environment variable, because kernels and extensions read defaults from the same search path.
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(
        filter(None, [str(CONFIG), os.environ.get("JUPYTER_CONFIG_PATH")])
    )
    print(f"Course: {path}\nJupyterLab is starting; stop it with Ctrl+C.", flush=True)
    _launch(
        [
            f"--ServerApp.ip={LOOPBACK}",
            f"--ServerApp.port={port}",
            "--ServerApp.port_retries=0",
            f"--ServerApp.root_dir={root}",
            f"--LabApp.default_url=/lab/tree/{path.relative_to(root).as_posix()}".removesuffix("/."),
            "--Application.log_level=WARN",  # the address is still printed
            *([] if browser else ["--no-browser"]),
            # Containers run as root; loopback and the token still keep other users out.
            *(["--allow-root"] if getattr(os, "geteuid", lambda: 1)() == 0 else []),
        ]
    )
    return 0


def find_course() -> Path | None:
    """The folder of the course in this installation; None if there is none."""
    return next((folder for folder in COURSES if any(folder.glob("*.ipynb"))), None)


def course_names(course: Path) -> dict[str, Path]:
    """The course's notebooks by name (`24-attacks-and-privacy`) and by number (`24`)."""
    paths = sorted(course.glob("*.ipynb"))
    return {path.stem: path for path in paths} | {path.stem.partition("-")[0]: path for path in paths}


def find_notebook(notebook: str | None, folder: Path) -> Path:
    """Copies the course; returns the path of the notebook to open, or the folder."""
    if notebook is not None and (path := Path(notebook)).suffix == ".ipynb" and path.is_file():
        return path.resolve()
    course = find_course()
    if course is None:
        message = (
            "`workbench lab` found no course in this installation, neither in the package nor next to it. A wheel "
            f"contains the course: run `{REINSTALL}` in a clone of the repository, or specify a file: `workbench lab "
            "path/to/mine.ipynb`."
        )
        raise CommandError(message)
    names = course_names(course)
    if notebook is not None and notebook.removesuffix(".ipynb") not in names:
        message = (
            f"`workbench lab` received the notebook {notebook!r}, which is neither a file nor part of the course. The "
            f"course has {', '.join(sorted({path.stem for path in names.values()}))}: pass one of these names or its "
            "number, or the path of a file that ends in `.ipynb`."
        )
        raise CommandError(message)
    copy_course(course, folder)
    return (folder if notebook is None else folder / names[notebook.removesuffix(".ipynb")].name).resolve()


def copy_course(course: Path, folder: Path) -> list[Path]:
    """Copies the course files missing from `folder`, and returns them; overwrites nothing."""
    copies = []
    try:
        for source in sorted(path for path in course.rglob("*") if path.is_file()):
            place = source.relative_to(course)
            if place.suffix not in (".pyc", ".py") and not any(part.startswith((".", "__")) for part in place.parts):
                target = folder / place
                target.parent.mkdir(parents=True, exist_ok=True)
                if not target.exists():
                    shutil.copyfile(source, target)
                    copies.append(target)
    except OSError as error:
        message = (
            f"`workbench lab` cannot copy the course to {str(folder)!r}: {error.strerror or error}. The folder must "
            "be writable: pass another folder with `--folder`."
        )
        raise CommandError(message) from error
    return copies


def require_free_port(port: int | None) -> int:
    """Checks that the requested port is free; if no port was requested, finds a free port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port or 0))
        except OSError as error:
            message = (
                f"`workbench lab` received port {port}, but it cannot listen on this port ({error.strerror}). Only one "
                "program can listen on a port, and ports below 1024 need administrator rights: stop the other "
                "program, choose another port, or omit `--port` to use a free port."
            )
            raise CommandError(message) from error
        return probe.getsockname()[1]


def _launch(argv: list[str]) -> None:
    with needs_library("jupyterlab", needed_for="`workbench lab`"):
        from jupyterlab.labapp import LabApp

    LabApp.launch_instance(argv)
