"""Time of a notebook's views, as one table: `python benchmarks/front_end.py [--spans N] [--instructions N]`.

The browser is real, with software rendering. Pages are opened from files, so no server or kernel is timed, except in
rows that say so. `benchmarks/endurance.py` keeps a page open for an hour; `benchmarks/timeline.py`, `views.py` and
`views_lab.py` measure single views in more detail.
"""

import argparse
import gzip
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

import records_examples as examples
import records_parts as parts
import views
import workbench_widgets
from chromium import open_browser
from playwright.sync_api import Browser, Page

Row = tuple[str, str, str]
BUILT = Path(workbench_widgets.__file__).parent / "static" / "built"
CHUNKS = ("workbench", "editor", "runs", "player", "graph")
SEARCH = """async word => {
  const box = document.querySelector(".wb-search:not([hidden])"), times = [];
  for (let end = 1; end <= word.length; end++) {
    box.value = word.slice(0, end);
    const began = performance.now();
    box.dispatchEvent(new Event("input", { bubbles: true }));
    await new Promise(requestAnimationFrame);
    times.push(performance.now() - began);
  }
  return times;
}"""


def bundles() -> Iterator[Row]:
    """Bytes of each part of the front end, as sent to pages."""
    explorer = 0
    for name in CHUNKS:
        text = (BUILT / f"{name}.js").read_bytes()
        packed = len(gzip.compress(text, 9))
        explorer += packed if name != "graph" else 0
        when = "first" if name == "workbench" else "when it is first needed"
        yield f"bundle `{name}.js`", f"{packed / 1000:.0f} KB gzipped", when
    yield "explorer without the graph", f"{explorer / 1000:.0f} KB gzipped", "limit 350 KB"


def first_paint(browser: Browser) -> Iterator[Row]:
    """The explorer of a plain train step, from the record to the drawn view."""
    import screenshots

    import workbench as wb

    wb.simulate_devices(8)
    record = screenshots.inspect_transformer()
    assert record.module is not None
    made: list[workbench_widgets.WorkbenchWidget] = []
    built = views.milliseconds(lambda: made.append(workbench_widgets.Explorer(record)), 3)
    page, shown = views.show(browser, made[-1])
    page.close()
    size = f"{len(record.module.instructions):,} instructions"
    yield (
        f"explorer for a plain NNX step with {size}",
        f"{(built + shown) / 1000:.2f} s",
        "state, page, first view; limit 1 s",
    )


def spans(browser: Browser, count: int) -> Iterator[Row]:
    """The timeline of many spans."""
    import timeline

    page, shown = views.show(browser, workbench_widgets.TimelineView(timeline.run_of(count)))
    times = sorted(page.evaluate(timeline.MEASURE, timeline.FRAMES))
    page.close()
    per_second = 1000 / statistics.median(times)
    slow = times[int(0.95 * (len(times) - 1))]
    yield (
        f"timeline, {count:,} spans",
        f"{per_second:.0f} frames a second",
        f"95 % below {slow:.0f} ms; limit 30 a second",
    )
    yield f"timeline, {count:,} spans, page opened", f"{shown / 1000:.1f} s", "read and drawn"


def search(browser: Browser, count: int) -> Iterator[Row]:
    """The search in a long list of instructions, key by key."""
    record = examples.fedavg_record(instruction_count=count)
    page, _ = views.show(browser, workbench_widgets.HloView(record, settings={"face": "instructions"}))
    page.wait_for_selector(".wb-search")
    meter = page.context.new_cdp_session(page)
    meter.send("Performance.enable", {"timeDomain": "threadTicks"})

    def processor_seconds() -> float:
        found = meter.send("Performance.getMetrics")["metrics"]
        return next(each["value"] for each in found if each["name"] == "TaskDuration")

    page.evaluate(SEARCH, "dot")  # the texts are put together once
    before = processor_seconds()
    times = page.evaluate(SEARCH, "fusion.12")
    spent = 1000 * (processor_seconds() - before) / len(times)
    page.close()
    yield (
        f"search in {count:,} instructions",
        f"{spent:.0f} ms of processor a key",
        f"{statistics.median(times):.0f} ms on the clock of this machine; limit 100 ms",
    )


def devices(browser: Browser) -> Iterator[Row]:
    """A mesh of 1,120 × 8 devices."""
    mesh = parts.mesh_record(clients=8960, axes=(("clients", 1120), ("model", 8)))
    page, shown = views.show(browser, workbench_widgets.MeshView(mesh))
    page.close()
    yield "mesh of 8,960 devices", f"{shown:.0f} ms", "page opened and drawn"


def clients(folder: Path, browser: Browser) -> Iterator[Row]:
    """4,096 clients whose values arrive ten times a second from a kernel of JupyterLab."""
    import contextlib
    import io

    import views_lab
    from lab import run_lab

    root, home = folder / "notebooks", folder / "home"
    root.mkdir()
    home.mkdir()
    said = io.StringIO()
    with run_lab(root, home) as address, contextlib.redirect_stdout(said):
        page: Page = browser.new_page(viewport={"width": 1300, "height": 1600})
        views_lab.clients(page, address, root)
        page.close()
    yield (
        "4,096 clients, 10 rounds a second",
        said.getvalue().strip().partition(": ")[2],
        "JupyterLab, kernel to screen",
    )


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spans", type=int, default=1_000_000)
    parser.add_argument("--instructions", type=int, default=100_000)
    asked = parser.parse_args()
    began = time.monotonic()
    print("| what | measured | note |\n|---|---|---|")
    with open_browser() as browser, tempfile.TemporaryDirectory() as folder:
        steps = (
            bundles(),
            first_paint(browser),
            spans(browser, asked.spans),
            search(browser, asked.instructions),
            devices(browser),
            clients(Path(folder), browser),
        )
        for rows in steps:
            for what, measured, note in rows:
                print(f"| {what} | {measured} | {note} |", flush=True)
    print(f"\n{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
