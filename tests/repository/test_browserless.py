"""On a machine without a browser, its tests are skipped loudly, or fail where a browser is required."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from repository_files import ROOT

from workbench.cli import _browser


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [([], 0, "tests did NOT run. NO BROWSER FOUND"), (["--require-browser", "-x"], 1, "error in")],
    ids=["skipped", "required"],
)
def test_browser_tests_without_a_browser(options, status, said, tmp_path):
    if any(Path(place).exists() for place in _browser.PLACES):
        pytest.skip("a browser is installed in a place that no variable can hide")
    kept = {name: value for name, value in os.environ.items() if name not in ("CHROMIUM", "PYTEST_ADDOPTS")}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/browser/test_base_view.py",
        *options,
    ]
    done = subprocess.run(
        command, cwd=ROOT, env=kept | {"PATH": str(tmp_path), "HOME": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == status
    assert said in done.stdout
