"""Makes the pictures of the README: views of a real program, light and dark.

Run `python benchmarks/screenshots.py` for those of the README, written to `docs/images`, or
`python benchmarks/screenshots.py --all FOLDER` for every view. It needs Chromium or Chrome.
"""

import argparse
import contextlib
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import optax

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

import workbench_widgets
from chromium import open_browser
from playwright.sync_api import Browser, Page

import workbench as wb
from workbench.federated import data
from workbench.records import ProgramRecord

WIDTH = 1240
README = ("client", "clients", "hlo")


def predict(params, x):
    hidden = jax.nn.relu(x @ params["in"] + params["in_bias"])
    return hidden @ params["out"] + params["out_bias"]


def loss_of(params, batch):
    losses = optax.softmax_cross_entropy_with_integer_labels(predict(params, batch["x"]), batch["y"])
    return jnp.where(batch["mask"], losses, 0.0).sum() / jnp.maximum(batch["mask"].sum(), 1).astype(jnp.float32)


def train_locally(params, client):
    def step(local, batch):
        loss, gradient = jax.value_and_grad(loss_of)(local, batch)
        return jax.tree.map(lambda p, g: p - 0.2 * g, local, gradient), loss

    batches = {name: client[name] for name in ("x", "y", "mask")}
    local, losses = jax.lax.scan(step, params, batches)
    return jax.tree.map(jnp.subtract, local, params), losses.mean()


@wb.program(clients=64)
def fedavg(params, clients):
    local = wb.broadcast(params)
    change, loss = wb.map_fn(train_locally, (local, clients))
    change, loss = wb.reduce_weighted_mean((change, loss), clients["weight"])
    return jax.tree.map(jnp.add, params, change), loss


def inspect_programs() -> tuple[ProgramRecord, ProgramRecord]:
    """A round of federated averaging on real digits, and the derivative of its loss."""
    wb.simulate_devices(8)
    mesh = wb.make_mesh(clients=4, model=2)
    held, _ = data.digits(clients=64, alpha=0.3, seed=0)
    padded = data.pad_clients(held, batch_size=16, epochs=4, key=0)
    clients = jax.tree.map(jnp.asarray, padded.tree)
    params = {
        "in": jnp.zeros((64, 32)), "in_bias": jnp.zeros(32), "out": jnp.zeros((32, 10)), "out_bias": jnp.zeros(10),
    }  # fmt: skip

    def gradient(params, clients):
        return jax.grad(lambda p: fedavg(p, clients)[1])(params)

    with jax.set_mesh(mesh):
        counts = padded.counts.tolist()
        forward = wb.inspect(fedavg, chip="v5e", examples_per_client=counts)(params, clients)
        return forward, wb.inspect(gradient)(params, clients)


def choose_stage(page: Page) -> None:
    page.locator('[data-stage="1"]').first.click(position={"x": 30, "y": 10})


def choose_client(page: Page) -> None:
    page.locator('[data-client="17"]').first.click()


def open_tab(name: str, then: Callable[[Page], None] = lambda page: None) -> Callable[[Page], None]:
    def act(page: Page) -> None:
        page.get_by_role("tab", name=name).click()
        then(page)

    return act


def choose_collective(page: Page) -> None:
    page.get_by_label("Only collectives over axis").select_option("*")
    page.locator(".wb-list .wb-collective").first.click()
    page.get_by_label("Only collectives over axis").select_option("")


def sort_clients(page: Page) -> None:
    page.get_by_label("Sort by").select_option("down")
    page.get_by_role("tabpanel").get_by_role("img").click(position={"x": 4, "y": 40})


def take(browser: Browser, page_file: Path, picture: Path, act: Callable[[Page], None], *, dark: bool) -> None:
    page = browser.new_page(
        viewport={"width": WIDTH, "height": 700}, device_scale_factor=1.5, color_scheme="dark" if dark else "light"
    )
    page.goto(page_file.as_uri())
    page.wait_for_selector("section.wb")
    act(page)
    page.mouse.move(0, 0)
    page.wait_for_timeout(200)
    page.locator("section.wb").screenshot(path=picture)
    page.close()
    print(picture)


def main(folder: Path, *, everything: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    forward, gradient = inspect_programs()
    with contextlib.ExitStack() as stack:
        browser = stack.enter_context(open_browser())
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workbench_widgets.Explorer(forward).to_html(place / "explorer.html")
        workbench_widgets.ProgramView(forward, gradient).to_html(place / "gradient.html")
        pictures = {
            "program": ("explorer.html", choose_stage),
            "client": ("explorer.html", choose_client),
            "clients": ("explorer.html", open_tab("Clients", sort_clients)),
            "mesh": ("explorer.html", lambda page: (choose_client(page), page.get_by_role("tab", name="Mesh").click())),
            "sharding": ("explorer.html", open_tab("Sharding")),
            "hlo": ("explorer.html", open_tab("HLO", choose_collective)),
            "cost": ("explorer.html", open_tab("Cost")),
            "gradient": ("gradient.html", lambda page: None),
        }
        for name, (file, act) in pictures.items():
            if name not in README and not everything:
                continue
            for dark in (False, True):
                take(browser, place / file, folder / f"{name}-{'dark' if dark else 'light'}.png", act, dark=dark)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parents[1] / "docs" / "images")
    parser.add_argument("--all", action="store_true", help="every view, not only those of the README")
    arguments = parser.parse_args()
    main(arguments.folder, everything=arguments.all)
