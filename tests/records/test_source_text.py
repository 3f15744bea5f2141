"""Which files are read for a place in the source: modules that this process has imported, and cells."""

import importlib.util
import linecache
import os
import sys
from pathlib import Path

import pytest

from workbench.records import _source, package_of, read_source_line, read_source_lines


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of its own, beside other files."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def imported(here: Path, monkeypatch: pytest.MonkeyPatch):
    """Imports a file of the working directory, after writing its source."""

    def load(source: bytes, name: str = "train.py") -> Path:
        path = here / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(source)
        spec = importlib.util.spec_from_file_location("module_of_a_test", path)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "module_of_a_test", module)
        spec.loader.exec_module(module)
        return path

    return load


def test_line_of_an_imported_file(imported):
    assert read_source_line(str(imported(b"a = 1\nb = 2\n")), 2) == "b = 2"


def test_file_of_the_working_directory_that_is_not_imported_is_not_read(here: Path):
    (here / "train.py").write_text("a = 1\n")
    assert read_source_lines(str(here / "train.py")) == ()


def test_file_in_a_hidden_folder_is_not_read_even_if_imported(imported):
    assert read_source_lines(str(imported(b"password = 1\n", ".jupyter/jupyter_server_config.py"))) == ()


def test_module_below_a_hidden_folder_that_python_imports_from_is_read(here: Path, imported, monkeypatch):
    path = imported(b"a = 1\n", ".venv/lib.py")
    monkeypatch.syspath_prepend(str(path.parent))
    assert read_source_line(str(path), 1) == "a = 1"


def test_file_that_a_traceback_has_shown_is_not_read(here: Path):
    (here / "settings.py").write_text("token = 1\n")
    name = str(here / "settings.py")
    assert linecache.getline(name, 1) == "token = 1\n"
    try:
        assert read_source_lines(name) == ()
    finally:
        del linecache.cache[name]


def test_line_of_an_imported_module():
    assert read_source_line(_source.__file__, 1).startswith('"""Source files')


def test_line_of_a_notebook_cell(here: Path):
    linecache.cache["/tmp/ipykernel_1/1.py"] = (6, None, ["x = 3\n"], "/tmp/ipykernel_1/1.py")
    try:
        assert read_source_line("/tmp/ipykernel_1/1.py", 1) == "x = 3"
    finally:
        del linecache.cache["/tmp/ipykernel_1/1.py"]


def test_changed_file_is_read_again(imported):
    path = imported(b"a = 1\n")
    read_source_line(str(path), 1)
    path.write_text("a = 22\n")
    assert read_source_line(str(path), 1) == "a = 22"


def test_line_that_does_not_exist_is_empty(imported):
    imported(b"a = 1\n")
    assert [read_source_line("train.py", line) for line in (-1, 0, 99, 10**30)] == ["", "", "", ""]


def test_lines_are_counted_as_python_counts_them(imported):
    imported("a = '\x0c\u2028'\r\nb = 2\r".encode())
    assert read_source_line("train.py", 2) == "b = 2"


@pytest.mark.parametrize("name", ["secret.py", "link.py", "../secret.py", ".env", "folder.py", "large.py", "fifo.py"])
def test_other_files_are_not_read(here: Path, name: str):
    (here.parent / "secret.py").write_text("token = 1\n")
    (here / "link.py").symlink_to(here.parent / "secret.py")
    (here / ".env").write_text("token = 1\n")
    (here / "folder.py").mkdir()
    (here / "large.py").write_bytes(b"#" * (5 * 2**20))
    os.mkfifo(here / "fifo.py")
    assert read_source_lines(str(here.parent / name) if name == "secret.py" else name) == ()


@pytest.mark.parametrize(
    "name", ["/dev/zero", "/dev/stdin", "/proc/self/environ", "/etc/passwd", "a\0b.py", "", "<string>"]
)
def test_devices_and_names_of_no_file_are_not_read(name: str):
    assert read_source_lines(name) == ()


def test_device_that_is_linked_as_source_is_not_read(here: Path):
    (here / "zero.py").symlink_to("/dev/zero")
    assert read_source_lines("zero.py") == ()


def test_shipped_programs_count_as_user_programs_in_an_installed_package(monkeypatch):
    home = "/venv/lib/python3.11/site-packages/workbench/"
    monkeypatch.setattr(_source, "_OURS", home)
    monkeypatch.setattr(_source, "_TAUGHT", (f"{home}federated/",))
    assert package_of(f"{home}federated/algorithms/_fedavg.py") is None
    assert package_of(f"{home}plan/_plan.py") == "workbench"
