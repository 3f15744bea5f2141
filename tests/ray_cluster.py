"""A Ray cluster on this machine, for the tests of services and of plans."""

import contextlib
import gc
import importlib
import os
import sys
import time
import warnings
from collections.abc import Iterator
from typing import Any

from workbench._processes import patient_ray_start

START_SECONDS = 120.0  # Ray itself gives its node 30 s, which is too little on a machine that is busy


@contextlib.contextmanager
def running_ray() -> Iterator[Any]:
    """Starts a cluster of four places whose workers import what this process does; ends it afterwards.

    A cluster that this process has already started is shared, because `ray.init` refuses to start two.
    """
    ray = importlib.import_module("ray")
    if ray.is_initialized():
        yield ray
        return
    environment = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path), "JAX_PLATFORMS": "cpu"}
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns of its own default
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    with rays_own_leftovers(), patient_start():
        ray.init(
            num_cpus=4,
            resources={"SLOT": 1},
            include_dashboard=False,
            log_to_driver=False,
            logging_level="error",
            object_store_memory=100 * 2**20,
            runtime_env={"env_vars": environment},
        )
    try:
        yield ray
    finally:
        with rays_own_leftovers():
            ray.shutdown()


@contextlib.contextmanager
def rays_own_leftovers() -> Iterator[None]:
    """Ray 2.55 leaves files and processes of its own to the garbage collector, in `init` and in `shutdown` alone.

    It also forks to start each of its processes, of which JAX warns where it was used before; they execute another
    program at once.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.filterwarnings("ignore", r"os\.fork\(\) was called", RuntimeWarning)
        yield
        gc.collect()


@contextlib.contextmanager
def patient_start() -> Iterator[None]:
    """Waits longer for the node than Ray does on a busy machine."""
    services: Any = importlib.import_module("ray._private.services")
    look = services.get_node
    until = time.monotonic() + START_SECONDS

    def get_node(*args: Any, **kwargs: Any) -> Any:
        while True:
            try:
                return look(*args, **kwargs)
            except RuntimeError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.2)

    services.get_node = get_node
    try:
        with patient_ray_start:
            yield
    finally:
        services.get_node = look
