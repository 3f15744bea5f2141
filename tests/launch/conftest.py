"""Lets spawned processes import the tests' nodes by name: they get this process's `sys.path`. And a Ray cluster."""

import contextlib
import gc
import os
import sys
import warnings
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)


@pytest.fixture(scope="session")
def ray_cluster():
    ray = pytest.importorskip("ray", reason="needs the extra `ray`")
    environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns of its own default
    with rays_own_leftovers():
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
    with rays_own_leftovers():
        ray.shutdown()


@contextlib.contextmanager
def rays_own_leftovers():
    """Ray 2.55 leaves files and processes of its own to the garbage collector, in `init` and in `shutdown` alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()
