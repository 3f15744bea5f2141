"""Time to build views in the kernel, to show them, and to draw them again, in a real browser.

Run `python benchmarks/views.py`. The page is bare and offline, without a server between kernel and page, so the numbers
measure only our own code. Absolute times depend on the computer and include software rendering.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

import records_examples as examples
import records_parts as parts
import workbench_widgets
from chromium import open_browser
from playwright.sync_api import Browser, Page

FRAMES = 40


def milliseconds(call: Callable[[], object], repeat: int = 5) -> float:
    taken = []
    for _ in range(repeat):
        start = time.perf_counter()
        call()
        taken.append(time.perf_counter() - start)
    return 1000 * statistics.median(taken)


def show(browser: Browser, view: workbench_widgets.WorkbenchWidget) -> tuple[Page, float]:
    """The view in a page, and the time from opening the file to the drawn view."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "view.html"
        view.to_html(file)
        page = browser.new_page(viewport={"width": 1240, "height": 1000})
        start = time.perf_counter()
        page.goto(file.as_uri())
        page.wait_for_selector("section.wb .wb-body > *")
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        return page, 1000 * (time.perf_counter() - start)


def explorer(browser: Browser) -> None:
    for clients, instructions in ((64, 500), (4096, 10_000)):
        record = examples.fedavg_record(clients, instruction_count=instructions)
        built = milliseconds(lambda record=record: workbench_widgets.Explorer(record).close(), 3)
        page, shown = show(browser, workbench_widgets.Explorer(record))
        size = f"{clients} clients, {instructions} instructions"
        print(f"explorer, {size}: {built:.0f} ms in the kernel, {shown:.0f} ms to show")
        page.close()


def graph(browser: Browser) -> None:
    page, shown = show(browser, workbench_widgets.HloView(examples.fedavg_record(instruction_count=10_000)))
    start = time.perf_counter()
    page.get_by_role("button", name="Graph", exact=True).click()
    page.wait_for_function("() => document.querySelector('canvas.wb-graph').dataset.frameMilliseconds")
    closed = 1000 * (time.perf_counter() - start)
    start = time.perf_counter()
    page.get_by_role("button", name="Open all groups").click()
    page.wait_for_function("() => document.querySelector('canvas.wb-graph').dataset.nodes > 10000")
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    opened = 1000 * (time.perf_counter() - start)
    whole = float(page.locator("canvas.wb-graph").get_attribute("data-frame-milliseconds") or 0)
    for _ in range(8):
        page.get_by_role("button", name="Zoom in").click()
    per_frame = page.evaluate(
        """async frames => {
          const canvas = document.querySelector("canvas.wb-graph"), start = performance.now();
          for (let i = 0; i < frames; i++) {
            const key = i % 2 ? "ArrowUp" : "ArrowDown";
            canvas.dispatchEvent(new KeyboardEvent("keydown", { key, shiftKey: true }));
            await new Promise(requestAnimationFrame);
            canvas.getContext("2d").getImageData(0, 0, 1, 1);
          }
          return (performance.now() - start) / frames;
        }""",
        FRAMES,
    )
    print(f"graph of 10,000 instructions: {shown + closed:.0f} ms until its groups are drawn, all opened in "
          f"{opened:.0f} ms, whole {whole:.0f} ms a frame, zoomed in and panned {per_frame:.1f} ms a frame "
          f"({1000 / per_frame:.0f} frames a second)")  # fmt: skip
    page.close()


def recolour(browser: Browser) -> None:
    mesh = parts.mesh_record(clients=8960, axes=(("pods", 20), ("x", 16), ("y", 28)))
    page, shown = show(browser, workbench_widgets.MeshView(mesh))
    drawn = page.evaluate(
        """async frames => {
          const menu = document.querySelector("select"), canvas = document.querySelector("canvas"), times = [];
          for (let i = 0; i < frames; i++) {
            menu.value = String(i % 3);
            const start = performance.now();
            menu.dispatchEvent(new Event("change"));
            canvas.getContext("2d").getImageData(0, 0, 1, 1);
            times.push(performance.now() - start);
            await new Promise(requestAnimationFrame);
          }
          return times.sort((a, b) => a - b)[frames >> 1];
        }""",
        FRAMES,
    )
    print(f"8,960 devices: {shown:.0f} ms to show, {drawn:.1f} ms to recolour")
    page.close()


def main() -> None:
    with open_browser() as browser:
        explorer(browser)
        graph(browser)
        recolour(browser)


if __name__ == "__main__":
    main()
