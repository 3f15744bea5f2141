"""Starts a real JupyterLab on loopback in a throw-away home, and opens and runs notebooks in it."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import nbformat
from playwright.sync_api import Browser, Error, Page
from workbench_widgets._bundle import LABEXTENSION, labextension_files

TOKEN = "test"
READY = """async () => {
  const app = window.jupyterapp;
  if (!app) return "no app";
  await app.restored;
  const shown = app.shell.currentWidget;
  if (!shown?.sessionContext) return "no notebook";
  await shown.context.ready;
  await shown.sessionContext.ready;
  const kernel = shown.sessionContext.session?.kernel;
  if (!kernel) return "no kernel";
  await kernel.info;
  return `${kernel.connectionStatus}/${kernel.status}`;
}"""
REPLACE = """sources => {
  const model = window.jupyterapp.shell.currentWidget.content.model.sharedModel;
  model.transact(() => {
    model.deleteCellRange(0, model.cells.length);
    model.insertCells(0, sources.map(source => ({ cell_type: "code", source, metadata: {}, outputs: [] })));
  });
}"""
RUN_ALL = """() => {
  const app = window.jupyterapp;
  const errors = async () => {
    await app.commands.execute("notebook:run-all-cells");
    const cells = Array.from(app.shell.currentWidget.content.model.cells);
    const outputs = cells.filter(c => c.type === "code").flatMap(c => c.outputs.toJSON());
    return outputs.filter(o => o.output_type === "error").map(o => `${o.ename}: ${o.evalue}`);
  };
  return window.ranCells = errors();  // a promise that only the debugger holds may be collected while it waits
}"""


FRONT_ENDS = {  # module: what it needs to hear besides, and where it says that it is up
    "jupyterlab": (["--LabApp.expose_app_in_browser=True"], "/api/status"),
    "notebook": (["--JupyterNotebookApp.expose_app_in_browser=True"], "/api/status"),
    "voila": ([], "/"),
}


@contextlib.contextmanager
def run_lab(root: Path, home: Path, front_end: str = "jupyterlab") -> Iterator[str]:
    """A server with `root` as its files; gives its address."""
    settings = home / "config/lab/user-settings/@jupyterlab/apputils-extension"
    settings.mkdir(parents=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False}
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(quiet))
    places = {
        "HOME": home, "JUPYTER_CONFIG_DIR": home / "config", "JUPYTER_DATA_DIR": home / "data",
        "JUPYTER_RUNTIME_DIR": home / "runtime", "IPYTHONDIR": home / "ipython",
        "JUPYTERLAB_SETTINGS_DIR": home / "config/lab/user-settings", "JUPYTERLAB_WORKSPACES_DIR": home / "workspaces",
    }  # fmt: skip
    port = free_port()
    options, up = FRONT_ENDS[front_end]
    own = ["--Voila.ip=127.0.0.1", str(root)] if front_end == "voila" else [
        "--ip=127.0.0.1", "--allow-root", "--ServerApp.port_retries=0", f"--IdentityProvider.token={TOKEN}",
        f"--ServerApp.root_dir={root}",
    ]  # fmt: skip
    install_labextension(home / "data" / "labextensions")
    command = [sys.executable, "-m", front_end, "--no-browser", f"--port={port}", *own, *options]
    search = os.pathsep.join(
        [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "widgets"), str(Path(__file__).parents[1])]
    )  # also where not installed
    environment = os.environ | {"PYTHONPATH": search} | {name: str(place) for name, place in places.items()}
    with serve(command, environment, home / "lab.log", f"http://127.0.0.1:{port}{up}?token={TOKEN}"):
        yield f"http://127.0.0.1:{port}"


def end_kernels(address: str) -> None:
    """Ends all kernels of a server, so that a later notebook of the same name starts anew."""
    sessions = f"{address}/api/sessions"
    with urllib.request.urlopen(f"{sessions}?token={TOKEN}") as found:
        names = [session["id"] for session in json.load(found)]
    for name in names:
        urllib.request.urlopen(urllib.request.Request(f"{sessions}/{name}?token={TOKEN}", method="DELETE")).close()


@contextlib.contextmanager
def local_page(browser: Browser) -> Iterator[Page]:
    """A page that must not leave this machine, nor fail."""
    page = browser.new_page(viewport={"width": 1300, "height": 1600})
    outside: list[str] = []
    wrong: list[str] = []
    local = ("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:", "about:")
    page.on("request", lambda request: None if request.url.startswith(local) else outside.append(request.url))
    page.on("websocket", lambda socket: None if socket.url.startswith(local) else outside.append(socket.url))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    yield page
    page.close()
    assert not outside
    assert not wrong


def install_labextension(folder: Path) -> None:
    """This tree's labextension, laid out as the wheel installs it."""
    place = folder / "mapreduce-workbench"
    (place / "static").mkdir(parents=True)
    shutil.copy(LABEXTENSION / "package.json", place)
    for file in labextension_files():
        shutil.copy(file, place / "static")


@contextlib.contextmanager
def serve(
    command: list[str], environment: dict[str, str], log: Path, up: str, place: Path | None = None
) -> Iterator[None]:
    """A server from when it answers at the address `up` to the end of the block."""
    with log.open("w") as said:
        server = subprocess.Popen(command, cwd=place, env=environment, stdout=said, stderr=subprocess.STDOUT)
        try:
            _wait_until_up(server, up, log)
            yield
        finally:
            server.terminate()
            try:
                server.wait(30)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def write_notebook(root: Path, name: str, *cells: str) -> str:
    """Writes a notebook of code cells; returns its name."""
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    made.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(made, root / name)
    return name


def open_notebook(page: Page, address: str, name: str, seconds: float = 120, *, place: str = "lab/tree") -> None:
    """Opens a notebook and waits until its kernel can be used, which is later than the toolbar says."""
    page.goto(f"{address}/{place}/{name}?token={TOKEN}&reset")
    last, until = "", time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            last = page.evaluate(READY)
        except Error as error:  # the page reloads once while it starts
            last = str(error)
        if last == "connected/idle":
            return
        page.wait_for_timeout(150)
    message = f"the kernel of {name} was not ready after {seconds} s; last state: {last}"
    raise TimeoutError(message)


def run_all(page: Page) -> list[str]:
    """Runs every cell; gives the errors."""
    return page.evaluate(RUN_ALL)


def run_instead(page: Page, *cells: str) -> list[str]:
    """Replaces all cells and runs the new ones in the same kernel; gives the errors."""
    page.evaluate(REPLACE, cells)
    return run_all(page)


def copy_until(root: Path, path: Path, last: str) -> str:
    """Writes a notebook up to the cell that holds `last`; returns its name."""
    notebook = nbformat.read(path, as_version=4)
    (number,) = [number for number, cell in enumerate(notebook.cells) if cell.source.endswith(last)]
    notebook.cells = notebook.cells[: number + 1]
    nbformat.write(notebook, root / path.name)
    return path.name


def set_theme(page: Page, name: str) -> None:
    """Changes JupyterLab's theme and waits for it."""
    page.evaluate("t => window.jupyterapp.commands.execute('apputils:change-theme', { theme: t })", name)
    page.wait_for_function("t => document.body.dataset.jpThemeName === t", arg=name)


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


def _wait_until_up(server: subprocess.Popen[bytes], address: str, log: Path, seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and server.poll() is None:
        with contextlib.suppress(OSError), urllib.request.urlopen(address, timeout=2):
            return
        time.sleep(0.2)
    message = f"the server did not start:\n{log.read_text()[-3000:]}"
    raise RuntimeError(message)
