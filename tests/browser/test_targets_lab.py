"""Hardware that is not here, from the explorer in JupyterLab: compiled in the background, stopped by a button."""

import time
from pathlib import Path

import psutil
import pytest
from lab import open_notebook, run_all, write_notebook
from playwright.sync_api import Locator, Page, expect
from test_lab import ask_kernel
from visitor import open_tab

from workbench.aot import list_targets

pytestmark = [pytest.mark.browser, pytest.mark.lab, pytest.mark.slow]

FAKE_WORKER = Path(__file__).parents[1] / "aot" / "fake_worker.py"
PROGRAM = """
import jax, jax.numpy as jnp, workbench as wb
wb.simulate_devices(8)
from workbench.aot._process import shared_worker

def train(weights, rows):
    return weights - 0.1 * jax.grad(lambda w: jnp.mean((rows @ w) ** 2))(weights)

def sleep_60(weights, rows):
    return wb.reduce_mean(wb.map_fn(train, (wb.broadcast(weights), rows)))

local_sgd = wb.program(clients=16)(sleep_60)
args = (jnp.ones((256, 128)), jnp.ones((16, 32, 256)))
"""
WITH_FAKE = """
import sys
from workbench.aot import _availability, _process
from workbench.aot._process import Worker
_availability.installed_compiler = lambda platform: "fake 1"
_process._shared["tpu"] = Worker((sys.executable, {path!r}), compiler="fake 1")
"""
EXPLORE = """
with jax.set_mesh(wb.make_mesh(clients=4, model=2)):
    explorer = wb.explore(local_sgd)(*args)
explorer"""


def opened(page: Page, lab: str, name: str) -> Locator:
    open_notebook(page, lab, name)
    assert run_all(page) == []
    view = page.locator("section.wb")
    open_tab(view, "Cost")
    view.get_by_label("Chip", exact=True).select_option("v5e")
    view.get_by_label("Machine", exact=True).select_option("v5e:4x4")
    return view


def gone(pid: int, seconds: float = 120) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def press(view: Locator) -> None:
    """Starts a compilation."""
    view.get_by_role("button", name="Compile", exact=True).click()
    expect(view.locator(".wb-compile")).to_contain_text("v5e:4x4: compiling", timeout=60_000)


def stop(page: Page, view: Locator) -> None:
    """Stops a compilation; no process is left of it."""
    view.get_by_role("button", name="Stop", exact=True).click()
    panel = view.locator(".wb-compile")
    expect(panel).to_contain_text("Stopped: v5e:4x4", timeout=60_000)
    expect(panel).to_contain_text("Nothing is left running")
    assert ask_kernel(page, "shared_worker('tpu').pid") == "None"


def test_stop_button_ends_a_compilation_while_the_kernel_stays_free(lab_page: Page, lab: str, lab_root: Path):
    cells = (PROGRAM, WITH_FAKE.format(path=str(FAKE_WORKER)), EXPLORE)
    view = opened(lab_page, lab, write_notebook(lab_root, "stop.ipynb", *cells))
    press(view)
    assert ask_kernel(lab_page, "6 * 7") == "42"
    pid = int(ask_kernel(lab_page, "shared_worker('tpu').pid"))
    assert psutil.pid_exists(pid)
    stop(lab_page, view)
    assert gone(pid)
    expect(view.get_by_role("button", name="Compile", exact=True)).to_be_enabled()


def test_program_is_compiled_for_a_tpu_next_to_what_is_here_and_stopped_in_the_middle(
    lab_page: Page, lab: str, lab_root: Path, tmp_path: Path
):
    chip = next(chip for chip in list_targets() if chip.platform == "tpu")
    if not chip.installed:
        pytest.skip(f"no compiler for tpu is installed: {chip.install}")
    cache = f"import os; os.environ['WORKBENCH_CACHE'] = {str(tmp_path)!r}"
    deep = PROGRAM.replace(
        "(rows @ w) ** 2", "functools.reduce(lambda x, _: jnp.tanh(x @ w @ w.T), range(40), rows) ** 2"
    )
    deep = f"import functools\n{deep}"  # the compiler needs long enough for it to be stopped
    view = opened(lab_page, lab, write_notebook(lab_root, "tpu.ipynb", cache, deep, EXPLORE))
    press(view)
    stop(lab_page, view)
    view.get_by_role("button", name="Compile", exact=True).click()
    sides = view.locator("table.wb-sides")
    expect(sides.locator("thead")).to_contain_text("v5e:4x4", timeout=200_000)
    expect(sides).to_contain_text("of 15.8 GiB")
    expect(view.locator('.wb-target[aria-label="v5e:4x4"]')).to_contain_text("collective")
    assert ask_kernel(lab_page, "explorer.answers.compiled['v5e:4x4'].module.devices") == "16"
