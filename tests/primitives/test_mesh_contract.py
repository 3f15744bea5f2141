"""Every client operation on every kind of mesh, in processes whose exit code is part of the answer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import mesh_operations
import pytest
from mesh_operations import ALONE, MESHES, OPERATIONS

SCRIPT = Path(mesh_operations.__file__)

Answers = dict[tuple[str, ...], str]


def _groups(*, full: bool) -> list[list[str]]:
    """The quick table has two programs of many operations; the full one (`--everything`) compiles each alone."""
    if full:
        return [[name] for name in OPERATIONS]
    together = [name for name in OPERATIONS if name not in ALONE]
    return [together[::2], together[1::2], *([name] for name in ALONE)]


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> Answers:
    """What is wrong with each (kind of mesh, *operations), empty where nothing is."""
    orders = [[kind, group] for kind in MESHES for group in _groups(full=request.config.getoption("--everything"))]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "NPROC": "64"}
    found: Answers = {}
    while orders:
        done = subprocess.run(
            [sys.executable, str(SCRIPT), json.dumps(orders)],
            capture_output=True,
            text=True,
            timeout=3000,
            check=False,
            env=environment,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        for line in lines:
            kind, group = line.get("begins") or line["ends"]
            found[kind, *group] = line.get("wrong", f"ended the process with exit code {done.returncode}")
        left = [order for order in orders if (order[0], *order[1]) not in found]
        assert len(left) < len(orders), f"no answer at all, exit code {done.returncode}: {done.stderr[-2000:]}"
        orders = left
    return found


def test_table_is_as_wide_as_promised() -> None:
    assert len(OPERATIONS) >= 60
    assert len(MESHES) == 8


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_client_operations_equal_vmap_and_end_no_process(mesh: str, answers: Answers) -> None:
    of_mesh = {key[1:]: wrong for key, wrong in answers.items() if key[0] == mesh}
    assert sum(map(len, of_mesh)) == len(OPERATIONS)
    assert {names: wrong for names, wrong in of_mesh.items() if wrong} == {}
