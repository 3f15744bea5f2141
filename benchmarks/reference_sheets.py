"""Takes pictures of every view of seven programs, light and dark, at 1440 × 900 and 1000 × 700 pixels, for review.

Run `python -m benchmarks.reference_sheets FOLDER [PROGRAM...]`; without names, all programs are used. Text smaller than
11 pixels is listed. Measured views need a run, so federated averaging also has a timeline, a simulated round and a list
of overlaid runs. It needs Chromium or Chrome.
"""

import argparse
import itertools
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

import screenshots
import workbench_widgets
from chromium import open_browser
from playwright.sync_api import Browser
from transformer import transformer_round

import workbench as wb
from workbench import measurement

RECORDED = Path(__file__).parents[1] / "tests" / "recorded" / "tpu_v6e_4chips_host_offload.xplane.pb"
LOOKS: tuple[Literal["light", "dark"], ...] = ("light", "dark")
SIZES = ((1440, 900), (1000, 700))
SMALL_TEXT = """() => {
  const small = new Set();
  for (const node of document.querySelectorAll("section.wb *")) {
    const own = [...node.childNodes].some((each) => each.nodeType === 3 && each.data.trim());
    const box = node.getBoundingClientRect();
    if (!own || !box.width || !node.checkVisibility({ visibilityProperty: true })) continue;
    const scale = node.ownerSVGElement ? Math.abs(node.getScreenCTM().a) : 1;
    const pixels = parseFloat(getComputedStyle(node).fontSize) * scale;
    if (pixels < 10.95) small.add(`${pixels.toFixed(1)} px: ${node.textContent.trim().slice(0, 40)}`);
  }
  return [...small].slice(0, 5);
}"""
Shown = workbench_widgets.WorkbenchWidget


def train_mlp(params, batches):
    """Local steps of a two-layer perceptron; returns the update."""

    def loss(params, x):
        return jnp.mean((jax.nn.relu(x @ params["in"]) @ params["out"] - 1.0) ** 2)

    def step(local, x):
        return jax.tree.map(lambda p, g: p - 0.1 * g, local, jax.grad(loss)(local, x)), None

    after, _ = jax.lax.scan(step, params, batches)
    return jax.tree.map(jnp.subtract, after, params)


def mlp(width: int) -> dict[str, jax.Array]:
    draw = np.random.default_rng(0)
    shapes = {"in": (16, width), "out": (width, 4)}
    return {name: jnp.asarray(draw.normal(size=shape), jnp.float32) for name, shape in shapes.items()}


def fedavg() -> Shown:
    """64 clients on four by two devices, with a measured run and a simulated round."""
    mesh = wb.make_mesh(clients=4, model=2)

    @wb.program(clients=64)
    def fedavg_round(params, data):
        update = wb.map_fn(train_mlp, (wb.broadcast(params), data))
        return jax.tree.map(jnp.add, params, wb.reduce_mean(update))

    data = jnp.asarray(np.random.default_rng(1).normal(size=(64, 5, 8, 16)), jnp.float32)
    with jax.set_mesh(mesh):
        record = wb.inspect(fedavg_round, on="v5e")(mlp(32), data)
        run = wb.measure(fedavg_round, rounds=3)(mlp(32), data)
        speed = np.random.default_rng(2).lognormal(np.log(1e9), 0.5, 64)
        profiles = measurement.ClientProfiles(
            flops_per_second=speed, down_bytes_per_second=2e9, up_bytes_per_second=2e9
        )
        assert record.cost is not None
        flops = np.array([each.flops for each in record.cost.clients])
        sent = record.plan.stages[0].moved_bytes / 64
        late = measurement.simulate_round(profiles, flops, sent, sent)
        return wb.explore(fedavg_round, on="v5e", timeline=late, run=run)(mlp(32), data)


def nested() -> Shown:
    """8 pods of 32 clients, and the gradient through the round."""
    mesh = wb.make_mesh(clients=4, model=2)

    @wb.program(placements={"pods": 8, "clients": 32})
    def pod_round(params, data):
        def in_pod(params, rows):
            update = wb.map_fn(train_mlp, (wb.broadcast(params, to="clients"), rows), over="clients")
            return wb.reduce_mean(update, over="clients")

        update = wb.reduce_mean(wb.map_fn(in_pod, (wb.broadcast(params, to="pods"), data), over="pods"), over="pods")
        return jax.tree.map(jnp.add, params, update)

    def after_round(params, data):
        return sum(leaf.sum() for leaf in jax.tree.leaves(pod_round(params, data)))

    data = jnp.ones((8, 32, 2, 8, 16))
    with jax.set_mesh(mesh):
        gradient = wb.inspect(jax.grad(after_round), on="v5e")(mlp(32), data)
        return wb.explore(pod_round, on="v5e", gradient=gradient)(mlp(32), data)


def transformer() -> Shown:
    """A train step of a Flax NNX transformer on 8 devices."""
    return workbench_widgets.Explorer(screenshots.inspect_transformer())


def many_clients() -> Shown:
    """4,096 clients with very different numbers of examples."""
    mesh = wb.make_mesh(clients=8)

    @wb.program(clients=4096)
    def wide_round(params, data):
        update = wb.map_fn(train_mlp, (wb.broadcast(params), data))
        return jax.tree.map(jnp.add, params, wb.reduce_mean(update))

    examples = np.random.default_rng(3).lognormal(2.5, 1.0, 4096).astype(int) + 1
    with jax.set_mesh(mesh):
        data = jax.ShapeDtypeStruct((4096, 2, 8, 16), jnp.float32)
        params = jax.eval_shape(lambda: mlp(32))
        return wb.explore(wide_round, on="v5e", examples_per_client=examples.tolist())(params, data)


def large_mesh() -> Shown:
    """1,120 by 8 devices that are not attached."""
    mesh = jax.sharding.AbstractMesh((1120, 8), ("clients", "model"))

    @wb.program(clients=8960)
    def pod_round(params, data):
        update = wb.map_fn(train_mlp, (wb.broadcast(params), data))
        return jax.tree.map(jnp.add, params, wb.reduce_mean(update))

    with jax.sharding.use_abstract_mesh(mesh):
        data = jax.ShapeDtypeStruct((8960, 2, 8, 16), jnp.float32)
        params = jax.eval_shape(lambda: mlp(64))
        return wb.explore(pod_round, on="v5e")(params, data)


def many_instructions() -> Shown:
    """A round of a transformer whose 31 layers are unrolled: about 12,000 instructions."""
    fn, arguments = transformer_round(layers=31)
    with jax.set_mesh(wb.make_mesh(clients=4, model=2)):
        return wb.explore(fn, on="v5e")(*arguments)


def recorded() -> Shown:
    """A profile of four TPU v6e chips."""
    return workbench_widgets.ProfileView(wb.open_profile(RECORDED))


PROGRAMS: dict[str, Callable[[], Shown]] = {
    made.__name__.replace("_", "-"): made
    for made in (fedavg, nested, transformer, many_clients, large_mesh, many_instructions, recorded)
}


def take(browser: Browser, page_file: Path, name: str, folder: Path) -> None:
    """Takes one picture per tab, theme and size."""
    for look, (width, height) in itertools.product(LOOKS, SIZES):
        page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=look)
        page.goto(page_file.as_uri())
        page.wait_for_selector("section.wb")
        for tab in page.get_by_role("tab", include_hidden=True).all():  # of all places
            tab.dispatch_event("click")
            page.mouse.move(0, 0)
            page.wait_for_timeout(800)
            view = (tab.text_content() or "view").strip().lower().replace(" ", "-")
            place = folder / f"{name}-{view}-{look}-{width}.png"
            page.screenshot(path=place)
            print(place, *page.evaluate(SMALL_TEXT), sep="\n    ", flush=True)
        page.close()


def main(folder: Path, names: list[str]) -> None:
    """Makes the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    wb.simulate_devices(8)
    with tempfile.TemporaryDirectory() as place:
        files = {name: Path(place) / f"{name}.html" for name in names}
        for name, file in files.items():
            PROGRAMS[name]().to_html(file)
        with open_browser() as browser:
            for name, file in files.items():
                take(browser, file, name, folder)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"of {', '.join(PROGRAMS)}")
    arguments = parser.parse_args()
    main(arguments.folder, arguments.programs or list(PROGRAMS))
