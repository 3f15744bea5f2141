"""Flower's simulation runtime in a process of its own, with the ServerApp that the engine talks to."""

# pyright: reportMissingImports=false

import json
import os
import sys


def main() -> None:
    """Runs until the ServerApp ends; the only argument: nodes, workers, options of Ray, patience in seconds."""
    nodes, workers, ray_options, patience = json.loads(sys.argv[1])
    # Ray gives its own processes 30 seconds to start, too little for a busy machine. It ends its raylet when the second
    # of these times is over, and then nobody answers.
    os.environ.setdefault("RAY_raylet_start_wait_time_s", str(int(patience)))
    os.environ.setdefault("RAY_agent_register_timeout_ms", str(int(1000 * patience)))
    from flwr.simulation import run_simulation

    from workbench.engines import _flower_bridge
    from workbench.engines._flower_app import client

    options = {"num_cpus": workers, "include_dashboard": False, "object_store_memory": 512 << 20, **ray_options}
    run_simulation(
        server_app=_flower_bridge.app,
        client_app=client.app,
        num_supernodes=nodes,
        backend_config={"init_args": options, "client_resources": {"num_cpus": 1, "num_gpus": 0}},
    )


if __name__ == "__main__":
    main()
