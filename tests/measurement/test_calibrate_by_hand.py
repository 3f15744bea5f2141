"""The programs of a calibration: their sizes on each platform, and what one operation of each program computes."""

import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.measurement import _calibrate
from workbench.records.hardware import RateRecord

pytestmark = pytest.mark.usefixtures("little_optimized")


class Program(NamedTuple):
    kind: str
    amount: float
    body: Any
    shape: tuple[int, ...]
    dtype: str
    start: Any
    many: int


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The programs with a loop that a calibration would make for two devices of a platform."""

    def of(platform: str) -> list[Program]:
        made: list[Program] = []

        def repeated(mesh: Any, kind: Any, amount: float, body: Any, shape: Any, dtype: str = "float32", *,
                     start: Any = lambda x: x, many: int = 1, **_: Any) -> Any:  # fmt: skip
            made.append(Program(kind, amount, body, shape, dtype, start, many))
            return _calibrate._Trial(kind, amount, lambda _: None)

        monkeypatch.setattr(_calibrate, "_repeated", repeated)
        for name in ("_call", "_copies"):
            monkeypatch.setattr(_calibrate, name, lambda *_: iter(()))
        monkeypatch.setattr(_calibrate, "_first_runs", lambda mesh: _calibrate._Trial("first run", 0.0, lambda _: None))
        device = types.SimpleNamespace(platform=platform)
        mesh: Any = types.SimpleNamespace(devices=np.array([device]), shape={"x": 2, "y": 1})
        others = [trial.kind for trial in _calibrate._all_trials(mesh)]
        assert ("first run" in others) == (platform == "cpu")
        return made

    return of


def sizes(made: list[Program], kind: str, dtype: str = "float32") -> list[tuple[Any, ...]]:
    return [(*program.shape, program.many) for program in made if (program.kind, program.dtype) == (kind, dtype)]


def test_sizes_of_programs_on_accelerators(programs):
    made = programs("gpu")
    products = [(2, 128, 128, 4), (2, 512, 512, 4), (2, 2048, 2048, 4), (2, 4096, 4096, 1)]
    dtypes = ("bfloat16", "float32", "float16", "float8_e4m3fn", "int8")
    assert {p.dtype for p in made if p.kind == "matrix product"} == {*dtypes, "float32:highest"}
    assert {dtype: sizes(made, "matrix product", dtype) for dtype in dtypes} == dict.fromkeys(dtypes, products)
    assert sizes(made, "matrix product", "float32:highest") == products[:3]
    assert sizes(made, "convolution") == [(4, 16, 16, 64, 4), (4, 16, 16, 256, 4)]
    assert sizes(made, "transcendental") == sizes(made, "arithmetic", "uint32") == [(256, 4), (2**18, 4)]
    # 4 KiB, 64 KiB, 1, 16 and 256 MiB; only the last is read and written once per repetition
    for kind in ("elementwise", "reduction", "sort"):
        assert sizes(made, kind) == [(2**10, 4), (2**14, 4), (2**18, 4), (2**22, 4), (2**26, 1)]
    assert sizes(made, "transpose") == [(32, 32, 4), (128, 128, 4), (512, 512, 4), (2048, 2048, 4), (8192, 8192, 1)]
    for kind in ("gather", "scatter", "thin product"):
        assert sizes(made, kind) == [(8, 128, 4), (128, 128, 4), (2048, 128, 4), (2**15, 128, 4), (2**19, 128, 1)]
    for kind in ("factorisation", "eigenvalues"):
        assert sizes(made, kind) == [(16, 16, 1), (64, 64, 1), (128, 128, 1), (256, 256, 1)]
    assert sizes(made, "operation") == [(16, 128, 1)]
    assert sizes(made, "all-to-all") == [(2**10, 1), (2**14, 1), (2**18, 1), (2**22, 1)]


def test_sizes_of_programs_on_cpus(programs):
    made = programs("cpu")
    assert {p.dtype for p in made if p.kind == "matrix product"} == {"float32", "bfloat16"}
    assert sizes(made, "convolution") == [(4, 16, 16, 8, 1), (4, 16, 16, 64, 1)]
    # 256 bytes, 4 and 128 KiB, 2 and 16 MiB; the square root of 2**15 is 181.02
    assert sizes(made, "elementwise") == [(64, 1), (2**10, 1), (2**15, 1), (2**19, 1), (2**22, 1)]
    assert sizes(made, "transpose") == [(8, 8, 1), (32, 32, 1), (181, 181, 1), (724, 724, 1), (2048, 2048, 1)]
    assert sizes(made, "gather") == [(1, 128, 1), (8, 128, 1), (256, 128, 1), (4096, 128, 1), (2**15, 128, 1)]
    assert sizes(made, "all-gather") == [(2**10, 1), (2**15, 1), (2**19, 1)]


def first(made: list[Program], kind: str) -> Program:
    return next(program for program in made if program.kind == kind)


def test_operations_of_the_programs(programs):
    made = programs("cpu")
    x = jnp.array([[1.0, 4.0], [3.0, -2.0]])
    square = x @ x.T + jnp.eye(2)
    exponential, reduction, transpose = (
        first(made, kind).body for kind in ("transcendental", "reduction", "transpose")
    )
    assert exponential(jnp.array([0.0, -1.0])).tolist() == pytest.approx([1.0, np.e])
    assert reduction(jnp.array([1.0, 6.0, 4.0])).tolist() == [3.0, 6.0, 4.0]
    assert transpose(x).tolist() == [[1.0, 3.0], [4.0, -2.0]]
    factors, same = first(made, "factorisation").body((x, square))
    assert same is square
    assert factors @ factors.T == pytest.approx(np.asarray(square))
    vectors, same = first(made, "eigenvalues").body((x, square))
    assert same is square
    diagonal = np.asarray(vectors.T @ square @ vectors)
    assert diagonal - np.diag(np.diag(diagonal)) == pytest.approx(np.zeros((2, 2)), abs=1e-4)


def test_operands_of_the_programs(programs):
    made = programs("cpu")
    x = jnp.array([[1.0, 4.0], [3.0, -2.0]])
    numbers, more = first(made, "elementwise").start(x)
    assert numbers is x
    assert more.tolist() == [[2.0, 5.0], [4.0, -1.0]]
    numbers, positive = first(made, "factorisation").start(x)
    assert numbers is x
    assert positive.tolist() == [[18.0, -5.0], [-5.0, 14.0]]  # x x' and 1 on the diagonal
    numbers, weights = first(made, "thin product").start(x)
    assert numbers is x
    assert weights.tolist() == [[1.0] * 16, [4.0] * 16]
    assert [part.tolist() for part in first(made, "operation").start(x)] == [[1.0, 4.0], [3.0, -2.0]]
    assert first(made, "sort").start(jnp.array([1.0]))[1].tolist() == [0x3F800000]


def test_elementwise_operations():
    pair = _calibrate._elementwise((jnp.array([10_000.0]), jnp.array([20_000.0])))
    assert [part.item() for part in pair] == pytest.approx([20_002.5, 10_002.5])
    scaled = _calibrate._small_operations(tuple(jnp.full((1,), 10_000.0) for _ in range(3)))
    assert [part.item() for part in scaled] == pytest.approx([10_000.0, 10_001.0, 10_002.0])


def test_shifts_sums_and_exclusive_ors(monkeypatch):
    start = jnp.array([5], jnp.uint32)
    monkeypatch.setattr(_calibrate, "_STEPS", 3)
    # 5 ^ 10 = 15; 15 ^ 60 = 51, plus 1; 52 ^ 416 = 404, plus 2
    assert _calibrate._arithmetic(start).tolist() == [406]
    monkeypatch.setattr(_calibrate, "_STEPS", 14)
    value = 5
    for number, shift in enumerate([*range(1, 14), 1]):  # shifts stay below the 32 bits of a number
        value = ((value ^ (value << shift)) + number) % 2**32
    assert _calibrate._arithmetic(start).tolist() == [value]


def test_rows_are_gathered_and_scattered_seven_apart():
    rows = jnp.array([[3.0], [1.0], [4.0], [1.5], [9.0]])  # row 7 i + 3 of 5: 3, 0, 2, 4, 1
    assert _calibrate._gather(rows)[:, 0].tolist() == [1.5, 3.0, 4.0, 9.0, 1.0]
    assert _calibrate._scatter(rows)[:, 0].tolist() == [3.5, 5.5, 6.0, 3.0, 9.75]


def test_sorted_numbers_are_different_in_each_repetition():
    bits = jnp.array([2**31, 0, 2**32 - 1], jnp.uint32)
    numbers, following = _calibrate._sort((jnp.zeros(3), bits))
    assert numbers.tolist() == [1.0, 1.5, pytest.approx(2.0)]
    assert numbers[2] < 2
    # the multiplier is odd, so half of 2**32 stays half of it
    assert following.tolist() == [2**31 + 1013904223, 1013904223, 1013904223 - 1664525]


def test_thin_product_and_convolution():
    x, weights = _calibrate._thin((jnp.ones((2, 4)), jnp.full((4, 3), 1e8)))
    assert np.asarray(x) == pytest.approx(np.full((2, 4), 0.999 + 0.4))  # 1e-9 of 4 products of 1e8
    assert np.asarray(weights) == pytest.approx(np.full((4, 3), 0.999e8))
    image = jnp.full((1, 3, 3, 2), 1e6)  # a tap is 1e-3 and 1e-9 of the first point, which is 2e-3
    result = _calibrate._convolution(image)[0, :, :, 0]
    assert np.asarray(result) == pytest.approx(4e3 * np.array([[4, 6, 4], [6, 9, 6], [4, 6, 4]]))


@pytest.mark.parametrize(
    ("dtype", "wide", "value", "product"),
    [("float32", "float32", 0.5, 0.5), ("bfloat16", "bfloat16", 2.0, 8.0), ("int8", "int32", 100, 20_000),
     ("float8_e4m3fn", "bfloat16", 16.0, 512.0)],
)  # fmt: skip
def test_products_are_wide_enough(dtype, wide, value, product):
    both = jnp.stack([jnp.full((2, 2), value), jnp.full((2, 2), value)]).astype(dtype)
    result, left, right = _calibrate._operands(both)
    assert (str(result.dtype), result[0, 0].item()) == (wide, product)
    assert (left.dtype, right.dtype) == (both.dtype, both.dtype)


def test_product_of_the_first_matrix_with_the_second():
    first, second = jnp.array([[1.0, 2.0], [0.0, 1.0]]), jnp.array([[1.0, 0.0], [3.0, 1.0]])
    product, left, right = _calibrate._operands(jnp.stack([first, second]))
    assert product.tolist() == [[7.0, 2.0], [3.0, 1.0]]
    assert _calibrate._product((product, left, right))[0].tolist() == product.tolist()
    assert (left.tolist(), right.tolist()) == (first.tolist(), second.tolist())


@pytest.mark.parametrize(("dtype", "low", "high"), [("int8", -99, 98), ("float32", -5.0, 5.0)])
def test_numbers_of_a_program_are_random_on_every_device(dtype, low, high):
    seen: list[np.ndarray] = []

    def body(x: Any) -> Any:
        jax.debug.callback(lambda value: seen.append(np.asarray(value)), x)
        return x

    _calibrate._repeated(wb.make_mesh(x=2), "operation", 0.0, body, (4100,), dtype).run(1)
    jax.effects_barrier()
    one, other = seen
    assert (one == other).all()
    assert one.dtype == dtype
    assert low <= one.min() < low / 2 < high / 2 < one.max() <= high
    assert one[4099] == one[0]  # the 4,099 numbers repeat
    assert len(set(one.tolist())) > 190


def test_calls_and_arrays_of_a_burst(monkeypatch):
    call, array = _calibrate._call(wb.make_mesh(x=1))
    lengths: list[int] = []
    monkeypatch.setattr(_calibrate.jax, "block_until_ready", lambda results: lengths.append(len(results)))
    for trial, repeats, expected in ((call, 0, 1), (call, 5, 1), (array, 0, 1), (array, 1, 33)):
        lengths.clear()
        trial.run(repeats)
        assert lengths == [expected] * 20


def test_copies_to_and_from_every_device(monkeypatch):
    upload, download = _calibrate._copies(wb.make_mesh(x=2), 64)
    sizes: list[int] = []
    put = jax.device_put
    monkeypatch.setattr(
        _calibrate.jax, "device_put", lambda rows, device: sizes.append(rows.nbytes) or put(rows, device)
    )
    for trial, repeats, expected in ((upload, 0, 0), (upload, 3, 6), (download, 2, 2), (download, 2, 0)):
        sizes.clear()
        trial.run(repeats)
        assert sizes == [64] * expected  # what was copied to a device once is copied back in each repetition


def trial(kind: Any, **fields: Any) -> Any:
    return _calibrate._Trial(kind, 0.0, lambda _: None, **fields)


def test_seconds_of_an_empty_repetition(monkeypatch):
    device = types.SimpleNamespace(platform="tpu")
    mesh: Any = types.SimpleNamespace(devices=np.array([device]))
    empty = trial("operation", repeats=10)
    monkeypatch.setattr(_calibrate, "_repeated", lambda *args: empty)
    walls = iter([(1.0, 3.0), (1.0, 4.0), (1.0, 9.0), (1.0, 5.0), (9.0, 6.0)])
    moments = iter([wall for pair in walls for wall in pair])
    monkeypatch.setattr(_calibrate, "_timed", lambda trial, repeats: next(moments))
    monkeypatch.setattr(_calibrate, "_warm", lambda trial: True)
    assert _calibrate._loop_seconds(mesh) == pytest.approx(0.4)  # the median is a wall of 5 s, a call takes 1 s
    assert not [*moments]
    monkeypatch.setattr(_calibrate, "_warm", lambda trial: False)
    assert _calibrate._loop_seconds(mesh) == 0.0


@pytest.fixture
def calibration(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A calibration whose programs and seconds are given; returns the timed calls and the trials."""

    def of(*trials: Any, seconds: float, **options: Any) -> tuple[list[tuple[str, int]], list[Any]]:
        timed: list[tuple[str, int]] = []
        rates: list[Any] = []
        monkeypatch.setattr(_calibrate, "_trials", lambda mesh, kinds: iter(trials))
        monkeypatch.setattr(_calibrate, "_warm", lambda trial: trial.kind != "sort")
        monkeypatch.setattr(_calibrate, "_timed", lambda trial, n: timed.append((trial.kind, n)) or 1.0)
        monkeypatch.setattr(_calibrate, "_chip", lambda mesh, measured: rates.extend(measured))
        _calibrate.calibrate(seconds=seconds, store=False, **options)
        return timed, rates

    return of


def test_each_program_runs_twice_even_if_the_time_is_over(calibration, capsys):
    trials = [trial("call", repeats=1), trial("sort"), trial("array", repeats=2), trial("operation", repeats=3)]
    timed, rates = calibration(*trials, seconds=1e-9, progress=True)
    # an empty call is timed before all but those that have no repetitions
    assert timed == 2 * [("call", 1), ("array", 0), ("array", 2), ("operation", 0), ("operation", 3)]
    assert [(rate.kind, rate.runs) for rate in rates] == [("call", 2), ("array", 2), ("operation", 2)]
    shown = capsys.readouterr().err
    for text in ("compiling program 2 of 4: sort", "trying sort", "round 1, 3 of 3 programs left: call", "round 2, 3"):
        assert text in shown
    assert "round 3" not in shown


def test_programs_run_until_their_times_agree(calibration):
    timed, rates = calibration(trial("call"), trial("upload"), seconds=1e9, progress=False)
    assert [rate.runs for rate in rates] == [5, 5]
    assert timed == 5 * [("call", 1), ("upload", 1)]


def test_programs_that_cannot_be_compiled_are_left_out():
    def fail(error: Exception) -> Any:
        def build() -> None:
            raise error

        return build

    lines: list[str] = []
    trials = [trial("call"), trial("sort", build=fail(NotImplementedError())), trial("array", build=lambda: None)]
    show: Any = lines.append
    assert [made.kind for made in _calibrate._compiled(iter(trials), show)] == ["call", "array"]
    assert lines[0].startswith("compiling program 1 of 3: call")
    with pytest.raises(OSError, match="full"):
        list(_calibrate._compiled(iter([trial("sort", build=fail(OSError("full")))]), show))


def test_long_progress_is_cut(capsys):
    line = _calibrate._Line(shown=True)
    line("a" * 99 + "bc")
    line("")
    assert capsys.readouterr().err == "\r" + "a" * 99 + "b" + "\r" + " " * 100 + "\r"


def test_a_chip_without_some_rates(monkeypatch):
    row = RateRecord(kind="elementwise", amount=8.0, seconds=2.0, low_seconds=2.0, high_seconds=2.0, runs=5)
    monkeypatch.setattr(_calibrate, "_row", lambda kind: None)
    chip = _calibrate._chip(wb.make_mesh(x=1), [row])
    assert (chip.hbm_bytes_per_second, chip.vector_flops_per_second, chip.link_bytes_per_second) == (4.0, 0.0, 0.0)
    assert chip.peak_flops_per_second == {}
