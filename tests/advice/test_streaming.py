"""Findings arrive as estimates, then one by one as compiled; stopping keeps them."""

import threading

import jax
import jax.numpy as jnp
import pytest

import workbench as wb
from workbench.advice import advise_record

AVERAGE = jax.jit(lambda old, new: 0.9 * old + 0.1 * new)
ARGS = (jnp.ones((64, 64)), jnp.ones((64, 64)))


def test_estimates_arrive_before_compiled_findings():
    seen = []
    last = wb.advise(AVERAGE, found=seen.append)(*ARGS)
    assert not seen[0].findings[0].is_verified
    assert seen[-1].findings == last.findings
    assert last.findings[0].is_verified


def test_stop_at_the_first_finding_keeps_the_estimate():
    cancel = threading.Event()
    advice = wb.advise(AVERAGE, found=lambda _: cancel.set(), cancel=cancel)(*ARGS)
    assert [(each.rule, each.is_verified) for each in advice.findings] == [("missing donation", False)]
    assert advice.notes == ("stopped before every rule was checked",)


def test_an_interrupted_compilation_keeps_the_estimates():
    def interrupted(**_):
        raise KeyboardInterrupt

    advice = advise_record(wb.inspect(AVERAGE)(*ARGS), fn=AVERAGE, recompile=interrupted)
    assert [each.is_verified for each in advice.findings] == [False]
    assert advice.notes == ("interrupted before every change was compiled",)


def test_an_interrupt_before_the_first_finding_is_raised(monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("workbench.advice._advise.RULES", (interrupted,))
    with pytest.raises(KeyboardInterrupt):
        advise_record(wb.inspect(AVERAGE)(*ARGS))
