"""A worker that dies, hangs, is stopped or outlives its kernel: real processes, real signals, a compiler that obeys."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from workbench.aot import compile_for_target, parse_target, stop_workers
from workbench.aot._cache import CompilationCache
from workbench.aot._process import Worker
from workbench.errors import EngineError, MeshError

HERE = Path(__file__).parent
FAKE = (sys.executable, str(HERE / "fake_worker.py"))
AXES = {"clients": 4}

pytestmark = pytest.mark.skipif(os.name != "posix", reason="compilers for absent hardware exist for Linux")


@pytest.fixture(scope="module")
def worker():
    worker = Worker(FAKE, compiler="fake 1")
    yield worker
    worker.close()


@pytest.fixture
def compile_fake(worker, tmp_path):
    def compile_fake(program, **changes):
        arguments = {"mesh_axes": AXES, "worker": worker, "cache": CompilationCache(tmp_path), "timeout_seconds": 60}
        return compile_for_target(program, "v5e:2x2", **(arguments | changes))

    return compile_fake


def gone(pid, seconds=120):
    """Whether the process ends within some time; a zombie has ended."""
    for _ in range(seconds * 20):
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def at(phase, do):
    """A progress callback that does something once a phase is reached."""

    def progress(now, seconds):
        if now == phase:
            do()

    return progress


def test_compilation_comes_back_as_a_record(compile_fake):
    done = compile_fake("program")
    assert done.hlo.startswith("HloModule program")
    assert (done.target.name, done.order, done.cached, done.seconds) == ("v5e:2x2", "topology", False, 0.5)
    assert (done.memory.peak_bytes, done.memory.fits, done.needed_bytes) == (111, True, None)
    assert done.mesh.shape == (4,)
    assert [device.position for device in done.mesh.devices] == [(0,), (1,), (2,), (3,)]
    assert done.versions["compiler"] == "fake 1"
    json.dumps(done.to_dict())


def test_second_call_is_answered_from_disk_without_the_worker(compile_fake, worker):
    first = compile_fake("twice")
    worker.close()
    second = compile_fake("twice")
    assert (first.cached, second.cached, worker.pid) == (False, True, None)
    assert second.replace(cached=False) == first


def test_log_reports_worker_and_cache(compile_fake, caplog):
    with caplog.at_level("DEBUG", logger="workbench.aot"):
        compile_fake("logged")
        compile_fake("logged")
    lines = [record.getMessage() for record in caplog.records if record.name == "workbench.aot"]
    assert [line.split(" for ")[0] for line in lines if line.startswith("cache")] == ["cache miss", "cache hit"]


def test_dump_option_is_never_answered_from_disk(compile_fake, tmp_path):
    options = {"xla_dump_to": str(tmp_path / "dump")}
    compile_fake("dumped", options=options)
    assert compile_fake("dumped", options=options).cached is False


def test_what_a_compiler_prints_does_not_disturb_the_answer(compile_fake):
    assert compile_fake("print").hlo.startswith("HloModule print")


def test_xla_flags_of_the_kernel_do_not_reach_the_compiler(compile_fake, worker, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_dump_to=elsewhere")
    worker.close()
    assert compile_fake("environment").versions["environment"] == ""


@pytest.mark.parametrize(
    ("name", "meaning"),
    [("SIGFPE", "divided by zero"), ("SIGABRT", "an internal check")],
    ids=["fpe", "abort"],
)
def test_death_of_the_compiler_names_target_and_signal_and_the_next_request_works(compile_fake, worker, name, meaning):
    with pytest.raises(EngineError) as caught:
        compile_fake(f"signal {name}")
    message = str(caught.value)
    assert message.startswith("Compiling for target 'v5e:2x2' failed while compiling")
    assert f"was ended by {name} (" in message
    assert meaning in message
    assert "Check failed: chips <= 16" in message  # the compiler's last words
    assert "the next request starts a new worker" in message
    assert caught.value.stage == "compiling"
    assert worker.pid is None
    assert compile_fake("after").hlo.startswith("HloModule after")


def test_exit_of_the_compiler_names_its_code(compile_fake):
    with pytest.raises(EngineError, match="ended with exit code 3"):
        compile_fake("exit 3")


def test_killing_the_worker_in_the_middle_of_a_compilation_is_a_clear_error(compile_fake, worker):
    with pytest.raises(EngineError, match="ended by SIGKILL"):
        compile_fake("sleep 30", progress=at("compiling", lambda: os.kill(worker.pid, signal.SIGKILL)))
    assert compile_fake("after").hlo.startswith("HloModule after")


def test_refusal_of_the_compiler_leaves_the_worker_alive(compile_fake, worker):
    compile_fake("before")
    pid = worker.pid
    with pytest.raises(EngineError, match="failed with RuntimeError: 'No such compile option: xla_no'") as caught:
        compile_fake("raise No such compile option: xla_no")
    assert "check `options`" in str(caught.value)
    assert worker.pid == pid


def test_timeout_ends_the_worker_and_says_what_to_do(compile_fake, worker):
    compile_fake("warm")
    pid = worker.pid
    with pytest.raises(EngineError, match=r"longer than `timeout_seconds=0\.5` while ") as caught:
        compile_fake("sleep 600", timeout_seconds=0.5)
    assert "None: no limit" in str(caught.value)
    assert gone(pid)


def test_stop_button_of_another_thread_ends_the_compilation(compile_fake, worker):
    stop, pids = threading.Event(), []

    def press():
        pids.append(worker.pid)
        threading.Thread(target=stop.set).start()

    with pytest.raises(EngineError, match=r"was stopped after .* while compiling, because its `cancel` event was set"):
        compile_fake("sleep 30", cancel=stop, progress=at("compiling", press))
    assert gone(pids[0])
    assert compile_fake("after stop").cached is False


def test_keyboard_interrupt_ends_the_worker_and_is_passed_on(compile_fake, worker):
    pids = []

    def interrupt():
        pids.append(worker.pid)
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        compile_fake("sleep 30", progress=at("compiling", interrupt))
    assert gone(pids[0])
    assert worker.directory is None


def test_progress_names_what_is_done_with_growing_seconds(compile_fake):
    seen = []
    compile_fake("sleep 0.4", progress=lambda phase, seconds: seen.append((phase, seconds)))
    assert "compiling" in {phase for phase, _ in seen}
    assert [seconds for _, seconds in seen] == sorted(seconds for _, seconds in seen)


def test_two_threads_wait_for_each_other(compile_fake):
    found = {}
    threads = [threading.Thread(target=lambda n=n: found.update({n: compile_fake(f"thread{n}").hlo})) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert [found[n].split(",")[0] for n in range(3)] == [f"HloModule thread{n}" for n in range(3)]


def test_idle_worker_ends_by_itself_and_the_next_request_starts_another(tmp_path):
    worker = Worker((*FAKE, "0.2"), compiler="fake 1")
    arguments = {"mesh_axes": AXES, "worker": worker, "cache": CompilationCache(tmp_path), "timeout_seconds": 60}
    first = compile_for_target("first", "v5e:2x2", **arguments)
    pid = int(first.hlo.rpartition("=")[2])
    assert gone(pid)
    second = compile_for_target("second", "v5e:2x2", **arguments)
    assert int(second.hlo.rpartition("=")[2]) != pid
    worker.close()


def test_stop_workers_ends_them_and_their_directories(compile_fake, worker):
    compile_fake("started")
    pid, directory = worker.pid, worker.directory
    assert directory.exists()
    assert stop_workers() >= 1
    assert gone(pid)
    assert not directory.exists()


def test_full_disk_costs_the_cache_entry_and_not_the_result(compile_fake, tmp_path):
    (tmp_path / "file").write_text("in the way")
    done = compile_fake("uncached", cache=CompilationCache(tmp_path / "file"))
    assert done.hlo.startswith("HloModule uncached")
    assert any(note.startswith("not cached:") for note in done.notes)


def start_kernel(cache, *programs):
    return subprocess.Popen(
        [sys.executable, str(HERE / "fake_kernel.py"), str(cache), *programs], stdout=subprocess.PIPE, text=True
    )


def test_worker_ends_when_its_kernel_is_killed_in_the_middle_of_a_compilation(tmp_path):
    with start_kernel(tmp_path, "sleep 60") as kernel:
        _, pid, directory = kernel.stdout.readline().split()
        assert psutil.pid_exists(int(pid))
        kernel.kill()
    assert gone(int(pid))
    assert not Path(directory).exists()


def test_two_kernels_at_once_share_the_cache_and_leave_nothing_running(tmp_path):
    with start_kernel(tmp_path, "sleep 1", "one") as one, start_kernel(tmp_path, "sleep 1", "two") as two:
        lines = [kernel.communicate(timeout=100)[0].splitlines() for kernel in (one, two)]
    assert (one.returncode, two.returncode) == (0, 0)
    pids = {int(line.split()[1]) for line in lines[0] + lines[1] if line.startswith("pid")}
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)
    with start_kernel(tmp_path, "one", "two") as later:
        out = later.communicate(timeout=100)[0]
    assert out.count("cached=True") == 2


def test_forked_child_does_not_keep_the_worker_alive(tmp_path):
    # A child that holds the pipe open would hide the kernel's death from the worker.
    script = (
        "import os, sys, time; sys.path.insert(0, sys.argv[1])\n"
        "from fake_kernel import compiler\n"
        "worker, compile_fake = compiler(sys.argv[2])\n"
        "compile_fake('a')\n"
        "pid = worker.pid\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    assert worker.pid is None\n"
        "    time.sleep(60)\n"
        "print(pid, child, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-W", "ignore", "-c", script, str(HERE), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as kernel:
        pid, child = map(int, kernel.stdout.readline().split())
        kernel.kill()
        kernel.wait()
        try:
            assert gone(pid)
            assert psutil.pid_exists(child)
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize(
    ("axes", "words"),
    [
        ({"clients": 3}, "clients=3 = 3 devices"),
        ({}, "no axes = 1 devices"),
        ({"a": 8, "b": 2}, "a=8 x b=2 = 16 devices"),
    ],
    ids=["too-few", "none", "too-many"],
)
def test_mesh_that_is_not_the_targets_size_is_refused_before_anything_starts(compile_fake, axes, words):
    with pytest.raises(MeshError) as caught:
        compile_fake("never", mesh_axes=axes)
    assert words in str(caught.value)
    assert "target 'v5e:2x2', which has 4 (4 chips)" in str(caught.value)
    assert "`fit_axes`" in str(caught.value)


def test_order_that_does_not_exist_is_refused(compile_fake):
    with pytest.raises(MeshError, match=r"given `order='random'`.*'topology'.*'naive'"):
        compile_fake("never", order="random")


def test_target_by_force_carries_its_note_into_the_result(worker, tmp_path):
    target = parse_target("v5e:3x1", force=True)
    done = compile_for_target(
        "forced", target, mesh_axes={"clients": 3}, worker=worker, cache=CompilationCache(tmp_path)
    )
    assert "has never been tested" in done.notes[0]
