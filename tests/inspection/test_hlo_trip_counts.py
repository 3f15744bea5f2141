"""Loops whose length the compiler does not state, against loops that Python runs."""

import operator
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from workbench.inspection import inspect_module

MANY = 200  # turns; a loop that turns more often here never ends
COMPARISONS = {"LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge, "NE": operator.ne}
LOOP = """HloModule loop

condition {{
  p = (s32[], s32[], f32[8,8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  bound = s32[] {bound}
  factor = s32[] constant({factor})
  offset = s32[] constant({offset})
  scaled = s32[] multiply({scaled})
  moved = s32[] add(scaled, offset)
  ROOT goes_on = pred[] compare({sides}), direction={direction}
}}

body {{
  p = (s32[], s32[], f32[8,8]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  limit = s32[] get-tuple-element(p), index=1
  x = f32[8,8] get-tuple-element(p), index=2
  step = s32[] constant({step})
  next = s32[] {change}(i, step)
  product = f32[8,8] dot(x, x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT result = (s32[], s32[], f32[8,8]) tuple(next, limit, product)
}}

ENTRY main {{
  x = f32[8,8] parameter(0)
  first = s32[] constant({first})
  limit = s32[] constant({limit})
  before = (s32[], s32[], f32[8,8]) tuple(first, limit, x)
  after = (s32[], s32[], f32[8,8]) while(before), condition=condition, body=body
  ROOT y = f32[8,8] get-tuple-element(after), index=2
}}
"""
PRODUCT = 2 * 8 * 8 * 8


def turns(text: str) -> float | None:
    """The turns of a loop that multiplies two matrices in each turn."""
    flops = inspect_module(text).flops
    return None if flops is None else flops / PRODUCT


def run(first: int, step: int, goes_on: Any) -> int | None:
    count, value = 0, first
    while goes_on(value):
        count, value = count + 1, value + step
        if count > MANY:
            return None
    return count


small = st.integers(-9, 9)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    st.sampled_from(sorted(COMPARISONS)), small, small, small, st.sampled_from([-2, -1, 1, 2]), small, st.booleans(),
    st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip
def test_turns_are_those_that_the_loop_makes(
    direction: str, first: int, step: int, limit: int, factor: int, offset: int, swapped: bool, carried: bool,
    subtracted: bool, reversed_factors: bool,
) -> None:  # fmt: skip
    compare = COMPARISONS[direction]
    text = LOOP.format(
        bound="get-tuple-element(p), index=1" if carried else f"constant({limit})",
        factor=factor,
        offset=offset,
        scaled="factor, i" if reversed_factors else "i, factor",
        sides="bound, moved" if swapped else "moved, bound",
        direction=direction,
        step=-step if subtracted else step,
        change="subtract" if subtracted else "add",
        first=first,
        limit=limit,
    )
    expected = run(
        first, step, lambda i: compare(limit, factor * i + offset) if swapped else compare(factor * i + offset, limit)
    )
    assert turns(text) == expected


@pytest.mark.parametrize("change", ["multiply(i, i)", "multiply(i, step)", "maximum(i, step)"])
def test_counter_that_does_not_step_evenly_leaves_the_turns_unknown(change: str) -> None:
    text = LOOP.format(
        bound="constant(9)", factor=1, offset=0, scaled="i, factor", sides="moved, bound", direction="LT", step=2,
        change="add", first=2, limit=9,
    )  # fmt: skip
    module = inspect_module(text.replace("add(i, step)", change))
    assert module.flops is None
    assert any("the length of loop `after` is unknown" in note for note in module.notes)
