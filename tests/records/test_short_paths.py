import os
import re
import sys
from pathlib import Path

import jax
import pytest
from records_examples import fedavg_record

from workbench.records import folders_pattern, shorten_paths
from workbench.records.advice import AdviceRecord, FindingRecord
from workbench.records.compiled import ProgramRecord


def test_files_below_the_working_folder_are_relative_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert shorten_paths(f"{tmp_path}/lab/train.py:3") == "lab/train.py:3"


def test_files_that_python_imports_are_relative_to_where_it_found_them() -> None:
    assert shorten_paths(jax.__file__) == "jax/__init__.py"
    assert shorten_paths(os.__file__) == "os.py"


def test_files_elsewhere_in_the_home_folder_begin_with_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/opt/Ada Lovelace")
    monkeypatch.setattr("workbench.records._source._patterns", _uncached())
    assert shorten_paths('"/opt/Ada Lovelace/engine/train.py"') == '"~/engine/train.py"'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/srv/x/train.py:12", "train.py:12"),
        ('loc("/srv/x/train.py":3:1) at "/srv/x/model.py"', 'loc("train.py":3:1) at "model.py"'),
        (r"C:\Users\ada\train.py", "train.py"),
        ("/tmp/ipykernel_71/123.py", "ipykernel_71/123.py"),
        ("lab/train.py", "lab/train.py"),
        ("https://host/train.py", "https://host/train.py"),
        ("a / b.py", "a / b.py"),
        ("/srv/data/table.parquet", "/srv/data/table.parquet"),
    ],
)
def test_only_absolute_names_of_python_files_are_changed(text: str, expected: str) -> None:
    assert shorten_paths(text) == expected
    assert shorten_paths({text: [text, 1, None]}) == {expected: [expected, 1, None]}


@pytest.mark.parametrize("file", ["/srv/x/train.py", jax.__file__, os.__file__, "/tmp/ipykernel_7/9.py", "lab.py"])
def test_folders_pattern_takes_away_what_shorten_paths_does(file: str) -> None:
    assert re.sub(folders_pattern(), "", file) == shorten_paths(file)


def test_record_for_others_names_no_folder_and_reads_back() -> None:
    here = str(Path(sys.path[0] or ".").resolve() / "deep" / "train.py")
    text = fedavg_record().to_json().replace("fedavg.py", here)
    record = ProgramRecord.from_json(text)
    assert here in record.to_json()
    short = record.to_json(short_paths=True)
    assert here not in short
    assert "train.py" in short
    assert ProgramRecord.from_json(short).name == record.name


def _uncached() -> object:
    from workbench.records import _source

    return _source._patterns.__wrapped__


def test_names_are_shortened_where_the_working_folder_is_gone(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    monkeypatch.syspath_prepend("")
    gone.rmdir()
    try:
        assert shorten_paths("/opt/secret/project/train.py:12") == "train.py:12"
    finally:
        monkeypatch.undo()


def test_every_text_of_a_record_names_files_in_the_short_form() -> None:
    what, evidence = "The dot at /srv/x/train.py:3 is slow.", ("line /srv/x/net.py:4",)
    finding = FindingRecord(rule="r", what=what, why="", change="", evidence=evidence, weight=1.0)
    shown = str(AdviceRecord(name="step", target="", findings=(finding,), checked=()))
    assert "The dot at train.py:3 is slow." in shown
    assert "/srv" not in shown
