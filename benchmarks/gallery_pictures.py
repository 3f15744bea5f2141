"""Draws the gallery's pictures from its stored results: values of all seeds, and intervals.

`python -m benchmarks.papers --pages` draws the pictures without new runs.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from scipy import stats

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666")  # Okabe and Ito: readable without colour vision
SIZE, LARGE = (5.6, 3.1), (7.2, 4.3)


def _band(curves: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """The mean over seeds after every round, and the half width of its 95 % t-interval."""
    found = np.asarray(curves, float)
    half = stats.t.ppf(0.975, len(found) - 1) * found.std(axis=0, ddof=1) / np.sqrt(len(found))
    return found.mean(axis=0), half


def _curves(axes: Axes, runs: dict, rounds: int | None = None) -> None:
    for (name, run), colour, dashes in zip(runs.items(), COLOURS, ("-", "--", "-.", ":"), strict=False):
        mean, half = (values[:rounds] for values in _band(run["accuracy after each round"]))
        steps = np.arange(1, len(mean) + 1)
        axes.plot(steps, mean, dashes, color=colour, label=name)
        axes.fill_between(steps, mean - half, mean + half, color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="round", ylabel="test accuracy")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="lower right", frameon=False)


def _dots(axes: Axes, groups: dict[str, Sequence[float]], label: str) -> None:
    """One row per run: the seeds as dots, with mean and interval above."""
    for row, values in enumerate(groups.values()):
        mean, half = _band(np.asarray(values)[:, None])
        axes.plot(values, [row + 0.16] * len(values), "o", color="#888888", markersize=4, alpha=0.7)
        axes.errorbar(mean, [row], xerr=half, fmt="o", color=COLOURS[0], capsize=4, markersize=6)
    axes.set_yticks(range(len(groups)), list(groups))
    axes.set(xlabel=label, ylim=(len(groups) - 0.5, -0.5))


def _means(runs: dict) -> str:
    return ", ".join(f"{name} ({np.mean(run['values']):.3f})" for name, run in runs.items())


def _fedavg(axes: Axes, found: dict) -> str:
    _curves(axes, found["runs"], rounds=15)
    axes.axhline(0.9, color="#666666", linewidth=0.8)
    axes.annotate("target", (15, 0.9), ha="right", va="bottom", color="#666666")
    needed = " and ".join(f"{-np.mean(run['values']):.1f} with {name}" for name, run in found["runs"].items())
    return f"Test accuracy by round, with bands over five seeds; mean number of rounds to 90 %: {needed}"


def _methods(axes: Axes, found: dict) -> str:
    _curves(axes, found["runs"])
    last = ", ".join(
        f"{name} ({_band(run['accuracy after each round'])[0][-1]:.3f})" for name, run in found["runs"].items()
    )
    return f"Test accuracy by round, with bands over five seeds; after the last round: {last}"


def _diloco(axes: Axes, found: dict) -> str:
    _dots(axes, {name: run["values"] for name, run in found["runs"].items()}, "test accuracy after 240 steps")
    return f"Test accuracy for five seeds, with intervals; means: {_means(found['runs'])}"


def _coded(axes: Axes, found: dict) -> str:
    sizes = [int(name.removeprefix("n = ")) for name in found["runs"]]
    mean, half = _band(np.array([run["values"] for run in found["runs"].values()]).T)
    axes.errorbar(sizes, mean, yerr=half, fmt="o", color=COLOURS[0], capsize=4, label="simulated, five seeds")
    limit = mean[-1] + (np.log(sizes) - np.log(sizes[-1])) / 3.146
    axes.plot(sizes, limit, "--", color=COLOURS[1], label="slope 1 / 3.146 through the last point")
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.set(xlabel="workers n", ylabel="speed-up over no code")
    axes.legend(loc="upper left", frameon=False)
    return f"Speed-up of the best code by number of workers, on a logarithmic axis: {mean[0]:.2f} to {mean[-1]:.2f}"


def _accuracies(axes: Axes, found: dict, what: str = "test accuracy") -> str:
    _dots(axes, {name: run["values"] for name, run in found["runs"].items()}, what)
    return f"{what[0].upper()}{what[1:]} for five seeds, with intervals; means: {_means(found['runs'])}"


def _learned(axes: Axes, found: dict) -> str:
    agents = list(dict.fromkeys(name.rpartition(", ")[0] for name in found["runs"]))
    dashes = {"here": "-", "threads": "--", "processes": ":"}
    for name, run in found["runs"].items():
        agent, _, place = name.rpartition(", ")
        mean, half = _band(run["learned"])
        share, colour = np.linspace(0, 1, len(mean)), COLOURS[agents.index(agent)]
        axes.plot(share, mean, dashes[place], color=colour, label=agent if place == "here" else None)
        axes.fill_between(share, mean - half, mean + half, color=colour, alpha=0.08, linewidth=0)
    axes.set(xlabel="fraction of the steps (one thread —, threads --, processes ···)", ylabel="learned fraction")
    axes.legend(loc="lower right", frameon=False)
    last = _means({name.replace(", here", ", one thread"): run for name, run in found["runs"].items()})
    return f"Learned fraction of the task during training, with bands over five seeds; at the end: {last}"


def _gains(axes: Axes, found: dict) -> str:
    _dots(axes, {name: run["values"] for name, run in found["runs"].items()}, "speed-up over waiting for all answers")
    axes.axvline(1, color="#666666", linewidth=0.8)
    return f"Speed-up of each block of products, with intervals; means: {_means(found['runs'])}"


def _matmul(axes: Axes, found: dict) -> str:
    names = list(found["runs"])
    compiled, formula = ([run["values"][i] for run in found["runs"].values()] for i in (0, 1))
    axes.barh(names, compiled, color=COLOURS[0], height=0.45, label="compiled module")
    axes.plot(formula, names, "D", color=COLOURS[1], label="formula")
    axes.set(xlabel="numbers that a device sends", xlim=(0, max(compiled) * 1.25), ylim=(1.9, -0.6))
    axes.legend(loc="lower right", frameon=False)
    sent = ", ".join(f"{name} ({a:,.0f} and {b:,.0f})" for name, a, b in zip(names, compiled, formula, strict=True))
    return f"Numbers that a device sends, in the compiled module (bars) and by the formula (diamonds): {sent}"


def _tensor_parallel(axes: Axes, found: dict) -> str:
    names = list(found["runs"])
    milliseconds = [run["values"][0] for run in found["runs"].values()]
    bars = axes.barh(names, milliseconds, color=COLOURS[0], height=0.45)
    axes.bar_label(bars, [f"{run['values'][1]:,.0f} MB sent" for run in found["runs"].values()], padding=3)
    axes.set(xlabel="predicted milliseconds of one MLP layer", xlim=(0, max(milliseconds) * 1.35))
    axes.invert_yaxis()
    each = ", ".join(f"{name} ({value:.2f})" for name, value in zip(names, milliseconds, strict=True))
    return f"Predicted milliseconds of an MLP layer and its gradient on 64 chips: {each}"


def _scaling(axes: Axes, found: dict) -> str:
    texts = []
    for (name, run), colour, marker in zip(found["runs"].items(), COLOURS, "osD^v", strict=False):
        sizes, values = run["values"]
        axes.plot([float(n) for n in sizes], values, f"{marker}-", color=colour, label=name)
        texts.append(f"{name} ({', '.join(f'{value:.4g}' for value in values)})")
    every = sorted({float(n) for run in found["runs"].values() for n in run["values"][0]})
    values = [value for run in found["runs"].values() for value in run["values"][1]]
    axes.set(xscale="log", xlabel=found["axes"][0], ylabel=found["axes"][1])
    axes.set(yscale="log") if max(values) > 30 * min(values) else axes.set(ylim=(0, None))
    axes.set_xticks(every, [f"{n:,.0f}" for n in every])
    axes.minorticks_off()
    axes.legend(frameon=False)
    return f"{found['axes'][1][0].upper()}{found['axes'][1][1:]} by {found['axes'][0]}: {', '.join(texts)}"


def _baselines(axes: Axes, found: dict) -> str:
    _dots(axes, {name: run["values"] for name, run in found["runs"].items()}, "test accuracy")
    return "Test accuracy of five tuned algorithms on two data sets: a dot for every seed, with mean and interval below"


DRAWN: dict[str, Callable[[Axes, dict], str]] = {
    "fedavg": _fedavg,
    "scaffold": _methods,
    "fedopt": _methods,
    "diloco": _diloco,
    "coded": _coded,
    "coded_on_engines": _gains,
    "acme": _learned,
    "fairness": lambda axes, found: _accuracies(axes, found, "test accuracy of the worst tenth of the clients"),
    "gossip": _accuracies,
    "hierarchical": _accuracies,
    "vertical": _accuracies,
    "matmul": _matmul,
    "tensor_parallel": _tensor_parallel,
    "baselines": _baselines,
    **dict.fromkeys(("local_sgd", "client_memory", "data_centres", "tensor_parallel_sizes", "replicas"), _scaling),
}


def draw(results: dict[str, dict], folder: Path) -> dict[str, str]:
    """Draws one SVG per result, and returns the pictures' descriptions for screen readers."""
    mpl.use("Agg")
    import matplotlib.pyplot as plt

    style: dict[Any, Any] = {
        "svg.hashsalt": "gallery",
        "font.size": 9.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
    }
    texts = {}
    with mpl.rc_context(style):
        for name, found in results.items():
            size = LARGE if len(found["runs"]) > 5 else SIZE
            figure, axes = plt.subplots(figsize=size, layout="constrained")
            texts[name] = DRAWN[name](axes, found)
            figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
            plt.close(figure)
    return texts
