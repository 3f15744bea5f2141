"""`run.py` makes the environment from the lock with its hashes, and installs again only what changed."""

import importlib.util
import sys

import pytest
from repository_files import ROOT


@pytest.fixture
def run(tmp_path, monkeypatch):
    """The script in a clone of its own; its steps are noted instead of done."""
    spec = importlib.util.spec_from_file_location("run", ROOT / "run.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    for name in ("pyproject.toml", "setup.py"):
        (tmp_path / name).write_text("")
    for name in ("requirements.lock", "requirements-test.lock"):
        (tmp_path / name).write_text("jax==0.10.2 \\\n    --hash=sha256:00\n")
    places = {"ROOT": tmp_path, "VENV": tmp_path / ".venv", "PYTHON": tmp_path / ".venv/python"}
    for name, place in {**places, "STAMP": tmp_path / ".venv/stamp.json"}.items():
        monkeypatch.setattr(made, name, place)
    made.steps = []

    def step(title, command, total=0):
        made.steps.append(command)
        if "venv" in command:
            made.VENV.mkdir()
            made.PYTHON.touch()

    monkeypatch.setattr(made, "step", step)
    monkeypatch.setattr(made.shutil, "which", lambda name: None)
    return made


def test_second_call_installs_only_what_changed(run, tmp_path):
    run.prepare("requirements.lock")
    venv, lock, own = run.steps
    assert venv[:3] == [sys.executable, "-m", "venv"]
    assert lock[-3:] == ["--require-hashes", "-r", "requirements.lock"]
    assert own[-4:] == ["--no-deps", "--no-build-isolation", "--editable", "."]
    run.prepare("requirements.lock")
    assert len(run.steps) == 3
    (tmp_path / "requirements.lock").write_text("jax==0.11.0\n")
    run.prepare("requirements.lock")
    assert [command[-1] for command in run.steps[3:]] == ["requirements.lock"]
    (tmp_path / "setup.py").write_text("# changed")
    run.prepare("requirements-test.lock")
    assert [command[-1] for command in run.steps[4:]] == ["requirements-test.lock", "."]


def test_a_step_that_fails_is_done_again(run, monkeypatch):
    fails = [True]

    def step(title, command, total=0):
        run.steps.append(command)
        run.VENV.mkdir(exist_ok=True)
        run.PYTHON.touch()
        if "--editable" in command and fails.pop():
            raise run.SetupError("no network")

    monkeypatch.setattr(run, "step", step)
    with pytest.raises(run.SetupError):
        run.prepare("requirements.lock")
    fails.append(False)
    run.prepare("requirements.lock")
    assert sum("--editable" in command for command in run.steps) == 2


def test_words_go_to_the_command_and_everything_is_tested_without_any(run, monkeypatch):
    called = []
    monkeypatch.setattr(run.subprocess, "call", lambda command, cwd: called.append(command) or 0)
    assert run.main(["test"]) == run.main(["test", "tests/primitives"]) == run.main(["demo", "--rounds", "3"]) == 0
    assert [command[2:] for command in called] == [
        ["pytest", "--everything"],
        ["pytest", "tests/primitives"],
        ["workbench", "demo", "--rounds", "3"],
    ]


def test_an_old_python_and_an_unknown_command_are_answered(run, monkeypatch, capsys):
    assert run.main(["install"]) == 2
    assert "python3 run.py demo" in capsys.readouterr().out
    monkeypatch.setattr(run.sys, "version_info", (3, 9, 2))
    assert run.main(["demo"]) == 1
    assert "runs on Python 3.9. The workbench needs Python 3.11 or newer." in capsys.readouterr().err


def test_a_failing_step_shows_its_last_words_and_the_command():
    spec = importlib.util.spec_from_file_location("run", ROOT / "run.py")
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    with pytest.raises(made.SetupError, match=r"no such wheel\n\n`.* failed after"):
        made.step("Installing", [sys.executable, "-c", "print('no such wheel'); raise SystemExit(1)"])


def test_the_quick_suite_names_files_that_exist(pytestconfig):
    conftest = pytestconfig.pluginmanager.get_plugin(str(ROOT / "tests" / "conftest.py"))
    named = {name.partition("::")[0] for name in (*conftest.QUICK, *conftest.COMPILING)}
    assert sorted(name for name in named if not (ROOT / "tests" / name).exists()) == []
