"""Findings arrive as estimates, then one by one as compiled; stopping keeps them."""

import threading
import time

import jax
import jax.numpy as jnp
import pytest

import workbench as wb
from workbench.advice import advise_record
from workbench.advice._module import Compiled
from workbench.advice._search._program import SearchProgram
from workbench.errors import InspectionError

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
    assert advice.notes == ("interrupted before all changes were compiled",)


def test_an_interrupt_before_the_first_finding_is_raised(monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("workbench.advice._advise.RULES", (interrupted,))
    with pytest.raises(KeyboardInterrupt):
        advise_record(wb.inspect(AVERAGE)(*ARGS))


def test_no_change_is_compiled_for_which_no_time_is_left():
    compiled = []

    def recompile(**change):
        compiled.append(change)
        raise ValueError("not needed here")

    record = wb.inspect(AVERAGE)(*ARGS)
    late = advise_record(record, fn=AVERAGE, recompile=recompile, until=time.monotonic() + 50, compiling=100.0)
    assert compiled == []
    assert [each.is_verified for each in late.findings] == [False]
    assert late.notes[0].startswith("1 of 1 changes were not compiled: a compilation takes about 100 s")
    advise_record(record, fn=AVERAGE, recompile=recompile, until=time.monotonic() + 50, compiling=1.0)
    assert len(compiled) == 1


def test_seconds_reach_the_whole_call():
    advice = wb.advise(AVERAGE, seconds=1e-6)(*ARGS)
    assert [each.is_verified for each in advice.findings] == [False]
    assert "changes were not compiled" in advice.notes[0]
    with pytest.raises(InspectionError, match=r"seconds=0.*above 0"):
        wb.advise(AVERAGE, seconds=0)(*ARGS)


def test_no_sharding_is_planned_after_the_time_limit(monkeypatch):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    planned = []
    plan = SearchProgram.plan
    counted = lambda self, *specs, **options: planned.append(1) or plan(self, *specs, **options)  # noqa: E731
    monkeypatch.setattr(SearchProgram, "plan", counted)
    sharding = jax.NamedSharding(mesh, jax.P("data"))
    args = [jax.ShapeDtypeStruct(shape, "float32", sharding=sharding) for shape in ((256, 64, 32), (256, 32, 64))]

    def product(a, b):
        return jnp.einsum("bij,bjk->ik", a, b)

    whole = wb.advise(product)(*args)
    count = len(planned)
    late = wb.advise(product, seconds=1e-6)(*args)
    assert len(planned) - count <= 3 < count  # the unchanged program, once for each of three rules
    note = "the time limit (`seconds`) ended before every other sharding was planned"
    assert note in late.notes
    assert note not in whole.notes


def test_rules_that_need_reasons_come_last(monkeypatch):
    asked = []
    explain = Compiled.why.func
    monkeypatch.setattr(Compiled, "why", property(lambda self: asked.append(1) or explain(self)))
    record = wb.inspect(AVERAGE)(*ARGS)
    advise_record(record, fn=AVERAGE, found=lambda advice: asked.append(advice.findings[0].rule))
    assert asked[0] == "missing donation"
