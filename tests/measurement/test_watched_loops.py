"""Loops in the style of public repositories: `watch` is one line, and the record has every step."""

import gc

import jax
import pytest
from watched_loops import LOOPS, STEPS

import workbench as wb

PYTHON_STEPS = {"keras_fit"}  # functions of Python that call compiled ones: their cost is unknown, and said to be


@pytest.mark.usefixtures("settled")
@pytest.mark.filterwarnings("ignore")  # of the other libraries
@pytest.mark.parametrize("name", LOOPS)
def test_a_public_loop_is_recorded_by_one_line(name, monkeypatch):
    run, library = LOOPS[name]
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    pytest.importorskip(library)
    watches = []

    def watched(step):
        watches.append(wb.watch(step, show=False))
        return watches[-1]

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        losses = run(watched)
    (watch,) = watches
    watch.close()  # waits for the compiled step
    record = watch.record
    assert record.steps == STEPS
    names = {"loss", "train_loss", "value", "1"} & record.history[0].metrics.keys()
    seen = [step.metrics[name] for step in record.history for name in names]
    assert seen == pytest.approx(losses, rel=1e-6)
    assert [problem.what for problem in record.problems] == []
    if name in PYTHON_STEPS:
        assert any("cost is unknown" in note for note in record.notes)
    else:
        assert record.flops > 0
    del watch, watched
    watches.clear()
    gc.collect()
