"""Times of single operations, derived by hand from chips of round numbers."""

import math

import pytest
from records_parts import TOY_CHIP

from workbench.cost import (
    classify_operation,
    family_of,
    known_chip,
    predict_operation,
    product_peak,
    seconds_at_peak,
)
from workbench.cost._operations import FREE, interpolate, nearest_dtype, predict_instruction, seconds_of_call
from workbench.cost._rates import rates_of
from workbench.records.compiled import InstructionRecord, RoutineRecord
from workbench.records.hardware import RateRecord

TERA = 1e12
# Two devices share each chip. A device's half: 1e10 B/s, 8 TFLOP/s in bfloat16, 0.5 TFLOP/s of vector units.
CHIP = TOY_CHIP.replace(
    peak_flops_per_second={"bfloat16": 16 * TERA}, hbm_bytes_per_second=2e10, devices_per_chip=2,
    vector_flops_per_second=TERA,
)  # fmt: skip
TPU, NVIDIA, AMD, CPU = (CHIP.replace(name=name) for name in ("v0", "H1", "MI1", "cpu"))


def rate(kind, amount, seconds, dtype=""):
    return RateRecord(
        kind=kind, amount=amount, seconds=seconds, low_seconds=seconds, high_seconds=seconds, runs=5, dtype=dtype
    )


def instruction(opcode="fusion", name="x", **fields):
    sizes = {"computation": "main", "shape": "f32[1024]", "size_bytes": 4096, "executions": 1.0}
    return InstructionRecord(name=name, opcode=opcode, **{**sizes, **fields})


def seconds(chip, opcode="fusion", *, arguments=None, **fields):
    return predict_instruction(instruction(opcode, **fields), chip, **arguments or {}).seconds


@pytest.mark.parametrize(
    ("category", "opcode", "flops", "kind"),
    [
        ("convolution fusion", "fusion", 0.0, "convolution"),
        ("", "convolution", 1.0, "convolution"),
        ("loop fusion", "fusion", 1.0, "matrix product"),
        ("input fusion", "", 0.0, "reduction or transpose"),
        ("data formatting", "", 0.0, "reduction or transpose"),
        ("", "reduce", 0.0, "reduction or transpose"),
        ("", "transpose", 0.0, "reduction or transpose"),
        ("", "copy", 0.0, "reduction or transpose"),
        ("loop fusion", "fusion", 0.0, "elementwise"),
        ("broadcast", "", 0.0, "elementwise"),
        ("non-fusion elementwise", "", 0.0, "elementwise"),
        ("custom elementwise", "", 0.0, "elementwise"),
        ("", "add", 0.0, "other"),
        ("custom-call", "custom-call", 0.0, "other"),
    ],
)
def test_class_of_an_operation(category, opcode, flops, kind):
    assert classify_operation(category, opcode, flops) == kind


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("cpu", "CPU"), ("my CPU", "other"), ("v5e", "TPU"), ("tpu7x", "TPU"), ("7x", "TPU"), ("v5e lite", "other"),
        ("MI300X", "AMD"), ("M1", "other"), ("H100", "NVIDIA"), ("GH200", "NVIDIA"), ("B200", "NVIDIA"),
        ("GB200", "NVIDIA"), ("T4", "NVIDIA"), ("L40S", "NVIDIA"), ("A100 40GB", "NVIDIA"), ("V100", "NVIDIA"),
        ("toy", "other"),
    ],
)  # fmt: skip
def test_family_follows_from_the_name(name, family):
    assert family_of(TOY_CHIP.replace(name=name)) == family


def test_measured_rates_replace_all_shares_but_keep_the_steps_of_the_family():
    published, measured = rates_of(NVIDIA), rates_of(NVIDIA.replace(rates=(rate("call", 1.0, 1.0),)))
    assert {*published.matrix.values(), *published.links.values()} == {0.8}
    assert {*published.memory.values()} == {0.82}
    assert {*measured.matrix.values(), *measured.memory.values(), *measured.links.values(), measured.network} == {1.0}
    assert measured.hop_seconds == published.hop_seconds


def test_listed_chips_have_their_own_shares():
    h100, h200 = (rates_of(TOY_CHIP.replace(name=name)) for name in ("H100", "H200"))
    assert ({*h100.matrix.values()}, {*h100.memory.values()}) == ({0.70}, {0.82})
    assert ({*h200.matrix.values()}, {*h200.memory.values()}) == ({0.70}, {0.90})
    assert h100.links == {"": 0.80, "all-reduce": 1.07}


@pytest.mark.parametrize(
    ("dtype", "peaks", "nearest"),
    [
        ("int8", ("bfloat16", "int8"), "int8"),
        ("float8_e5m2", ("bfloat16", "float8_e4m3fn"), "float8_e4m3fn"),
        ("float4_e2m1fn", ("bfloat16", "float8_e4m3fn", "float4_other"), "float4_other"),
        ("float8_e5m2", ("float16", "bfloat16"), "bfloat16"),
        ("float32", ("float16", "float8_e4m3fn"), "float16"),
        ("float32", ("int8", "int4"), "int8"),
        ("float32", (), "float32"),
    ],
)
def test_nearest_dtype(dtype, peaks, nearest):
    assert nearest_dtype(dtype, CHIP.replace(peak_flops_per_second=dict.fromkeys(peaks, 1.0))) == nearest


ALL = {"bfloat16": 16 * TERA, "float32": 4 * TERA, "int8": 32 * TERA}
BRAIN, WHOLE = {"bfloat16": 16 * TERA}, {"float32": 4 * TERA}


@pytest.mark.parametrize(
    ("chip", "peaks", "product", "tera"),
    [  # FLOP/s of one of the two devices of a chip
        (TPU, ALL, "bfloat16", 8), (TPU, ALL, "bfloat16*3", 8 / 3), (TPU, ALL, "float32", 8),
        (TPU, ALL, "float16", 8), (TPU, ALL, "float32:high", 8 / 3), (TPU, ALL, "float32:highest", 8 / 6),
        (TPU, WHOLE, "float32", None), (TPU, ALL, "int8", 16), (TPU, BRAIN, "int8", 8), (TPU, BRAIN, "uint8", 8),
        (TPU, BRAIN, "uint4", 8), (TPU, BRAIN, "int32", None), (TPU, WHOLE, "int8", None),
        (TPU, BRAIN, "float64", None),
        (TPU, BRAIN, "float8_e5m2", 8), (TPU, {}, "float8_e5m2", None),
        (NVIDIA, ALL, "float32", 2), (NVIDIA, ALL, "float32:high", 2), (NVIDIA, ALL, "float32:highest", 0.5),
        (AMD, ALL, "float32:highest", 0.5), (CHIP, ALL, "float32:highest", 2), (NVIDIA, ALL, "bfloat16:highest", 8),
        (NVIDIA, BRAIN, "int8", None), (NVIDIA, BRAIN, "float32", 8), (NVIDIA, ALL, "complex64", 8),
    ],
)  # fmt: skip
def test_peak_of_a_product(chip, peaks, product, tera):
    peak = product_peak(product, chip.replace(peak_flops_per_second=peaks))
    assert peak == (None if tera is None else pytest.approx(tera * TERA))


def test_float32_without_matrix_units_needs_a_stated_rate():
    assert product_peak("float32:highest", NVIDIA.replace(vector_flops_per_second=0.0)) is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"flops": 16e12}, 2.0),  # in `dtype`
        ({"flops": 16e12, "products": {"": 8e12, "float32:highest": 1e12}}, 1.0 + 2.0),
        ({"flops": 16e12, "executions": 3.0}, 6.0),
        ({"flops": 16e12, "executions": None}, None),
        ({"flops": 16e12, "products": {"float64": 1.0}}, None),
        ({"executions": None}, 0.0),
    ],
)
def test_seconds_at_the_published_peak(fields, expected):
    twice = [instruction("dot", **fields)] * 2
    assert seconds_at_peak(twice, NVIDIA, "bfloat16") == (None if expected is None else 2 * expected)


# ---- one operation of a profile


@pytest.mark.parametrize(
    ("chip", "flops", "accessed", "dtype", "expected"),
    [
        # family "other": shares of 1, and no fixed cost
        (CHIP, 8e12, 1e9, "bfloat16", (1.0, "compute")),
        (CHIP, 8e11, 1e10, "bfloat16", (1.0, "memory")),
        (CHIP, 0.0, 0.0, "bfloat16", (0.0, "memory")),
        (CHIP, 8e12, 0.0, "", (1.0, "compute")),
        (CHIP, 8e12, 0.0, "float64", (1.0, "compute")),  # without a peak of its own
        (CHIP, 8e12, 0.0, "int8:high", (1.0, "compute")),
        # 80 % of the matrix units, 82 % of the bandwidth, 4 µs of an operation
        (NVIDIA, 8e12 * 0.8, 0.0, "bfloat16", (1.0 + 4e-6, "compute")),
        (NVIDIA, 0.0, 1e10 * 0.82, "bfloat16", (1.0 + 4e-6, "memory")),
        (NVIDIA, 8.0, 1.0, "bfloat16", (4e-6, "overhead")),
    ],
)
def test_an_operation_takes_the_longer_of_products_and_memory(chip, flops, accessed, dtype, expected):
    found = predict_operation(flops, accessed, dtype, chip)
    assert (found.seconds, found.bound) == (pytest.approx(expected[0], rel=1e-4), expected[1])


def test_shares_of_amd_chips_depend_on_the_class():
    kinds = ("matrix product", "convolution", "elementwise", "reduction or transpose", "other")
    memory = [predict_operation(0.0, 1e10, "", AMD, kind=kind).seconds - 4e-6 for kind in kinds]
    assert memory == pytest.approx([1 / 0.8, 1 / 0.36, 1 / 0.84, 1 / 0.52, 1 / 0.6])
    compute = [predict_operation(8e12, 0.0, "", AMD, kind=kind).seconds - 4e-6 for kind in kinds]
    assert compute == pytest.approx([1 / 0.3, 1 / 0.35, 2, 2, 2])


# ---- one instruction


@pytest.mark.parametrize("opcode", [*sorted(FREE), "all-reduce-done", "async-update"])
def test_instructions_that_name_or_wait_take_no_time(opcode):
    assert predict_instruction(instruction(opcode, flops=8e12, accessed_bytes=10**10), NVIDIA) == (0.0, 0.0, 0.0, "")


@pytest.mark.parametrize(
    ("opcode", "fields", "expected"),
    [
        ("fusion", {"fused": True, "accessed_bytes": 10**10}, 0.0),
        ("fusion", {}, 4e-6),  # works in fast memory
        ("fusion", {"size_bytes": 0}, 0.0),
        ("fusion", {"size_bytes": 1}, 4e-6),
        ("add", {}, 0.0),
        ("dot", {"flops": 8e12 * 0.8}, 1.0 + 4e-6),
        ("dot", {"flops": 8e12, "products": {"": 4e12 * 0.8, "float32:highest": 0.4e12}}, 0.5 + 1.0 + 4e-6),
        ("convolution", {"accessed_bytes": 82 * 10**8}, 1.0 + 4e-6),
        ("dot", {"flops": 1.0, "products": {"float64": 1.0}}, None),
    ],
)
def test_an_instruction_on_published_rates(opcode, fields, expected):
    found = seconds(NVIDIA, opcode, **fields)
    assert found == (None if expected is None else pytest.approx(expected))


def test_a_product_without_a_peak_has_a_memory_time_and_a_reason():
    fields = {"flops": 1.0, "products": {"float64": 1.0}, "accessed_bytes": 82 * 10**8}
    found = predict_instruction(instruction("dot", **fields), NVIDIA)
    assert found == (None, None, pytest.approx(1.0), "no peak rate of float64 products is known for H1")


def test_fusions_count_as_elementwise_and_other_opcodes_by_their_class():
    # shares of AMD's bandwidth: elementwise 84 %, reductions 52 %, others 60 %, products 80 %, convolutions 36 %
    found = [seconds(AMD, opcode, accessed_bytes=10**10) for opcode in ("fusion", "reduce", "add", "convolution")]
    assert found == pytest.approx([1 / 0.84 + 4e-6, 1 / 0.52 + 4e-6, 1 / 0.6 + 4e-6, 1 / 0.36 + 4e-6])
    product = seconds(AMD, "fusion", accessed_bytes=10**10, flops=1.0)
    assert product == pytest.approx(1 / 0.8 + 4e-6)
    assert seconds(AMD, accessed_bytes=84 * 10**8, arguments={"fixed": False}) == pytest.approx(1.0)


def rated(*rows, chip=CHIP):
    return chip.replace(rates=rows)


SMALL, LARGE = rate("elementwise", 100.0, 1.0), rate("elementwise", 10_000.0, 4.0)


@pytest.mark.parametrize(
    ("rows", "accessed", "reach", "expected"),
    [
        ((LARGE, SMALL), 100, 0.0, 1.0),
        ((LARGE, SMALL), 1000, 0.0, 2.0),  # the mean on logarithmic scales
        ((LARGE, SMALL), 20_000, 0.0, 8.0),
        ((LARGE, SMALL), 1000, 1000.0, 2.0),
        ((LARGE, SMALL), 1000, 10_000.0, 2.0),  # 1000 of 10,000 bytes at 4 s take less
        ((LARGE, SMALL), 1000, 80_000.0, 2.0),
        ((rate("elementwise", 100.0, 1.0), rate("elementwise", 10_000.0, 400.0)), 100, 10_000.0, 4.0),
        ((rate("reduction", 100.0, 1.0),), 10**10, 0.0, 1.0),  # without rows of its class: at the published bandwidth
    ],
)
def test_memory_time_at_measured_rates(rows, accessed, reach, expected):
    arguments = {"reach_bytes": reach}
    assert seconds(rated(*rows), accessed_bytes=accessed, arguments=arguments) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("opcode", "name", "fields", "kind"),
    [
        ("fusion", "loop_scatter_fusion", {}, "scatter"), ("fusion", "gather_fusion", {}, "gather"),
        ("fusion", "copy_fusion", {}, "transpose"), ("fusion", "reduce_fusion", {}, "reduction"),
        ("fusion", "dot", {}, "elementwise"), ("copy", "fusion", {}, "transpose"), ("sort", "x", {}, "sort"),
        ("gather", "x", {}, "gather"), ("reverse", "x", {}, "transpose"), ("reduce-window", "x", {}, "reduction"),
        ("dot", "reduce", {"flops": 1.0}, "thin product"), ("fusion", "reduce", {"flops": 1.0}, "thin product"),
        ("custom-call", "reduce", {"routine": RoutineRecord(kind="top-k", work=0.0, calls=1.0, length=8)}, "sort"),
        ("reduce", "x", {"routine": RoutineRecord(kind="eigenvalues", work=0.0, calls=1.0)}, "elementwise"),
    ],
)  # fmt: skip
def test_memory_time_is_that_of_the_measured_class(opcode, name, fields, kind):
    kinds = ("elementwise", "scatter", "gather", "sort", "transpose", "reduction", "thin product")
    chip = rated(
        rate("matrix product", 1.0, 1e-9, "bfloat16"), *(rate(each, 1.0, 1 + i) for i, each in enumerate(kinds))
    )
    found = predict_instruction(instruction(opcode, name, accessed_bytes=1, **fields), chip)
    assert found.memory == 1 + kinds.index(kind)


def test_thin_products_without_rows_take_those_of_elementwise_operations():
    chip = rated(rate("elementwise", 1.0, 3.0), rate("matrix product", 1.0, 1.0, "bfloat16"))
    assert predict_instruction(instruction("dot", flops=1.0, accessed_bytes=1), chip).memory == 3.0


@pytest.mark.parametrize(
    ("chip", "product", "expected"),
    [
        (CHIP, "bfloat16", 1.0), (CHIP, "bfloat16*3", 3.0), (CHIP, "bfloat16:high", 1.0), (CHIP, "float32:high", 2.0),
        (CHIP, "float16", 5.0), (CHIP, "float32", 5.0), (CHIP, "float32:highest", 5.0),
        # 0.5 TFLOP/s of vector units, whose rate was not measured
        (NVIDIA, "float32:highest", 2.0), (AMD, "float32:highest", 2.0), (CPU, "bfloat16:highest", 1.0),
        (NVIDIA, "float16", 5.0), (AMD, "float16:high", 5.0),
    ],
)  # fmt: skip
def test_product_at_the_measured_rate_of_its_dtype(chip, product, expected):
    rows = [
        rate("matrix product", 1e12, s, dtype)
        for dtype, s in (("bfloat16", 1.0), ("float32:high", 2.0), ("float32", 5.0))
    ]
    found = predict_instruction(instruction("dot", flops=1e12, products={product: 1e12}), rated(*rows, chip=chip))
    assert found.compute == pytest.approx(expected)


def test_convolutions_have_measured_rates_of_their_own():
    rows = rate("convolution", 1e12, 7.0), rate("matrix product", 1e12, 1.0, "bfloat16")
    assert seconds(rated(*rows), "convolution", flops=1e12) == 7.0
    assert seconds(rated(rows[1]), "convolution", flops=1e12) == 1.0
    assert seconds(rated(*rows), "dot", flops=1e12) == 1.0


@pytest.mark.parametrize(
    ("chip", "executions", "fixed", "expected"),
    [
        (CHIP, 1.0, True, 4.0 + 0.5), (CHIP, 5.0, True, 4.0 + 0.1), (CHIP, None, True, 4.0 + 0.5),
        (CHIP, 0.25, True, 4.0 + 0.5), (CHIP, 1.0, False, 3.0), (CPU, 1.0, True, 1.0 + 3.0 + 0.5),
        (CPU, 1.0, False, 1.0 + 3.0),
    ],
)  # fmt: skip
def test_fixed_costs_at_measured_rates(chip, executions, fixed, expected):
    """A product of 1 s reads for 3 s; an operation takes at least 4 s, and its first run 0.5 s more."""
    rows = (
        rate("matrix product", 1e12, 1.0, "bfloat16"), rate("thin product", 1.0, 3.0), rate("operation", 1.0, 4.0),
        rate("first run", 1.0, 0.5),
    )  # fmt: skip
    product = instruction("dot", flops=1e12, accessed_bytes=1, executions=executions)
    assert predict_instruction(product, rated(*rows, chip=chip), fixed=fixed) == (pytest.approx(expected), 1.0, 3.0, "")


@pytest.mark.parametrize(
    ("transcendentals", "arithmetic", "expected"),
    [(0.0, 0.0, 1.0), (50.0, 0.0, 4.0), (100.0, 0.0, 8.0), (200.0, 0.0, 16.0), (0.0, 100.0, 2.0), (50.0, 50.0, 5.0)],
)
def test_counted_operations_take_their_measured_rates_in_proportion(transcendentals, arithmetic, expected):
    chip = rated(rate("elementwise", 1.0, 1.0), rate("transcendental", 100.0, 8.0), rate("arithmetic", 100.0, 2.0))
    arguments = {"transcendentals": transcendentals, "arithmetic": arithmetic}
    found = predict_instruction(instruction(accessed_bytes=1), chip, **arguments)
    assert (found.seconds, found.memory) == (expected, 1.0)
    assert found.compute == (expected if transcendentals + arithmetic else 0.0)


def test_counted_operations_do_not_hide_an_unknown_product():
    chip = rated(rate("arithmetic", 1.0, 2.0)).replace(peak_flops_per_second={})
    found = predict_instruction(instruction("dot", flops=1.0), chip, arithmetic=5.0)
    assert (found.seconds, found.compute) == (None, None)


SORT = RoutineRecord(kind="sort", work=3 * 1024 * 10.0, calls=2.0, length=1024, key_bytes=4)
FACTORS = RoutineRecord(kind="factorisation", work=1e12, calls=3.0)


@pytest.mark.parametrize(
    ("chip", "routine", "expected"),
    [
        (CHIP, FACTORS, 3 * 2.0),  # at 0.5 TFLOP/s of the vector units
        (CHIP.replace(vector_flops_per_second=0.0), FACTORS, 3 / 8),  # at 8 TFLOP/s of bfloat16
        (CHIP.replace(vector_flops_per_second=0.0, peak_flops_per_second={}), FACTORS, 0.0),
        (rated(rate("factorisation", 1e12, 0.5), rate("elementwise", 1.0, 1e-9)), FACTORS, 1.5),
        (rated(rate("eigenvalues", 1e12, 0.5), rate("elementwise", 1.0, 1e-9)), FACTORS, 6.0),
        (CHIP, SORT, 0.0),
        # four passes over 100 bytes at 27 % of 1e10 B/s, and an operation's fixed cost is not added to them
        (NVIDIA, SORT.replace(key_bytes=400), 400 * 100 / 0.27e10),
        (rated(rate("sort", 8 * 1024, 5.0), chip=CPU), SORT, 2 * 3 * 5.0),  # three times the comparisons of 1024 keys
        (rated(rate("sort", 8 * 2048, 5.0), chip=CPU), SORT, 2 * 3 * 1024 * 10 * 5.0 / (2048 * 11)),
        (rated(rate("elementwise", 1.0, 1e-9), chip=CPU), SORT, 100e-9),
        (rated(rate("sort", 100.0, 5.0), chip=TPU), SORT, 5.0),
    ],
)  # fmt: skip
def test_library_routines_take_their_own_work(chip, routine, expected):
    found = predict_instruction(instruction("custom-call", accessed_bytes=100, routine=routine), chip, fixed=False)
    memory = 100 / 1e10
    assert found.seconds == pytest.approx(max(expected, memory))


@pytest.mark.parametrize(("arrays", "expected"), [(0, 1.0), (2, 1.0), (3, 1.25), (8, 2.5)])
def test_a_call_takes_longer_with_more_arrays(arrays, expected):
    chip = rated(rate("call", 1.0, 1.0), rate("array", 1.0, 0.5), rate("upload", 1.0, 9.0))
    assert seconds_of_call(chip, arrays) == expected
    assert seconds_of_call(CHIP, arrays) == 0.0


POINTS = ((1.0, 3.0), (10.0, 2.0), (1000.0, 8.0))


@pytest.mark.parametrize(
    ("amount", "expected"),
    [(0.5, 2.0), (1.0, 2.0), (5.0, 2.0), (10.0, 2.0), (100.0, 4.0), (1000.0, 8.0), (3000.0, 24.0)],
)
def test_interpolation_never_falls_and_is_linear_in_logarithms(amount, expected):
    """The first point takes longer than the second, so the second is its time too."""
    assert interpolate([rate("sort", *point) for point in POINTS], amount) == pytest.approx(expected)
    assert interpolate([], amount) is None


def test_interpolation_takes_the_second_of_two_equal_amounts_above_them():
    rows = [rate("sort", 1.0, 2.0), rate("sort", 1.0, 4.0), rate("sort", 100.0, 16.0)]
    assert [interpolate(rows, amount) for amount in (1.0, 10.0)] == [2.0, pytest.approx(8.0)]
    assert math.isclose(interpolate(rows[:2], 3.0) or 0.0, 12.0)


def test_a_published_chip_has_the_peaks_of_its_table():
    chip = known_chip("tpu7x")  # 2307 TFLOP/s, shared by two devices
    assert chip is not None
    assert product_peak("bfloat16", chip) == pytest.approx(2307e12 / 2)
