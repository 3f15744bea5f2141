"""Bytes of main memory, against kernels of a recorded GPU that took too little time for more."""

import pytest

from workbench.inspection import inspect_module

HEAD = """HloModule m, is_scheduled=true

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT s = f32[] add(x, y)
}

"""
# The gradient of `take_along_axis`, as XLA fuses it for a GPU: 1.8 µs on an H200, where 268 MB would take 56.
SCATTER = """fused {
  %logits = f32[8,512,8192] parameter(0)
  %rows = s32[4096,3] parameter(1)
  %one = f32[] constant(1)
  %updates = f32[4096,1,1,1] broadcast(%one), dimensions={}
  ROOT %scatter = f32[8,512,8192] scatter(%logits, %rows, %updates), update_window_dims={1,2,3}, \
inserted_window_dims={}, scatter_dims_to_operand_dims={0,1,2}, index_vector_dim=1, to_apply=add
}

ENTRY main {
  %a = f32[8,512,8192] parameter(0)
  %b = s32[4096,3] parameter(1)
  ROOT %f = f32[8,512,8192] fusion(%a, %b), kind=kInput, calls=fused
}
"""
# Its value: one logit a token, converted after it was found. 2.3 µs on an H200, where 67 MB would take 14.
GATHER = """fused {
  %logits = bf16[4096,8192] parameter(0)
  %rows = s32[4096,3] parameter(1)
  %shaped = bf16[8,512,8192] bitcast(%logits)
  %part = bf16[8,511,8192] slice(%shaped), slice={[0:8], [0:511], [0:8192]}
  %wide = f32[8,511,8192] convert(%part)
  ROOT %gather = f32[4096,1,1,1] gather(%wide, %rows), offset_dims={1,2,3}, \
collapsed_slice_dims={}, start_index_map={0,1,2}, index_vector_dim=1, slice_sizes={1,1,1}
}

ENTRY main {
  %a = bf16[4096,8192] parameter(0)
  %b = s32[4096,3] parameter(1)
  ROOT %f = f32[4096,1,1,1] fusion(%a, %b), kind=kLoop, calls=fused
}
"""
PRODUCT = """ENTRY main {
  %a = bf16[512,512] parameter(0)
  %b = bf16[512,512] parameter(1)
  %call = (bf16[512,512], s8[33554432]) custom-call(%a, %b), custom_call_target="__cublas$gemm"
  ROOT %r = bf16[512,512] get-tuple-element(%call), index=0
}
"""
# Into zeros that the fusion makes, and therefore writes.
ZEROS = """fused {
  %rows = s32[4096,3] parameter(0)
  %nought = f32[] constant(0)
  %zeros = f32[8,512,8192] broadcast(%nought), dimensions={}
  %updates = f32[4096,1,1,1] broadcast(%nought), dimensions={}
  ROOT %scatter = f32[8,512,8192] scatter(%zeros, %rows, %updates), update_window_dims={1,2,3}, \
inserted_window_dims={}, scatter_dims_to_operand_dims={0,1,2}, index_vector_dim=1, to_apply=add
}

ENTRY main {
  %b = s32[4096,3] parameter(0)
  ROOT %f = f32[8,512,8192] fusion(%b), kind=kInput, calls=fused
}
"""
INDICES = 4096 * 3 * 4
ROW = 128 * 4


def alone(*lines: str) -> str:
    """Operations outside of fusions, on a matrix of 512 rows, two rows, indices of rows and a number."""
    arguments = "f32[512,128]", "f32[2,128]", "s32[2,1]", "s32[]"
    parameters = [f"%{name} = {of} parameter({i})" for i, (name, of) in enumerate(zip("abij", arguments, strict=True))]
    return "ENTRY main {\n  " + "\n  ".join([*parameters, *lines]) + "\n}\n"


UPDATE = alone("ROOT %r = f32[512,128] dynamic-update-slice(%a, %b, %j, %j)")
SLICE = alone("ROOT %r = f32[2,128] slice(%a), slice={[0:2], [0:128]}")
TAKEN = alone(
    "ROOT %r = f32[2,128] gather(%a, %i), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, "
    "index_vector_dim=1, slice_sizes={1,128}"
)
ADDED = alone(
    "ROOT %r = f32[512,128] scatter(%a, %i, %b), update_window_dims={1}, inserted_window_dims={0}, "
    "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=add"
)
INTO_VMEM = alone(
    "%s = (f32[512,128]{1,0:S(1)}, f32[512,128]{1,0}, u32[]) copy-start(%a)",
    "%d = f32[512,128]{1,0:S(1)} copy-done(%s)",
    "ROOT %r = f32[512,128]{1,0:S(1)} negate(%d)",
)
OUT_OF_VMEM = alone(
    "%n = f32[512,128]{1,0:S(1)} negate(%a)",
    "%s = (f32[512,128]{1,0}, f32[512,128]{1,0:S(1)}, u32[]) copy-start(%n)",
    "ROOT %d = f32[512,128]{1,0} copy-done(%s)",
)
ROWS_INTO_VMEM = alone(
    "%s = ((f32[512,128]{1,0}), f32[2,128]{1,0:S(1)}, s32[]) slice-start(%a), slice={[0:2], [0:128]}",
    "ROOT %d = f32[2,128]{1,0:S(1)} slice-done(%s)",
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        pytest.param(UPDATE, 2 * 2 * ROW, id="an update reads and writes its rows"),
        pytest.param(SLICE, 2 * 2 * ROW, id="a slice reads and writes its rows"),
        pytest.param(TAKEN, 2 * 4 + 2 * 2 * ROW, id="a gather also reads its indices"),
        pytest.param(ADDED, 2 * 4 + 3 * 2 * ROW, id="a scatter reads two rows, and reads and writes two"),
        pytest.param(INTO_VMEM, 512 * ROW, id="a copy into VMEM reads"),
        pytest.param(OUT_OF_VMEM, 2 * 512 * ROW, id="a copy out of VMEM writes"),
        pytest.param(ROWS_INTO_VMEM, 2 * ROW, id="a slice into VMEM reads its rows"),
        pytest.param(SCATTER, INDICES + 2 * 4096 * 4, id="a scatter changes its operand in place"),
        pytest.param(ZEROS, INDICES + 8 * 512 * 8192 * 4, id="a scatter into new zeros writes them"),
        pytest.param(GATHER, INDICES + 4096 * 2 + 4096 * 4, id="a gather reads what it takes, in the narrow type"),
        pytest.param(PRODUCT, 3 * 512 * 512 * 2, id="the reserve of a library is not traffic"),
    ],
)
def test_bytes_of_main_memory(text, size):
    assert inspect_module(HEAD + text, platform="gpu").accessed_bytes == size
