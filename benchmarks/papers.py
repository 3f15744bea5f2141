"""The gallery of papers: a claim, our settings, our result over seeds, and a verdict that follows from the numbers.

`python -m benchmarks.papers` runs all six and writes `docs/gallery/`; `python -m benchmarks.papers diloco` runs one and keeps the
others' results. They are reproductions of *claims* at the size of a laptop, not of tables.
"""

# ruff: noqa: E501  (the prose of the pages is written in one piece)
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import workbench as wb
from workbench import algorithms, data

GALLERY = Path(__file__).parents[1] / "docs" / "gallery"
SEEDS = (0, 1, 2)
START = {"w": np.zeros((64, 10), "float32"), "b": np.zeros(10, "float32")}  # no jax.Array before devices are simulated


def _loss(params: dict, batch: dict) -> jax.Array:
    losses = optax.softmax_cross_entropy_with_integer_labels(batch["x"] @ params["w"] + params["b"], batch["y"])
    mask = batch.get("mask", jnp.ones(losses.shape, bool))
    return jnp.where(mask, losses, 0).sum() / jnp.maximum(mask.sum(), 1)


def _accuracy(params: dict, test: Any) -> float:
    return float(((test.x @ params["w"] + params["b"]).argmax(-1) == test.y).mean())


def _curve(algorithm: Any, batches: Callable[[int], Any], test: Any, rounds: int) -> np.ndarray:
    step, state, found = wb.jit(algorithm.round), algorithm.init(START), []
    for number in range(rounds):
        state, _ = step(state, batches(number))
        found.append(_accuracy(algorithm.params_of(state), test))
    return np.array(found)


def _rounds_to(curve: np.ndarray, accuracy: float) -> int:
    return int(np.argmax(curve >= accuracy)) + 1 if curve.max() >= accuracy else len(curve) + 1


def _batches(clients: int, alpha: float, epochs: int, seed: int, batch: int = 16) -> tuple[Any, Any]:
    train, test = data.digits(clients=clients, alpha=alpha, seed=seed)
    return jax.tree.map(jnp.asarray, data.pad_clients(train, batch_size=batch, epochs=epochs, key=seed).tree), test


def _text(values: Any, digits: int = 3) -> str:
    values = np.asarray(values, float)
    return f"{values.mean():.{digits}f} ± {values.std(ddof=1):.{digits}f}"


def fedavg() -> dict:
    """More local epochs, fewer rounds."""
    rounds: dict[int, list[int]] = {}
    for epochs in (1, 5):
        for seed in SEEDS:
            batches, test = _batches(16, 10.0, epochs, seed)
            tried = [
                _curve(
                    algorithms.fedavg(_loss, clients=16, client_optimizer=optax.sgd(rate)),
                    lambda _, batches=batches: batches,
                    test,
                    40,
                )
                for rate in (0.03, 0.1, 0.3)
            ]
            rounds.setdefault(epochs, []).append(min(_rounds_to(curve, 0.9) for curve in tried))
    saved = np.array(rounds[1]) / np.array(rounds[5])
    return {
        "paper": "McMahan et al., AISTATS 2017, table 2",
        "link": "https://arxiv.org/abs/1602.05629",
        "claim": "More local epochs per round reach a target accuracy in fewer rounds.",
        "settings": "8 × 8 digits, 16 clients, Dirichlet 10, logistic regression, target 90 %, best of three learning rates for each.",
        "result": {
            "rounds with 1 epoch": _text(rounds[1], 1),
            "rounds with 5 epochs": _text(rounds[5], 1),
            "times fewer rounds": _text(saved, 2),
        },
        "holds": bool((saved > 1).all()),
        "deviation": "A convex model on small images; the paper's factor is for a CNN and an LSTM.",
    }


def scaffold() -> dict:
    """Control variates against drift."""
    ahead = []
    for seed in SEEDS:
        batches, test = _batches(10, 0.1, 5, seed, 32)
        best = {}
        for name, of in (
            ("FedAvg", lambda rate: algorithms.fedavg(_loss, clients=10, client_optimizer=optax.sgd(rate))),
            ("SCAFFOLD", lambda rate: algorithms.scaffold(_loss, clients=10, learning_rate=rate)),
        ):
            draws = np.random.default_rng(seed)
            present = [np.isin(np.arange(10), draws.choice(10, 5, replace=False)).astype("float32") for _ in range(15)]
            best[name] = max(
                _curve(
                    of(rate), lambda r, p=present, batches=batches: {**batches, "weight": jnp.asarray(p[r])}, test, 15
                ).mean()
                for rate in (0.3, 1.0)
            )
        ahead.append(best["SCAFFOLD"] - best["FedAvg"])
    return {
        "paper": "Karimireddy et al., ICML 2020, table 3",
        "link": "https://arxiv.org/abs/1910.06378",
        "claim": "With heterogeneous clients and partial participation SCAFFOLD needs fewer rounds than FedAvg.",
        "settings": "8 × 8 digits, 10 clients, Dirichlet 0.1, 5 participate, 5 epochs, 15 rounds, best of two learning rates "
        "for each; mean accuracy over rounds.",
        "result": {"SCAFFOLD ahead by": _text(ahead)},
        "holds": bool((np.array(ahead) > 0).all()),
        "deviation": "Mean accuracy over rounds instead of rounds to a target; ten clients instead of a hundred.",
    }


def fedopt() -> dict:
    """Adaptive server optimisers."""
    found: dict[str, list[float]] = {}
    for seed in SEEDS:
        batches, test = _batches(32, 0.1, 1, seed)
        for name, servers in (
            ("FedAvg", [optax.sgd(1.0)]),
            ("FedAdam", [optax.adam(rate, eps=1e-3) for rate in (0.03, 0.1, 0.3)]),
        ):
            found.setdefault(name, []).append(
                max(
                    _curve(
                        algorithms.fedopt(_loss, clients=32, client_optimizer=optax.sgd(rate), server_optimizer=server),
                        lambda _, batches=batches: batches,
                        test,
                        12,
                    )[-1]
                    for server in servers
                    for rate in (0.1, 0.3)
                )
            )
    difference = np.array(found["FedAdam"]) - np.array(found["FedAvg"])
    return {
        "paper": "Reddi et al., ICLR 2021, table 1",
        "link": "https://arxiv.org/abs/2003.00295",
        "claim": "An adaptive optimiser at the server reaches a higher accuracy in the same rounds.",
        "settings": "8 × 8 digits, 32 clients, Dirichlet 0.1, one epoch, 12 rounds; best of two client rates and, for "
        "FedAdam, three server rates.",
        "result": {name: _text(values) for name, values in found.items()} | {"difference": _text(difference)},
        "holds": bool((difference > 0).all()),
        "deviation": "FedAdam has three times as many configurations to choose from; dense gradients, where the paper "
        "expects the least gain.",
    }


def diloco() -> dict:
    """Communicating rarely."""
    final: dict[str, list[float]] = {}
    for seed in SEEDS:
        train, test = data.digits(clients=4, alpha=10.0, seed=seed)
        padded = data.pad_clients(train)
        images, labels = jnp.asarray(padded["x"]), jnp.asarray(padded["y"])

        def draw(first: int, steps: int, n: int = 4, images=images, labels=labels, counts=padded.counts) -> dict:
            rows = np.random.default_rng(first).integers(0, counts[:, None, None], (4, steps, 16))[:n]
            return {"x": images[np.arange(n)[:, None, None], rows], "y": labels[np.arange(n)[:, None, None], rows]}

        adamw = optax.adamw(1e-2)
        contest = {
            "data parallel": (
                1,
                4,
                algorithms.fedopt(_loss, clients=4, client_optimizer=optax.sgd(1.0), server_optimizer=adamw),
            ),
            "DiLoCo, H = 30": (30, 4, algorithms.diloco(_loss, clients=4, inner_optimizer=adamw)),
            "one worker alone": (
                30,
                1,
                algorithms.diloco(_loss, clients=1, inner_optimizer=adamw, outer_optimizer=optax.sgd(1.0)),
            ),
        }
        for name, (every, n, algorithm) in contest.items():
            step, state = wb.jit(algorithm.round), algorithm.init(START)
            for first in range(0, 120, every):
                state, _ = step(state, draw(first, every, n))
            final.setdefault(name, []).append(_accuracy(algorithm.params_of(state), test))
    lost = np.array(final["data parallel"]) - np.array(final["DiLoCo, H = 30"])
    return {
        "paper": "Douillard et al., 2023, table 2",
        "link": "https://arxiv.org/abs/2311.08105",
        "claim": "Communicating every H steps reaches nearly the quality of data parallelism with a factor H fewer messages.",
        "settings": "8 × 8 digits, 4 workers, logistic regression, 120 steps of AdamW, H = 30, outer Nesterov 0.7 / 0.9.",
        "result": {name: _text(values) for name, values in final.items()} | {"accuracy lost": _text(lost)},
        "holds": bool(lost.mean() < 0.02),
        "deviation": "A convex model of 650 parameters; the paper trains language models of up to 400 million.",
    }


def coded() -> dict:
    """Any k of n answers."""
    gains = {}
    for n in (16, 64, 256):
        best = algorithms.best_needed(n)
        gains[n] = [
            float(
                algorithms.simulate_latency(jax.random.key(seed), n, n, trials=2000).mean()
                / algorithms.simulate_latency(jax.random.key(seed + 100), n, best, trials=2000).mean()
            )
            for seed in SEEDS
        ]
    means = [float(np.mean(values)) for values in gains.values()]
    slope = np.polyfit(np.log(list(gains)), means, 1)[0]
    return {
        "paper": "Lee et al., IEEE Trans. Inf. Theory 2018, section III",
        "link": "https://arxiv.org/abs/1512.02673",
        "claim": "With the best code a distributed product is faster by a factor that grows like log n; the slope is 1 / 3.146 for μ = 1.",
        "settings": "Times (1 + Exp(1)) / k, 2,000 simulated jobs for each seed.",
        "result": {f"gain, n = {n}": _text(values, 2) for n, values in gains.items()}
        | {"slope over log n": f"{slope:.3f} (1 / 3.146 = {1 / 3.146:.3f})"},
        "holds": bool(abs(slope * 3.146 - 1) < 0.1),
        "deviation": "Simulated delays as in the paper's model; no cluster.",
    }


def matmul() -> dict:
    """Layers of a grid."""
    n, words = 256, {}
    for name, (layers, side) in {"SUMMA 4 × 4": (1, 4), "4 layers of 2 × 2": (4, 2)}.items():
        mesh = wb.make_mesh(layers=layers, rows=side, cols=side, devices=jax.devices()[:16])
        specs = jax.P("rows", ("layers", "cols")), jax.P(("layers", "rows"), "cols")
        shapes = [jax.ShapeDtypeStruct((n, n), jnp.float32, sharding=jax.NamedSharding(mesh, s)) for s in specs]
        with jax.set_mesh(mesh):
            module = wb.inspect(lambda a, b: algorithms.matmul_25d(a, b))(*shapes).module
        sent = sum(c.wire_bytes * c.executions for c in module.collectives) / 4
        words[name] = sent, algorithms.matmul_words(n, side=side, layers=layers)["total"], module.memory.peak_bytes
    return {
        "paper": "Solomonik and Demmel, Euro-Par 2011, section 3",
        "link": "https://doi.org/10.1007/978-3-642-23397-5_10",
        "claim": "A device sends 2 (q − 1) n² / (c q²) + 2 (c − 1) n² / (c q²) numbers on c layers of q × q devices.",
        "settings": f"n = {n}, 16 simulated devices, read from the compiled module.",
        "result": {
            name: f"compiled {a:,.0f} numbers, formula {b:,.0f}, peak {p / 1024:,.0f} KiB"
            for name, (a, b, p) in words.items()
        },
        "holds": all(a == b for a, b, _ in words.values()),
        "deviation": "No seeds: nothing is random. Reductions as all-reduce, with its factor of two.",
    }


PAPERS = {f.__name__: f for f in (fedavg, scaffold, fedopt, diloco, coded, matmul)}
TITLES = {
    "fedavg": "FedAvg",
    "scaffold": "SCAFFOLD",
    "fedopt": "FedOpt",
    "diloco": "DiLoCo",
    "coded": "Coded computation",
    "matmul": "2.5-D matrix multiplication",
}


def write(results: dict[str, dict]) -> None:
    """Writes the pages of the gallery from the results."""
    head = (
        "# Reproduce the paper\n\nOne claim of each paper, tried at the size of a laptop: settings, our result over three "
        "seeds (mean ± deviation), and a verdict\nthat follows from the numbers. Written by "
        "`python -m benchmarks.papers`.\n\n| paper | claim | verdict |\n|---|---|---|\n"
    )
    rows = [
        f"| [{TITLES[name]}]({name}.md) | {r['claim']} | {'holds here' if r['holds'] else '**not reproduced here**'} |"
        for name, r in results.items()
    ]
    tree = "\n\n```{toctree}\n:hidden:\n\n" + "\n".join(results) + "\n```\n"
    (GALLERY / "index.md").write_text(head + "\n".join(rows) + tree, encoding="utf-8")
    for name, r in results.items():
        table = "\n".join(f"| {key} | {value} |" for key, value in r["result"].items())
        verdict = "The claim holds here." if r["holds"] else "The claim was **not reproduced** at this size."
        text = (
            f"# {TITLES[name]}\n\n[{r['paper']}]({r['link']})\n\n**Claim.** {r['claim']}\n\n**Settings.** {r['settings']}\n\n"
            f"| quantity | result |\n|---|---|\n{table}\n\n**Verdict.** {verdict}\n\n**Differs from the paper.** {r['deviation']}\n\n"
            f"The code is `{name}` in `benchmarks/papers.py`.\n"
        )
        (GALLERY / f"{name}.md").write_text(text, encoding="utf-8")


def main() -> None:
    """Runs the papers that are named, or all."""
    wb.simulate_devices(16)
    GALLERY.mkdir(parents=True, exist_ok=True)
    stored = GALLERY / "results.json"
    results = json.loads(stored.read_text()) if stored.exists() else {}
    for name in sys.argv[1:] or PAPERS:
        results[name] = PAPERS[name]()
        print(name, results[name]["result"], "holds" if results[name]["holds"] else "does not hold", flush=True)
        ordered = {key: results[key] for key in PAPERS if key in results}
        stored.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        write(ordered)


if __name__ == "__main__":
    main()
