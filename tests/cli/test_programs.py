"""`workbench inspect` and `workbench compare` on files."""

import json
import os
import subprocess

import jax
import jax.numpy as jnp
import pytest
import yaml
from repository_files import ROOT

import workbench as wb
from workbench.cli import main
from workbench.testing import assert_snapshot


@pytest.fixture
def files(tmp_path):
    programs = {"once": lambda x: x @ x, "twice": lambda x: x @ x @ x}
    for name, fn in programs.items():
        (tmp_path / f"{name}.hlo").write_text(jax.jit(fn).lower(jnp.ones((8, 8))).compile().as_text())
    return tmp_path / "once.hlo", tmp_path / "twice.hlo"


def test_inspect_prints_totals_and_what_is_missing(files, capsys):
    assert main(["inspect", str(files[0])]) == 0
    said = capsys.readouterr().out
    assert "1.02 kFLOP" in said
    assert "read from the text of a compiled module" in said


def test_inspect_prints_json_that_is_a_record(files, capsys):
    assert main(["inspect", str(files[0]), "--json"]) == 0
    assert wb.records.compiled.ProgramRecord.from_json(capsys.readouterr().out).module.flops == 2 * 8**3


def test_inspect_of_a_missing_file_fails_and_names_it(tmp_path, capsys):
    assert main(["inspect", str(tmp_path / "nothing.hlo")]) == 1
    assert "nothing.hlo" in capsys.readouterr().err


def test_compare_prints_what_differs(files, capsys):
    assert main(["compare", *map(str, files)]) == 0
    assert "1.02 kFLOP → 2.05 kFLOP" in capsys.readouterr().out


def test_compare_checks_and_prints_json(files, capsys):
    assert main(["compare", *map(str, files), "--check", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["record"] == "ComparisonRecord"
    assert main(["compare", str(files[0]), str(files[0]), "--check"]) == 0


def test_snapshots_are_compared_with_a_commit_as_markdown(tmp_path, monkeypatch, capsys):
    def git(*arguments):
        settings = ("-c", "user.name=n", "-c", "user.email=e", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *settings, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def save(name, width):
        assert_snapshot(
            wb.inspect(lambda x: x @ x)(jnp.ones((width, width))), tmp_path / "snapshots" / name, update=True
        )

    monkeypatch.chdir(tmp_path)
    save("kept.json", 2)
    save("changed.json", 2)
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    assert main(["compare", "--since", "HEAD"]) == 0
    assert capsys.readouterr().out == "No snapshot differs from HEAD.\n"
    save("changed.json", 4)
    save("new.json", 2)
    assert main(["compare", "--since", "HEAD"]) == 0
    said = capsys.readouterr().out
    assert "kept.json" not in said
    assert "### `snapshots/new.json`\n\nNew snapshot." in said
    assert "| per device: FLOPs | 16 FLOP | 128 FLOP |" in said
    assert "```diff\n--- kept" in said
    assert main(["compare", "--since", "nothing"]) != 0
    assert "could not run git" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("report", "mine", "asked"),
    [
        ("### `a.json`", "", "--method POST repos/o/r/issues/7/comments"),
        ("### `a.json`", "42", "--method PATCH repos/o/r/issues/comments/42"),
        ("No snapshot differs from main.", "", None),
    ],
)
def test_the_action_comments_once_and_edits_its_comment(tmp_path, report, mine, asked):
    (step,) = yaml.safe_load((ROOT / ".github/actions/snapshots/action.yml").read_text())["runs"]["steps"]
    answers = {
        "workbench": f"echo '{report}'",
        "gh": f'echo "$*" >> calls; [[ $2 == --paginate ]] && echo "{mine}"; true',
    }
    for name, body in answers.items():
        (tmp_path / name).write_text(f"#!/usr/bin/env bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
        "GITHUB_REPOSITORY": "o/r",
        **dict.fromkeys(step["env"], ""),
        "PULL_REQUEST": "7",
    }
    subprocess.run(["bash", "-eo", "pipefail", "-c", step["run"]], cwd=tmp_path, env=environment, check=True)
    written = [call for call in (tmp_path / "calls").read_text().splitlines() if "--method" in call]
    assert len(written) == (asked is not None)
    assert asked is None or asked in written[0]
    assert report in (tmp_path / "summary").read_text()
