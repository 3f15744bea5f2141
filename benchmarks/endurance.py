"""A live run with the explorer open in a real browser, for as long as you like: does memory stay flat, is all local?

`python -m benchmarks.endurance --minutes 60` starts JupyterLab on loopback and a Chromium, runs a notebook whose rounds
go on in the background while the explorer follows them, opens one tab after the other, chooses and opens clients, and
writes down the memory of kernel and page twice a minute. Flat means: the median of the last sixth is within 10 % of the
median of the first sixth after the warm-up.

The private memory of the page's process is written down too, but is no measure of the view: under Playwright, most
likely through the network domain of Chromium's protocol, every message from a page to its kernel leaves about 48 KiB in
that process, outside of the page's own heap (Chromium 156; docs/live.md).
"""

import argparse
import contextlib
import csv
import datetime
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
import psutil

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

from chromium import open_browser
from lab import open_notebook, run_lab
from playwright.sync_api import Locator, Page

CELLS = (
    """
import os, time
import jax, jax.numpy as jnp
import workbench as wb
wb.simulate_devices(8)
mesh = wb.make_mesh(clients=8)
CLIENTS, STEPS = 4096, 5""",
    """
def train(w, x, y):
    def loss_of(w):
        return jnp.mean((jnp.tanh(x @ w) - y) ** 2)

    def step(w, _):
        loss, slope = jax.value_and_grad(loss_of)(w)
        return w - 0.05 * slope, loss

    last, losses = jax.lax.scan(step, w, None, length=STEPS)
    return last - w, losses, jnp.linalg.norm(last - w)

@wb.program(clients=CLIENTS)
def fedavg(w, data):
    change, losses, norms = wb.map_fn(train, (wb.broadcast(w), *data))
    return w + wb.reduce_mean(change), losses, norms""",
    """
keys = jax.random.split(jax.random.key(0), 3)
w = jax.random.normal(keys[0], (16,))
data = (jax.random.normal(keys[1], (CLIENTS, 8, 16)), jax.random.normal(keys[2], (CLIENTS, 8)))
jax.set_mesh(mesh)
one_round = wb.jit(fedavg)

def step(w, round):
    time.sleep(PAUSE)
    w, losses, norms = one_round(w, data)
    return w + 0.01 * jax.random.normal(jax.random.key(round), w.shape), {"loss": losses, "update norm": norms}""",
    """
measured = wb.measure(fedavg, w, data, rounds=1)
run = wb.run_rounds(step, w, 10**9, background=True, progress=False, client_rounds=200)
monitor = wb.watch_devices(1.0)
explorer = wb.explore(fedavg, w, data, rounds=run, monitor=monitor, run=measured)
explorer""",
)
ASK = """async expression => {
  const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  const future = kernel.requestExecute({ code: "", user_expressions: { asked: expression } });
  const reply = await future.done;
  return reply.content.user_expressions.asked.data["text/plain"];
}"""
LOCAL = ("http://127.0.0.1", "ws://127.0.0.1", "data:", "blob:", "about:")
TABS = ("Run", "Clients", "Devices", "Program", "Mesh", "HLO", "Cost", "Sharding")


class Sample(NamedTuple):
    """What is written down."""

    minutes: float
    rounds: int
    kernel_mib: float
    page_heap_mib: float  # JavaScript, the page's elements and its buffers, after a collection of garbage
    page_nodes: int
    renderer_mib: float  # private memory of the page's process, with what the driver of the browser keeps there
    tab: str


def write_notebook(folder: Path, pause: float) -> str:
    texts = [cell.strip().replace("PAUSE", str(pause)) for cell in CELLS]
    cells = [nbformat.v4.new_code_cell(text) for text in texts]
    made = nbformat.v4.new_notebook(cells=cells)
    made.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(made, folder / "endurance.ipynb")
    return "endurance.ipynb"


def measure(page: Page, devtools: Any, kernel: psutil.Process, started: float, tab: str) -> Sample:
    devtools.send("HeapProfiler.collectGarbage")
    found = {each["name"]: each["value"] for each in devtools.send("Performance.getMetrics")["metrics"]}
    heap = devtools.send("Runtime.getHeapUsage")
    used = sum(heap.get(name, 0) for name in ("usedSize", "embedderHeapUsedSize", "backingStorageSize"))
    rounds = int(page.evaluate(ASK, "run.finished"))
    return Sample(
        minutes=round((time.monotonic() - started) / 60, 2),
        rounds=rounds,
        kernel_mib=round(kernel.memory_info().rss / 2**20, 1),
        page_heap_mib=round(used / 2**20, 2),
        page_nodes=int(found["Nodes"]),
        renderer_mib=round(renderer_bytes() / 2**20, 1),
        tab=tab,
    )


def renderer_bytes() -> int:
    """Private memory of the largest renderer below this process: the page."""
    sizes = [0]
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "--type=renderer" in child.cmdline():
                sizes.append(child.memory_full_info().uss)
    return max(sizes)


def use(view: Locator, turn: int) -> str:
    """Opens the next tab, chooses something there, and now and then opens a client."""
    tab = TABS[turn % len(TABS)]
    button = view.get_by_role("tab", name=tab, exact=True)
    if not button.count():
        return ""
    button.click()
    if tab == "Clients":
        view.get_by_role("tabpanel").get_by_label("Show clients as").select_option(("heat", "bars", "table")[turn % 3])
        view.get_by_role("tabpanel").get_by_label("Measure", exact=True).select_option(index=turn % 3)
        if turn % 3 < 2:  # bars and heat map are canvases; rows of the table are links
            view.get_by_role("tabpanel").locator(".wb-canvas canvas").first.click(
                position={"x": 20 + turn % 50, "y": 60}
            )
        else:
            view.get_by_role("tabpanel").locator("tr[data-client] button").first.click()
        if turn % (4 * len(TABS)) == 1:
            view.get_by_role("button", name="Open its values").click()
            view.locator("iframe.wb-values").wait_for(timeout=120_000)
            view.get_by_role("button", name="Close", exact=True).click()
    elif tab == "Program":
        view.get_by_role("tabpanel").locator("[data-stage]").nth(turn % 3).click(position={"x": 30, "y": 10})
    return tab


def flat(samples: list[Sample], name: str) -> tuple[float, float, float]:
    """(first, last, last over first): medians of a sixth of the samples each, the first sixth left out as warm-up."""
    values = [getattr(sample, name) for sample in samples]
    sixth = max(1, len(values) // 6)
    first, last = statistics.median(values[sixth : 2 * sixth] or values), statistics.median(values[-sixth:])
    return first, last, last / first


def watch(page: Page, minutes: float, every_seconds: float, table: Path) -> list[Sample]:
    kernel = psutil.Process(int(page.evaluate(ASK, "os.getpid()")))
    devtools = page.context.new_cdp_session(page)
    devtools.send("Performance.enable")
    view, samples, started, turn = page.locator("section.wb").first, [], time.monotonic(), 0
    with table.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(Sample._fields)
        while time.monotonic() - started < 60 * minutes:
            tab = use(view, turn)
            page.wait_for_timeout(1000 * every_seconds)
            samples.append(measure(page, devtools, kernel, started, tab))
            lines.writerow(samples[-1])
            file.flush()
            turn += 1
    return samples


def report(samples: list[Sample], outside: list[str], wrong: list[str]) -> dict[str, Any]:
    named = {"kernel_mib": "kernel, resident", "page_heap_mib": "page, heap and buffers", "page_nodes": "page, nodes",
             "renderer_mib": "page, process, with what the driver of the browser makes it keep"}  # fmt: skip
    found: dict[str, Any] = {"date": datetime.date.today().isoformat(), "minutes": samples[-1].minutes,
                             "rounds": samples[-1].rounds, "requests outside loopback": len(outside),
                             "page errors": len(wrong)}  # fmt: skip
    for field, name in named.items():
        first, last, ratio = flat(samples, field)
        found[name] = {"first": first, "last": last, "ratio": round(ratio, 3)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--every", type=float, default=30, help="seconds between samples, each in another tab")
    parser.add_argument(
        "--pause", type=float, default=0.25, help="seconds that a round rests, to leave the computer to others"
    )
    parser.add_argument("--table", type=Path, default=Path("endurance.csv"), help="where the samples are written")
    options = parser.parse_args()
    outside: list[str] = []
    wrong: list[str] = []
    with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as home, open_browser() as browser:
        name = write_notebook(Path(root), options.pause)
        with run_lab(Path(root), Path(home)) as address:
            page = browser.new_page(viewport={"width": 1300, "height": 1400})
            page.set_default_timeout(240_000)
            page.on("request", lambda each: None if each.url.startswith(LOCAL) else outside.append(each.url))
            page.on("websocket", lambda each: None if each.url.startswith(LOCAL) else outside.append(each.url))
            page.on("pageerror", lambda error: wrong.append(str(error)))
            open_notebook(page, address, name)
            page.evaluate("() => window.jupyterapp.commands.execute('notebook:run-all-cells')")
            page.locator("section.wb [role=tab]").first.wait_for()
            samples = watch(page, options.minutes, options.every, options.table)
            print(json.dumps(report(samples, outside, wrong), indent=1))
            for text in [*outside[:5], *wrong[:5]]:
                print(text)
            page.evaluate(ASK, "run.stop()")


if __name__ == "__main__":
    main()
