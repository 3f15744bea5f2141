"""The round of `benchmarks.engines`, written by hand for Flower: a ServerApp, a ClientApp and files per client.

`python -m benchmarks.engines --flower` starts this module with a folder; each line of input starts a round.
"""

# pyright: reportMissingImports=false

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import psutil

WORKERS = 2


class FlowerByHand:
    """The other process, which runs one round at a time; use it as a context manager."""

    def __init__(self, clients: int) -> None:
        self.clients = clients
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name)

    def __enter__(self) -> "FlowerByHand":
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.flower_by_hand", str(self.clients), str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        family = psutil.Process(self._process.pid).children(recursive=True)
        try:
            self._process.communicate(timeout=60)  # its input ends, and with it the rounds
        except subprocess.TimeoutExpired:
            self._process.kill()
        for process in psutil.wait_procs(family, timeout=10)[1]:
            process.kill()
        self._folder.cleanup()

    def __call__(self, w: Any, data: Any) -> Any:
        """Runs one round; the first call writes the clients' files, as an engine does in each run."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        for i, row in enumerate(zip(*data, strict=True)):
            np.savez(self.path / f"{i}.npz", *row)
        leaves, tree = jax.tree.flatten(w)
        np.savez(self.path / "w.npz", *leaves)
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        while (line := self._process.stdout.readline()) != "done\n":
            if not line:
                raise RuntimeError("the hand-written Flower app ended")
        with np.load(self.path / "new.npz") as new:
            return jax.tree.unflatten(tree, [new[name] for name in new.files])


def _serve(clients: int, folder: Path) -> None:
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "600")
    os.environ.setdefault("RAY_agent_register_timeout_ms", "600000")
    os.environ["BY_HAND_FOLDER"], os.environ["BY_HAND_CLIENTS"] = str(folder), str(clients)
    from flwr.simulation import run_simulation

    from benchmarks import flower_by_hand_apps as apps

    run_simulation(
        server_app=apps.server,
        client_app=apps.client,
        num_supernodes=clients,
        backend_config={
            "init_args": {"num_cpus": WORKERS, "include_dashboard": False, "object_store_memory": 512 << 20},
            "client_resources": {"num_cpus": 1, "num_gpus": 0},
        },
    )


if __name__ == "__main__":
    _serve(int(sys.argv[1]), Path(sys.argv[2]))
