import pytest

from workbench import render
from workbench.aot._memory import largest_buffers, memory_record, out_of_memory_bytes
from workbench.aot.worker import memory_warning

TEMPORARIES = (
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries (22.25G) exceeds "
    "available HBM (15.75G)."
)
PROGRAM = """RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. \
Used 24.00G of 15.75G hbm. Exceeded hbm capacity by 8.25G.

  Largest program allocations in hbm:

  1. Size: 16.00G
     Operator: op_name="jit(f)/wb:2:clients/dot_general" source_file="train.py" source_line=12
     Shape: f32[65536,65536]{1,0:T(8,128)}
     Unpadded size: 16.00G
     XLA label: fusion.7 = fusion(param.1)
     Allocation type: HLO temp
"""
HLO = """HloModule jit_f, is_scheduled=true

FileNames
1 "/opt/packages/workbench_user.py"
2 "%s/primitives/_map.py"

FunctionNames
1 "train"
2 "evaluate"

FileLocations
1 {file_name_id=1 function_name_id=1 line=14 end_line=14 column=4 end_column=9}
2 {file_name_id=2 function_name_id=2 line=99 end_line=99 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

%%fused (p: f32[4]) -> f32[4] {
  ROOT %%p = f32[4]{0} parameter(0)
}

ENTRY %%main (a: f32[8]) -> f32[8] {
  %%param = f32[8,8]{1,0:T(8,128)} parameter(0), metadata={op_name="x"}
  %%pair = (f32[8,8]{1,0:T(8,128)}, /*index=1*/bf16[16]{0:T(8)(2,1)}) fusion(%%param), calls=%%fused, \
metadata={op_name="jit(f)/wb:1:clients/dot" stack_frame_id=2}
  ROOT %%out = f32[8]{0} reduce(%%pair), metadata={op_name="jit(f)/sum" stack_frame_id=1}
}
"""
PEAK = """    param{}: 4096 bytes (cumulative: 4096 bytes)
    pair{1}: 8192 bytes (cumulative: 12288 bytes)
    out{}: 512 bytes (cumulative: 12800 bytes)
  Stack trace breakdown for peak usage: 12 800 bytes
    main (100.0%, total: 12 800 bytes, current: 0 bytes, remaining: 12 800 bytes)
"""


@pytest.fixture
def hlo():
    from workbench.aot import _memory

    return HLO % _memory._PACKAGE


@pytest.mark.parametrize(
    ("message", "usage", "needed", "available"),
    [
        (TEMPORARIES, "", int(22.25 * 2**30), int(15.75 * 2**30)),
        (TEMPORARIES, "Total bytes: 23890801152 (22.25GiB)", 23890801152, int(15.75 * 2**30)),
        (TEMPORARIES, "Total bytes: 99 (99B)", int(22.25 * 2**30), int(15.75 * 2**30)),
        (PROGRAM, "", 24 * 2**30, int(15.75 * 2**30)),
        (TEMPORARIES.replace("22.25G", "1.50T").replace("15.75G", "512.0M"), "", int(1.5 * 2**40), 512 * 2**20),
        ("RESOURCE_EXHAUSTED: something new", "", None, None),
    ],
    ids=["temporaries", "exact-report", "report-of-something-else", "program", "other-units", "unknown"],
)  # fmt: skip
def test_out_of_memory_error_says_what_is_needed_and_what_there_is(message, usage, needed, available):
    assert out_of_memory_bytes(message, usage) == (needed, available)


def test_largest_buffers_come_first_with_shape_operation_and_the_users_line(hlo):
    pair, param, out = largest_buffers(PEAK, hlo)
    assert (pair.name, pair.size_bytes, pair.shape) == ("pair{1}", 8192, "bf16[16]{0:T(8)(2,1)}")
    assert pair.op_name == "jit(f)/wb:1:clients/dot"
    assert str(pair.source) == "/opt/packages/workbench_user.py:14"  # the frame in workbench itself is left out
    assert (param.name, param.shape, param.source) == ("param", "f32[8,8]{1,0:T(8,128)}", None)
    assert (out.shape, out.source.function) == ("f32[8]{0}", "train")


LOOP = """HloModule loop, is_scheduled=true

%body (wide.param: (s32[], f32[8,8], f32[8,8])) -> (s32[], f32[8,8], f32[8,8]) {
  %wide.param = (s32[]{:T(128)}, f32[8,8]{1,0:T(8,128)}, f32[8,8]{1,0:T(8,128)}) parameter(0)
  %count = s32[]{:T(128)} get-tuple-element(%wide.param), index=0
  %carried = f32[8,8]{1,0:T(8,128)} get-tuple-element(%wide.param), index=1
  %constant_part = f32[8,8]{1,0:T(8,128)} get-tuple-element(%wide.param), index=2
  %made = f32[8,8]{1,0:T(8,128)} add(%carried, %constant_part)
  ROOT %tuple.2 = (s32[]{:T(128)}, f32[8,8]{1,0:T(8,128)}, f32[8,8]{1,0:T(8,128)}) tuple(%count, %made, %constant_part)
}

%condition (param.3: (s32[], f32[8,8], f32[8,8])) -> pred[] {
  %param.3 = (s32[]{:T(128)}, f32[8,8]{1,0:T(8,128)}, f32[8,8]{1,0:T(8,128)}) parameter(0)
  %turn = s32[]{:T(128)} get-tuple-element(%param.3), index=0
  ROOT %less = pred[] compare(%turn, %turn), direction=LT
}

ENTRY %main (x: f32[8,8]) -> f32[8,8] {
  %x = f32[8,8]{1,0:T(8,128)} parameter(0)
  %zero = s32[]{:T(128)} constant(0)
  %custom-call.3 = f32[8,8]{1,0:T(8,128)} custom-call(), custom_call_target="AllocateBuffer"
  %tuple = (s32[]{:T(128)}, f32[8,8]{1,0:T(8,128)}, f32[8,8]{1,0:T(8,128)}) tuple(%zero, %custom-call.3, %x)
  %while = (s32[]{:T(128)}, f32[8,8]{1,0:T(8,128)}, f32[8,8]{1,0:T(8,128)}) while(%tuple), condition=%condition, body=%body
  ROOT %left = f32[8,8]{1,0:T(8,128)} get-tuple-element(%while), index=1
}
"""  # noqa: E501


def listed(values: list[str]) -> list[str]:
    peak = "".join(f"    {value}: 4096 bytes (cumulative: 4096 bytes)\n" for value in values)
    return [buffer.name for buffer in largest_buffers(peak, LOOP)]


@pytest.mark.parametrize("value", ["wide.param{1}", "carried{}", "made{}", "while{1}", "left{}", "param.3{1}"])
def test_what_a_loop_carries_in_the_place_of_its_start_is_listed_once(value):
    assert listed(["custom-call.3{}", value]) == ["custom-call.3"]


@pytest.mark.parametrize("value", ["wide.param{2}", "constant_part{}", "x{}"])
def test_other_buffers_of_the_same_size_are_listed(value):
    assert len(listed(["custom-call.3{}", value])) == 2


def reply(**changes):
    base = {"peak": "", "hlo": "", "error": "", "usage": "", "memory": {}}
    return base | changes


def test_program_that_does_not_fit_keeps_the_compilers_figures():
    record = memory_record(reply(error=PROGRAM), available_bytes=1)
    assert (record.fits, record.peak_bytes, record.available_bytes) == (False, 24 * 2**30, int(15.75 * 2**30))
    (buffer,) = record.largest
    assert (buffer.size_bytes, buffer.name, buffer.op_name) == (
        16 * 2**30,
        "fusion.7",
        "jit(f)/wb:2:clients/dot_general",
    )


@pytest.mark.parametrize(("available", "fits"), [(111, True), (110, False)], ids=["just-fits", "one-byte-too-many"])
def test_gpu_program_fits_when_its_peak_does(available, fits):
    record = memory_record(reply(memory={"peak_bytes": 111, "argument_bytes": 100}), available_bytes=available)
    assert (record.fits, record.argument_bytes) == (fits, 100)


@pytest.mark.parametrize(("temporaries", "lines"), [(111, 1), (112, 2)], ids=["within the peak", "above the peak"])
def test_text_says_why_temporaries_exceed_the_peak(temporaries, lines):
    record = memory_record(reply(memory={"peak_bytes": 111, "temporary_bytes": temporaries}), available_bytes=200)
    said = render.text(record)
    assert len(said.splitlines()) == 1 + lines
    assert ("decides whether the program fits" in said) == (lines == 2)


def test_peak_that_the_compiler_does_not_report_is_bounded_by_what_it_holds():
    figures = {"argument_bytes": 100, "output_bytes": 50, "temporary_bytes": 7, "alias_bytes": 50, "peak_bytes": 0}
    assert memory_record(reply(memory=figures), available_bytes=1000).peak_bytes == 107


def test_warning_of_the_gpu_compiler_is_read_from_what_was_written_since(tmp_path):
    log = tmp_path / "stderr.txt"
    assert memory_warning(log, 0) == ""
    old = "W1 hlo_rematerialization.cc:1] Can't reduce memory use below 1.00GiB (1 bytes) by rematerialization\n"
    new = "W1 hlo_rematerialization.cc:1] Can't reduce memory use below 2.00GiB (2 bytes) by rematerialization; only\n"
    log.write_text(f"{old}I0 something else\n")
    start = log.stat().st_size
    assert memory_warning(log, start) == ""
    log.write_text(f"{old}I0 something else\n{new}W0 more\n")
    assert memory_warning(log, start) == "Can't reduce memory use below 2.00GiB (2 bytes) by rematerialization; only"
