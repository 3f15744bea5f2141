"""Memory over time, reconstructed from the schedule of a module, against sums by hand."""

import types
from typing import Any

import pytest

from workbench.inspection import inspect_module
from workbench.inspection.hlo._memory import read_memory
from workbench.inspection.hlo._text import parse_hlo

VALUE = 4 * 1024  # bytes of each array
CALLED = """stages (p: f32[1024]) -> f32[1024] {
  %p = f32[1024] parameter(0)
  %inner = f32[1024] custom-call(%p), custom_call_target="kernel"
  ROOT %last = f32[1024] custom-call(%inner), custom_call_target="kernel"
}

body (c: (f32[1024], s32[])) -> (f32[1024], s32[]) {
  %c = (f32[1024], s32[]) parameter(0)
  %carried = f32[1024] get-tuple-element(%c), index=0
  %count = s32[] get-tuple-element(%c), index=1
  %inner = f32[1024] custom-call(%carried), custom_call_target="kernel"
  %last = f32[1024] custom-call(%inner), custom_call_target="kernel"
  ROOT %next = (f32[1024], s32[]) tuple(%last, %count)
}

condition (d: (f32[1024], s32[])) -> pred[] {
  %d = (f32[1024], s32[]) parameter(0)
  ROOT %more = pred[] custom-call(%d), custom_call_target="kernel"
}

fused (q: f32[1024]) -> f32[1024] {
  %q = f32[1024] parameter(0)
  ROOT %exp = f32[1024] exponential(%q)
}

"""
KERNEL = ', custom_call_target="kernel"'


def timeline(lines):
    """The number of arrays that are alive at each instruction of a program with one argument, %x."""
    body = "\n".join(f"  %{line.strip()}" for line in lines.replace("KERNEL", KERNEL).split(";")).replace(
        "%ROOT ", "ROOT %"
    )
    text = f"HloModule m, is_scheduled=true\n\n{CALLED}ENTRY main {{\n  %x = f32[1024] parameter(0)\n{body}\n}}\n"
    return {name: size / VALUE for name, size in inspect_module(text, platform="gpu").memory.timeline}


A = "a = f32[1024] custom-call(%x)KERNEL; "


@pytest.mark.parametrize(
    ("lines", "alive"),
    [
        pytest.param("ROOT a = f32[1024] tanh(%x)", {"a": 2}, id="an argument stays"),
        pytest.param(A + "ROOT b = f32[1024] tanh(%a)", {"a": 2, "b": 2}, id="in place"),
        pytest.param(A + "ROOT b = f32[1024] custom-call(%a)KERNEL", {"a": 2, "b": 3}, id="a call is not in place"),
        pytest.param(A + "ROOT b = f32[1024] fusion(%a), kind=kLoop, calls=fused", {"a": 2, "b": 2}, id="loop fusion"),
        pytest.param(A + "ROOT b = f32[1024] fusion(%a), kind=kInput, calls=fused", {"a": 2, "b": 3}, id="kInput"),
        pytest.param(A + "b = f32[1024] tanh(%a); ROOT c = f32[1024] add(%a, %b)", {"a": 2, "b": 3, "c": 3},
                     id="read again"),
        pytest.param(A + "ROOT b = bf16[1024] convert(%a)", {"a": 2, "b": 2.5}, id="of another size"),
        pytest.param(A + "b = bf16[1024] convert(%a); ROOT c = bf16[1024] tanh(%b)", {"a": 2, "b": 2.5, "c": 1.5},
                     id="the first of two has ended"),
        pytest.param(A + "ROOT b = f32[1024]{0:S(1)} tanh(%a)", {"a": 2, "b": 3}, id="VMEM is not in place"),
        pytest.param(A + "b = f32[512,2] bitcast(%a); ROOT c = f32[512,2] custom-call(%b)KERNEL", {"a": 2, "c": 3},
                     id="another name"),
        pytest.param("k = f32[1024] constant({...}); ROOT c = f32[1024] add(%x, %k)", {"c": 2}, id="a constant"),
        pytest.param("ROOT a = f32[1000]{0:T(1024)} custom-call(%x)KERNEL", {"a": 2}, id="padding counts"),
        pytest.param(
            "t = (f32[1024], f32[512]) custom-call(%x)KERNEL; e = f32[512] get-tuple-element(%t), index=1; "
            "ROOT c = f32[1024] custom-call(%e)KERNEL", {"t": 2.5, "c": 2.5}, id="the element that is read"),
        pytest.param(
            "t = ((f32[1024], f32[256]), f32[512]) custom-call(%x)KERNEL; e = f32[512] get-tuple-element(%t), index=1; "
            "ROOT c = f32[1024] custom-call(%e)KERNEL", {"t": 2.75, "c": 2.5}, id="the element after a nested tuple"),
        pytest.param(A + "ROOT t = (f32[1024], f32[1024]) tuple(%x, %a)", {"a": 2}, id="a tuple is free"),
        pytest.param(A + "u = f32[1024] dynamic-update-slice(%a, %x, %x); ROOT c = f32[1024] custom-call(%u)KERNEL",
                     {"a": 2, "u": 2, "c": 3}, id="an update is in place"),
        pytest.param(
            A + "b = f32[1024] call(%a), to_apply=stages; ROOT c = f32[1024] tanh(%b)",
            {"a": 2, "inner": 3, "last": 4, "c": 2}, id="a call: its result is that of the called computation"),
        pytest.param(
            "p = pred[] custom-call(%x)KERNEL; ROOT b = f32[1024] conditional(%p, %x, %x), "
            "branch_computations={stages, fused}", {"p": 1, "inner": 2, "last": 3, "exp": 2}, id="two branches"),
        pytest.param(
            A + "k = s32[] constant(0); t = (f32[1024], s32[]) tuple(%a, %k); "
            "w = (f32[1024], s32[]) while(%t), condition=condition, body=body; "
            "e = f32[1024] get-tuple-element(%w), index=0; ROOT c = f32[1024] custom-call(%e)KERNEL",
            {"a": 2, "inner": 3, "last": 3, "c": 3}, id="a loop: its results stay in its arguments"),
        pytest.param(
            A + "s = (f32[1024], f32[2048]) all-gather-start(%a), replica_groups={}, dimensions={0}; "
            "d = f32[2048] all-gather-done(%s); ROOT c = f32[1024] custom-call(%d)KERNEL",
            {"a": 2, "s": 4, "d": 4, "c": 4}, id="the operand lives until the end of an asynchronous operation"),
        pytest.param(
            A + "s = ((f32[1024]), f32[512], s32[]) slice-start(%a), slice={[0:512]}; d = f32[512] slice-done(%s); "
            "ROOT c = f32[512] custom-call(%d)KERNEL",
            {"a": 2, "s": 2.5 + 4 / VALUE, "d": 2.5 + 4 / VALUE, "c": 2}, id="a started slice"),
    ],
)  # fmt: skip
def test_arrays_alive_at_each_instruction(lines, alive):
    counted = timeline(lines)
    counted.pop("more", None)
    assert counted == {name: pytest.approx(count, abs=2 / VALUE) for name, count in alive.items()}


OFFLOADED = """HloModule offloaded, is_scheduled=true

ENTRY %main (x: f32[1024]) -> f32[1024] {
  %x = f32[1024]{0} parameter(0)
  %a = f32[1024]{0} custom-call(%x), custom_call_target="kernel"
  %out = (f32[1024]{0:S(5)}, f32[1024]{0}, u32[]{:S(2)}) copy-start(%a)
  %a.host = f32[1024]{0:S(5)} copy-done(%out)
  %b = f32[1024]{0} custom-call(%x), custom_call_target="kernel"
  %c = f32[1024]{0} custom-call(%b), custom_call_target="kernel"
  %in = (f32[1024]{0}, f32[1024]{0:S(5)}, u32[]{:S(2)}) copy-start(%a.host)
  %a.device = f32[1024]{0} copy-done(%in)
  ROOT %y = f32[1024]{0} custom-call(%c, %a.device), custom_call_target="kernel"
}
"""


@pytest.mark.parametrize(
    ("instruction", "values"),
    [
        pytest.param("a", 2, id="x and a"),
        pytest.param("out", 2, id="x and a, until the copy has ended"),
        pytest.param("b", 2, id="x and b, because a is on the host"),
        pytest.param("c", 3, id="x, b and c"),
        pytest.param("in", 3, id="x, c and a, which returns"),
        pytest.param("y", 4, id="x, c, a and y"),
    ],
)
def test_values_on_the_host_take_no_memory_of_the_device(instruction, values):
    assert dict(inspect_module(OFFLOADED).memory.timeline)[instruction] == values * VALUE


def test_an_argument_is_alive_before_its_line():
    lines = "  a = f32[1024] iota(), iota_dimension=0\n  x = f32[1024] parameter(0)\n  ROOT b = f32[1024] add(a, x)\n"
    module = inspect_module(f"HloModule m, is_scheduled=true\n\nENTRY main {{\n{lines}}}\n", platform="gpu")
    assert dict(module.memory.timeline)["a"] == 2 * VALUE


def planned(available: int | None = None, **stats: int) -> Any:
    """The memory of a program with 2,000 bytes alive, whose compiler reports these sizes."""
    lines = "  x = f32[250] parameter(0)\n  ROOT y = f32[250] tanh(x)\n"
    hlo = parse_hlo(f"HloModule m, is_scheduled=true\n\nENTRY main {{\n{lines}}}\n")
    return read_memory(hlo, types.SimpleNamespace(**stats), lambda instruction: None, available=available)[0]


@pytest.mark.parametrize(
    ("stats", "peak"),
    [
        ({}, None),
        ({"peak_memory_in_bytes": 2000}, 2000),
        ({"argument_size_in_bytes": 3000, "output_size_in_bytes": 100}, None),  # no temporaries
        ({"argument_size_in_bytes": 3000, "output_size_in_bytes": 100, "temp_size_in_bytes": 20}, 3120),
        ({"argument_size_in_bytes": 3000, "output_size_in_bytes": 100, "temp_size_in_bytes": 20,
          "alias_size_in_bytes": 90}, 3030),
        ({"argument_size_in_bytes": 3000, "output_size_in_bytes": 100, "temp_size_in_bytes": 20,
          "peak_memory_in_bytes": 3121}, 3121),
    ],
)  # fmt: skip
def test_peak_is_the_compilers_or_the_sum_of_its_parts(stats, peak):
    assert planned(**stats).peak_bytes == peak


@pytest.mark.parametrize(("peak", "noted"), [(2000, False), (1819, False), (1818, True), (2222, False), (2223, True)])
def test_timeline_that_differs_from_the_peak_by_more_than_a_tenth_is_noted(peak, noted):
    notes = planned(peak_memory_in_bytes=peak).notes
    assert (len(notes) == 2, any("the timeline reaches 0.00191 MiB" in note for note in notes)) == (noted, noted)


@pytest.mark.parametrize(("available", "fits"), [(None, None), (1999, False), (2000, True)])
def test_program_fits_if_its_peak_is_available(available, fits):
    memory = planned(available, peak_memory_in_bytes=2000)
    assert (memory.fits, memory.available_bytes) == (fits, available)
