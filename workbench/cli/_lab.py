"""`workbench lab`: JupyterLab on the notebooks, reachable from this machine only."""

import os
import socket
from pathlib import Path

from workbench.errors import CommandError

LOOPBACK = "127.0.0.1"
SOURCE_NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
CONFIG = Path(__file__).parent / "jupyter"


def open_lab(notebook: str | None = None, *, port: int | None = None, browser: bool = True) -> int:
    """Starts JupyterLab on the notebooks and returns when it is stopped.

    It listens on the loopback address, asks for a token (part of the address that it prints), and looks for neither
    news nor updates; the reader's own JupyterLab settings come first.

    Args:
        notebook: A notebook to open, as a path or as a name in the notebooks folder; the suffix may be left out.
        port: The port to listen on; None takes a free one.
        browser: Whether to open the address in a browser.

    Returns:
        0, the exit status of the command.

    Raises:
        CommandError: if the notebook or the notebooks folder does not exist, or the port is taken.
    """
    path = find_notebook(notebook)
    folder, url = (path, "/lab") if path.is_dir() else (path.parent, f"/lab/tree/{path.name}")
    port = require_free_port(port)
    # An environment variable, because kernels and extensions read their defaults from the same search path.
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(
        filter(None, [str(CONFIG), os.environ.get("JUPYTER_CONFIG_PATH")])
    )
    _launch(
        [
            f"--ServerApp.ip={LOOPBACK}",
            f"--ServerApp.port={port}",
            "--ServerApp.port_retries=0",
            f"--ServerApp.root_dir={folder}",
            f"--LabApp.default_url={url}",
            *([] if browser else ["--no-browser"]),
            # Containers run as root; with loopback and a token this opens nothing to anybody else.
            *(["--allow-root"] if getattr(os, "geteuid", lambda: 1)() == 0 else []),
        ]
    )
    return 0


def find_notebook(notebook: str | None) -> Path:
    """The notebook's path, or the notebooks folder when none is named.

    Raises:
        CommandError: if there is no such notebook or no notebooks folder.
    """
    if notebook is not None and (path := Path(notebook)).suffix == ".ipynb" and path.is_file():
        return path.resolve()
    folders = [SOURCE_NOTEBOOKS, Path.cwd() / "notebooks"]
    folder = next((folder for folder in folders if any(folder.glob("*.ipynb"))), None)
    if folder is None:
        raise CommandError(
            "`workbench lab` was given no notebook that exists, and there are no notebooks beside the package or in "
            "the current folder. The notebooks are in the repository, not in the installed package: start the command "
            "in a clone of it, install the clone with `pip install --no-deps -e .`, or name a file: `workbench lab "
            "path/to/mine.ipynb`."
        )
    if notebook is None:
        return folder
    path = folder / f"{notebook.removesuffix('.ipynb')}.ipynb"
    if not path.is_file():
        there = ", ".join(sorted(p.stem for p in folder.glob("*.ipynb")))
        msg = (
            f"`workbench lab` was given the notebook {notebook!r}, which is neither a file nor a name in the notebooks "
            f"folder. It has to be one of them: use {there}, or the path of a file that ends in `.ipynb`."
        )
        raise CommandError(msg)
    return path.resolve()


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
            msg = (
                f"`workbench lab` was given port {port}, but this machine does not let it listen there "
                f"({error.strerror}). A port serves one program at a time, and ports below 1024 belong to the "
                "administrator: stop the other program, name another port, or leave `--port` out to take a free one."
            )
            raise CommandError(msg) from error
        return probe.getsockname()[1]


def _launch(argv: list[str]) -> None:
    from jupyterlab.labapp import LabApp

    LabApp.launch_instance(argv)
