"""FLOPs, bytes and routines of single HLO operations, derived by hand from their shapes."""

import math
from typing import Any

import pytest

from workbench.inspection import inspect_module

HEAD = """HloModule hand, is_scheduled=true

add {
  l = f32[] parameter(0)
  r = f32[] parameter(1)
  ROOT sum = f32[] add(l, r)
}

"""
ARGUMENTS = {
    "a": "f32[3,4]", "b": "f32[3,4]", "c": "f32[4,5]", "z": "f32[]", "i": "s32[3,4]", "zi": "s32[]", "h": "bf16[3,4]",
    "rows": "s32[2,1]", "two": "f32[2,4]", "v": "f32[3,4]{1,0:S(1)}", "x": "c64[3,4]", "y": "c64[4,5]",
    "image": "f32[2,9,9,4]", "kernel": "f32[3,3,4,6]", "g": "f32[2,7,7,6]",
}  # fmt: skip


def alone(operation, before=""):
    """A module of one operation, after the computations that it calls."""
    used = [
        name for name in ARGUMENTS if name in operation.replace("(", " ").replace(",", " ").replace(")", " ").split()
    ]
    parameters = [f"  {name} = {ARGUMENTS[name]} parameter({number})" for number, name in enumerate(used)]
    lines = "\n".join([*parameters, f"  ROOT out = {operation}"])
    return inspect_module(f"{HEAD}{before}ENTRY main {{\n{lines}\n}}\n", platform="gpu")


def operation(text: str, before: str = "") -> Any:
    (instruction,) = [i for i in alone(text, before).instructions if i.name == "out"]
    return instruction


def fused(parameters, *lines):
    """A fused computation: its parameters, then its lines."""
    named = [f"  {name} = {shape} parameter({number})" for number, (name, shape) in enumerate(parameters.items())]
    return "fused {\n" + "\n".join([*named, *(f"  {line}" for line in lines)]) + "\n}\n\n"


SCATTER = (
    "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, "
    "to_apply=add"
)


@pytest.mark.parametrize(
    ("text", "flops"),
    [
        ("f32[3,4] add(a, b)", 12),
        ("f32[3,4] tanh(a)", 12),
        ("(f32[3,4]) tuple(a)", 0),
        ("pred[3,4] compare(a, b), direction=LT", 0),
        ("bf16[3,4] convert(a)", 0),
        ("f32[4] reduce(a, z), dimensions={0}, to_apply=add", 12),  # as many as its operand has elements
        ("(f32[4], s32[4]) reduce(a, i, z, zi), dimensions={0}, to_apply=add", 24),  # of both operands
        ("f32[2,4] reduce-window(a, z), window={size=2x1}, to_apply=add", 12),
        ("f32[3,4] select-and-scatter(a, two, z), window={size=2x1}, select=add, scatter=add", 12),
        (f"f32[3,4] scatter(a, rows, two), {SCATTER}", 8),  # as many as its updates
        (f"(f32[3,4], f32[3,4]) scatter(a, b, rows, two, two), {SCATTER}", 16),
        ("f32[3,5] dot(a, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}", 0),
    ],
)
def test_elementwise_flops(text, flops):
    assert operation(text).elementwise_flops == flops


def test_elementwise_flops_of_a_fusion_are_those_of_its_parts():
    inner = fused({"p": "f32[3,4]"}, "t = f32[3,4] tanh(p)", "zero = f32[] constant(0)",
                  "ROOT s = f32[4] reduce(t, zero), dimensions={0}, to_apply=add")  # fmt: skip
    assert operation("f32[4] fusion(a), kind=kInput, calls=fused", inner).elementwise_flops == 12 + 12


CONV = "dim_labels=b01f_01io->b01f"
GEMM = '"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}'


@pytest.mark.parametrize(
    ("text", "products"),
    [
        # 2 for each of 3 · 5 results and 4 terms
        ("f32[3,5] dot(a, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}", {"float32": 120}),
        ("f32[3] dot(a, b), lhs_batch_dims={0}, rhs_batch_dims={0}, lhs_contracting_dims={1}, rhs_contracting_dims={1}",
         {"float32": 24}),
        ("f32[3,4,4,5] dot(a, c), lhs_contracting_dims={}, rhs_contracting_dims={}", {"float32": 2 * 240}),
        ("c64[3,5] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}", {"float32": 4 * 120}),
        # of two dtypes, the wider one is multiplied
        ("f32[3,5] dot(h, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}", {"float32": 120}),
        ("bf16[3,3] dot(h, h), lhs_contracting_dims={1}, rhs_contracting_dims={1}", {"bfloat16": 72}),
        ("f32[3,5] dot(a, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}, operand_precision={highest,highest}",
         {"float32:highest": 120}),
        ("f32[3,5] dot(a, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}, operand_precision={default,high}",
         {"float32:high": 120}),
        ("bf16[3,3] dot(h, h), lhs_contracting_dims={1}, rhs_contracting_dims={1}, operand_precision={highest,highest}",
         {"bfloat16": 72}),
        ("f32[3,5] dot(a, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}, algorithm=dot_bf16_bf16_f32_x3",
         {"bfloat16*3": 120}),
        ("f32[3,5] dot(a, c), lhs_contracting_dims={1}, rhs_contracting_dims={0}, algorithm=dot_new", {"float32": 120}),
        # 7 · 7 positions of 3 · 3 taps, 2 images, 4 features in, 6 out
        (f"f32[2,7,7,6] convolution(image, kernel), window={{size=3x3}}, {CONV}", {"float32": 2 * 2 * 4 * 6 * 49 * 9}),
        # with padding, 25 of 27 taps along each dimension meet the image
        (f"f32[2,9,9,6] convolution(image, kernel), window={{size=3x3 pad=1_1x1_1}}, {CONV}",
         {"float32": 2 * 2 * 4 * 6 * 25 * 25}),
        # rows: 4 steps of 2 and 3 taps; columns: 7 steps of 1 and 3 taps
        (f"f32[2,4,7,6] convolution(image, kernel), window={{size=3x3 stride=2x1}}, {CONV}",
         {"float32": 2 * 2 * 4 * 6 * (4 * 3) * (7 * 3)}),
        # taps 3 apart in rows reach over 7 of 9 rows: 3 steps
        (f"f32[2,3,7,6] convolution(image, kernel), window={{size=3x3 rhs_dilate=3x1}}, {CONV}",
         {"float32": 2 * 2 * 4 * 6 * (3 * 3) * (7 * 3)}),
        # 17 rows with a zero between any two: of 15 positions 8 meet 2 rows, 7 meet 1
        (f"f32[2,15,7,6] convolution(image, kernel), window={{size=3x3 lhs_dilate=2x1}}, {CONV}",
         {"float32": 2 * 2 * 4 * 6 * (8 * 2 + 7) * (7 * 3)}),
        (f"f32[1,7,7,6] convolution(image, kernel), window={{size=3x3}}, {CONV}, batch_group_count=2",
         {"float32": 2 * 4 * 6 * 49 * 9}),
        # library calls
        ('(f32[3,5], s8[64]) custom-call(a, c), custom_call_target="__cublas$gemm", backend_config={' + GEMM + "}",
         {"float32": 120}),
        ('(f32[2,7,7,6], u8[0]) custom-call(image, kernel), custom_call_target="__cudnn$convForward", '
         f"window={{size=3x3}}, {CONV}", {"float32": 2 * 2 * 4 * 6 * 49 * 9}),
        ('f32[2,4] custom-call(a), custom_call_target="mine", backend_config={"cost_estimate":{"flops":"99"}}',
         {"": 99}),
        ('f32[2,4] custom-call(a), custom_call_target="mine"', {}),
        ("f32[3,4] add(a, b)", {}),
    ],
)  # fmt: skip
def test_flops_by_the_dtype_that_is_multiplied(text, products):
    instruction = operation(text)
    assert (instruction.products, instruction.flops) == (products, sum(products.values()))


def test_flops_of_a_gradient_of_a_convolution_are_those_of_the_forward_convolution():
    forward = 2 * 2 * 4 * 6 * 49 * 9
    text = (
        'f32[2,9,9,4] custom-call(g, kernel), custom_call_target="__cudnn$convBackwardInput", window={size=3x3}, '
        + CONV,
        'f32[3,3,4,6] custom-call(image, g), custom_call_target="__cudnn$convBackwardFilter", window={size=3x3}, '
        + CONV,
    )
    assert [operation(call).flops for call in text] == [forward, forward]


GATHER = "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}"
ROW, MATRIX = 4 * 4, 3 * 4 * 4  # bytes of f32[4] and f32[3,4]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("f32[3,4] add(a, b)", 3 * MATRIX),
        ("f32[3,4]{1,0:S(1)} add(a, v)", MATRIX),  # only `a` is in main memory
        ("f32[3,4]{1,0:T(8,128)} add(a, b)", 2 * MATRIX + 8 * 128 * 4),  # the result is padded to a tile
        ("f32[3,4] all-reduce(a), replica_groups={}, to_apply=add", 2 * MATRIX),
        ("f32[3,4] all-reduce-start(a), replica_groups={}, to_apply=add", 2 * MATRIX),
        ("(f32[3,4], f32[6,4]) all-gather-start(a), replica_groups={}, dimensions={0}", 3 * MATRIX),
        ("f32[2,4] slice(v), slice={[0:2], [0:4]}", 2 * ROW),
        ("f32[2,4]{1,0:S(1)} slice(a), slice={[0:2], [0:4]}", 2 * ROW),
        ("f32[3,4]{1,0:S(1)} dynamic-update-slice(v, two, zi, zi)", 2 * ROW),
        (f"(f32[3,4], f32[3,4]) scatter(a, b, rows, two, two), {SCATTER}", 2 * 4 + 3 * 2 * 2 * ROW),
        (f"f32[2,4] gather(a, rows), {GATHER}", 2 * 2 * ROW + 2 * 4),
        (f"f32[2,4] gather(v, rows), {GATHER}", 2 * ROW + 2 * 4),  # the table is in VMEM
        (
            '(f32[3,5], f32[3], s8[64]) custom-call(a, c), custom_call_target="__cublas$gemm"',
            MATRIX + 4 * 5 * 4 + 3 * 5 * 4 + 3 * 4,
        ),  # without the workspace, which is the last result
        (
            '(f32[3,5], s8[64], f32[3]) custom-call(a, c), custom_call_target="__cublas$gemm"',
            MATRIX + 4 * 5 * 4 + 3 * 5 * 4 + 3 * 4 + 64,
        ),
        ("(f32[3,4], u32[]) copy-start(a)", 2 * MATRIX),  # the source is not in the tuple
        ("(f32[3,4]{1,0:S(1)}, f32[3,4], u32[]) copy-start(a)", MATRIX),
        ("(f32[3,4], f32[3,4]{1,0:S(1)}, u32[]) copy-start(v)", MATRIX),
        ("f32[3,4] copy-start(a)", 2 * MATRIX),
        ("((f32[3,4]), f32[2,4], s32[]) slice-start(a), slice={[0:2], [0:4]}", 2 * 2 * ROW),
        ("((f32[3,4]), f32[2,4]{1,0:S(1)}, s32[]) dynamic-slice-start(a, zi, zi), dynamic_slice_sizes={2,4}", 2 * ROW),
        ('() custom-call(a), custom_call_target="print"', MATRIX),
        ('(f32[2,4], s8[64]) custom-call(a), custom_call_target="__cublas$gemm"', MATRIX + 2 * ROW),
        ('(f32[2,4], u8[64]) custom-call(a), custom_call_target="__cudnn$norm"', MATRIX + 2 * ROW),
        ('(f32[2,4], s8[8,8]) custom-call(a), custom_call_target="__cublas$gemm"', MATRIX + 2 * ROW + 64),
        ('(f32[2,4], f32[16]) custom-call(a), custom_call_target="__cublas$gemm"', MATRIX + 2 * ROW + 64),
        ('(f32[2,4], s8[64]) custom-call(a), custom_call_target="mine"', MATRIX + 2 * ROW + 64),
        ("(f32[3,4]) tuple(a)", 0),
        ("f32[12] bitcast(a)", 0),
    ],
)
def test_bytes_of_an_operation(text, size):
    assert operation(text).accessed_bytes == size


TABLE, HALF = 64 * 4 * 4, 64 * 4 * 2  # bytes of f32[64,4], and of the same in bf16
PARAMETERS = {"t": "f32[64,4]", "rows": "s32[2,1]", "two": "f32[2,4]", "n": "s32[]", "half": "bf16[64,4]"}


@pytest.mark.parametrize(
    ("result", "lines", "size"),
    [
        pytest.param("f32[64,4]", "ROOT o = f32[64,4] tanh(t)", 2 * TABLE, id="all is read and written"),
        pytest.param("f32[64,4]", "a = f32[64,4] tanh(t); ROOT o = f32[64,4] add(a, t)", 2 * TABLE, id="read once"),
        pytest.param("f32[2,4]", "ROOT o = f32[2,4] slice(t), slice={[0:2], [0:4]}", 4 * ROW, id="two rows"),
        pytest.param(
            "f32[2,4]", "a = f32[2,4] slice(t), slice={[0:2], [0:4]}; b = f32[2,4] slice(t), slice={[2:4], [0:4]}; "
            "ROOT o = f32[2,4] add(a, b)", (2 + 2 + 2) * ROW, id="rows of two slices"),
        pytest.param(
            "f32[2,4]", f"ROOT o = f32[2,4] gather(t, rows), {GATHER}", 2 * 4 + 4 * ROW, id="rows that indices name"),
        # read in half of the bytes, because the parameter is converted after it is read
        pytest.param(
            "f32[2,4]", "w = f32[64,4] convert(half); ROOT o = f32[2,4] slice(w), slice={[0:2], [0:4]}",
            2 * ROW // 2 + 2 * ROW, id="rows of a narrow table"),
        pytest.param(
            "bf16[2,4]", "w = bf16[64,4] convert(t); ROOT o = bf16[2,4] slice(w), slice={[0:2], [0:4]}",
            2 * ROW + 2 * ROW // 2, id="rows that are narrowed"),
        pytest.param(
            "f32[64,4]", "ROOT o = f32[64,4] dynamic-update-slice(t, two, n, n)", 4 * ROW + 4, id="updated in place"),
        pytest.param(
            "f32[64,4]", "u = f32[64,4] dynamic-update-slice(t, two, n, n); ROOT o = f32[64,4] bitcast(u)",
            2 * 2 * ROW + 4, id="updated in place, then renamed"),
        pytest.param(
            "f32[64,4]", f"ROOT o = f32[64,4] scatter(t, rows, two), {SCATTER}", 2 * 4 + (1 + 2) * 2 * ROW,
            id="added to in place"),
        pytest.param(
            "f32[64,4]", f"s = f32[64,4] tanh(t); ROOT o = f32[64,4] scatter(s, rows, two), {SCATTER}",
            TABLE + 2 * 4 + 2 * ROW + TABLE, id="added to a new table"),
        pytest.param(
            "(f32[64,4], f32[2,4])",
            "a = f32[64,4] tanh(t); b = f32[2,4] slice(a), slice={[0:2], [0:4]}; "
            "ROOT o = (f32[64,4], f32[2,4]) tuple(a, b)", 2 * TABLE + 2 * ROW, id="two results"),
        pytest.param("f32[64,4]", "ROOT o = f32[64,4] broadcast(n), dimensions={}", 4 + TABLE, id="filled"),
        pytest.param("f32[64,4]{1,0:S(1)}", "ROOT o = f32[64,4]{1,0:S(1)} tanh(t)", TABLE, id="into VMEM"),
    ],
)  # fmt: skip
def test_bytes_of_a_fusion(result, lines, size):
    used = {name: shape for name, shape in PARAMETERS.items() if f"({name}" in lines or f", {name}" in lines}
    inner = fused(used, *lines.split("; "))
    entry = "\n".join(f"  {name} = {shape} parameter({number})" for number, (name, shape) in enumerate(used.items()))
    text = f"{HEAD}{inner}ENTRY main {{\n{entry}\n  ROOT out = {result} fusion({', '.join(used)}), calls=fused\n}}\n"
    assert inspect_module(text, platform="gpu").accessed_bytes == size


N3 = 8.0**3
ARGUMENTS |= {"m": "f32[2,8,8]", "tall": "f32[16,8]", "cm": "c64[8,8]", "rhs": "f32[8,3]", "keys": "f32[2,32]",
              "values": "s32[2,32]", "short": "f32[1]"}  # fmt: skip


@pytest.mark.parametrize(
    ("text", "kind", "work", "calls"),
    [
        # LAPACK Working Note 41: n³/3 for each of two matrices
        ('f32[2,8,8] custom-call(m), custom_call_target="lapack_spotrf_ffi"', "factorisation", N3 / 3, 2),
        ("f32[2,8,8] cholesky(m)", "factorisation", N3 / 3, 2),
        ('c64[8,8] custom-call(cm), custom_call_target="lapack_cpotrf_ffi"', "factorisation", 4 * N3 / 3, 1),
        ('f32[16,8] custom-call(tall), custom_call_target="lapack_sgetrf_ffi"', "factorisation", 16 * 64 - N3 / 3, 1),
        ('f32[16,8] custom-call(tall), custom_call_target="lapack_sgeqrf_ffi"', "factorisation",
         2 * 16 * 64 - 2 * N3 / 3, 1),
        ('f32[16,8] custom-call(tall), custom_call_target="cusolver_orgqr_ffi"', "factorisation",
         2 * 16 * 64 - 2 * N3 / 3, 1),
        ('f32[8,3] custom-call(m, rhs), custom_call_target="blas_strsm"', "factorisation", 8 * 24 / 2, 2),
        ("f32[8,3] triangular-solve(cm, rhs)", "factorisation", 4 * 8 * 24, 1),
        ('f32[2,8,8] custom-call(m), custom_call_target="lapack_ssyevd_ffi"', "eigenvalues", 14 * N3 / 3, 2),
        ('f32[2,8,8] custom-call(m), custom_call_target="lapack_ssyevd_ffi", backend_config={mode = 78 : ui8}',
         "eigenvalues", 4 * N3 / 3, 2),
        ('f32[16,8] custom-call(tall), custom_call_target="lapack_sgesdd_ffi"', "eigenvalues",
         8 * 16 * 64 + 4 * N3 / 3, 1),
        ('f32[16,8] custom-call(tall), custom_call_target="lapack_sgesdd_ffi", backend_config={compute_uv = false}',
         "eigenvalues", 4 * 16 * 64 - 4 * N3 / 3, 1),
        ('f32[2,8,8] custom-call(m), custom_call_target="lapack_sgeev_ffi"', "eigenvalues", 25 * N3, 2),
        ('f32[2,8,8] custom-call(m), custom_call_target="lapack_sgeev_ffi", backend_config={compute_uv = false}',
         "eigenvalues", 10 * N3, 2),
        ('f32[2,8,8] custom-call(m), custom_call_target="lapack_sgehrd_ffi"', "eigenvalues", 10 * N3 / 3, 2),
        ('f32[2,8,8] custom-call(m), custom_call_target="lapack_ssytrd_ffi"', "eigenvalues", 4 * N3 / 3, 2),
        # n log₂ n comparisons for each of two rows
        ("f32[2,32] sort(keys), dimensions={1}, to_apply=add", "sort", 32 * 5, 2),
        ("f32[2,32] sort(keys), dimensions={0}, to_apply=add", "sort", 2 * 1, 32),
        ("(f32[2,32], s32[2,32]) sort(keys, values), dimensions={1}, to_apply=add", "sort", 32 * 5, 2),
        ("f32[1] sort(short), dimensions={0}, to_apply=add", "sort", 1, 1),
        # a heap of 4: every element is compared with the least of the heap, and 4 · (1 + ln 8) elements enter it
        ('(f32[2,4], s32[2,4]) custom-call(keys), custom_call_target="TopK"', "top-k",
         32 / 8 + 4 * 2 * (1 + math.log(8)), 2),
        ('(f32[2,1], s32[2,1]) custom-call(keys), custom_call_target="__gpu$TopK"', "top-k",
         32 / 8 + 1 * 1 * (1 + math.log(32)), 2),
        ('(f32[2,32], u8[64]) custom-call(keys, values), custom_call_target="__cub$DeviceRadixSort"', "sort", 160, 2),
    ],
)  # fmt: skip
def test_work_of_a_library_routine(text, kind, work, calls):
    routine = operation(text).routine
    assert (routine.kind, routine.work, routine.calls) == (kind, pytest.approx(work), calls)


@pytest.mark.parametrize(
    "text",
    [
        'f32[2,8,8] custom-call(m), custom_call_target="mine_potrf"',
        'f32[2,8,8] custom-call(m), custom_call_target="lapack_unknown"',
        'f32[] custom-call(z), custom_call_target="lapack_spotrf_ffi"',
        "f32[3,4] add(a, b)",
    ],
)
def test_other_operations_are_no_routines(text):
    assert operation(text).routine is None


def test_a_sort_states_its_length_and_the_bytes_of_its_keys():
    routine = operation("f32[2,32] sort(keys), dimensions={1}, to_apply=add").routine
    assert (routine.length, routine.key_bytes) == (32, 4)


def test_a_sort_inside_a_fusion_is_its_routine():
    inner = fused({"p": "f32[2,32]"}, "e = f32[2,32] exponential(p)",
                  "ROOT s = f32[2,32] sort(e), dimensions={1}, to_apply=add")  # fmt: skip
    assert operation("f32[2,32] fusion(keys), kind=kLoop, calls=fused", inner).routine.work == 32 * 5
