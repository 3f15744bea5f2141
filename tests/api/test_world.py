"""Nobody's world changes: what belongs to the process is the same before and after each public call."""

import sys
import tempfile
import time
from pathlib import Path

import pytest

import workbench as wb
from benchmarks.public_calls import KEEPS, W, X, average, calls, changes, world

NAMES = tuple(calls(Path(), None))


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    return calls(tmp_path_factory.mktemp("world"), wb.inspect(average())(W, X))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="descriptors and children are listed on Linux alone")
@pytest.mark.parametrize("name", NAMES)
def test_call_leaves_the_world_as_it_was(name, known, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    if name in KEEPS:
        known[name]()
    before = world(tmp_path)
    known[name]()
    deadline = time.monotonic() + 5.0
    while "threads" in (found := changes(before, world(tmp_path))) and time.monotonic() < deadline:
        time.sleep(0.05)  # a thread of Orbax ends by itself
    assert found == {}
