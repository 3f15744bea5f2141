"""The front page's game: the player with the front page's ten-line program, and a slider over real runs.

`python -m benchmarks.front_page` trains and writes `docs/images/game.html`. The documentation build calls
`write_player`, which takes a few seconds.
"""

import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from workbench_widgets import WorkbenchWidget

import workbench as wb
from workbench import data

DOCS = Path(__file__).parents[1] / "docs"
ALPHAS = (0.05, 0.1, 0.3, 1.0, 10.0)
CLIENTS, ROUNDS, SEEDS, STEPS, BATCH = 16, 25, 5, 20, 16
GAME = """<div class="wb-game">
<label for="wb-alpha">How unlike are the clients? <output id="wb-alpha-said"></output></label>
<input id="wb-alpha" type="range" min="0" max="{last}" value="2" step="1">
<svg viewBox="0 -20 640 274" role="img" aria-label="Test accuracy by round" id="wb-curve"></svg>
<p id="wb-game-says"></p>
<script>
(() => {{
  const runs = {runs};
  const slider = document.getElementById("wb-alpha"), curve = document.getElementById("wb-curve");
  const x = (round) => 46 + round * 584 / (runs[0].mean.length - 1), y = (value) => 206 - value * 190;
  const at = (values) => values.map((v, i) => `${{x(i).toFixed(1)}},${{y(v).toFixed(1)}}`).join(" ");
  const draw = () => {{
    const run = runs[slider.value];
    const ticks = [0, 0.25, 0.5, 0.75, 1].map((v) =>
      `<line x1="46" x2="630" y1="${{y(v)}}" y2="${{y(v)}}"/><text x="40" y="${{y(v) + 4}}">${{100 * v}} %</text>`);
    const rounds = [1, 5, 10, 15, 20, 25].map((n) => `<text class="tick" x="${{x(n - 1)}}" y="226">${{n}}</text>`);
    const others = runs.map((other) => `<polyline class="other" points="${{at(other.mean)}}"/>`);
    const band = `${{at(run.high)}} ${{at(run.low).split(" ").reverse().join(" ")}}`;
    curve.innerHTML = ticks.join("") + others.join("") + `<polygon points="${{band}}"/>` +
      `<polyline points="${{at(run.mean)}}"/>` + rounds.join("") + `<text x="630" y="248">round</text>` +
      `<text class="above" x="46" y="-4">test accuracy</text>`;
    const last = run.mean.length - 1;
    document.getElementById("wb-alpha-said").textContent = `α = ${{run.alpha}}, ${{run.kinds}} digits a client`;
    document.getElementById("wb-game-says").textContent =
      `After ${{last + 1}} rounds the shared model reads ${{(100 * run.mean[last]).toFixed(1)}} % of new digits ` +
      `(${{(100 * run.low[last]).toFixed(1)}} to ${{(100 * run.high[last]).toFixed(1)}} % in {seeds} runs).`;
  }};
  slider.addEventListener("input", draw);
  draw();
}})();
</script>
</div>
"""


def learn(alpha: float, seed: int) -> tuple[list[float], float]:
    """Test accuracy after each round, and a client's mean number of digits."""
    examples, test = data.shipped("digits").split(seed=0)
    parts = data.dirichlet(examples.y, CLIENTS, alpha=alpha, seed=seed, min_examples=1).rows
    counts = jnp.array([len(rows) for rows in parts])
    rows = jnp.stack([jnp.asarray(np.resize(own, len(examples))) for own in parts])  # cut to its count below
    accuracies, w = [], jnp.zeros((64, 10))
    for number in range(ROUNDS):
        w, accuracy = _round(
            w,
            rows,
            counts,
            jax.random.fold_in(jax.random.key(seed), number),
            *map(jnp.asarray, (examples.x, examples.y, test.x, test.y)),
        )
        accuracies.append(float(accuracy))
    return accuracies, float(np.mean([len(np.unique(examples.y[own])) for own in parts]))


@jax.jit
def _round(w, rows, counts, key, x, y, test_x, test_y):
    def train_locally(w, own, count, key, x, y):
        def step(w, key):
            drawn = own[jax.random.randint(key, (BATCH,), 0, count)]
            gradient = jax.grad(lambda w: -jnp.mean(jax.nn.log_softmax(x[drawn] @ w)[jnp.arange(BATCH), y[drawn]]))(w)
            return w - 0.5 * gradient, None

        return jax.lax.scan(step, w, jax.random.split(key, STEPS))[0]

    with wb.program(clients=CLIENTS):
        keys = jax.random.split(key, CLIENTS)
        local = wb.map_fn(train_locally, (wb.broadcast(w), rows, counts, keys, wb.broadcast(x), wb.broadcast(y)))
        w = wb.reduce_mean(local)
    return w, ((test_x @ w).argmax(1) == test_y).mean()


# In its frame, a view fills the page: without the name of the page and its date, and without margins.
FRAMED = (
    "<style>.wb-pagehead, .wb-heighthandle {display: none} .wb-page {padding: 0 !important} "
    ".wb-shell {height: 100vh !important; border: 0 !important; border-radius: 0 !important}"
)
# The player has no room for details, and opens on the last step, where every client has a curve and parameters.
PLAYER_ALONE = (
    ".wb-detail, .wb-handle {display: none !important} .wb-splitter {grid-template: minmax(0, 1fr) / 100% !important}"
)
OPENED = """<script>
(function open() {
  const slider = document.querySelector('input[aria-label="Moment of the round"]');
  if (!slider) return void setTimeout(open, 50);
  slider.value = slider.max;
  slider.dispatchEvent(new Event("input"));
})();
</script></body>"""


def write_player(path: Path) -> None:
    """Runs the program of the front page, and writes its third round as an interactive page."""
    block = re.search(r"```python\n(import.*?)```", (DOCS / "index.md").read_text(encoding="utf-8"), re.DOTALL)
    names: dict = {"wb": wb, "jax": jax, "jnp": jnp}
    exec(compile(block[1] if block else "", "fedavg.py", "exec"), names)
    w = jnp.zeros((64, 10))
    for _ in range(2):
        w = names["fedavg"](w, names["clients"])
    player = wb.trace(names["fedavg"])(w, names["clients"]).play()
    write_framed(player, path, "A round of federated averaging", PLAYER_ALONE, OPENED)


def write_explorer(path: Path) -> None:
    """Writes the explorer of a Flax NNX transformer's train step as an interactive page."""
    from benchmarks import nnx_transformer

    mesh, arguments = nnx_transformer.call()
    with jax.set_mesh(mesh):
        explorer = wb.explore(nnx_transformer.train_step, view="explorer")(*arguments)
    explorer.settings = {"split": 0.6}
    write_framed(explorer, path, "A train step in the explorer")


def write_framed(view: WorkbenchWidget, path: Path, title: str, style: str = "", end: str = "</body>") -> None:
    """Writes a view as a page for a frame, with additional styles and with `end` appended."""
    head, _, rest = view.to_html(title=title, author="").partition("</head>")
    body, _, after = rest.rpartition("</body>")
    path.write_text(f"{head}{FRAMED} {style}</style></head>{body}{end}{after}", encoding="utf-8")


def main() -> None:
    """Trains for every heterogeneity and seed, and writes the curves with their slider."""
    runs = []
    for alpha in ALPHAS:
        curves, kinds = zip(*(learn(alpha, seed) for seed in range(SEEDS)), strict=True)
        curves = np.array(curves)
        figures = {"mean": curves.mean(0), "low": curves.min(0), "high": curves.max(0)}
        runs.append({"alpha": alpha, "kinds": round(float(np.mean(kinds)), 1)})
        runs[-1] |= {name: [round(float(v), 4) for v in values] for name, values in figures.items()}
        print(f"alpha {alpha}: {runs[-1]['mean'][-1]:.3f} after {ROUNDS} rounds")
    text = GAME.format(runs=json.dumps(runs), last=len(ALPHAS) - 1, seeds=SEEDS)
    (DOCS / "images" / "game.html").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
