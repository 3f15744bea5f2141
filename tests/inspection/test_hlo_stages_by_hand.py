"""Stages, executions and places of instructions without names, read off small HLO texts by hand."""

import pytest

from workbench.inspection import inspect_module

HEAD = """HloModule jit_f, is_scheduled=true

add {
  l = f32[] parameter(0)
  r = f32[] parameter(1)
  ROOT sum = f32[] add(l, r)
}

"""
ONE, TWO = 'metadata={op_name="jit(f)/wb:1:clients/a"}', 'metadata={op_name="jit(f)/wb:2:reduce/b"}'


def module(entry: str, before: str = ""):
    lines = "\n".join(f"  {line.strip()}" for line in entry.split(";"))
    text = f"{HEAD}{before}ENTRY main {{\n  x = f32[8] parameter(0)\n{lines}\n}}\n"
    return inspect_module(text.replace("ONE", ONE).replace("TWO", TWO), platform="cpu")


def stages(entry: str, before: str = "") -> dict[str, str | None]:
    return {i.name: i.stage for i in module(entry, before).instructions}


FUSED = """fused {
  p = f32[8] parameter(0)
  a = f32[8] tanh(p), ONE
  b = f32[8] negate(a), TWO
  c = f32[8] negate(b), TWO
  ROOT d = f32[8] exponential(c)
}

"""
BODY = """body {
  c = (f32[8], s32[]) parameter(0)
  v = f32[8] get-tuple-element(c), index=0
  n = s32[] get-tuple-element(c), index=1
  w = f32[8] negate(v)
  ROOT t = (f32[8], s32[]) tuple(w, n)
}

condition {
  d = (f32[8], s32[]) parameter(0)
  ROOT more = pred[] custom-call(d), custom_call_target="k"
}

"""


@pytest.mark.parametrize(
    ("entry", "before", "expected"),
    [
        pytest.param("a = f32[8] tanh(x), ONE; b = f32[8] copy(a); ROOT c = f32[8] negate(b), TWO", "",
                     {"a": "1", "b": "2", "c": "2"}, id="readers decide"),
        pytest.param("a = f32[8] tanh(x), ONE; ROOT b = f32[8] copy(a)", "", {"a": "1", "b": "1"},
                     id="without readers, the operands decide"),
        pytest.param("a = f32[8] tanh(x), ONE; b = f32[8] copy(a); c = f32[8] negate(b), ONE; "
                     "d = f32[8] negate(b), TWO; ROOT e = (f32[8], f32[8], f32[8]) tuple(c, d, c), TWO", "", {"b": "1"},
                     id="first of two readers"),
        pytest.param("b = f32[8] copy(x); c = f32[8] negate(b), TWO; d = f32[8] tanh(b), TWO; "
                     "e = f32[8] abs(b), ONE; ROOT f = (f32[8]) tuple(c)", "", {"b": "2"}, id="most readers"),
        pytest.param("ROOT out = f32[8] fusion(x), kind=kLoop, calls=fused", FUSED, {"out": "2", "d": "2", "p": "1"},
                     id="most parts of a fusion"),
        pytest.param("ROOT out = f32[8] fusion(x), kind=kLoop, calls=fused", FUSED.replace(
            "a = f32[8] tanh(p), ONE", 'a = f32[8] custom-call(p), custom_call_target="k", ONE'), {"out": "1"},
            id="a heavy part of a fusion"),
        pytest.param("ROOT out = f32[8] call(x), to_apply=fused", FUSED, {"out": "2"}, id="most parts of a call"),
        pytest.param("k = s32[] constant(0); t = (f32[8], s32[]) tuple(x, k); "
                     "ROOT l = (f32[8], s32[]) while(t), condition=condition, body=body, ONE", BODY,
                     {"w": "1", "v": "1", "more": "1", "l": "1"}, id="a loop gives its stage to its body"),
        pytest.param("k = s32[] constant(0); y = f32[8] copy(x); t = (f32[8], s32[]) tuple(y, k); "
                     "ROOT l = (f32[8], s32[]) while(t), condition=condition, body=body",
                     BODY.replace("negate(v)", "negate(v), TWO"), {"y": "2", "v": "2"},
                     id="readers of an argument of a loop are in its body"),
        pytest.param("k = s32[] constant(0); t = (f32[8], s32[]) tuple(x, k); "
                     "ROOT l = (f32[8], s32[]) while(t), condition=condition, body=body, ONE",
                     BODY.replace("negate(v)", "negate(v), TWO\n  lone = f32[8] iota(), iota_dimension=0"),
                     {"w": "2", "lone": "1", "more": "1"}, id="what nothing in a loop is connected to"),
        pytest.param("a = f32[8] tanh(x), ONE; s = f32[8] all-reduce(a), replica_groups={}, to_apply=add; "
                     "b = f32[8] copy(s); ROOT c = f32[8] negate(b), TWO", "", {"s": "2"},
                     id="a collective belongs to the reduction that reads it"),
        pytest.param("a = f32[8] tanh(x), ONE; ROOT s = f32[8] all-reduce(a), replica_groups={}, to_apply=add", "",
                     {"s": "1"}, id="a collective that no reduction reads"),
    ],
)  # fmt: skip
def test_stage_of_instructions_without_a_name(entry, before, expected):
    found = stages(entry, before)
    assert {name: found[name] for name in expected} == expected


def test_unplanned_primitives_are_stages_and_the_rest_is_the_server():
    def named(path):
        return f'metadata={{op_name="jit(f)/{path}"}}'

    entry = (
        f"a = f32[8] tanh(x), {named('wb.map_fn[clients]/a')}; b = f32[8] negate(a), {named('wb.reduce_sum[pods]/b')}; "
        f"c = f32[8] abs(b), {named('wb.broadcast[clients]/wb.map_fn[pods]/c')}; ROOT d = f32[8] copy(c), {named('d')}"
    )
    kinds = {i.name: (i.stage, i.kind) for i in module(entry).instructions}
    assert [kinds[name] for name in "abcd"] == [
        ("map_fn[clients]", "clients"), ("reduce_sum[pods]", "reduce"), ("map_fn[pods]", "clients"),
        ("server", "server"),
    ]  # fmt: skip


LOOPS = """inner {
  i = f32[8] parameter(0)
  ROOT one = f32[8] negate(i)
}

cheap {
  j = f32[8] parameter(0)
  ROOT less = f32[8] copy(j)
}

costly {
  k = f32[8] parameter(0)
  m = f32[8] call(k), to_apply=inner
  ROOT more = f32[8] copy(m)
}

turn {
  c = (f32[8], s32[]) parameter(0)
  v = f32[8] get-tuple-element(c), index=0
  n = s32[] get-tuple-element(c), index=1
  w = f32[8] call(v), to_apply=inner
  ROOT t = (f32[8], s32[]) tuple(w, n)
}

condition {
  d = (f32[8], s32[]) parameter(0)
  ROOT go = pred[] custom-call(d), custom_call_target="k"
}

"""
WHILE = (
    "z = s32[] constant(0); t0 = (f32[8], s32[]) tuple(x, z); "
    'ROOT l = (f32[8], s32[]) while(t0), condition=condition, body=turn, backend_config={"known_trip_count":{"n":"5"}}'
)


@pytest.mark.parametrize(
    ("entry", "executions"),
    [
        pytest.param("ROOT o = f32[8] call(x), to_apply=inner", {"one": 1, "less": 0}, id="called once"),
        pytest.param("a = f32[8] call(x), to_apply=inner; ROOT o = f32[8] call(a), to_apply=inner", {"one": 2},
                     id="twice"),
        pytest.param(WHILE, {"one": 5, "w": 5, "go": 6, "l": 1}, id="a loop of five turns"),
        pytest.param(WHILE.replace("ROOT l", "l") + "; ROOT o = f32[8] call(x), to_apply=inner", {"one": 6},
                     id="in a loop and outside"),
        pytest.param('p = pred[] custom-call(x), custom_call_target="k"; ROOT o = f32[8] conditional(p, x, x), '
                     "branch_computations={cheap, costly}", {"less": 0, "more": 1, "one": 1},
                     id="the branch with more bytes, those of its calls included"),
    ],
)  # fmt: skip
def test_executions_of_instructions(entry, executions):
    found = {i.name: i.executions for i in module(entry, LOOPS).instructions}
    assert {name: found[name] for name in executions} == executions
