"""Temporary folders go with the process that made them, also when it is killed."""

import contextlib
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from workbench._processes import temporary_folder

LONG = 120.0  # seconds after which something is broken; nothing here waits so long on purpose

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
        process.wait(LONG)
        until = time.monotonic() + LONG
        while list(tmp_path.iterdir()) and time.monotonic() < until:
            time.sleep(0.02)
    assert list(tmp_path.iterdir()) == []


USERS = """
    import subprocess, sys, time
    from pathlib import Path
    from workbench._processes import end_users_with_this_process

    folder = Path(sys.argv[1]) / "session"
    folder.mkdir()
    (folder.parent / "latest").symlink_to(folder)
    with (folder / "log").open("w") as log:
        node = subprocess.Popen(
            ["sh", "-c", "sleep 600 & echo $!; wait", "sh", f"--session-dir={folder}"],
            stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True,
        )
        worker = subprocess.Popen(["ray::worker", "600"], executable="/bin/sleep", stdout=log, start_new_session=True)
    reader = subprocess.Popen(["tail", "-f", str(folder / "log")], stdout=subprocess.DEVNULL, start_new_session=True)
    other = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
    child = int(node.stdout.readline())
    end_users_with_this_process(folder)
    print(node.pid, child, worker.pid, reader.pid, other.pid, flush=True)
    time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists the open files of processes")
def test_cluster_that_works_in_a_folder_is_ended_with_it_and_readers_of_its_logs_are_not(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(USERS), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = [psutil.Process(int(word)) for word in process.stdout.readline().split()]
        process.send_signal(signal.SIGKILL)
        process.wait(LONG)
        try:
            until = time.monotonic() + LONG
            while list(tmp_path.iterdir()) and time.monotonic() < until:
                time.sleep(0.02)
            assert list(tmp_path.iterdir()) == []
            living = [each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in found]
            assert living == [False, False, False, True, True]  # node, its child, worker; reader, another process
        finally:
            for each in found:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()


def test_folder_lasts_as_long_as_its_block(tmp_path: Path) -> None:
    with temporary_folder("rows-", tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
    assert list(tmp_path.iterdir()) == []
