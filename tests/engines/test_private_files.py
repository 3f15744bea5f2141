"""Files that engines and clusters make while a program runs are closed to other users, whatever the umask is."""

import importlib.util
import json
import os
import secrets
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PACKAGES = {
    "executor": "jax", "loky": "loky", "dask": "dask", "ray": "ray", "spark": "pyspark", "beam": "apache_beam",
    "flower": "flwr",
}  # fmt: skip
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("engine", PACKAGES)
def test_other_users_cannot_open_files_of_a_run(engine: str):
    if importlib.util.find_spec(PACKAGES[engine]) is None or (engine == "spark" and not shutil.which("java")):
        pytest.skip(f"{PACKAGES[engine]} is not installed")
    folder = Path("/tmp", secrets.token_hex(2))  # names of Ray's sockets have at most 107 characters
    folder.mkdir(mode=0o700)
    try:
        found, shared = files_of_a_run(engine, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    assert found["result"] == 300_000
    assert found["files"] > 0
    assert [path for path in found["open"] if path not in shared and not path.endswith("lock")] == []


def files_of_a_run(engine: str, folder: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Facts of a run, and folders of Dask and Ray that users share: in them are empty locks and closed folders."""
    places = {name: folder / name[0] for name in ("TMPDIR", "HOME", "WORKBENCH_CACHE")}
    for place in places.values():
        place.mkdir()
    names = {name: str(place) for name, place in places.items()}
    paths = os.pathsep.join((str(ROOT), str(ROOT / "widgets"), *sys.path))
    environment = {**os.environ, **names, "RAY_TMPDIR": names["TMPDIR"], "JAX_PLATFORMS": "cpu", "PYTHONPATH": paths}
    command = [sys.executable, str(Path(__file__).with_name("private_files_work.py")), engine]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    shared = tuple(str(places["TMPDIR"] / name) for name in ("dask-scratch-space", "ray"))
    return json.loads(done.stdout.splitlines()[-1]), shared
