"""`workbench doctor`: it finds what is wrong and names the line that repairs it."""

import email
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from workbench.cli import _browser, _doctor, _lab, _metadata, main
from workbench.errors import CommandError, pip_command


@pytest.fixture
def quick(monkeypatch):
    """The doctor without its slow question, and without what only an installation has; both have tests of their own."""
    devices = _doctor.Check(name="devices", state="ok", found="8 × cpu")
    monkeypatch.setattr(_doctor, "check_devices", lambda: devices)
    extension = _doctor.Check(name="front end workbench_widgets", state="ok", found="there")
    monkeypatch.setattr(_doctor, "check_labextension", lambda: extension)


@pytest.fixture
def without(monkeypatch):
    """Makes a library look as if it were not installed."""
    real = importlib.metadata.version

    def hide(library):
        def version(name):
            if name == library:
                raise importlib.metadata.PackageNotFoundError(name)
            return real(name)

        monkeypatch.setattr(importlib.metadata, "version", version)

    return hide


@pytest.fixture
def devices_answer(monkeypatch):
    """Gives the answer of the process that is asked for devices."""

    def answer(status, stdout="", stderr=""):
        done = subprocess.CompletedProcess([], status, stdout, stderr)
        monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)

    return answer


def test_doctor_finds_nothing_broken_where_the_tests_run(quick, capsys):
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert said.endswith("\nNothing is broken.\nNext: `workbench lab 01-start-here` opens the first notebook.\n")
    assert len(said.splitlines()) <= 15


def test_doctor_lists_every_check_on_request(quick, capsys):
    assert main(["doctor", "--verbose"]) == 0
    said = capsys.readouterr().out
    for name in ("library jax", "library jupyterlab", "import workbench_widgets", "kernel", "front end anywidget"):
        assert name in said


def test_doctor_prints_json(quick, capsys):
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert {"name": "devices", "state": "ok", "found": "8 × cpu", "fix": ""} in found["checks"]


def test_doctor_names_another_distribution_that_installs_a_package_of_our_name(quick, monkeypatch, capsys):
    owners = {"workbench": ["mapreduce-workbench", "workbench"]}
    monkeypatch.setattr(importlib.metadata, "packages_distributions", lambda: owners)
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "workbench also installs files into the package `workbench`" in said
    assert "pip uninstall workbench && pip install --force-reinstall --no-deps .   (in a clone" in said


def test_doctor_is_content_without_jupyterlab(quick, without, capsys):
    without("jupyterlab")
    assert main(["doctor"]) == 0
    said = capsys.readouterr().out
    assert "not installed: jupyterlab" in said
    assert said.endswith("\nNothing is broken.\n")


def test_doctor_names_a_missing_library_and_its_line(quick, without, capsys):
    without("optax")
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("broken"))
    assert lines[at].split() == ["broken", "library", "optax", "not", "installed"]
    assert f'→ {pip_command()} install "optax>=0.2.5"' in lines[at + 1]
    assert lines[-1] == "Broken: library optax."


def test_commands_start_this_pythons_pip(tmp_path, monkeypatch):
    other, own = tmp_path / "other", tmp_path / "own folder"
    for folder in (other, own):
        folder.mkdir()
        (folder / "pip").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(own / "python"))
    monkeypatch.setenv("PATH", str(other))
    assert pip_command() == f"'{own}/python' -m pip"
    monkeypatch.setenv("PATH", str(own))
    assert pip_command() == "pip"


def test_doctor_says_when_the_workbench_itself_is_not_installed(quick, monkeypatch, capsys):
    monkeypatch.setattr(_metadata, "DISTRIBUTION", "mapreduce-workbench-that-is-not-here")
    assert main(["doctor"]) == 1
    assert "pip install --no-deps -e ." in capsys.readouterr().out


def test_doctor_refuses_a_version_that_is_too_old():
    found = _doctor.check_library(Requirement("jax>=99"))
    assert (found.state, found.fix) == ("broken", f'{pip_command()} install "jax>=99"')
    assert found.found.endswith("but >=99 is needed")


@pytest.mark.parametrize(
    ("requirements", "state"),
    [(["jax>=0.10", "numpy"], "ok"), (["jax", "no-such-library-1"], "absent"), (["jax>=99"], "absent")],
    ids=["all there", "one missing", "wrong version"],
)
def test_doctor_judges_an_extra_by_its_libraries(requirements, state):
    found = _doctor.check_extra("beam", [Requirement(line) for line in requirements])
    assert found.state == state
    assert found.fix.endswith('pip install "mapreduce-workbench[beam]"') == (state != "ok")


def test_doctor_reads_every_extra_from_the_metadata():
    declared = importlib.metadata.metadata("mapreduce-workbench").get_all("Provides-Extra") or []
    assert set(_metadata.read_extras()) <= set(declared)
    assert "drjax" in {requirement.name for requirement in _metadata.read_extras()["drjax"]}


def test_an_extra_of_another_library_is_for_what_it_brings(monkeypatch):
    lines = {"mapreduce-workbench": ['jax[tpu]; extra == "tpu-aot"', "jax"], "jax": ["numpy", 'libtpu; extra == "tpu"']}
    monkeypatch.setattr(importlib.metadata, "requires", lines.get)
    provides = email.message_from_string("Provides-Extra: tpu-aot")
    monkeypatch.setattr(importlib.metadata, "metadata", lambda _: provides)
    assert [requirement.name for requirement in _metadata.read_extras()["tpu-aot"]] == ["libtpu"]


def test_doctor_counts_the_devices_that_jax_finds(devices_answer):
    devices_answer(0, stdout='["tpu", "TPU v5 lite", 4, 2]\n')
    assert _doctor.check_devices().found == "4 × tpu (TPU v5 lite), 2 hosts"


@pytest.mark.parametrize(("date", "said"), [("2026-11-25", "measured on 2026-11-25"), ("", "not measured")])
def test_doctor_says_when_the_rates_of_the_devices_were_measured(devices_answer, date, said):
    devices_answer(0, stdout=f'["tpu", "TPU v5 lite", 4, 2, "{date}"]\n')
    assert f"; rates {said}" in _doctor.check_devices().found


def test_doctor_survives_a_driver_that_aborts(devices_answer):
    devices_answer(-6, stderr="F0000 Check failed\nAborted: no driver\n")
    found = _doctor.check_devices()
    assert (found.state, found.found) == ("broken", "Aborted: no driver")
    assert found.fix.startswith("JAX_PLATFORMS=cpu workbench doctor")


def test_doctor_survives_a_driver_that_hangs(monkeypatch):
    def hang(*_, timeout, **__):
        raise subprocess.TimeoutExpired("python", timeout)

    monkeypatch.setattr(subprocess, "run", hang)
    assert "no device within 120 seconds" in _doctor.check_devices().found


def test_doctor_reports_a_package_that_cannot_be_imported(quick, monkeypatch, capsys):
    def refuse(name):
        message = f"no module for {name}\nsecond line"
        raise ImportError(message)

    monkeypatch.setattr(_doctor, "check_import", refuse)
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert "ImportError: no module for workbench_widgets\n" in said
    assert "Broken: import workbench, import workbench_widgets." in said


def test_doctor_sees_a_front_end_that_jupyterlab_does_not_have(monkeypatch):
    monkeypatch.setattr("jupyter_core.paths.jupyter_path", lambda *_: [])
    found = _doctor.check_front_end("anywidget", "anywidget")
    assert (found.state, found.fix) == ("broken", "pip install --force-reinstall --no-deps anywidget")


def test_doctor_compares_the_extension_that_jupyterlab_will_load_with_this_package(monkeypatch, tmp_path):
    from workbench_widgets._bundle import labextension_files

    monkeypatch.setattr("jupyter_core.paths.jupyter_path", lambda *_: [str(tmp_path)])
    found = _doctor.check_labextension()
    assert (found.state, "saved views" in found.found, "-e ." in found.fix) == ("broken", True, True)
    static = tmp_path / "mapreduce-workbench" / "static"
    static.mkdir(parents=True)
    for file in labextension_files():
        (static / file.name).write_bytes(file.read_bytes())
    assert _doctor.check_labextension().state == "ok"
    (static / "lab.js").write_text("// of another version")
    assert _doctor.check_labextension().found.endswith("lab.js not from this installation")


def test_doctor_without_a_kernel_says_how_to_add_one(monkeypatch):
    monkeypatch.setattr("jupyter_client.kernelspec.KernelSpecManager.find_kernel_specs", lambda _: {"ir": "there"})
    found = _doctor.check_kernel()
    assert (found.state, found.fix) == ("broken", "python -m ipykernel install --sys-prefix")
    assert "there are: ir" in found.found


def test_doctor_without_the_course_is_content(monkeypatch, tmp_path):
    monkeypatch.setattr(_lab, "COURSES", (tmp_path,))
    assert _doctor.check_course().state == "absent"


@pytest.fixture
def no_browser(monkeypatch, tmp_path):
    """A machine without any browser."""
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(_browser, "PLACES", ())


def test_doctor_without_a_browser_says_what_is_skipped_and_how_to_get_one(no_browser):
    found = _doctor.check_browser()
    assert found.state == "absent"
    assert "browser tests will be skipped" in found.found
    assert "apt-get install --no-install-recommends chromium" in found.fix


def test_find_browser_takes_the_one_of_playwright_last(no_browser, tmp_path):
    own = tmp_path / ".cache/ms-playwright/chromium-1234/chrome-linux/chrome"
    own.parent.mkdir(parents=True)
    own.touch(mode=0o755)
    assert _browser.find_browser() == own
    (tmp_path / "chromium").touch(mode=0o755)
    assert _browser.find_browser() == tmp_path / "chromium"


def test_find_browser_takes_the_one_that_is_named(no_browser, monkeypatch, tmp_path):
    mine = tmp_path / "my-browser"
    mine.touch(mode=0o755)
    monkeypatch.setenv("CHROMIUM", str(mine))
    assert _browser.find_browser() == mine


def test_find_browser_refuses_a_name_that_is_no_program(no_browser, monkeypatch):
    monkeypatch.setenv("CHROMIUM", "no-such-browser")
    with pytest.raises(
        CommandError, match="CHROMIUM is set to 'no-such-browser', but there is no program of that name"
    ):
        _browser.find_browser()


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("doctor", "import of jax halted; None in sys.modules"),
        ("demo", "Run `workbench doctor`, which names the command that fixes it."),
    ],
    ids=["doctor", "another command"],
)
def test_command_helps_where_the_workbench_cannot_be_imported(command, said, tmp_path):
    blocker = tmp_path / "sitecustomize.py"
    blocker.write_text("import sys\nsys.modules['jax'] = None\n")
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    start = f"import sys; sys.argv = ['workbench', {command!r}]; from workbench.cli import main; sys.exit(main())"
    done = subprocess.run([sys.executable, "-c", start], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert said in done.stdout + done.stderr


def test_module_of_our_name_in_the_folder_is_found(tmp_path: Path):
    assert _doctor.check_folder(tmp_path) is None
    (tmp_path / "workbench.py").write_text("")
    check = _doctor.check_folder(tmp_path)
    assert check is not None
    assert check.state == "broken"
    assert "workbench.py" in check.found
