"""What the command does where its output has no reader, or its disk no place."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMANDS = (["engines"], ["--print-completion", "bash"])


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_command_whose_output_nobody_reads_ends_quietly(arguments: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "workbench", *arguments]
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_command_that_writes_to_a_full_disk_says_so() -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "workbench", "engines"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
