"""HLO of programs that ran on real devices is read, and agrees with itself before and after optimization."""

import lzma
import re
from pathlib import Path

import pytest

from workbench._jax_compat.hlo import hlo_text_of_proto
from workbench.inspection import inspect_module
from workbench.inspection.hlo._text import parse_hlo

RECORDED = Path(__file__).parents[1] / "recorded"
SPLASH = "tpu_splash_attention_jax0.10.2_v5e.hlo.txt"
MAXTEXT = "v6e_maxtext_kernel_metadata_lines.hlo.txt"
ONE_DEVICE_OF_FOUR = 17_543_867_662_336


def flops_of_step(when):
    packed = (RECORDED / f"h100_maxtext_fsdp4.{when}.hlo.pb.xz").read_bytes()
    serialized = lzma.decompress(packed)
    if hlo_text_of_proto(serialized) is None:
        pytest.skip("this jaxlib does not print modules")
    return inspect_module(serialized).flops


def test_h100_step_before_optimization_counts_the_whole_program():
    assert flops_of_step("before") == 4 * ONE_DEVICE_OF_FOUR


def test_h100_step_after_optimization_counts_one_device_of_four():
    assert flops_of_step("after") == ONE_DEVICE_OF_FOUR


def test_pallas_kernel_with_metadata_over_several_lines_is_read():
    module = inspect_module((RECORDED / SPLASH).read_text())
    (kernel,) = {i.operands and i.name for i in module.instructions if i.opcode == "custom-call"}
    assert kernel.startswith("splash")
    assert module.platform == "tpu"


def test_maxtext_lines_of_v6e_are_read():
    lines = (RECORDED / MAXTEXT).read_text()
    used = dict.fromkeys(re.findall(r"%([\w.\-]+)[,)]", lines))
    defined = re.findall(r"^\s*%(\S+) = ", lines, flags=re.MULTILINE)
    given = [name for name in used if name not in defined]
    stubs = "\n".join(f"  %{name} = f32[] parameter({number})" for number, name in enumerate(given))
    text = f"HloModule lines\n\nENTRY %main () -> f32[] {{\n{stubs}\n{lines}\n  ROOT %end = f32[] constant(0)\n}}\n"
    found = [i for i in parse_hlo(text).entry.instructions if i.name in defined]
    assert [i.name for i in found] == defined
    assert {i.opcode for i in found} >= {"custom-call", "get-tuple-element", "async-done"}


def test_bytes_that_are_no_module_are_refused():
    from workbench.errors import InspectionError

    with pytest.raises(InspectionError, match="12 bytes are not an `HloProto`"):
        inspect_module(b"not a module")
