"""`workbench lab`: what it asks of JupyterLab, and its errors."""

import json
import operator
import os
import socket

import pytest

from workbench.cli import _lab, main
from workbench.cli._engines import ENGINES
from workbench.errors import CommandError


@pytest.fixture
def started(monkeypatch):
    """The arguments that JupyterLab was started with, in place of JupyterLab."""
    calls = []
    monkeypatch.setattr(_lab, "_launch", calls.append)
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "mine")
    return calls


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of two notebooks in place of the real one, and an empty current folder."""
    folder = tmp_path / "installed"
    folder.mkdir()
    for name in ("01-start-here", "02-meshes"):
        (folder / f"{name}.ipynb").write_text("{}")
    monkeypatch.setattr(_lab, "COURSES", (tmp_path / "nothing", folder))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here" / "workbench-course"


def test_lab_listens_on_loopback_with_the_token_left_on(started, course):
    assert main(["lab"]) == 0
    (argv,) = started
    assert "--ServerApp.ip=127.0.0.1" in argv
    assert not [argument for argument in argv if "token" in argument or "password" in argument]


def test_lab_opens_a_copy_of_the_course_below_the_current_folder(started, course):
    main(["lab"])
    (argv,) = started
    assert f"--ServerApp.root_dir={course.parent}" in argv
    assert "--LabApp.default_url=/lab/tree/workbench-course" in argv
    assert sorted(path.name for path in course.iterdir()) == ["01-start-here.ipynb", "02-meshes.ipynb"]


@pytest.mark.parametrize("name", ["02", "02-meshes", "02-meshes.ipynb"])
def test_lab_opens_a_notebook_by_number_or_name(started, course, name):
    main(["lab", name])
    assert "--LabApp.default_url=/lab/tree/workbench-course/02-meshes.ipynb" in started[0]


def test_lab_never_overwrites_what_the_reader_changed(started, course):
    main(["lab"])
    mine = course / "01-start-here.ipynb"
    mine.write_text('{"mine": 1}')
    (course / "02-meshes.ipynb").unlink()
    main(["lab"])
    assert mine.read_text() == '{"mine": 1}'
    assert (course / "02-meshes.ipynb").is_file()


def test_lab_copies_the_course_to_another_folder(started, course, tmp_path):
    main(["lab", "--folder", str(tmp_path / "mine" / "course")])
    (argv,) = started
    assert f"--ServerApp.root_dir={tmp_path / 'mine' / 'course'}" in argv
    assert (tmp_path / "mine" / "course" / "02-meshes.ipynb").is_file()


def test_lab_that_cannot_write_the_folder_names_another_way(started, course, capsys):
    course.write_text("a file, not a folder")
    assert main(["lab"]) == 1
    assert "pass another folder with `--folder`" in capsys.readouterr().err


def test_lab_asks_for_neither_news_nor_updates(started, course):
    main(["lab"])
    ours, theirs = os.environ["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    assert theirs == "mine"
    settings = _lab.CONFIG / "labconfig" / "default_setting_overrides.json"
    assert str(_lab.CONFIG) == ours
    assert '"fetchNews": "false"' in settings.read_text()


@pytest.mark.parametrize("name", ["02-meshes", "02-meshes.ipynb"], ids=["name", "name with suffix"])
def test_lab_opens_a_notebook_by_name(started, course, name):
    main(["lab", name, "--no-browser"])
    (argv,) = started
    assert "--LabApp.default_url=/lab/tree/workbench-course/02-meshes.ipynb" in argv
    assert "--no-browser" in argv


def test_lab_opens_a_notebook_by_path(started, course, tmp_path):
    mine = tmp_path / "elsewhere" / "mine.ipynb"
    mine.parent.mkdir()
    mine.write_text("{}")
    main(["lab", str(mine)])
    assert f"--ServerApp.root_dir={mine.parent}" in started[0]
    assert "--LabApp.default_url=/lab/tree/mine.ipynb" in started[0]


def test_lab_with_an_unknown_notebook_lists_those_there_are(started, course, capsys):
    assert main(["lab", "03-missing"]) == 1
    said = capsys.readouterr().err
    assert "received the notebook '03-missing', which is neither a file nor part of the course" in said
    assert "The course has 01-start-here, 02-meshes: pass one of these names" in said
    assert started == []


def test_lab_without_a_course_names_the_command_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setattr(_lab, "COURSES", (tmp_path,))
    with pytest.raises(CommandError, match=r"found no course in this installation.*pip install --force-reinstall"):
        _lab.find_notebook(None, tmp_path)


def test_lab_on_a_port_that_is_taken_names_it_and_the_remedies(started, course, capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["lab", "--port", str(port)]) == 1
    said = capsys.readouterr().err
    assert f"received port {port}, but it cannot listen on this port" in said
    assert "stop the other program, choose another port, or omit `--port` to use a free port" in said
    assert started == []


def test_lab_without_a_port_takes_a_free_one():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = _lab.require_free_port(None)
        assert port != other.getsockname()[1]
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["lab", "--port", "70000"], "'70000' is not a port: ports range from 1 to 65535"),
        (["demo", "--rounds", "x"], "'x' is not a number of rounds: pass 1 or more"),
        (["dcotor"], "Did you mean `doctor`?"),
    ],
    ids=["port", "rounds", "unknown command"],
)
def test_wrong_usage_is_refused_before_anything_starts(argv, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


def test_command_alone_prints_help(capsys):
    assert main([]) == 0
    assert "usage: workbench" in capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_script_names_the_commands(shell, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["--print-completion", shell])
    assert stopped.value.code == 0
    assert "doctor" in capsys.readouterr().out


def test_engines_are_listed_with_the_command_that_installs_them(monkeypatch, capsys):
    monkeypatch.setattr("workbench.cli._engines._is_installed", lambda module: module == "loky")
    assert main(["engines", "--json"]) == 0
    rows = {row["engine"]: row for row in json.loads(capsys.readouterr().out)}
    assert rows["engines.Sequential"]["installed"]
    assert rows["engines.Executor(loky)"]["installed"]
    assert rows["engines.Beam"]["install"] == 'pip install "mapreduce-workbench[beam]"'


def test_engines_that_are_here_are_listed_with_the_line_that_starts_them(monkeypatch, capsys):
    monkeypatch.setattr("workbench.cli._engines._is_installed", lambda module: True)
    monkeypatch.setattr("workbench.cli._engines._is_on_the_path", lambda program: False)
    assert main(["engines"]) == 0
    printed = capsys.readouterr().out
    assert "engines.Beam: Apache Beam runners  [ready]\n    wb.engines.Beam().run(fn, *args)\n    tried: " in printed
    assert "engines.Spark: Apache Spark  [not installed]\n    apt install openjdk-17-jre-headless\n" in printed


def test_listed_engines_exist():
    import workbench

    for name in {entry.name.partition("(")[0] for entry in ENGINES}:
        assert operator.attrgetter(name.removeprefix("wb."))(workbench)
