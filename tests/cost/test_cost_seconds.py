"""Seconds of modules whose HLO is written by hand, from the figures of data sheets."""

import jax
import jax.numpy as jnp
import pytest
from records_parts import toy_module

import workbench as wb
from workbench.cost import CHIPS, estimate_cost, known_chip, time_module
from workbench.inspection import inspect_module
from workbench.records.compiled import CollectiveRecord, InstructionRecord
from workbench.records.hardware import AxisRecord, DeviceRecord, MeshRecord, RateRecord

# What Google Cloud's pages and NVIDIA's data sheets print, typed in apart from the table:
# TFLOP/s in bfloat16, GB/s of memory, GB/s of one link one way.
PUBLISHED = {
    "v4": (275, 1200, 50),
    "v5e": (197, 819, 50),
    "v5p": (459, 2765, 100),
    "v6e": (918, 1638, 100),
    "tpu7x": (2307, 7380, 100),
    "A100": (312, 2039, 300),
    "A100 40GB": (312, 1555, 300),
    "H100": (989, 3350, 450),
    "H200": (989, 4800, 450),
    "GB200": (2500, 8000, 900),
    "MI300X": (1307, 5300, 448),
}
SIZE = 4096
FLOPS = 2.0 * SIZE**3
# Shares that the families reach, and µs of one operation, as the documentation states them.
TPU, NVIDIA = (0.93, 1.5e-6), (0.70, 4e-6)  # the second on H100 and H200


@pytest.mark.parametrize("name", PUBLISHED)
def test_row_has_the_published_figures(name):
    chip = CHIPS[name]
    found = chip.peak_flops_per_second["bfloat16"], chip.hbm_bytes_per_second, chip.link_bytes_per_second
    assert found == pytest.approx([PUBLISHED[name][0] * 1e12, PUBLISHED[name][1] * 1e9, PUBLISHED[name][2] * 1e9])


def product(dtype, result, attributes=""):
    shape = f"{dtype}[{SIZE},{SIZE}]"
    return f"""HloModule jit_f, is_scheduled=true

ENTRY %main (a: {shape}, b: {shape}) -> {result}[{SIZE},{SIZE}] {{
  %a = {shape} parameter(0)
  %b = {shape} parameter(1)
  ROOT %dot = {result}[{SIZE},{SIZE}] dot(%a, %b), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}{attributes}
}}
"""


HIGHEST = ", operand_precision={highest,highest}"


@pytest.mark.parametrize(
    ("chip", "text", "tera", "family"),
    [
        pytest.param("H100", product("bf16", "bf16"), 989, NVIDIA, id="bfloat16 on H100"),
        pytest.param("H100", product("f32", "f32"), 494.5, NVIDIA, id="TF32 on H100"),
        pytest.param("H100", product("f32", "f32", HIGHEST), 67, NVIDIA, id="float32 without matrix units on H100"),
        pytest.param("H100", product("s8", "s32"), 1979, NVIDIA, id="int8 on H100"),
        pytest.param("H100", product("f8e4m3fn", "f32"), 1979, NVIDIA, id="float8 on H100"),
        pytest.param(
            "H100", product("f32", "f32", ", algorithm=dot_bf16_bf16_f32_x3"), 989 / 3, NVIDIA, id="three bfloat16"
        ),
        pytest.param("v5e", product("bf16", "f32"), 197, TPU, id="bfloat16 on v5e"),
        pytest.param("v5e", product("s8", "s32"), 393, TPU, id="int8 on v5e"),
        pytest.param("v6e", product("f32", "f32"), 918, TPU, id="float32 in one pass on v6e"),
        pytest.param("v6e", product("f32", "f32", HIGHEST), 918 / 6, TPU, id="float32 in six passes on v6e"),
        pytest.param("v6e", product("s8", "s32"), 1836, TPU, id="int8 on v6e"),
    ],
)
def test_product_is_priced_by_what_it_multiplies(chip, text, tera, family):
    module = inspect_module(text, platform="tpu" if chip.startswith("v") else "gpu")
    reached, fixed = family
    # `dtype` is what the program's arguments would say, and decides nothing
    cost = estimate_cost(module, chip=known_chip(chip), dtype="bfloat16")
    assert cost.seconds == pytest.approx(FLOPS / (tera * 1e12) / reached + fixed)


def test_products_without_a_known_peak_are_unknown_and_say_so():
    cost = estimate_cost(inspect_module(product("f64", "f64"), platform="tpu"), chip=known_chip("v5e"))
    assert cost.seconds is None
    assert "no peak rate of float64 products is known for v5e" in " ".join(cost.stages[0].unknown_because)


def test_a_small_product_takes_the_fixed_cost():
    text = product("bf16", "bf16").replace(str(SIZE), "128")
    cost = estimate_cost(inspect_module(text, platform="tpu"), chip=known_chip("tpu7x"))
    assert 1.5e-6 < cost.seconds < 1.7e-6  # measured: 1.62 µs


# ---- overlap


def overlapping(between, dones=1):
    """An all-gather that starts, `between` products, and the end of the all-gather."""
    shape, whole = f"bf16[{SIZE},{SIZE}]", f"bf16[{8 * SIZE},{SIZE}]"
    products = "\n".join(
        f"  %dot.{i} = {shape} dot(%a, %a), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}"
        for i in range(between)
    )
    return f"""HloModule jit_f, is_scheduled=true, num_partitions=8

ENTRY %main (a: {shape}) -> {whole} {{
  %a = {shape} parameter(0)
  %start = ({shape}, {whole}) all-gather-start(%a), replica_groups={{{{0,1,2,3,4,5,6,7}}}}, dimensions={{0}}
{products}
  ROOT %done = {whole} all-gather-done(%start)
}}
"""


GATHER = 7 * 2.0 * SIZE**2 / (450e9 * 0.8) + 7 * 6e-6 + 5e-6
DOT = FLOPS / 989e12 / 0.7 + 4e-6


@pytest.mark.parametrize("between", [0, 1, 2, 6])
def test_collective_hides_behind_what_runs_between_its_start_and_its_done(between):
    module = inspect_module(overlapping(between), platform="gpu")
    cost = estimate_cost(module, chip=known_chip("H100"))
    assert cost.seconds == pytest.approx(max(between * DOT, GATHER))
    (stage,) = cost.stages
    assert stage.collective_seconds == pytest.approx(GATHER)
    assert stage.hidden_seconds == pytest.approx(min(between * DOT, GATHER))


def test_collective_in_a_loop_of_unknown_length_hides_no_known_time():
    module = inspect_module(overlapping(1), platform="gpu")
    unknown = tuple(collective.replace(executions=None) for collective in module.collectives)
    (stage,) = estimate_cost(module.replace(collectives=unknown), chip=known_chip("H100")).stages
    assert (stage.collective_seconds, stage.hidden_seconds) == (None, 0.0)


def operation(name, opcode="fusion", *, computation="main", **fields):
    return InstructionRecord(
        name=name, opcode=opcode, computation=computation, shape="f32[1024]", size_bytes=4096, executions=1.0, **fields
    )


def reduction_over(axis, **fields):
    """An all-reduce of 1 MB between 4 devices: 1.5 MB over 2 × 50 GB/s at 88 %, 6 hops of 1 µs, 10 µs to start."""
    return CollectiveRecord(
        name="all-reduce", kind="all-reduce", axes=(axis,), group_size=4, groups=1, payload_bytes=10**6,
        wire_bytes=1.5e6, executions=1.0, torus=((4, True),), **fields,
    )  # fmt: skip


REDUCTION = 1.5e6 / (2 * 50e9 * 0.88) + 4e-6 + 10e-6


@pytest.mark.parametrize(
    ("work", "visible"),
    [
        pytest.param({"accessed_bytes": 7_125_300}, REDUCTION - 11.5e-6, id="short"),  # 10 µs at 87 %, and 1.5 µs
        pytest.param({"accessed_bytes": 71_253_000}, 0.0, id="long"),
        pytest.param({"flops": 1e6, "products": {"float64": 1e6}}, REDUCTION, id="of unknown time"),
    ],
)
def test_collective_inside_a_fusion_hides_behind_the_fusion(work, visible):
    inner = operation("all-reduce", "all-reduce", computation="inside", fused=True)
    fusion = operation("fusion", calls=("inside",), **work)
    module = toy_module(platform="tpu", instructions=(inner, fusion), collectives=(reduction_over("x"),))
    assert time_module(module, known_chip("v5e"))["all-reduce"].seconds == pytest.approx(visible)


def test_collective_of_unknown_time_does_not_change_the_time_of_another():
    start = operation("start", "all-reduce-start")
    unknown, done = operation("unknown", "all-reduce"), operation("done", "all-reduce-done", operands=("start",))
    collectives = (
        reduction_over("x", asynchronous=True).replace(name="start"),
        reduction_over("y").replace(name="unknown", wire_bytes=None),
    )
    module = toy_module(platform="tpu", instructions=(start, unknown, done), collectives=collectives)
    assert time_module(module, known_chip("v5e"))["start"].seconds == pytest.approx(REDUCTION)


def test_operations_of_an_asynchronous_computation_add_no_time():
    inner = operation("inner", computation="beside", accessed_bytes=10**6)
    module = toy_module(platform="tpu", instructions=(inner, operation("start", "async-start", calls=("beside",))))
    assert time_module(module, known_chip("v5e")) == {}


def test_a_product_in_fast_memory_takes_no_time_of_main_memory():
    dot = operation("dot", "dot", flops=FLOPS, products={"bfloat16": FLOPS})
    assert time_module(toy_module(instructions=(dot,)), known_chip("v5e"))["dot"].memory == 0.0


def test_collective_of_one_piece_hides_behind_nothing():
    text = (
        overlapping(2)
        .replace("all-gather-start(%a)", "all-gather(%a)")
        .replace(f"%start = (bf16[{SIZE},{SIZE}], bf16[{8 * SIZE},{SIZE}])", f"%start = bf16[{8 * SIZE},{SIZE}]")
    )
    text = text.replace("all-gather-done(%start)", "bitcast(%start)")
    cost = estimate_cost(inspect_module(text, platform="gpu"), chip=known_chip("H100"))
    assert cost.seconds == pytest.approx(2 * DOT + GATHER)


def test_two_collectives_over_the_same_links_do_not_hide_behind_each_other():
    text = overlapping(0)
    start = next(line for line in text.splitlines() if "all-gather-start" in line)
    end = next(line for line in text.splitlines() if "all-gather-done" in line)
    second = (
        start.replace("%start", "%start.2")
        + "\n"
        + end.replace("ROOT %done", "%done.2").replace("(%start)", "(%start.2)")
    )
    module = inspect_module(text.replace(end, second + "\n" + end), platform="gpu")
    assert estimate_cost(module, chip=known_chip("H100")).seconds == pytest.approx(2 * GATHER)


def test_loop_repeats_what_its_body_takes():
    shape, trips = f"bf16[{SIZE},{SIZE}]", '{"known_trip_count":{"n":"5"}}'
    text = f"""HloModule jit_f, is_scheduled=true

%body (p: (s32[], {shape})) -> (s32[], {shape}) {{
  %p = (s32[], {shape}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = {shape} get-tuple-element(%p), index=1
  %dot = {shape} dot(%x, %x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  ROOT %t = (s32[], {shape}) tuple(%i, %dot)
}}

%condition (p.1: (s32[], {shape})) -> pred[] {{
  %p.1 = (s32[], {shape}) parameter(0)
  ROOT %yes = pred[] constant(true)
}}

ENTRY %main (a: (s32[], {shape})) -> (s32[], {shape}) {{
  %a = (s32[], {shape}) parameter(0)
  ROOT %loop = (s32[], {shape}) while(%a), condition=%condition, body=%body, backend_config={trips}
}}
"""
    module = inspect_module(text, platform="gpu")
    assert estimate_cost(module, chip=known_chip("H100")).seconds == pytest.approx(5 * DOT)
    assert time_module(module, known_chip("H100"))["dot"].seconds == pytest.approx(DOT)


# ---- the torus


def slice_mesh(shape, wraps, sizes):
    """A mesh whose axes take the dimensions of a torus in order."""
    places = [()]
    for extent in shape:
        places = [(*place, i) for place in places for i in range(extent)]
    devices = tuple(
        DeviceRecord(id=i, position=(), platform="tpu", coords=(*place, *(0,) * (3 - len(place))))
        for i, place in enumerate(places)
    )
    axes = tuple(AxisRecord(name=name, size=size) for name, size in sizes.items())
    return MeshRecord(axes=axes, devices=devices, wraps=wraps, abstract=True)


def reduction(devices, groups):
    return f"""HloModule jit_f, is_scheduled=true, num_partitions={devices}

%add (x: f32[], y: f32[]) -> f32[] {{
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %sum = f32[] add(%x, %y)
}}

ENTRY %main (a: f32[1048576]) -> f32[1048576] {{
  %a = f32[1048576] parameter(0)
  ROOT %all-reduce = f32[1048576] all-reduce(%a), replica_groups={groups}, to_apply=%add
}}
"""


@pytest.mark.parametrize(
    ("chip", "mesh", "groups", "size", "bandwidth", "hops"),
    [
        pytest.param(
            "v5e", slice_mesh((16, 16), (True, True), {"x": 256}), "[1,256]<=[256]", 256, 4 * 50e9, 32,
            id="whole pod of v5e: four links a chip",
        ),
        pytest.param(
            "v5e", slice_mesh((16, 16), (True, True), {"x": 16, "y": 16}), "[16,16]<=[256]", 16, 2 * 50e9, 16,
            id="one side of it: a ring",
        ),
        pytest.param(
            "v5e", slice_mesh((4, 4), (False, False), {"x": 16}), "[1,16]<=[16]", 16, 2 * 50e9, 12,
            id="all of v5e:4x4, which does not wrap: two links at a corner",
        ),
        pytest.param(
            "v5p", slice_mesh((2, 2, 4), (False, False, False), {"x": 2, "y": 2, "z": 4}), "[4,4]<=[16]", 4, 100e9, 6,
            id="z of v5p:2x2x4: an open line",
        ),
        pytest.param(
            "v5p", slice_mesh((4, 4, 4), (True, True, True), {"x": 4, "y": 4, "z": 4}), "[16,4]<=[64]", 4, 2 * 100e9, 4,
            id="z of v5p:4x4x4: a ring",
        ),
    ],
)  # fmt: skip
def test_collective_takes_the_links_that_its_groups_have(chip, mesh, groups, size, bandwidth, hops):
    module = inspect_module(reduction(len(mesh.devices), groups), mesh=mesh, platform="tpu")
    seconds = estimate_cost(module, chip=known_chip(chip), mesh=mesh).seconds
    sent = 2 * 4 * 2**20 * (size - 1) / size
    assert seconds == pytest.approx(sent / bandwidth / 0.88 + hops * 1e-6 + 10e-6)


# ---- before compilation


def test_mixed_precision_is_priced_by_its_products_before_compilation():
    """Weights in float32 are the largest input; what is multiplied is bfloat16."""

    def product(w, x):
        return x @ w.astype(jnp.bfloat16)

    mesh = jax.sharding.AbstractMesh((1,), ("data",))
    w, x = jax.ShapeDtypeStruct((SIZE, SIZE), jnp.float32), jax.ShapeDtypeStruct((SIZE, SIZE), jnp.bfloat16)
    cost = wb.inspect(product, on=(mesh, "H100"))(w, x).cost
    assert sum(stage.compute_seconds for stage in cost.stages) == pytest.approx(FLOPS / 989e12 / 0.7)


ROUTINES = [  # target, operand, result, attributes, FLOPs of one call (LAPACK Working Note 41), calls
    ("lapack_spotrf_ffi", "f32[4,32,32]", "f32[4,32,32]", "", 32**3 / 3, 4),
    ("lapack_sgetrf_ffi", "f32[48,32]", "f32[48,32]", "", 48 * 32**2 - 32**3 / 3, 1),
    ("lapack_cgeqrf_ffi", "c64[2,48,32]", "c64[2,48,32]", "", 4 * (2 * 48 * 32**2 - 2 * 32**3 / 3), 2),
    ("lapack_ssyevd_ffi", "f32[4,32,32]", "f32[4,32,32]", "{mode = 86 : ui8}", 14 * 32**3 / 3, 4),
    ("lapack_ssyevd_ffi", "f32[4,32,32]", "f32[4,32]", "{mode = 78 : ui8}", 4 * 32**3 / 3, 4),
    ("lapack_sgesdd_ffi", "f32[32,48]", "f32[32]", "{mode = 78 : ui8}", 4 * 48 * 32**2 - 4 * 32**3 / 3, 1),
    ("lapack_strsm_ffi", "f32[4,32,32]", "f32[4,32,32]", "{uplo = 76 : ui8}", 32**3, 4),
    ("TopK", "f32[8,4096]", "f32[8,16]", "", 4096 / 8 + 16 * 4 * (1 + 5.545), 8),
]


@pytest.mark.parametrize(("target", "operand", "result", "attributes", "work", "calls"), ROUTINES)
def test_a_library_routine_has_its_textbook_work_and_no_counted_flops(target, operand, result, attributes, work, calls):
    operands = "%p, %p" if "trsm" in target else "%p"
    module = inspect_module(
        f"""HloModule m

ENTRY %main (p: {operand}) -> {result} {{
  %p = {operand} parameter(0)
  ROOT %call = {result} custom-call({operands}), custom_call_target="{target}", backend_config={attributes or "{}"}
}}
"""
    )
    routine = module.instructions[-1].routine
    assert (routine.work, routine.calls) == (pytest.approx(work, rel=1e-3), calls)
    assert module.flops == 0


@pytest.mark.parametrize(("chip", "tera"), [("H100", 67), ("v5e", 197)], ids=["vector units", "only matrix units"])
def test_a_factorisation_takes_its_work_at_the_rate_of_float32_on_its_chip(chip, tera):
    module = inspect_module("""HloModule m

ENTRY %main (p: f32[16384,16384]) -> f32[16384,16384] {
  %p = f32[16384,16384] parameter(0)
  ROOT %call = f32[16384,16384] custom-call(%p), custom_call_target="lapack_spotrf_ffi"
}
""")
    assert time_module(module, known_chip(chip))["call"].seconds == pytest.approx(16384**3 / 3 / (tera * 1e12))


def sorted_rows(shape):
    return f"""HloModule m

%less (a: f32[], b: f32[]) -> pred[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %compare = pred[] compare(%a, %b), direction=LT
}}

ENTRY %main (p: {shape}) -> {shape} {{
  %p = {shape} parameter(0)
  ROOT %sort = {shape} sort(%p), dimensions={{0}}, is_stable=true, to_apply=%less
}}
"""


def test_a_sort_on_nvidia_chips_reads_and_writes_all_keys_for_each_of_their_bytes():
    module = inspect_module(sorted_rows("f32[1048576]"), platform="gpu")
    passes, traffic = 4, 2 * 4 * 2**20
    assert time_module(module, known_chip("H100"))["sort"].seconds == pytest.approx(passes * traffic / (0.27 * 3350e9))


def rate(kind, amount, seconds):
    return RateRecord(kind=kind, amount=amount, seconds=seconds, low_seconds=seconds, high_seconds=seconds, runs=5)


def test_rows_of_a_sort_take_their_comparisons_at_the_measured_rate_of_the_longer_sort():
    chip = known_chip("v5e").replace(name="cpu", rates=(rate("sort", 8 * 1024, 1e-3),))
    module = inspect_module(sorted_rows("f32[8,300]"))
    assert time_module(module, chip)["sort"].seconds == pytest.approx(300 * 8 * 3 * 1e-3 / (1024 * 10))


@pytest.mark.parametrize(
    ("name", "opcode", "seconds"),
    [
        pytest.param("transpose_fusion", "fusion", 4e-6, id="fusion, by its name"),
        pytest.param("loop_fusion", "fusion", 1e-6, id="fusion of other operations"),
        pytest.param("x", "reverse", 4e-6, id="operation, by its opcode"),
        pytest.param("transpose_of_x", "negate", 1e-6, id="operation of any name"),
    ],
)
def test_an_operation_takes_the_measured_rate_of_its_class(name, opcode, seconds):
    module = toy_module(instructions=(operation(name, opcode, accessed_bytes=8192),))
    chip = known_chip("v5e").replace(rates=(rate("elementwise", 8192, 1e-6), rate("transpose", 8192, 4e-6)))
    assert time_module(module, chip)[name].seconds == pytest.approx(seconds)


def test_an_operation_larger_than_all_measured_ones_takes_the_time_per_byte_of_the_largest():
    chip = known_chip("v5e").replace(rates=(rate("elementwise", 4096, 1e-6), rate("elementwise", 8192, 4e-6)))
    module = toy_module(instructions=(operation("x", "negate", accessed_bytes=3 * 8192),))
    assert time_module(module, chip)["x"].seconds == pytest.approx(3 * 4e-6)


def test_an_operation_without_operands_reads_from_no_cache():
    text = """HloModule m, is_scheduled=true

ENTRY %main (a: f32[8]) -> s32[1] {
  %a = f32[8] parameter(0)
  %before = f32[8] negate(%a)
  ROOT %iota = s32[1] iota(), iota_dimension=0
}
"""
    # 4 bytes are written; at these rates a fifth byte would take 1.4 µs more
    chip = known_chip("v5e").replace(rates=(rate("elementwise", 4, 1e-6), rate("elementwise", 8, 16e-6)))
    assert time_module(inspect_module(text), chip)["iota"].seconds == pytest.approx(1e-6)


def test_the_error_of_a_factorisation_on_a_chip_that_is_not_attached_is_unknown():
    module = inspect_module(jax.jit(jnp.linalg.cholesky).lower(jnp.eye(8)).compile()).replace(platform="gpu")
    assert estimate_cost(module, chip=known_chip("H200")).error_bar.startswith("error unknown")
