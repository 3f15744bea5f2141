"""What is installed: pyproject.toml, requirements.lock and environment.yml agree, and name no address."""

import re

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from repository_files import ROOT, project, tracked_files

LOCK = (ROOT / "requirements.lock").read_text()
PINS = [Requirement(line.rstrip(" \\")) for line in LOCK.splitlines() if re.match(r"[a-z0-9]", line)]
DECLARED = [Requirement(line) for line in (*project()["dependencies"], *project()["optional-dependencies"]["test"])]


def test_lock_pins_every_library_to_one_version_with_hashes():
    assert len(PINS) > len(DECLARED)
    blocks = re.split(r"\n(?=[a-z0-9])", LOCK)
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == []
    assert [str(pin) for pin in PINS if [s.operator for s in pin.specifier] != ["=="]] == []


@pytest.mark.parametrize("requirement", DECLARED, ids=lambda requirement: requirement.name)
def test_lock_satisfies_what_pyproject_declares(requirement):
    pins = [pin for pin in PINS if canonicalize_name(pin.name) == canonicalize_name(requirement.name)]
    assert pins
    assert all(next(iter(pin.specifier)).version in requirement.specifier for pin in pins)


def test_lock_holds_the_build_backend():
    assert "setuptools" in {pin.name for pin in PINS}


def test_lock_names_no_address():
    assert re.findall(r"\S*(?:://|--index-url|--extra-index-url|--find-links|--trusted-host)\S*", LOCK) == []


def test_lock_holds_no_local_file():
    assert re.findall(r"^(?:\.|/|-e|file:).*|^.* @ .*", LOCK, flags=re.MULTILINE) == []


def test_conda_environment_asks_for_the_same_libraries_as_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert [line for line in pip if line.startswith("-")] == ["--editable ."]
    assert [str(Requirement(line)) for line in pip if not line.startswith("-")] == [str(r) for r in DECLARED]
    oldest = project()["requires-python"].removeprefix(">=")
    assert f"python={oldest}" in environment["dependencies"]


# Written in pieces, so that this file does not contain what it looks for.
INDEX = re.compile("|".join(("py" + r"pi\.org", "python" + r"hosted\.org", "index" + r"-url\s*=", "npm" + r"js\.org")))
MACHINE = re.compile(
    r"(?<![\w.~/-])/(?:"
    + "|".join(("ro" + "ot", "wo" + "rk", "ho" + "me", "t" + "mp", "Us" + "ers"))
    + r")/(?!ipykernel)\w"
)


@pytest.mark.parametrize("name", tracked_files())
def test_file_names_no_package_index_and_no_machine(name):
    content = (ROOT / name).read_bytes()
    if b"\0" in content[:8000]:
        return
    text = content.decode()
    assert INDEX.findall(text) == []
    assert MACHINE.findall(text) == []
