"""HLO text that is damaged is refused with what is wrong; forms that backends print are read."""

import pytest

from workbench.errors import InspectionError
from workbench.inspection import inspect_module
from workbench.inspection.hlo._shapes import parse_shape, tuple_widths

TEXT = """HloModule small, is_scheduled=true

%scaled (p: f32[4,8], q: f32[8,2]) -> f32[4,2] {
  %p = f32[4,8]{1,0} parameter(0)
  %q = f32[8,2]{1,0} parameter(1)
  ROOT %product = f32[4,2]{1,0} dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY %main (x: f32[4,8], y: f32[8,2]) -> f32[4,2] {
  %x = f32[4,8]{1,0} parameter(0)
  %y = f32[8,2]{1,0} parameter(1)
  %fused = f32[4,2]{1,0} fusion(%x, %y), kind=kLoop, calls=%scaled
  ROOT %twice = f32[4,2]{1,0} add(%fused, %fused), metadata={op_name="jit(f)/add" source_file="mine.py" source_line=7}
}
"""


def test_whole_text_is_read():
    assert inspect_module(TEXT).flops == 2 * 4 * 8 * 2


@pytest.mark.parametrize(
    ("old", "new", "fact"),
    [
        pytest.param("ENTRY ", "", "no ENTRY computation", id="entry"),
        pytest.param("  ROOT %twice", "  %twice", "`main` has no ROOT", id="root"),
        pytest.param("  %fused =", "  ROOT %fused =", "`main` has 2 ROOT", id="two roots"),
        pytest.param(
            "  %x = f32[4,8]{1,0} parameter(0)\n", "", r"`fused` reads %x, which is not defined", id="operand"
        ),
        pytest.param("calls=%scaled", "calls=%lost", r"reads computation %lost", id="callee"),
        pytest.param("fusion(%x, %y)", "fusion(%x)", "passes 1 values to `scaled`, which expects 2", id="arity"),
        pytest.param("%q = f32[8,2]", "%p = f32[8,2]", "defines an instruction twice", id="twice"),
        pytest.param("ENTRY %main", "ENTRY %scaled", "`scaled` is defined twice", id="computation twice"),
        pytest.param(" lhs_contracting_dims={1},", "", "`product` has no `lhs_contracting_dims`", id="dot"),
        pytest.param("f32[4,8]{1,0} parameter(0)", "f32[4,x]{1,0} parameter(0)", "ValueError", id="shape"),
        pytest.param("add(%fused, %fused)", "add(%fused, %fused", "not a line of HLO", id="parenthesis"),
        pytest.param("%x = f32", "%x : f32", "line 10, .* is not a line of HLO", id="definition"),
    ],
)
def test_damage_is_named(old, new, fact):
    assert old in TEXT
    with pytest.raises(InspectionError, match=fact):
        inspect_module(TEXT.replace(old, new))


def test_text_without_its_entry_names_the_last_computation():
    cut, other = TEXT[: TEXT.index("ENTRY")], "%{0} (p: f32[]) -> f32[] {{\n  ROOT %p = f32[] parameter(0)\n}}\n\n"
    with pytest.raises(InspectionError, match="its last computation is `third`"):
        inspect_module(cut + other.format("second") + other.format("third"))


def test_arguments_in_a_tuple_are_read():
    text = """HloModule tuple, is_scheduled=true

ENTRY %main (p: (f32[4,8], f32[8,2])) -> f32[4,2] {
  %p = (f32[4,8]{1,0}, f32[8,2]{1,0}) parameter(0)
  %x = f32[4,8]{1,0} get-tuple-element(%p), index=0
  %y = f32[8,2]{1,0} get-tuple-element(%p), index=1
  ROOT %product = f32[4,2]{1,0} dot(%x, %y), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""
    assert inspect_module(text).flops == 2 * 4 * 8 * 2


def test_convolution_without_labels_is_noted():
    text = TEXT.replace(" dot(%p, %q), lhs_contracting_dims={1}, rhs_contracting_dims={0}", " convolution(%p, %q)")
    assert "FLOPs of `product` are not counted: no dim_labels" in inspect_module(text).notes


@pytest.mark.parametrize(
    "comment",
    ["/* %r = f32[9,9]{1,0} dot(%p, %q) */", "/* a {\n  ROOT %r = f32[]\n}\n\nENTRY %other { (\n */", "// } ("],
    ids=["inside of a line", "over several lines", "to the end of the line"],
)
def test_comments_are_left_out(comment):
    assert inspect_module(TEXT.replace("  ROOT %product", f"  {comment}\n  ROOT %product")).flops == 2 * 4 * 8 * 2


def test_unknown_backend_gives_a_partial_record_that_says_so():
    module = inspect_module(TEXT)
    assert module.platform == "unknown"
    assert any("backend of this module is unknown" in note for note in module.notes)
    assert any("no stack frames" in note for note in module.notes)


def test_operation_that_nobody_knows_is_named():
    module = inspect_module(TEXT.replace("add(%fused, %fused)", "entangle(%fused, %fused)"))
    assert any("`entangle` is an operation that this inspector does not know" in note for note in module.notes)


def test_operation_without_a_formula_is_named():
    text = TEXT.replace("add(%fused, %fused)", "fft(%fused), fft_type=FFT, fft_length={2}")
    assert "FLOPs of `fft` are not counted" in inspect_module(text).notes


def test_module_without_schedule_has_no_timeline_and_says_so():
    module = inspect_module(TEXT.replace(", is_scheduled=true", ""))
    assert module.memory.timeline == ()
    assert module.memory.notes == ("the module is not scheduled: no memory timeline",)


def test_operations_of_the_tree_have_the_names_that_jax_gave_them():
    text = TEXT.replace('op_name="jit(f)/add"', 'op_name="jit(f)/layer/double"')
    (double,) = [node for node in inspect_module(text).call_tree.nodes if "twice" in node.instructions]
    assert (double.name, double.scope) == ("double", "layer")


def test_cublas_call_counts_by_its_dimension_numbers():
    call = (
        '(f32[4,2]{1,0}, s8[1024]{0}) custom-call(%x, %y), custom_call_target="__cublas$gemm", '
        'backend_config={"gemm_backend_config":{"dot_dimension_numbers":'
        '{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}'
    )
    text = TEXT.replace("f32[4,2]{1,0} fusion(%x, %y), kind=kLoop, calls=%scaled", call)
    text = text.replace("add(%fused, %fused)", "get-tuple-element(%fused), index=0")
    module = inspect_module(text)
    assert (module.flops, module.platform) == (2 * 4 * 8 * 2, "gpu")


def test_cost_that_a_kernels_author_declared_is_taken_and_noted():
    call = (
        'f32[4,2]{1,0} custom-call(%x, %y), custom_call_target="tpu_custom_call", '
        'backend_config={"custom_call_config":{"cost_estimate":{"flops":"99","transcendentals":"0"}}}'
    )
    module = inspect_module(TEXT.replace("f32[4,2]{1,0} fusion(%x, %y), kind=kLoop, calls=%scaled", call))
    assert module.flops == 99
    assert any("declared by its author" in note for note in module.notes)


class Silent:
    """A compiled program of a backend that shows nothing."""

    def __init__(self, text):
        self._text = text

    def as_text(self):
        if isinstance(self._text, Exception):
            raise self._text
        return self._text

    def memory_analysis(self):
        return None


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        pytest.param(None, "it returned no text", id="no text"),
        pytest.param(NotImplementedError("not here"), "not here", id="not implemented"),
    ],
)
def test_backend_that_shows_no_hlo_is_refused(text, fact):
    with pytest.raises(InspectionError, match=f"does not show its HLO \\({fact}\\).*Costs are read only from HLO"):
        inspect_module(Silent(text))


@pytest.mark.parametrize(
    ("text", "size", "padded", "space"),
    [
        pytest.param("f32[32,512]{1,0}", 65536, 65536, 0, id="plain"),
        pytest.param("bf16[3,5]{1,0:T(8,128)(2,1)}", 30, 8 * 128 * 2, 0, id="padded to a tile"),
        pytest.param("f32[3,5]{0,1:T(8,128)}", 60, 8 * 128 * 4, 0, id="minor dimension first"),
        pytest.param("f32[2,300]{1,0:T(8,128)S(1)}", 2400, 8 * 384 * 4, 1, id="in VMEM"),
        pytest.param("f32[]{:T(128)}", 4, 512, 0, id="scalar in a tile"),
        pytest.param("s4[7]{0}", 4, 4, 0, id="half bytes round up"),
        pytest.param("pred[]", 1, 1, 0, id="predicate"),
        pytest.param("f32[<=8,2]{1,0}", 64, 64, 0, id="bounded dynamic dimension"),
        pytest.param("f32[?,2]{1,0}", 0, 0, 0, id="unbounded dynamic dimension"),
        pytest.param("f32[2,3,5]{2,1,0:T(8,128)}", 120, 2 * 8 * 128 * 4, 0, id="a tile for each matrix"),
        pytest.param("f32[3,2,130]{2,0,1:T(8,128)}", 3120, 2 * 8 * 256 * 4, 0, id="a tile for each transposed matrix"),
        pytest.param("f32[130]{0:T(128)}", 520, 1024, 0, id="vector in tiles"),
    ],
)
def test_shapes_are_read_with_padding_and_space(text, size, padded, space):
    (leaf,) = parse_shape(text).leaves
    assert (leaf.size_bytes, leaf.padded_bytes, leaf.space) == (size, padded, space)


def test_shape_without_arrays_is_empty():
    empty = parse_shape("()")
    assert (empty.dimensions, empty.elements, empty.size_bytes, empty.main_bytes, empty.space) == ((), 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("text", "widths"),
    [
        ("(f32[2], u32[])", (1, 1)),
        ("((f32[2]{0:T(128)}, f32[3]), /*index=1*/f32[], u32[2]{0})", (2, 1, 1)),
        ("()", ()),
    ],
    ids=["flat", "nested", "empty"],
)
def test_elements_of_tuples_are_counted(text, widths):
    assert tuple_widths(text) == widths
