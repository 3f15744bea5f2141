"""Small texts that name enormous amounts of work are read without doing it (each would take minutes or gigabytes)."""

import pytest

from workbench.errors import InspectionError
from workbench.inspection import inspect_module


def module(body, *, computations="", header=""):
    entry = f"ENTRY %main (x: f32[]) -> f32[] {{\n{body}\n}}\n"
    return f"HloModule bomb, is_scheduled=true{header}\n\n{computations}\n{entry}"


def doubled(opcode, attribute):
    levels = ["%l0 (p0: f32[]) -> f32[] {\n  ROOT %p0 = f32[] parameter(0)\n}"]
    for n in range(1, 41):
        calls = f"{attribute}=%l{n - 1}"
        levels.append(
            f"%l{n} (p{n}: f32[]) -> f32[] {{\n  %p{n} = f32[] parameter(0)\n"
            f"  %a{n} = f32[] {opcode}(%p{n}), {calls}\n  ROOT %b{n} = f32[] {opcode}(%a{n}), {calls}\n}}"
        )
    body = f"  %x = f32[] parameter(0)\n  ROOT %r = f32[] {opcode}(%x), {attribute}=%l40"
    return module(body, computations="\n".join(levels))


def looped():
    steps = "\n".join(f"  %s{n} = s32[] add(%s{n - 1}, %s{n - 1})" for n in range(1, 39))
    computations = (
        f"%body (b: (s32[])) -> (s32[]) {{\n  %b = (s32[]) parameter(0)\n"
        f"  %s0 = s32[] get-tuple-element(%b), index=0\n{steps}\n  ROOT %t = (s32[]) tuple(%s38)\n}}\n"
        "%cond (c: (s32[])) -> pred[] {\n  %c = (s32[]) parameter(0)\n"
        "  %i = s32[] get-tuple-element(%c), index=0\n  %n = s32[] constant(9)\n"
        "  ROOT %lt = pred[] compare(%i, %n), direction=LT\n}"
    )
    body = (
        "  %x = f32[] parameter(0)\n  %o = s32[] constant(0)\n  %w0 = (s32[]) tuple(%o)\n"
        "  %w = (s32[]) while(%w0), condition=%cond, body=%body\n  ROOT %r = f32[] add(%x, %x)"
    )
    return module(body, computations=computations)


def test_value_that_is_doubled_in_a_loop_ends():
    assert any("length of loop `w` is unknown" in note for note in inspect_module(looped()).notes)


def test_computations_that_call_each_other_twice_have_no_timeline():
    record = inspect_module(doubled("call", "to_apply"))
    assert record.memory.timeline == ()
    assert "call each other too often" in record.memory.notes[0]


def test_fusions_inside_fusions_are_read_once():
    assert inspect_module(doubled("fusion", "calls")).flops == 0


def test_tuple_that_holds_itself_twice_is_cut_to_its_shape():
    tuples = "\n".join(f"  %t{n} = (f32[], f32[]) tuple(%t{n - 1}, %t{n - 1})" for n in range(1, 40))
    body = f"  %x = f32[] parameter(0)\n  %t0 = (f32[], f32[]) tuple(%x, %x)\n{tuples}\n  ROOT %r = f32[] add(%x, %x)"
    assert inspect_module(module(body)).memory.timeline


@pytest.mark.parametrize(
    "groups", ["[1,1000000000]<=[1000000000]", "{}", "mesh['x'=10000000000] {'x'}"], ids=["iota", "all", "mesh"]
)
def test_groups_of_impossible_size_are_unknown(groups):
    body = f"  %x = f32[] parameter(0)\n  ROOT %r = f32[] all-reduce(%x), replica_groups={groups}, to_apply=%add"
    add = (
        "%add (a: f32[], b: f32[]) -> f32[] {\n  %a = f32[] parameter(0)\n  %b = f32[] parameter(1)\n"
        "  ROOT %s = f32[] add(%a, %b)\n}"
    )
    record = inspect_module(module(body, computations=add, header=", num_partitions=1000000000000"))
    assert record.collectives[0].wire_bytes is None


@pytest.mark.parametrize(
    "text",
    [
        "HloModule m\n\n%a (" + ") -> x" * 200_000,
        "HloModule m\n\n%a (" + ") -> x" * 200_000 + " {\n",
        "HloModule m\n\nENTRY %a (x: f32[]) -> f32[] {\n  %x = f32[] " + "/*" * 100_000,
        "HloModule m\n\nENTRY %a (x: f32[]) -> f32[] {\n  %x = f32[] " + '"\\' * 100_000,
        "HloModule m\n\nENTRY %a (x: f32[]) -> f32[] {\n" + "  {\n" * 100_000,
        "(" * 200_000,
    ],
    ids=["header", "open header", "comments", "quotes", "braces", "parentheses"],
)
def test_text_that_never_closes_is_refused(text):
    with pytest.raises(InspectionError):
        inspect_module(text)


def test_dimension_without_a_bound_leaves_the_total_unknown():
    body = "  %x = f32[] parameter(0)\n  %y = f32[?,3]{1,0} custom-call(%x)\n  ROOT %r = f32[] add(%x, %x)"
    record = inspect_module(module(body))
    assert (record.flops, record.accessed_bytes) == (None, None)
    assert any("1 instructions (`y`) have a dimension without a bound" in note for note in record.notes)
    several = "\n".join(f"  %y{n} = f32[?,3]{{1,0}} custom-call(%x)" for n in range(4))
    notes = inspect_module(module(body.replace("  %y = f32[?,3]{1,0} custom-call(%x)", several))).notes
    assert any("4 instructions (`y0`, `y1`, `y2`, …) have a dimension" in note for note in notes)


def test_computation_that_calls_itself_is_refused_in_words():
    text = """HloModule m

%f (p: f32[3]) -> f32[3] {
  %p = f32[3]{0} parameter(0)
  ROOT %g = f32[3]{0} fusion(f32[3]{0} %p), kind=kLoop, calls=%f
}

ENTRY %e (p: f32[3]) -> f32[3] {
  %p = f32[3]{0} parameter(0)
  ROOT %a = f32[3]{0} fusion(f32[3]{0} %p), kind=kLoop, calls=%f
}
"""
    with pytest.raises(InspectionError, match="its computations call each other in a cycle"):
        inspect_module(text)
