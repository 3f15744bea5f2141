"""Makes the pictures of the documentation: views of real programs and of a recorded profile, light and dark.

Run `python benchmarks/screenshots.py` for those of the pages, written to `docs/images`, or
`python benchmarks/screenshots.py --all FOLDER` for every view. It needs Chromium or Chrome.
"""

import argparse
import contextlib
import io
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
from PIL import Image
from playwright.sync_api import Browser, Page

import workbench as wb
from workbench.federated import data
from workbench.records import ProgramRecord

WIDTH, HEIGHT = 1000, 600  # wide enough for two panes, small enough to be read in a column of text
WIDER = {"operations": 1240}
PAGES = ("operations", "client", "collective", "memory", "sharding", "time-line")  # the pictures that pages show
PROFILE = Path(__file__).parents[1] / "tests" / "recorded" / "tpu_v6e_4chips_host_offload.xplane.pb"


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


def inspect_layers() -> ProgramRecord:
    """Two layers whose parameters are sharded over `model` and whose batch is sharded over `data`."""
    mesh = wb.make_mesh(data=4, model=2)
    specs = {"up": jax.P(None, "model"), "down": jax.P("model", None), "head": jax.P()}
    shapes = {"up": (512, 2048), "down": (2048, 512), "head": (512, 128)}
    params = {
        name: jax.device_put(jnp.ones(shapes[name]), jax.NamedSharding(mesh, spec)) for name, spec in specs.items()
    }
    batch = jax.device_put(jnp.ones((256, 512)), jax.NamedSharding(mesh, jax.P("data", None)))

    def two_layers(params, batch):
        return jnp.tanh(batch @ params["up"]) @ params["down"] @ params["head"]

    with jax.set_mesh(mesh):
        return wb.inspect(two_layers)(params, batch)


def choose_client(page: Page) -> None:
    page.locator('[data-client="17"]').first.click()


def open_tab(*names: str) -> Callable[[Page], None]:
    """Opens a tab, and in it what further names name."""

    def act(page: Page) -> None:
        page.get_by_role("tab", name=names[0]).click()
        for name in names[1:]:
            page.get_by_text(name, exact=True).first.click()

    return act


def choose_collective(page: Page) -> None:
    open_tab("Source and HLO")(page)
    page.locator("[data-collective]").first.click()


def take(
    browser: Browser, page_file: Path, picture: Path, act: Callable[[Page], None], width: int, *, dark: bool
) -> None:
    page = browser.new_page(
        viewport={"width": width, "height": HEIGHT + 60},
        device_scale_factor=1.5,
        color_scheme="dark" if dark else "light",
    )
    page.goto(page_file.as_uri())
    page.wait_for_selector("section.wb")
    act(page)
    page.mouse.move(0, 0)
    page.wait_for_timeout(900)
    taken = Image.open(io.BytesIO(page.locator("section.wb").screenshot())).convert("RGB")
    taken.quantize(128, dither=Image.Dither.NONE).save(picture, optimize=True)  # flat areas: a third of the bytes
    page.close()
    print(picture)


def main(folder: Path, *, everything: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    wb.simulate_devices(8)
    programs = {
        "round": workbench_widgets.Explorer(inspect_program()),
        "transformer": workbench_widgets.Explorer(inspect_transformer()),
        "layers": workbench_widgets.Explorer(inspect_layers()),
        "profile": workbench_widgets.ProfileView(wb.open_profile(PROFILE)),
    }
    tabs = ("Operations", "Source and HLO", "Sharding", "Memory", "Cost", "Mesh")
    pictures = {name.lower().replace(" ", "-"): ("transformer", open_tab(name)) for name in tabs}
    pictures |= {
        "client": ("round", choose_client),
        "clients": ("round", open_tab("Clients")),
        "collective": ("round", choose_collective),
        "sharding": ("layers", open_tab("Sharding", "up")),
        "time-line": ("profile", open_tab("Time line")),
    }
    with contextlib.ExitStack() as stack:
        browser = stack.enter_context(open_browser())
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name, view in programs.items():
            view.settings = {"height": HEIGHT}
            view.to_html(place / f"{name}.html")
        for name, (program, act) in pictures.items():
            if name not in PAGES and not everything:
                continue
            for dark in (False, True):
                file = folder / f"{name}-{'dark' if dark else 'light'}.png"
                take(browser, place / f"{program}.html", file, act, WIDER.get(name, WIDTH), dark=dark)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parents[1] / "docs" / "images")
    parser.add_argument("--all", action="store_true", help="every view, not only those of the pages")
    arguments = parser.parse_args()
    main(arguments.folder, everything=arguments.all)
