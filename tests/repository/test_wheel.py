"""A wheel holds everything that an installation without the repository needs."""

import shutil
import subprocess
import sys
import zipfile

import pytest
from repository_files import ROOT, tracked_files

KEPT = (
    "workbench/",
    "widgets/",
    "workbench_child.py",
    "workbench_command.py",
    "pyproject.toml",
    "README.md",
    "LICENSE",
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The names in a wheel that was built, without a network, from a copy of the tracked files."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in tracked_files():
        if name.startswith(KEPT):
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*build, "--wheel-dir", str(out), str(source)], check=True)
    (built,) = out.glob("*.whl")
    return set(zipfile.ZipFile(built).namelist())


def test_wheel_holds_every_file_of_both_packages(wheel):
    wanted = {name for name in tracked_files() if name.startswith(KEPT[:2])}
    assert sorted(wanted - wheel) == []


def test_wheel_installs_nothing_else_at_the_top(wheel):
    tops = {name.split("/")[0] for name in wheel}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "workbench",
        "workbench_child.py",
        "workbench_command.py",
        "widgets",
    }


def test_wheel_holds_the_licence_and_the_command(wheel):
    names = {name.split("/", 1)[1] for name in wheel if ".dist-info/" in name}
    assert {"licenses/LICENSE", "entry_points.txt"} <= names
