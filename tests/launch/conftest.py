"""Lets spawned processes import the tests' nodes by name: they get this process's `sys.path`. And a Ray cluster."""

import os
import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)


@pytest.fixture(scope="session")
def ray_cluster():
    ray = pytest.importorskip("ray", reason="needs the extra `ray`")
    environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns of its own default
    ray.init(
        num_cpus=4,
        resources={"SEAT": 1},
        include_dashboard=False,
        log_to_driver=False,
        logging_level="error",
        object_store_memory=100 * 2**20,
        runtime_env={"env_vars": environment},
    )
    yield ray
    ray.shutdown()
