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


@pytest.mark.parametrize(
    ("text", "size"),
    [
        pytest.param(SCATTER, INDICES + 2 * 4096 * 4, id="a scatter changes its operand in place"),
        pytest.param(ZEROS, INDICES + 8 * 512 * 8192 * 4, id="a scatter into new zeros writes them"),
        pytest.param(GATHER, INDICES + 4096 * 2 + 4096 * 4, id="a gather reads what it takes, in the narrow type"),
        pytest.param(PRODUCT, 3 * 512 * 512 * 2, id="the reserve of a library is not traffic"),
    ],
)
def test_bytes_of_main_memory(text, size):
    assert inspect_module(HEAD + text, platform="gpu").accessed_bytes == size
