"""Comparisons of measured runs and watched loops: of one call each, and honest about noise."""

import jax
import jax.numpy as jnp
import pytest

import workbench as wb
from workbench.cli import main
from workbench.records.live import CompilationRecord, WatchRecord
from workbench.records.run import RunRecord, StageRunRecord


def run(*seconds, stage=0.5, rounds=None):
    stages = tuple(StageRunRecord(stage="0", where=f"cpu:{i}", compute_seconds=stage) for i in range(2))
    rounds = len(seconds) if rounds is None else rounds
    return RunRecord(
        name="f", engine="cpu x 2", seconds=sum(seconds), rounds=rounds, round_seconds=seconds, stages=stages
    )


def watch(**figures):
    return WatchRecord(name="step", status="finished", steps=10, **figures)


def rows(comparison):
    return {(row.group, row.name): (row.values, row.status) for row in comparison.rows}


def test_runs_of_different_numbers_of_rounds_are_compared_per_call():
    found = rows(wb.compare(run(2.0, 2.2), run(1.0, 1.0, 1.2, 1.0)))
    assert found["measured", "time of a call"] == (pytest.approx((2.1, 1.0)), "changed")


def test_calls_whose_ranges_overlap_are_no_difference():
    compared = wb.compare(run(1.0, 2.0), run(1.5, 2.5, stage=1.0))
    assert rows(compared)["measured", "time of a call"][1] == "same"
    assert compared.notes[0].startswith("Calls took 1 s to 2 s before and 1.5 s to 2.5 s after. These ranges overlap")
    assert compared.notes[0] in str(compared)
    assert not wb.compare(run(1.0, 1.1), run(1.5, 2.5)).notes


def test_stages_are_the_mean_over_devices():
    found = rows(wb.compare(run(1.0, stage=0.5), run(1.0, stage=0.25)))
    assert found["seconds per stage", "stage 0"] == ((0.5, 0.25), "changed")


def test_figures_of_the_compiler_are_compared_exactly():
    found = rows(wb.compare(watch(flops=1e9, collectives=4), watch(flops=1e9 + 1, collectives=4)))
    assert found["measured", "work"][1] == "changed"
    assert found["measured", "collectives"][1] == "same"


def test_what_one_of_them_lacks_is_unknown():
    found = rows(wb.compare(watch(peak_bytes=5), watch()))
    assert found["measured", "measured peak"] == ((5, None), "unknown")


def test_compilations_are_added_up():
    made = CompilationRecord(function="f", count=1, trace_seconds=1.0, lower_seconds=1.0, compile_seconds=2.0)
    found = rows(wb.compare(watch(compilations=(made, made)), watch(compilations=(made,))))
    assert found["measured", "compilation"] == ((8.0, 4.0), "changed")


def test_watched_functions_and_measured_runs_are_taken_as_they_come():
    step = jax.jit(lambda x: (x @ x).sum())
    watched = wb.watch(step, show=False)
    watched(jnp.ones((4, 4)))
    watched.close()
    measured = wb.measure(step, rounds=2)(jnp.ones((4, 4)))
    assert ("measured", "time of a call") in rows(wb.compare(measured, measured))
    assert rows(wb.compare(watched, watched))["measured", "work"] == ((128.0, 128.0), "same")


def test_the_command_compares_saved_records(tmp_path, capsys):
    files = []
    for name, figure in (("before", 100.0), ("after", 200.0)):
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(watch(flops=figure).to_json())
    assert main(["compare", *map(str, files), "--check"]) == 1
    assert "work" in capsys.readouterr().out
