"""Temporary folders go with the process that made them, also when it is killed."""

import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

from workbench._processes import temporary_folder

SCRIPT = """
    import sys, time
    from workbench._processes import temporary_folder

    with temporary_folder("rows-", sys.argv[1]) as folder:
        (folder / "inner").mkdir()
        (folder / "inner" / "rows").write_text("private")
        print("written", flush=True)
        time.sleep(600)
"""


def test_folder_is_removed_when_the_process_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "written\n"
        assert [each.name for each in tmp_path.glob("rows-*/inner/*")] == ["rows"]
        process.send_signal(signal.SIGKILL)
        process.wait(30)
        until = time.monotonic() + 30
        while list(tmp_path.iterdir()) and time.monotonic() < until:
            time.sleep(0.02)
    assert list(tmp_path.iterdir()) == []


def test_folder_lasts_as_long_as_its_block(tmp_path: Path) -> None:
    with temporary_folder("rows-", tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []
