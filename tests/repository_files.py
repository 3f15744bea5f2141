"""What the tests of the repository read: its tracked files and the parts of its pages."""

import re
import subprocess
import tomllib
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]


@cache
def tracked_files() -> tuple[str, ...]:
    """Every file that git tracks or would add, relative to the root."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return tuple(sorted(name for name in listed.stdout.splitlines() if (ROOT / name).is_file()))


def python_files(*folders: str) -> list[str]:
    """The tracked Python files under some folders."""
    return [name for name in tracked_files() if name.endswith(".py") and name.split("/")[0] in folders]


def offenders(names: Iterable[str], faults: Callable[[str], Iterable[str]]) -> list[str]:
    """The faults of all files as lines `name: fault`, so that one test of a rule names everyone who breaks it."""
    return sorted(f"{name}: {fault}" for name in names for fault in faults(name))


@cache
def project() -> dict:
    """The table `[project]` of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@cache
def dependency_groups() -> dict:
    """The table `[dependency-groups]` of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]


def code_blocks(page: str, language: str) -> list[str]:
    """The fenced blocks of a language in a page."""
    return re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / page).read_text(), flags=re.MULTILINE | re.DOTALL)
