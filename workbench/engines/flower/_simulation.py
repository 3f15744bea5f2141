"""Flower's simulation runtime in a child process, with the engine's ServerApp."""

# pyright: reportMissingImports=false

import json
import os
import sys
import time
from typing import Any

from workbench._processes import close_folder_of_ray, patient_ray_start

_TRY_SECONDS = 90.0  # until Ray runs its first task: 5 to 30 s on two busy cores
_LEAST_RAYLET_SECONDS = 40.0  # until Ray's raylet appears; Ray's default of 30 s is too short on a busy machine


def main() -> None:
    nodes, workers, ray_options, patience = json.loads(sys.argv[1])
    # A third of the timeout: `ray.init` waits this long for a raylet, even if the raylet has exited, before the next
    # try.
    os.environ.setdefault("RAY_raylet_start_wait_time_s", str(int(max(patience / 3, _LEAST_RAYLET_SECONDS))))
    from flwr.simulation import run_simulation

    from workbench.engines.flower import _bridge as _flower_bridge
    from workbench.engines.flower._app import client

    options = {"num_cpus": workers, "include_dashboard": False, "object_store_memory": 512 << 20, **ray_options}
    start_ray(options, patience)
    run_simulation(
        server_app=_flower_bridge.app,
        client_app=client.app,
        num_supernodes=nodes,
        backend_config={"init_args": options, "client_resources": {"num_cpus": 1, "num_gpus": 0}},
    )


def start_ray(options: dict[str, Any], patience: float) -> None:
    """Starts Ray for Flower, and restarts Ray if it does not answer.

    A Ray 2.55 raylet exits if one of its helper processes takes more than 15 seconds to start; the driver is not
    notified.
    """
    import ray

    until = time.monotonic() + patience
    while True:
        try:
            # Starts Ray as Flower would: the nodes have the same import path as this process.
            paths = {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
            with patient_ray_start:
                ray.init(runtime_env={"env_vars": paths}, **options)
            close_folder_of_ray()
            ray.get(ray.remote(num_cpus=0)(lambda: None).remote(), timeout=_TRY_SECONDS)
        except Exception as error:
            print(f"Ray did not start: {type(error).__name__}: {error}", flush=True)
            ray.shutdown()
            if time.monotonic() > until:
                raise
        else:
            return


if __name__ == "__main__":
    main()
