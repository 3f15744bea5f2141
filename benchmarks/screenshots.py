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
README = ("operations", "client")


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


def inspect_program() -> ProgramRecord:
    """A round of federated averaging on real digits."""
    wb.simulate_devices(8)
    mesh = wb.make_mesh(clients=4, model=2)
    held, _ = data.digits(clients=64, alpha=0.3, seed=0)
    padded = data.pad_clients(held, batch_size=16, epochs=4, key=0)
    clients = jax.tree.map(jnp.asarray, padded.tree)
    params = {
        "in": jnp.zeros((64, 32)), "in_bias": jnp.zeros(32), "out": jnp.zeros((32, 10)), "out_bias": jnp.zeros(10),
    }  # fmt: skip
    with jax.set_mesh(mesh):
        return wb.inspect(fedavg, chip="v5e", examples_per_client=padded.counts.tolist())(params, clients)


def inspect_transformer() -> ProgramRecord:
    """A train step of a Flax NNX transformer, its batch sharded over `data`: nothing of it knows the workbench."""
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, width, rngs):
            self.attention = nnx.MultiHeadAttention(num_heads=4, in_features=width, decode=False, rngs=rngs)
            self.norm, self.norm_mlp = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
            self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

        def __call__(self, x):
            x = x + self.attention(self.norm(x))
            return x + self.down(jax.nn.gelu(self.up(self.norm_mlp(x))))

    class Transformer(nnx.Module):
        def __init__(self, rngs):
            self.embed = nnx.Embed(128, 64, rngs=rngs)
            self.blocks = nnx.List([Block(64, rngs) for _ in range(4)])
            self.head = nnx.Linear(64, 128, rngs=rngs)

        def __call__(self, tokens):
            x = self.embed(tokens)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    @nnx.jit
    def train_step(model, optimizer, tokens):
        def loss(model):
            logits = model(tokens)[:, :-1]
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:]).mean()

        value, gradient = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradient)
        return value

    mesh = wb.make_mesh(data=4, model=2)
    model = Transformer(nnx.Rngs(0))
    tokens = jax.device_put(jnp.zeros((16, 32), jnp.int32), jax.NamedSharding(mesh, jax.P("data")))
    return wb.inspect(train_step)(model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param), tokens)


def choose_client(page: Page) -> None:
    page.locator('[data-client="17"]').first.click()


def open_tab(name: str) -> Callable[[Page], None]:
    def act(page: Page) -> None:
        page.get_by_role("tab", name=name).click()

    return act


def take(browser: Browser, page_file: Path, picture: Path, act: Callable[[Page], None], *, dark: bool) -> None:
    page = browser.new_page(
        viewport={"width": WIDTH, "height": 860}, device_scale_factor=1.5, color_scheme="dark" if dark else "light"
    )
    page.goto(page_file.as_uri())
    page.wait_for_selector("section.wb")
    act(page)
    page.mouse.move(0, 0)
    page.wait_for_timeout(900)
    page.locator("section.wb").screenshot(path=picture)
    page.close()
    print(picture)


def main(folder: Path, *, everything: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    forward, transformer = inspect_program(), inspect_transformer()
    with contextlib.ExitStack() as stack:
        browser = stack.enter_context(open_browser())
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        workbench_widgets.Explorer(forward).to_html(place / "round.html")
        workbench_widgets.Explorer(transformer).to_html(place / "transformer.html")
        tabs = ("Operations", "Source and HLO", "Sharding", "Memory", "Cost", "Mesh")
        pictures = {name.lower().replace(" ", "-"): ("transformer.html", open_tab(name)) for name in tabs}
        pictures |= {"client": ("round.html", choose_client), "clients": ("round.html", open_tab("Clients"))}
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
