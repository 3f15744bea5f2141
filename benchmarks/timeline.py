"""Frames per second of the timeline in a headless browser: `python benchmarks/timeline.py [spans]`.

Every frame zooms or moves, so every frame is drawn again. Rendering is by software; a real screen is faster. On a busy
computer, the processor time per frame (of all browser processes) is more reliable than the wall time.
"""

import sys
import time
from pathlib import Path

import numpy as np
import psutil

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / "browser")]

DEVICES = 8
FRAMES = 90
MEASURE = """async (frames) => {
  const canvas = document.querySelector(".wb-tl-canvas"), times = [];
  canvas.focus();
  const press = (key) => canvas.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  const frame = () => new Promise(requestAnimationFrame);
  for (let i = 0; i < frames; i++) {
    const began = performance.now();
    press(i % 30 < 10 ? "w" : i % 30 < 20 ? (i % 2 ? "d" : "a") : "s");
    await frame();
    times.push(performance.now() - began);
  }
  return times;
}"""


def run_of(spans: int):
    """A run whose spans are drawn at random: mostly compute, with collectives and waits between."""
    from workbench.records.run import EventRecord, RunRecord

    random = np.random.default_rng(0)
    events = []
    for device in range(DEVICES):
        seconds = random.exponential(20e-6, spans // DEVICES)
        start = np.cumsum(seconds + random.exponential(2e-6, len(seconds))) - seconds
        kinds = random.choice(["compute", "compute", "compute", "collective", "wait"], len(seconds))
        names = [f"fusion.{i}" for i in random.integers(0, 400, len(seconds))]
        stages = random.integers(0, 6, len(seconds))
        events += [
            EventRecord(where=f"tpu:{device}", name=n, start_seconds=float(s), seconds=float(d), kind=k, stage=str(g))
            for n, s, d, k, g in zip(names, start, seconds, kinds, stages, strict=True)
        ]
    return RunRecord(name="synthetic", engine=f"tpu x {DEVICES}", seconds=1.0, events=tuple(events))


def processor_seconds() -> float:
    """Processor time of this process's children."""
    used = [child.cpu_times() for child in psutil.Process().children(recursive=True)]
    return sum(times.user + times.system for times in used)


def main() -> None:
    """Prints one line per step."""
    import comm
    import workbench_widgets
    from chromium import open_browser
    from harness import Harness, PageComm

    spans = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    comm.create_comm = lambda *args, **keys: PageComm(*args, **keys)
    run = run_of(spans)
    began = time.perf_counter()
    widget = workbench_widgets.TimelineView(run)
    print(f"{spans:,} spans to columns: {time.perf_counter() - began:.2f} s")
    with open_browser() as browser:
        harness = Harness(browser.new_page(viewport={"width": 1440, "height": 900}))
        began = time.perf_counter()
        harness.mount(widget)
        harness.page.wait_for_selector(".wb-tl-canvas", timeout=120_000)
        print(f"to the page and drawn: {time.perf_counter() - began:.2f} s")
        before = processor_seconds()
        times = np.array(harness.page.evaluate(MEASURE, FRAMES))
        spent = (processor_seconds() - before) / FRAMES
    fast, slow = np.percentile(times, [50, 95])
    print(f"frames: median {fast:.1f} ms ({1000 / fast:.0f} a second), 95 % below {slow:.1f} ms")
    print(f"processor: {1000 * spent:.1f} ms a frame")


if __name__ == "__main__":
    main()
