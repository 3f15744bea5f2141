"""A wheel and a source distribution hold everything that an installation without the repository needs, and no more."""

import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile

import pytest
from repository_files import ROOT, tracked_files

PACKAGES = {"workbench": "workbench/", "workbench_widgets": "widgets/workbench_widgets/"}
KEPT = (*PACKAGES.values(), "notebooks/", "pyproject.toml", "MANIFEST.in", "setup.py", "README.md", "LICENSE")
COMMAND = [
    sys.executable,
    "-c",
    "from setuptools import build_meta as b; import sys; getattr(b, sys.argv[1])(sys.argv[2])",
]


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A copy of the tracked files that the build reads."""
    folder = tmp_path_factory.mktemp("source")
    for name in tracked_files():
        if name.startswith(KEPT):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def sdist(source, tmp_path_factory):
    """A source distribution, made without a network."""
    out = tmp_path_factory.mktemp("sdist")
    subprocess.run([*COMMAND, "build_sdist", str(out)], cwd=source, check=True, capture_output=True)
    (built,) = out.glob("*.tar.gz")
    return built


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """The names in a wheel that was built from the source distribution, without a network."""
    unpacked, out = tmp_path_factory.mktemp("unpacked"), tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(unpacked, filter="data")
    (folder,) = unpacked.iterdir()
    subprocess.run([*COMMAND, "build_wheel", str(out)], cwd=folder, check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return set(zipfile.ZipFile(built).namelist())


def test_wheel_holds_every_file_of_the_packages(wheel):
    wanted = {
        f"{package}/{name.removeprefix(prefix)}"
        for package, prefix in PACKAGES.items()
        for name in tracked_files()
        if name.startswith(prefix)
    }
    assert sorted(wanted - wheel) == []


def test_licences_of_every_bundled_package_are_in_the_wheel_and_in_pages(wheel):
    name = "workbench_widgets/static/third-party-licenses.txt"
    assert name in wheel
    assert any(".dist-info/" in each and each.endswith("third-party-licenses.txt") for each in wheel)
    text = (ROOT / "widgets" / name).read_text()
    locked = json.loads((ROOT / "widgets/package-lock.json").read_text())["packages"]
    bundled = {
        f"{place.removeprefix('node_modules/')} {package['version']}"
        for place, package in locked.items()
        if place and not package.get("dev") and not package.get("optional")
    }
    entries = re.findall(r"^(\S+ \d+\.\d+\.\d+)\n    Copyright .+$", text, flags=re.MULTILINE)
    assert set(entries) == bundled
    terms = ["The above copyright notice and this permission notice shall be included", "AND THIS PERMISSION NOTICE"]
    assert terms[0] in " ".join(text.split())
    assert terms[1].lower() in " ".join(text.split()).lower()
    assert "</" not in text  # it stands in a script element of pages


def test_wheel_installs_nothing_else_at_the_top(wheel):
    tops = {top for name in wheel if not (top := name.split("/")[0]).endswith((".dist-info", ".data"))}
    assert tops == set(PACKAGES)


def test_wheel_puts_only_the_labextension_beyond_the_packages(wheel):
    data = {name.partition(".data/")[2] for name in wheel if ".data/" in name}
    assert data
    assert all(name.startswith("data/share/jupyter/labextensions/mapreduce-workbench/") for name in data)


def test_editable_installation_brings_the_labextension_too(source, wheel, tmp_path):
    subprocess.run([*COMMAND, "build_editable", str(tmp_path)], cwd=source, check=True, capture_output=True)
    (built,) = tmp_path.glob("*.whl")
    data = {name for name in zipfile.ZipFile(built).namelist() if ".data/" in name}
    assert data == {name for name in wheel if ".data/" in name}


def test_wheel_holds_the_course(wheel):
    notebooks = {
        name.removeprefix("notebooks/")
        for name in tracked_files()
        if name.startswith("notebooks/") and name.endswith(".ipynb")
    }
    assert {f"workbench/course/{name}" for name in notebooks} <= wheel


def test_wheel_holds_the_licence_and_the_command(wheel):
    names = {name.split("/", 1)[1] for name in wheel if ".dist-info/" in name}
    assert {"licenses/LICENSE", "entry_points.txt"} <= names
