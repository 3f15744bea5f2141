"""`workbench lab`: what it asks of JupyterLab, and its errors."""

import os
import socket

import pytest

from workbench.cli import _lab, main
from workbench.errors import CommandError


@pytest.fixture
def started(monkeypatch):
    """The arguments that JupyterLab was started with, in place of JupyterLab."""
    calls = []
    monkeypatch.setattr(_lab, "_launch", calls.append)
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "mine")
    return calls


@pytest.fixture
def notebooks(tmp_path, monkeypatch):
    """A notebooks folder with two notebooks, in place of the repository's."""
    folder = tmp_path / "notebooks"
    folder.mkdir()
    for name in ("01-start-here", "02-meshes"):
        (folder / f"{name}.ipynb").write_text("{}")
    monkeypatch.setattr(_lab, "SOURCE_NOTEBOOKS", folder)
    return folder


def test_lab_listens_on_loopback_with_the_token_left_on(started, notebooks):
    assert main(["lab"]) == 0
    (argv,) = started
    assert "--ServerApp.ip=127.0.0.1" in argv
    assert f"--ServerApp.root_dir={notebooks}" in argv
    assert not [argument for argument in argv if "token" in argument or "password" in argument]


def test_lab_asks_for_neither_news_nor_updates(started, notebooks):
    main(["lab"])
    ours, theirs = os.environ["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    assert theirs == "mine"
    settings = _lab.CONFIG / "labconfig" / "default_setting_overrides.json"
    assert str(_lab.CONFIG) == ours
    assert '"fetchNews": "false"' in settings.read_text()


@pytest.mark.parametrize("name", ["02-meshes", "02-meshes.ipynb"], ids=["name", "name with suffix"])
def test_lab_opens_a_notebook_by_name(started, notebooks, name):
    main(["lab", name, "--no-browser"])
    (argv,) = started
    assert "--LabApp.default_url=/lab/tree/02-meshes.ipynb" in argv
    assert "--no-browser" in argv


def test_lab_opens_a_notebook_by_path(started, notebooks, tmp_path):
    mine = tmp_path / "elsewhere" / "mine.ipynb"
    mine.parent.mkdir()
    mine.write_text("{}")
    main(["lab", str(mine)])
    assert f"--ServerApp.root_dir={mine.parent}" in started[0]
    assert "--LabApp.default_url=/lab/tree/mine.ipynb" in started[0]


def test_lab_with_an_unknown_notebook_lists_those_there_are(started, notebooks, capsys):
    assert main(["lab", "03-missing"]) == 1
    said = capsys.readouterr().err
    assert "was given the notebook '03-missing', which is neither a file nor a name in the notebooks folder" in said
    assert "use 01-start-here, 02-meshes, or the path of a file" in said
    assert started == []


def test_lab_without_notebooks_says_where_they_are(monkeypatch, tmp_path):
    monkeypatch.setattr(_lab, "SOURCE_NOTEBOOKS", tmp_path / "nothing")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CommandError, match="notebooks are in the repository, not in the installed package: start the"):
        _lab.find_notebook(None)


def test_lab_on_a_port_that_is_taken_names_it_and_the_remedies(started, notebooks, capsys):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["lab", "--port", str(port)]) == 1
    said = capsys.readouterr().err
    assert f"was given port {port}, but this machine does not let it listen there" in said
    assert "stop the other program, name another port, or leave `--port` out to take a free one" in said
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
        (["lab", "--port", "70000"], "70000 is not a port: ports go from 1 to 65535"),
        (["demo", "--rounds", "0"], "0 rounds train nothing: give 1 or more"),
        (["bake"], "invalid choice: 'bake'"),
        ([], "the following arguments are required: command"),
    ],
    ids=["port", "rounds", "unknown command", "no command"],
)
def test_wrong_usage_is_refused_before_anything_starts(argv, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
