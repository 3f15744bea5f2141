"""What is installed: pyproject.toml, requirements.lock and environment.yml agree, and name no address."""

import json
import re

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from repository_files import ROOT, dependency_groups, offenders, project, tracked_files

NAMES = ("requirements.lock", "requirements-test.lock", "requirements-worker.lock")
LOCKS = {name: (ROOT / name).read_text() for name in NAMES}


def pins(lock):
    return [Requirement(line.rstrip(" \\")) for line in LOCKS[lock].splitlines() if re.match(r"[a-z0-9]", line)]


def declared(lock):
    if lock == "requirements-worker.lock":
        return [Requirement(line) for line in dependency_groups()["worker"]]
    lines = [*project()["dependencies"], *dependency_groups()["build"]]
    if lock == "requirements-test.lock":
        course = project()["optional-dependencies"]["course"]
        lines += [*course, *(line for line in dependency_groups()["test"] if isinstance(line, str))]
    return [requirement for line in lines if (requirement := Requirement(line)).name != project()["name"]]


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_pins_every_library_to_one_version_with_hashes(lock):
    assert len(pins(lock)) > len(declared(lock))
    blocks = re.split(r"\n(?=[a-z0-9])", LOCKS[lock])
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == []
    assert [str(pin) for pin in pins(lock) if [s.operator for s in pin.specifier] != ["=="]] == []


def test_locks_satisfy_what_pyproject_declares():
    def unmet(lock):
        pinned = {canonicalize_name(pin.name): next(iter(pin.specifier)).version for pin in pins(lock)}
        for requirement in declared(lock):
            version = pinned.get(canonicalize_name(requirement.name))
            if version is None or version not in requirement.specifier:
                yield f"{requirement} is pinned to {version}"

    assert offenders(LOCKS, unmet) == []


def test_what_runs_is_what_was_tested():
    tested = {str(pin) for pin in pins("requirements-test.lock")}
    assert [str(pin) for lock in LOCKS for pin in pins(lock) if str(pin) not in tested] == []


def test_workers_need_what_the_library_declares():
    assert sorted(set(dependency_groups()["worker"]) - set(project()["dependencies"])) == []


def test_lock_for_running_holds_no_test_tools():
    tools = {canonicalize_name(Requirement(line).name) for line in dependency_groups()["test"] if isinstance(line, str)}
    needed = {"nbclient", "nbconvert", "nbformat", "pillow", "pyyaml"}  # JupyterLab and matplotlib bring these
    assert sorted(tools & {canonicalize_name(pin.name) for pin in pins("requirements.lock")} - needed) == []


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_names_no_address(lock):
    assert re.findall(r"\S*(?:://|--index-url|--extra-index-url|--find-links|--trusted-host)\S*", LOCKS[lock]) == []


def node_packages():
    return json.loads((ROOT / "widgets" / "package-lock.json").read_text())["packages"]


def test_lock_of_the_front_end_holds_every_platform_that_npm_ci_asks_for():
    held = {path.rpartition("node_modules/")[2] for path in node_packages()}
    assert [
        name for each in node_packages().values() for name in each.get("optionalDependencies", {}) if name not in held
    ] == []


def test_lock_of_the_front_end_names_no_address():
    assert [path for path, each in node_packages().items() if "resolved" in each] == []


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_holds_no_local_file(lock):
    assert re.findall(r"^(?:\.|/|-e|file:).*|^.* @ .*", LOCKS[lock], flags=re.MULTILINE) == []


def test_conda_environment_asks_for_the_same_libraries_as_pyproject():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    assert [line for line in pip if line.startswith("-")] == ['--editable ".[course]"']
    assert [line for line in pip if not line.startswith("-")] == project()["dependencies"]
    oldest = project()["requires-python"].removeprefix(">=")
    assert f"python={oldest}" in environment["dependencies"]


# Written in pieces, so that this file does not contain what it looks for.
INDEX = re.compile("|".join(("py" + r"pi\.org", "python" + r"hosted\.org", "index" + r"-url\s*=", "npm" + r"js\.org")))
MACHINE = re.compile(
    r"(?<![\w.~/-])/(?:"
    + "|".join(("ro" + "ot", "wo" + "rk", "ho" + "me", "t" + "mp", "Us" + "ers"))
    + r")/(?!ipykernel|me/)\w"
)


RECORDED = ("tests/recorded/", "tests/inspection/hlo_samples/")  # what other machines wrote, unchanged


def test_files_name_no_package_index_and_no_machine():
    def addresses(name):
        content = (ROOT / name).read_bytes()
        if b"\0" in content[:8000]:
            return []
        text = content.decode()
        return [*INDEX.findall(text), *([] if name.startswith(RECORDED) else MACHINE.findall(text))]

    assert offenders(tracked_files(), addresses) == []
