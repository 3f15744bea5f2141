"""Makes the animation in `docs/figures.md`: a round of federated averaging on digits, played from its actual values.

Run `python benchmarks/player_gif.py`. The script presses the player's own button and writes `docs/images/player.gif`.
It needs Chromium or Chrome.
"""

import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))

import jax
import jax.numpy as jnp
import numpy as np
from chromium import open_browser

import workbench as wb
from workbench.federated import data

CLIENTS, STEPS, BATCH = 6, 5, 32
TARGET = Path(__file__).parents[1] / "docs" / "images" / "player.gif"


@wb.program(clients=CLIENTS)
def fedavg(params, batches):
    """Local steps of logistic regression at every client; the server averages their models."""

    def train(local, batches):
        def step(local, batch):
            def loss_of(weights):
                chosen = jax.nn.log_softmax(batch["x"] @ weights)
                return -jnp.take_along_axis(chosen, batch["y"][:, None], -1).mean()

            loss, gradient = jax.value_and_grad(loss_of)(local)
            wb.emit("loss", loss)
            return local - 0.1 * gradient, None

        return jax.lax.scan(step, local, batches)[0]

    return wb.reduce_mean(wb.map_fn(train, (wb.broadcast(params), batches)))


def play_round():
    """The player of one round on real digits."""
    held, _ = data.digits(clients=CLIENTS, alpha=0.3, seed=0)
    random = np.random.default_rng(0)
    rows = [random.integers(count, size=(STEPS, BATCH)) for count in held.counts]
    arrays = list(held.arrays.values())
    batches = {key: np.stack([each[key][row] for each, row in zip(arrays, rows, strict=True)]) for key in ("x", "y")}
    return wb.trace(fedavg)(jnp.zeros((64, 10)), jax.tree.map(jnp.asarray, batches)).play()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, open_browser() as browser:
        file = Path(folder) / "round.html"
        play_round().to_html(file)
        page = browser.new_page(viewport={"width": 1000, "height": 700}, color_scheme="light")
        page.goto(file.as_uri())
        with page.expect_download(timeout=180_000) as download:
            page.get_by_role("button", name="Save as GIF").click()
        download.value.save_as(TARGET)
    print(f"{TARGET.name}: {TARGET.stat().st_size / 1000:,.0f} KB")


if __name__ == "__main__":
    main()
