"""Growth of time and memory with clients, parameters, devices and instructions: `python -m benchmarks.growth`.

* Clients, 10^2 to 10^6: runs a round of federated averaging of a logistic regression with 32 inputs (512 bytes a
  client). Measures the processor time per round, and the temporary memory that the compiler plans.
* Parameters, 10^4 to 10^9: traces a round of a linear layer on shapes. Measures the processor time of the plan and of
  the inspection (with compilation), and the compiled program's temporary memory.
* Devices, 1 to 256: plans the round on abstract meshes and, if libtpu is installed, compiles it for TPU v5e chips that
  are not attached. Measures both times; the compilation is measured as wall time, because it runs in another process.
* Instructions, 10^3 to 10^5: repeats the text of an unrolled chain of layers. Measures the processor time of reading
  it.

A slope is the slope of a straight line through the logarithms: 1 is proportional, 0 is flat. The points are measured
one after another, `--iterations` times, and medians are drawn. Each number of clients and devices has its own process.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.inspection_time import repeated
from benchmarks.rounds import describe_machine

PANELS = {
    "clients": ("clients", (100, 1_000, 10_000, 100_000, 1_000_000)),
    "parameters": ("parameters", (10**4, 10**5, 10**6, 10**7, 10**8, 10**9)),
    "devices": ("devices", (1, 4, 16, 64, 256)),
    "instructions": ("instructions", (1_000, 3_000, 10_000, 30_000, 100_000)),
}
TARGETS = {1: "v5e:1x1", 4: "v5e:2x2", 16: "v5e:4x4", 64: "v5e:8x8", 256: "v5e:16x16"}
Row = dict[str, Any]


def main() -> None:
    """Measures the requested points, prints them as a table, and draws them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--panels", nargs="*", choices=list(PANELS), default=list(PANELS))
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--save", type=Path, default=Path("growth.jsonl"), help="rows, as JSON lines")
    parser.add_argument("--draw", type=Path, help="draw the rows of --save to NAME-light.png and NAME-dark.png")
    parser.add_argument("--point", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.point:
        panel, size = asked.point
        print(json.dumps(POINTS[panel](int(size))))
        return
    if asked.draw:
        rows = [json.loads(line) for line in asked.save.read_text().splitlines()]
        print(as_table(rows))
        draw(rows, asked.draw)
        return
    print(describe_machine())
    for panel in asked.panels:
        measured: dict[int, list[Row]] = {size: [] for size in PANELS[panel][1]}
        for turn in range(asked.iterations):
            sizes = PANELS[panel][1]
            for size in sizes if turn % 2 else sizes[::-1]:
                again = [sys.executable, "-m", "benchmarks.growth", "--point", panel, str(size)]
                done = subprocess.run(again, check=True, capture_output=True, text=True)
                measured[size].append(json.loads(done.stdout.splitlines()[-1]))
        rows = [median_of(panel, size, iterations) for size, iterations in measured.items()]
        with asked.save.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        print(as_table(rows), flush=True)


def median_of(panel: str, size: int, iterations: Sequence[Row]) -> Row:
    """One row: median and range of each figure over the repetitions."""
    figures = {
        name: {
            "median": statistics.median(turn[name] for turn in iterations),
            "least": min(turn[name] for turn in iterations),
            "most": max(turn[name] for turn in iterations),
        }
        for name in iterations[0]
    }
    return {"panel": panel, "size": size, "figures": figures, "machine": describe_machine()}


def of_clients(clients: int) -> Row:
    """A round, run."""
    import jax
    import jax.numpy as jnp

    import workbench as wb

    def train(w: Any, rows: Any) -> Any:
        x, y = rows[:, :-1], rows[:, -1]

        def step(w: Any, _: None) -> tuple[Any, None]:
            return w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.logaddexp(0.0, -y * (x @ w))))(w), None

        return jax.lax.scan(step, w, length=4)[0] - w

    @wb.program(clients=clients)
    def one_round(w: Any, rows: Any) -> Any:
        return wb.reduce_mean(wb.map_fn(train, (wb.broadcast(w), rows)))

    rows = jnp.asarray(np.random.default_rng(0).normal(size=(clients, 4, 32)), jnp.float32)
    compiled = wb.jit(one_round).lower(jnp.zeros(31), rows).compile()
    jax.block_until_ready(compiled(jnp.zeros(31), rows))
    repeats = max(1, 100_000 // clients)
    began = time.process_time()
    for _ in range(repeats):
        jax.block_until_ready(compiled(jnp.zeros(31), rows))
    seconds = (time.process_time() - began) / repeats
    memory = compiled.memory_analysis()
    assert memory is not None
    return {"round": seconds, "temporary bytes": memory.temp_size_in_bytes}


def of_parameters(parameters: int) -> Row:
    """A round on shapes alone."""
    import jax
    import jax.numpy as jnp

    import workbench as wb

    rows, columns = 100, parameters // 100

    @wb.program(clients=64)
    def one_round(w: Any, x: Any) -> Any:
        change = wb.map_fn(lambda w, x: jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w), (wb.broadcast(w), x))
        return jax.tree.map(lambda w, c: w - 0.1 * c, w, wb.reduce_mean(change))

    wb.trace(lambda x: 2 * x)(1.0).inspect()  # the package's own modules are loaded before the clock starts
    shapes = jax.ShapeDtypeStruct((rows, columns), jnp.float32), jax.ShapeDtypeStruct((64, 8, rows), jnp.float32)
    began = time.process_time()
    traced = wb.trace(one_round)(*shapes)
    _ = traced.plan
    planned = time.process_time()
    module = traced.inspect().module
    assert module is not None
    return {
        "plan": planned - began,
        "inspection": time.process_time() - planned,
        "temporary bytes": module.memory.temporary_bytes,
    }


def of_devices(devices: int) -> Row:
    """A round on an abstract mesh, also compiled for chips that are not attached."""
    import jax
    import jax.numpy as jnp

    import workbench as wb

    @wb.program(clients=1024)
    def one_round(w: Any, x: Any) -> Any:
        change = wb.map_fn(lambda w, x: jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w), (wb.broadcast(w), x))
        return jax.tree.map(lambda w, c: w - 0.1 * c, w, wb.reduce_mean(change))

    wb.trace(lambda x: 2 * x)(1.0).inspect()
    shapes = jax.ShapeDtypeStruct((256, 256), jnp.float32), jax.ShapeDtypeStruct((1024, 8, 256), jnp.float32)
    began = time.process_time()
    _ = wb.trace(one_round)(*shapes).inspect(on=jax.sharding.AbstractMesh((devices,), ("clients",)))
    found = {"plan": time.process_time() - began}
    os.environ["WORKBENCH_CACHE"] = os.devnull  # no compilation of an earlier run
    began = time.perf_counter()
    compiled = wb.trace(one_round)(*shapes).inspect(on=TARGETS[devices])
    if compiled.module is not None:
        found["compilation for TPU v5e"] = time.perf_counter() - began
    return found


def of_instructions(instructions: int) -> Row:
    """The text of a chain of layers."""
    import jax
    import jax.numpy as jnp

    from workbench.inspection import inspect_module

    def chain(x: Any, weights: Any) -> Any:
        for w in weights:
            x = jnp.tanh(jnp.sort(x @ w, axis=-1))
        return x

    text = jax.jit(chain).lower(jnp.ones((8, 8)), [jnp.ones((8, 8))] * 16).compile().as_text() or ""
    once = len(inspect_module(text).instructions)
    long = repeated(text, max(1, round(instructions / once)))
    began = time.process_time()
    inspect_module(long)
    return {"reading": time.process_time() - began}


POINTS: dict[str, Callable[[int], Row]] = {
    "clients": of_clients,
    "parameters": of_parameters,
    "devices": of_devices,
    "instructions": of_instructions,
}


def curves(rows: Sequence[Row], panel: str) -> dict[str, tuple[list[int], list[float]]]:
    """Sizes and medians of each figure of a panel."""
    found: dict[str, tuple[list[int], list[float]]] = {}
    for row in sorted((row for row in rows if row["panel"] == panel), key=lambda row: row["size"]):
        for name, figure in row["figures"].items():
            sizes, values = found.setdefault(name, ([], []))
            sizes.append(row["size"])
            values.append(figure["median"])
    return found


def slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Slope of a straight line through the logarithms, by least squares."""
    return float(np.polyfit(np.log(sizes), np.log(np.maximum(values, 1e-9)), 1)[0])


def as_table(rows: Sequence[Row]) -> str:
    """First and last point of each curve, and its slope, in Markdown."""
    lines = ["| what | against | from | to | slope |", "|---|---|---|---|---|"]
    for panel in dict.fromkeys(row["panel"] for row in rows):
        for name, (sizes, values) in curves(rows, panel).items():
            ends = [
                f"{_figure(name, value)} at {size:,}"
                for size, value in ((sizes[0], values[0]), (sizes[-1], values[-1]))
            ]
            lines.append(f"| {name} | {panel} | {ends[0]} | {ends[1]} | {slope(sizes, values):.2f} |")
    return "\n".join(lines)


def _figure(name: str, value: float) -> str:
    if name.endswith("bytes"):
        return f"{value / 2**10:,.0f} KiB" if value < 2**20 else f"{value / 2**20:,.1f} MiB"
    return f"{1e3 * value:.3g} ms" if value < 1 else f"{value:.3g} s"


def draw(rows: Sequence[Row], to: Path) -> None:
    """Four panels with logarithmic axes, once for each theme."""
    import matplotlib.pyplot as plt

    for theme, style, ground in (("light", "default", "#ffffff"), ("dark", "dark_background", "#121212")):
        with plt.style.context(style):
            figure, axes = plt.subplots(2, 2, figsize=(9, 6.4), layout="constrained", facecolor=ground)
            for ax, (panel, (label, _)) in zip(axes.flat, PANELS.items(), strict=True):
                draw_panel(ax, curves(rows, panel), label)
                ax.set_facecolor(ground)
            figure.savefig(to.with_name(f"{to.name}-{theme}.png"), dpi=150)
            plt.close(figure)


def draw_panel(ax: Any, found: dict[str, tuple[list[int], list[float]]], label: str) -> None:
    """Seconds on the left axis, MiB on the right one."""
    memory = ax.twinx() if any(name.endswith("bytes") for name in found) else None
    lines = []
    for number, (name, (sizes, values)) in enumerate(found.items()):
        is_memory = name.endswith("bytes")
        target = memory if is_memory and memory is not None else ax
        shown = [value / 2**20 for value in values] if is_memory else values
        text = f"{name.removesuffix(' bytes') + ' memory' if is_memory else name}: slope {slope(sizes, values):.2f}"
        style = "s--" if is_memory else "o-"
        lines += target.plot(sizes, shown, style, color=f"C{number if not is_memory else 3}", label=text)
    for one in (ax, *([memory] if memory is not None else [])):
        one.set_xscale("log")
        one.set_yscale("log")
    ax.set_xlabel(label)
    ax.set_ylabel("seconds")
    if memory is not None:
        memory.set_ylabel("MiB")
        low, high = memory.get_ylim()
        memory.set_ylim(min(low, high / 100), high * 10)
    low, high = ax.get_ylim()
    ax.set_ylim(low / 2, high * 30)
    ax.legend(handles=lines, fontsize=8, loc="upper left", frameon=False)
    ax.grid(visible=True, alpha=0.25)


if __name__ == "__main__":
    main()
