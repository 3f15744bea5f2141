"""The ServerApp: interprets this project's program over the nodes and writes its results."""

# pyright: reportMissingImports=false

import json
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from .asks import NodeFailure
from .nodes import ask_nodes, find_nodes
from .program import FlowerProgram
from .stages import as_plain

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Runs the program once. The results, or the carry after the last finished round, are written to `results`."""
    config = context.run_config
    seconds = float(str(config["timeout-seconds"]))
    input_folder = Path(str(config["inputs"])).resolve()
    inputs = {path.stem: np.load(path, allow_pickle=False) for path in input_folder.glob("*.npy")}
    nodes: list[int] = []
    program = FlowerProgram(Path(__file__).parent, inputs, lambda asks: ask_nodes(grid, nodes, asks, seconds))
    nodes += find_nodes(grid, program.described["nodes"], seconds)
    folder = Path(str(config["results"])).resolve()
    try:
        results = program.run()
    except NodeFailure as error:
        carried = {f"carried-{i}": x for i, x in enumerate(program.carried)}
        _write(folder, carried, program, f"node {error.slot}: {error}")
        raise
    _write(folder, results, program, "")
    print(f"results in {folder}", flush=True)


def _write(folder: Path, results: dict[str, Any], program: FlowerProgram, error: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.npy"):
        old.unlink()
    for name, x in results.items():
        np.save(folder / f"{name}.npy", as_plain(x))
    reported = {
        "error": error,
        "finished_rounds": program.finished_rounds,
        "results": {name: {"shape": list(x.shape), "dtype": str(x.dtype)} for name, x in results.items()},
        "stages": program.log,
    }
    (folder / "run.json").write_text(json.dumps(reported, indent=1))
