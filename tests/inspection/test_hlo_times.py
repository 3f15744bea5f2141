"""Trip counts read from conditions, where the compiler does not write them."""

import pytest

from workbench.inspection import inspect_module

LOOP = """HloModule loop, is_scheduled=true

%body (p: (s32[], f32[4,4], s32[])) -> (s32[], f32[4,4], s32[]) {{
  %p = (s32[], f32[4,4], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[4,4]{{1,0}} get-tuple-element(%p), index=1
  %n = s32[] get-tuple-element(%p), index=2
  %step = s32[] constant({step})
  %next = s32[] add(%i, %step)
  %y = f32[4,4]{{1,0}} dot(%x, %x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT %out = (s32[], f32[4,4], s32[]) tuple(%next, %y, %n)
}}

%condition (q: (s32[], f32[4,4], s32[])) -> pred[] {{
  %q = (s32[], f32[4,4], s32[]) parameter(0)
  %j = s32[] get-tuple-element(%q), index=0
  %bound = s32[] get-tuple-element(%q), index=2
  ROOT %go = pred[] compare({sides}), direction={direction}
}}

ENTRY %main (x: f32[4,4]) -> f32[4,4] {{
  %x.1 = f32[4,4]{{1,0}} parameter(0)
  %first = s32[] constant({first})
  %last = s32[] constant({last})
  %start = (s32[], f32[4,4], s32[]) tuple(%first, %x.1, %last)
  %while = (s32[], f32[4,4], s32[]) while(%start), condition=%condition, body=%body
  ROOT %result = f32[4,4]{{1,0}} get-tuple-element(%while), index=1
}}
"""
ONCE = 2 * 4 * 4 * 4


def iterations(*, first=0, last=7, step=1, direction="LT", sides="%j, %bound"):
    text = LOOP.format(first=first, last=last, step=step, direction=direction, sides=sides)
    flops = inspect_module(text).flops
    return None if flops is None else flops / ONCE


@pytest.mark.parametrize(
    ("loop", "expected"),
    [
        pytest.param({}, 7, id="0 to 7"),
        pytest.param({"direction": "LE"}, 8, id="up to and with 7"),
        pytest.param({"step": 2}, 4, id="0, 2, 4, 6"),
        pytest.param({"first": 3, "step": 3, "direction": "LE", "last": 9}, 3, id="3, 6, 9"),
        pytest.param({"first": 7, "last": 0, "step": -1, "direction": "GT"}, 7, id="down"),
        pytest.param({"first": 20, "last": 3, "step": -2, "direction": "GE"}, 9, id="down by 2"),
        pytest.param({"sides": "%bound, %j", "direction": "GT"}, 7, id="sides exchanged"),
        pytest.param({"direction": "NE"}, 7, id="until equal"),
        pytest.param({"direction": "NE", "step": 2}, None, id="never equal"),
        pytest.param({"first": 9}, 0, id="not entered"),
        pytest.param({"step": 0}, None, id="never done"),
        pytest.param({"step": -1}, None, id="away from the bound"),
        pytest.param({"sides": "%bound, %bound"}, None, id="does not depend on the counter"),
    ],
)
def test_iterations_of_a_loop_are_read_from_its_condition(loop, expected):
    assert iterations(**loop) == expected


def test_written_trip_count_is_taken():
    text = LOOP.format(first=0, last=7, step=0, direction="LT", sides="%j, %bound")
    text = text.replace("body=%body\n", 'body=%body, backend_config={"known_trip_count":{"n":"5"}}\n')
    assert inspect_module(text).flops == 5 * ONCE


def test_condition_inside_a_fusion_is_read():
    """As a GPU's compiler writes it: the comparison is a fusion of its own, followed by a copy."""
    text = LOOP.format(first=0, last=7, step=1, direction="LT", sides="%j, %bound")
    compared = "%less (a: s32[], b: s32[]) -> pred[] {\n  %a = s32[] parameter(0)\n  %b = s32[] parameter(1)\n"
    compared += "  ROOT %c = pred[] compare(%a, %b), direction=LT\n}\n\n%condition"
    fused = "  %fused = pred[] fusion(%j, %bound), kind=kLoop, calls=%less\n  ROOT %go = pred[] copy(%fused)"
    text = text.replace("  ROOT %go = pred[] compare(%j, %bound), direction=LT", fused)
    assert inspect_module(text.replace("%condition", compared, 1)).flops == 7 * ONCE


def test_condition_runs_once_more_than_the_body():
    module = inspect_module(LOOP.format(first=0, last=7, step=1, direction="LT", sides="%j, %bound"))
    times = {i.name: i.executions for i in module.instructions}
    assert (times["y"], times["go"]) == (7.0, 8.0)
