"""Memory over time, reconstructed from the schedule of a module, against sums by hand."""

import pytest

from workbench.inspection import inspect_module

VALUE = 4 * 1024  # bytes of each array
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
