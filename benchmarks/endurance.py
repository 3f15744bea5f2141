"""A long live run with the explorer open in a browser: checks that memory stays flat and all traffic local.

`python -m benchmarks.endurance --minutes 60` starts JupyterLab on the loopback interface, and Chromium. A notebook runs
rounds in the background, and the explorer shows them. The benchmark opens one tab after another, selects clients, and
records the memory of kernel and page for each tab. Memory is flat if the median of the last sixth of the samples is
within 10 % of the median of the second sixth; the first sixth is warm-up.
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

from lab import READY, TOKEN, run_lab

from benchmarks.devtools import DevTools, open_page

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
measured = wb.measure(fedavg, rounds=1)(w, data)
run = wb.run_rounds(step, w, 10**9, background=True, progress=False, client_rounds=200)
monitor = wb.watch_devices(1.0)
explorer = wb.explore(fedavg, rounds=run, monitor=monitor, run=measured)(w, data)
explorer""",
)
ASK = """async expression => {
  const kernel = window.jupyterapp.shell.currentWidget.sessionContext.session.kernel;
  const future = kernel.requestExecute({ code: "", user_expressions: { asked: expression } });
  const reply = await future.done;
  return reply.content.user_expressions.asked.data["text/plain"];
}"""
TABS = (
    "Run", "Clients", "Devices", "Program", "Operations", "Mesh", "Source and HLO", "Memory", "Cost", "Sharding",
    "Timeline",
)  # fmt: skip
LISTEN, USE = (Path(__file__).with_name(f"endurance_{name}.js").read_text() for name in ("listen", "use"))
USE = USE[USE.index("async") :].rstrip().rstrip(";")


class Sample(NamedTuple):
    """One sample."""

    minutes: float
    rounds: int
    kernel_mib: float
    page_heap_mib: float  # JavaScript, the page's elements and its buffers, after a collection of garbage
    page_nodes: int
    renderer_mib: float  # private memory of the page's process
    tab: str


def write_notebook(folder: Path, pause: float) -> str:
    texts = [cell.strip().replace("PAUSE", str(pause)) for cell in CELLS]
    cells = [nbformat.v4.new_code_cell(text) for text in texts]
    made = nbformat.v4.new_notebook(cells=cells)
    made.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(made, folder / "endurance.ipynb")
    return "endurance.ipynb"


def measure(page: DevTools, kernel: psutil.Process, started: float, tab: str) -> Sample:
    page.send("HeapProfiler.collectGarbage")
    found = {each["name"]: each["value"] for each in page.send("Performance.getMetrics")["metrics"]}
    heap = page.send("Runtime.getHeapUsage")
    used = sum(heap.get(name, 0) for name in ("usedSize", "embedderHeapUsedSize", "backingStorageSize"))
    return Sample(
        minutes=round((time.monotonic() - started) / 60, 2),
        rounds=int(page.evaluate(ASK, "run.finished")),
        kernel_mib=round(kernel.memory_info().rss / 2**20, 1),
        page_heap_mib=round(used / 2**20, 2),
        page_nodes=int(found["Nodes"]),
        renderer_mib=round(renderer_bytes(page.process) / 2**20, 1),
        tab=tab,
    )


def renderer_bytes(browser: int) -> int:
    """Private memory of a browser's largest renderer process, which is the page's."""
    sizes = [0]
    for child in psutil.Process(browser).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "--type=renderer" in child.cmdline():
                sizes.append(child.memory_full_info().uss)
    return max(sizes)


def flat(samples: list[Sample], name: str) -> tuple[float, float, float]:
    """(first, last, last / first): medians of the second and last sixth of the samples; the first sixth is warm-up."""
    values = [getattr(sample, name) for sample in samples]
    sixth = max(1, len(values) // 6)
    first, last = statistics.median(values[sixth : 2 * sixth] or values), statistics.median(values[-sixth:])
    return first, last, last / first


def open_notebook(page: DevTools, address: str, name: str) -> None:
    page.send("Page.enable")
    page.send("Emulation.setFocusEmulationEnabled", enabled=True)  # JupyterLab's current notebook is the one in focus
    page.send("Page.addScriptToEvaluateOnNewDocument", source=LISTEN)
    page.send("Page.navigate", url=f"{address}/lab/tree/{name}?token={TOKEN}&reset")
    last: object = None
    for _ in range(400):
        time.sleep(0.3)
        with contextlib.suppress(RuntimeError):  # the page reloads once while it starts
            last = page.evaluate(READY)
        if last == "connected/idle":
            return
    message = f"the kernel of {name} was not ready; last state: {last}"
    raise TimeoutError(message)


def watch(page: DevTools, minutes: float, every_seconds: float, table: Path) -> list[Sample]:
    kernel = psutil.Process(int(page.evaluate(ASK, "os.getpid()")))
    page.send("Performance.enable")
    samples: list[Sample] = []
    started, turn = time.monotonic(), 0
    with table.open("w", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(Sample._fields)
        while time.monotonic() - started < 60 * minutes:
            tab = page.evaluate(USE, turn, TABS)
            time.sleep(every_seconds)
            samples.append(measure(page, kernel, started, tab))
            lines.writerow(samples[-1])
            file.flush()
            turn += 1
    return samples


def report(samples: list[Sample], outside: list[str], wrong: list[str]) -> dict[str, Any]:
    named = {"kernel_mib": "kernel, resident", "page_heap_mib": "page, heap and buffers", "page_nodes": "page, nodes",
             "renderer_mib": "page, process, private"}  # fmt: skip
    found: dict[str, Any] = {"date": datetime.date.today().isoformat(), "minutes": samples[-1].minutes,
                             "iterations": len(samples), "rounds": samples[-1].rounds,
                             "requests outside loopback": len(outside),
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
        "--pause",
        type=float,
        default=0.25,
        help="pause after each round in seconds, which leaves time for other programs",
    )
    parser.add_argument("--table", type=Path, default=Path("endurance.csv"), help="file for the samples")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root, tempfile.TemporaryDirectory() as home, open_page(1300, 1400) as page:
        name = write_notebook(Path(root), options.pause)
        with run_lab(Path(root), Path(home)) as address:
            open_notebook(page, address, name)
            page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }")
            while not page.evaluate("() => document.querySelectorAll('section.wb [role=tab]').length"):
                time.sleep(0.5)
            samples = watch(page, options.minutes, options.every, options.table)
            seen = page.evaluate("() => window.__seen")
            print(json.dumps(report(samples, seen["outside"], seen["wrong"]), indent=1))
            for text in [*seen["outside"][:5], *seen["wrong"][:5]]:
                print(text)
            page.evaluate(ASK, "run.stop()")


if __name__ == "__main__":
    main()
