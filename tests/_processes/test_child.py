"""Child processes do not outlive the process that started them, nor does anything that they started."""

import subprocess
import sys
import time
from pathlib import Path

import psutil

from workbench._processes import ChildProcess

# Starts a process of its own, reports both numbers, and ends with its input.
TWO = (
    "import os, subprocess, sys\n"
    "inner = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "print(os.getpid(), inner.pid, flush=True)\n"
    "sys.stdin.read()"
)


def none_left(pids: list[int], seconds: float = 120.0) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
            return True
        time.sleep(0.05)
    return False


def test_ending_a_child_ends_what_it_started_and_removes_its_folder(tmp_path: Path):
    folder = tmp_path / "own"
    folder.mkdir()
    child = ChildProcess([sys.executable, "-c", TWO], folder=folder)
    pids = [int(pid) for pid in child.stdout.readline().split()]
    child.end()
    child.end()
    assert none_left(pids)
    assert not folder.exists()
    child.stdout.close()


def test_child_that_ended_reports_its_status_and_its_standard_error(tmp_path: Path):
    child = ChildProcess([sys.executable, "-c", "import sys; sys.exit('no')"], stderr=tmp_path / "log")
    assert child.wait(120) == 1
    assert not child.running
    assert (tmp_path / "log").read_text().strip() == "no"
    child.end()
    child.stdout.close()


def test_child_ends_when_the_process_that_started_it_is_killed():
    code = (
        "import sys, time\nfrom workbench._processes import ChildProcess\n"
        "child = ChildProcess([sys.executable, '-c', 'import sys; sys.stdin.read()'])\n"
        "print(child.pid, flush=True)\ntime.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.kill()
    assert none_left([pid])
