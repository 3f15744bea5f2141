"""One training loop on two hosts, which are processes of this machine: the state and the metrics of one host."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

HOST = """
import os, sys
os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
import jax, jax.numpy as jnp, numpy as np
port, host, out = sys.argv[1:]
jax.distributed.initialize(f"127.0.0.1:{port}", 2, int(host), initialization_timeout=120)
import workbench as wb
from workbench.replicate import Replicator

asked = []

def batches(ctx):
    asked.append(ctx.replica_id)
    for step in range(3):
        yield np.arange(4.0, dtype=np.float32) + ctx.replica_id + step

def step(ctx, batch, state):
    gradient = ctx.all_reduce(batch - state, "mean")
    return state + 0.5 * gradient, {"mine": batch.sum(), "most": ctx.all_reduce(batch.max(), "max")}

state, metrics = Replicator(wb.make_mesh(replicas=4)).run(step, batches, jnp.zeros(4), 3)
np.savez(out, state=np.asarray(state), mine=metrics["mine"], most=metrics["most"], asked=asked)
os._exit(0)  # JAX's shutdown waits for the other host, which may have gone already
"""


def free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return held.getsockname()[1]


@pytest.mark.slow
def test_two_hosts_train_like_one_and_each_reads_only_its_own_batches(tmp_path: Path):
    port, environment = free_port(), os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    outs = [tmp_path / f"{host}.npz" for host in range(2)]
    hosts = [
        subprocess.Popen([sys.executable, "-c", HOST, str(port), str(host), str(out)], env=environment)
        for host, out in enumerate(outs)
    ]
    try:
        assert [host.wait(300) for host in hosts] == [0, 0]
    finally:
        for host in hosts:
            host.kill()  # SIGKILL: JAX's preemption notifier catches SIGTERM
            host.wait()
    # By hand: the mean over replicas 0..3 of `arange(4) + replica + step` is arange(4) + 1.5 + step; half way to it.
    state = np.zeros(4)
    for step in range(3):
        state += 0.5 * (np.arange(4) + 1.5 + step - state)
    for host, out in enumerate(outs):
        found = np.load(out)
        np.testing.assert_allclose(found["state"], state, atol=1e-5)
        assert found["mine"].tolist() == [[6.0 + 4 * (replica + step) for replica in range(4)] for step in range(3)]
        assert found["most"].tolist() == [[6.0 + step] * 4 for step in range(3)]
        assert found["asked"].tolist() == [2 * host, 2 * host + 1]
