"""`workbench lab`: JupyterLab on a copy of the course, reachable from this machine only."""

import os
import shutil
import socket
from pathlib import Path

from workbench.cli._name import REINSTALL
from workbench.errors import CommandError, needs_library

LOOPBACK = "127.0.0.1"
# The wheel holds the course; in a clone of the repository it is next to the package.
COURSES = (Path(__file__).parents[1] / "course", Path(__file__).parents[2] / "notebooks")
CONFIG = Path(__file__).parent / "jupyter"


def open_lab(
    notebook: str | None = None,
    *,
    folder: Path = Path("workbench-course"),
    port: int | None = None,
    browser: bool = True,
) -> int:
    """Copies the course to a folder of the user's, starts JupyterLab on it and returns when that is stopped.

    It listens on the loopback address, asks for a token (part of the address that it prints), and looks for neither
    news nor updates; the reader's own JupyterLab settings come first.

    Args:
        notebook: A notebook to open, as a path or as the name of one of the course; the suffix may be left out.
        folder: Where the course is copied to. Files that exist there are kept as they are.
        port: The port to listen on; None takes a free one.
        browser: Whether to open the address in a browser.

    Returns:
        0, the exit status of the command.

    Raises:
        CommandError: if there is no such notebook, the folder cannot be written, or the port is taken.
    """
    path = find_notebook(notebook, folder)
    root = Path.cwd() if path.is_relative_to(Path.cwd()) else path if path.is_dir() else path.parent
    port = require_free_port(port)
    # An environment variable, because kernels and extensions read their defaults from the same search path.
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
            # Containers run as root; with loopback and a token this opens nothing to anybody else.
            *(["--allow-root"] if getattr(os, "geteuid", lambda: 1)() == 0 else []),
        ]
    )
    return 0


def find_course() -> Path | None:
    """The folder of the course that came with this installation; None where there is none."""
    return next((folder for folder in COURSES if any(folder.glob("*.ipynb"))), None)


def find_notebook(notebook: str | None, folder: Path) -> Path:
    """The notebook to open, in the user's copy of the course, which is made first; the folder when none is named.

    Raises:
        CommandError: if there is no such notebook, no course, or no right to write the folder.
    """
    if notebook is not None and (path := Path(notebook)).suffix == ".ipynb" and path.is_file():
        return path.resolve()
    course = find_course()
    if course is None:
        message = (
            "`workbench lab` found no course in this installation, neither in the package nor next to it. A wheel "
            f"holds it: run `{REINSTALL}` in a clone of the repository, or name a file: `workbench lab "
            "path/to/mine.ipynb`."
        )
        raise CommandError(message)
    names = {path.stem: path.name for path in sorted(course.glob("*.ipynb"))}
    if notebook is not None and notebook.removesuffix(".ipynb") not in names:
        message = (
            f"`workbench lab` received the notebook {notebook!r}, which is neither a file nor part of the course. The "
            f"course has {', '.join(names)}: pass one of these names, or the path of a file that ends in `.ipynb`."
        )
        raise CommandError(message)
    copy_course(course, folder)
    return (folder if notebook is None else folder / names[notebook.removesuffix(".ipynb")]).resolve()


def copy_course(course: Path, folder: Path) -> list[Path]:
    """Copies the files of the course that `folder` does not have; returns the new ones. Nothing is overwritten.

    Raises:
        CommandError: if the folder cannot be written.
    """
    made = []
    try:
        for source in sorted(path for path in course.rglob("*") if path.is_file()):
            place = source.relative_to(course)
            if place.suffix not in (".pyc", ".py") and not any(part.startswith((".", "__")) for part in place.parts):
                target = folder / place
                target.parent.mkdir(parents=True, exist_ok=True)
                if not target.exists():
                    shutil.copyfile(source, target)
                    made.append(target)
    except OSError as error:
        message = (
            f"`workbench lab` cannot copy the course to {str(folder)!r}: {error.strerror or error}. The folder has to "
            "be writable: pass another one with `--folder`."
        )
        raise CommandError(message) from error
    return made


def require_free_port(port: int | None) -> int:
    """The port asked for, once it is known to be free; without one, a free port.

    Raises:
        CommandError: if another program listens on the port, or this user may not open it.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port or 0))
        except OSError as error:
            message = (
                f"`workbench lab` received port {port}, but this machine does not let it listen there "
                f"({error.strerror}). A port serves one program at a time, and ports below 1024 belong to the "
                "administrator: stop the other program, name another port, or leave `--port` out to take a free one."
            )
            raise CommandError(message) from error
        return probe.getsockname()[1]


def _launch(argv: list[str]) -> None:
    with needs_library("jupyterlab", needed_for="`workbench lab`"):
        from jupyterlab.labapp import LabApp

    LabApp.launch_instance(argv)
