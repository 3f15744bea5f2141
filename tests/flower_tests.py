"""What the tests of Flower share: marks for what has to be installed or asked for, and the processes of an engine."""

import importlib
import importlib.util
import os
from typing import Any

import psutil
import pytest

needs_flower = pytest.mark.skipif(
    importlib.util.find_spec("flwr") is None or importlib.util.find_spec("ray") is None,
    reason="the extra `flower` is not installed",
)
needs_deployment = pytest.mark.skipif(
    not os.environ.get("WORKBENCH_TEST_FLOWER_DEPLOYMENT"),
    reason="takes minutes: set WORKBENCH_TEST_FLOWER_DEPLOYMENT=1 to start a SuperLink and SuperNodes",
)
# flwr 1.41 and ray 2.55 use what Python and protobuf deprecate.
flower_warnings = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def family(engine: Any) -> list[psutil.Process]:
    """Every process that a running engine has started."""
    handler = psutil.Process(engine._running.processes._supervisor.pid)
    return [handler, *handler.children(recursive=True)]


def none_left(processes: list[psutil.Process]) -> bool:
    """Whether all of them end soon."""
    return not psutil.wait_procs(processes, timeout=120)[1]


def have_an_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this process make Flower's messages, which flwr 1.42 allows to its own processes."""
    name = "flwr.supercore.task_identity"
    if importlib.util.find_spec(name) is not None:
        identity = importlib.import_module(name).TaskIdentity
        for field in ("_task_id", "_run_id", "_node_id"):
            monkeypatch.setattr(identity, field, 1)
