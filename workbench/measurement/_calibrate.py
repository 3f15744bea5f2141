"""Calibration, which measures the rates of all attached devices with small programs."""

import concurrent.futures
import datetime
import functools
import itertools
import os
import statistics
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec as P

from workbench._open_types import Foreign
from workbench.aot import known_chip, store_calibration
from workbench.errors import MeshError
from workbench.inspection import inspect_module
from workbench.primitives import check_mesh, refuse_forked
from workbench.records.hardware import ChipRecord, RateKind, RateRecord

_LEAST_SECONDS = 2e-3  # minimum time of one run: a program repeats its operation until a run takes this long
_CALLS_OF_A_RUN = 3  # minimum time of one run, in empty calls, so that subtracting a call keeps precision
_SLOWEST_SECONDS = 0.25  # maximum time of one operation; sizes that take longer are left out
_MOST_REPEATS = 1 << 16
_FEWEST_RUNS, _MOST_RUNS = 5, 30
_SMALL_SPREAD = 0.05
# number of operations in one repetition of the program that measures the cost of an additional operation
_OPERATIONS = 16
_SMALL_BYTES, _SMALL_MANY = 1 << 26, 4  # size of small operations, and their number in one repetition on an accelerator
_STEPS = 32  # number of groups of three operations in the program that measures elementwise operations
_BURST = 20  # number of consecutive calls; a single call would be timed while caches and threads are cold
_ARRAYS = 33  # number of arguments and results of the program that measures the cost of an additional array
_CHAIN = 64  # number of sums in the program that measures the first run of an operation
_COLLECTIVES: tuple[RateKind, ...] = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_CALLS: tuple[RateKind, ...] = ("call", "array", "first run", "upload", "download")  # kinds without repetitions
_COUNTED = (  # kinds whose amount is not counted in the compiled program
    "matrix product", "convolution", "arithmetic", "transcendental", "sort", "factorisation", "eigenvalues",
    *_COLLECTIVES,
)  # fmt: skip
_FAST_BYTES = (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 28)
_SLOW_BYTES = (1 << 12, 1 << 17, 1 << 21, 1 << 24)

_UNSUPPORTED = (jax.errors.JaxRuntimeError, TypeError, ValueError, NotImplementedError)

Body = Callable[[Foreign], Foreign]


@dataclass(slots=True)
class _Trial:
    """One program: `run(repeats)` blocks until all devices have finished."""

    kind: RateKind
    amount: float
    run: Callable[[int], None]
    dtype: str = ""
    axis: str = ""
    group_size: int = 1
    operations: int = 1  # in one repetition
    counted: Callable[[], tuple[float, int]] | None = None  # bytes and operations of one repetition, after compilation
    build: Callable[[], None] | None = None  # compiles: slow, but needs no device memory
    loop_seconds: float = 0.0  # seconds of an empty repetition
    repeats: int = 1
    calls: list[float] = field(default_factory=list)  # wall seconds for a call without repetitions
    walls: list[float] = field(default_factory=list)  # wall seconds for a call with all repetitions

    @property
    def seconds(self) -> list[float]:
        """Time of one operation in seconds, excluding the call and the loop; at least 1/20 of the wall time."""
        call = statistics.median(self.calls) if self.calls else 0.0
        empty = call + self.loop_seconds * self.repeats
        return [max(wall - empty, wall / 20) / self.repeats / self.operations for wall in self.walls]

    @property
    def name(self) -> str:
        size = f"{self.amount:.3g} {'FLOP' if self.kind == 'matrix product' else 'B'}"
        return " ".join(filter(None, (self.kind, self.dtype, self.axis, size if self.amount else "")))

    @property
    def is_settled(self) -> bool:
        if len(self.walls) < _FEWEST_RUNS:
            return False
        return self.rate().spread <= _SMALL_SPREAD or len(self.walls) >= _MOST_RUNS

    def rate(self) -> RateRecord:
        seconds = self.seconds
        low, _, high = (
            statistics.quantiles(seconds, n=4, method="inclusive")  # within the measured seconds, even for two runs
            if len(seconds) > 1
            else (seconds[0],) * 3
        )
        return RateRecord(
            kind=self.kind,
            amount=self.amount,
            seconds=statistics.median(seconds),
            low_seconds=low,
            high_seconds=high,
            runs=len(seconds),
            dtype=self.dtype,
            axis=self.axis,
            group_size=self.group_size,
        )


def calibrate(
    *,
    on: Mesh | None = None,
    seconds: float = 30.0,
    kinds: Collection[RateKind] | None = None,
    progress: bool = True,
    store: bool = True,
) -> ChipRecord:
    """Measures the rates of all attached devices at once.

    Runs matrix products by dtype and size, thin products, convolutions, elementwise operations (bound by memory and by
    arithmetic), transcendental operations, reductions and transposes. Also runs gathers, scatters, sorts,
    factorisations, copies to and from the host, and every collective by size and mesh axis. Measures the cost of one
    additional operation, of its first run in a call (on CPUs), of one additional call, and of one additional array per
    call. All programs run in interleaved rounds; a program is finished when the quartiles of its times are within 5 %
    of each other. The bytes of an operation are the bytes that `inspect` counts in the compiled program.

    Args:
        on: Mesh whose axes are used for collectives; None means one axis with all devices.
        seconds: Time for measuring; compilation takes additional time.
        kinds: Programs to run in addition to elementwise operations, such as ("matrix product", "all-reduce"); None
            means all.
        progress: Whether to show a line with the name of the running program.
        store: Whether to store the result for `known_chip("here")`. There is one stored result per device kind and JAX
            version.

    Returns: A chip record with its measured `rates`; it contains no data about other programs. Save it with
        `.to_json()`; pass it as `on="here"` or `on="file.json"`.

    Raises:
        MeshError: if `seconds` is not positive.
        ProgramError: in a forked child (`os.fork`), where JAX would wait forever.
        KeyboardInterrupt: on Ctrl-C; in this case, no result is stored.

    Example:
        >>> chip = wb.calibrate(kinds=("call",), seconds=1, progress=False, store=False)
        >>> sorted({rate.kind for rate in chip.rates})
        ['call', 'elementwise']
    """
    if not seconds > 0:
        message = f"`calibrate` was given seconds={seconds!r}. `seconds` is the measuring time: use a number above 0."
        raise MeshError(message)
    check_mesh("calibrate", on)
    if isinstance(on, AbstractMesh):
        message = (
            "`calibrate` was given an `AbstractMesh`, which has no devices. Rates are measured on attached devices: "
            "pass a `jax.sharding.Mesh`, or omit `on=` for all devices."
        )
        raise MeshError(message)
    refuse_forked("calibrate")
    mesh = Mesh(np.array(jax.devices()), ("devices",)) if on is None else on
    show = _Line(shown=progress)
    trials: list[_Trial] = []
    try:
        loop_seconds = _loop_seconds(mesh)
        for trial in _compiled(_trials(mesh, None if kinds is None else {*kinds, "elementwise"}), show):
            show(f"trying {trial.name}")
            if trial.counted is not None:
                trial.loop_seconds = loop_seconds
            if _warm(trial):
                trials.append(trial)
        end = time.monotonic() + seconds
        for number in itertools.count(1):
            queue = [trial for trial in trials if not trial.is_settled]
            if not _agreed(float(bool(queue) and (time.monotonic() < end or number <= 2))):
                break
            for trial in trials if jax.process_count() > 1 else queue:
                show(f"round {number}, {len(queue)} of {len(trials)} programs left: {trial.name}")
                if trial.kind not in _CALLS or trial.kind in ("array", "first run"):
                    trial.calls.append(_timed(trial, 0))
                trial.walls.append(_timed(trial, trial.repeats))
    finally:
        show("")
    chip = _chip(mesh, [trial.rate() for trial in trials])
    note = store_calibration(chip) if store and jax.process_index() == 0 else ""
    if note:
        print(note, file=sys.stderr)
    return chip


def _compiled(trials: Iterator[_Trial], show: "_Line") -> Iterator[_Trial]:
    """Compiles programs in parallel on the host's cores, or one at a time for GPUs."""
    every = list(trials)
    workers = 1 if jax.default_backend() == "gpu" else os.cpu_count()  # the GPU compiler times kernels
    with concurrent.futures.ThreadPoolExecutor(workers) as pool:
        try:
            waiting = [None if trial.build is None else pool.submit(trial.build) for trial in every]
            for number, (trial, future) in enumerate(zip(every, waiting, strict=True), 1):
                show(f"compiling program {number} of {len(every)}: {trial.name}")
                concurrent.futures.wait([future] if future else [])
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    for trial, future in zip(every, waiting, strict=True):
        error = future.exception() if future else None
        if error is None:
            yield trial
        elif not isinstance(error, _UNSUPPORTED):
            raise error


class _Line:
    """Prints a progress line, which the next progress line replaces."""

    def __init__(self, *, shown: bool) -> None:
        self._shown, self._width = shown, 0

    def __call__(self, text: str) -> None:
        if self._shown and (text or self._width):
            end = "" if text else "\r"
            print("\r" + text[:100].ljust(self._width), end=end, file=sys.stderr, flush=True)
            self._width = min(100, len(text))


def _warm(trial: _Trial) -> bool:
    """Compiles a program and sets its number of repeats; returns False if it is too slow or unsupported."""
    try:
        trial.run(1)
    except _UNSUPPORTED:
        return False
    if trial.counted is not None:
        size, operations = trial.counted()
        if trial.kind not in _COUNTED:
            trial.operations = max(1, operations)
            trial.amount = 0.0 if trial.kind == "operation" else size / trial.operations
    while True:
        # The minimum of three calls, because one slow call would end the search with too few repeats.
        call = 0.0 if trial.kind in _CALLS else _agreed(min(_timed(trial, 0) for _ in range(3)))
        run_seconds = _agreed(max(0.0, min(_timed(trial, trial.repeats) for _ in range(3)) - call))
        if run_seconds / trial.repeats > _SLOWEST_SECONDS:
            return False
        if (
            run_seconds >= max(_LEAST_SECONDS, _CALLS_OF_A_RUN * call)
            or trial.repeats >= _MOST_REPEATS
            or trial.kind in _CALLS
        ):
            return True
        trial.repeats *= max(2, min(16, int(_LEAST_SECONDS / max(run_seconds, 1e-7))))


def _loop_seconds(mesh: Mesh) -> float:
    """Time of an empty repetition in seconds; accelerators ask the host after each repetition whether to continue."""
    if mesh.devices.flat[0].platform == "cpu":
        return 0.0
    empty = _repeated(mesh, "operation", 0.0, lambda x: x, (8,))
    if not _warm(empty):
        return 0.0
    for _ in range(_FEWEST_RUNS):
        empty.calls.append(_timed(empty, 0))
        empty.walls.append(_timed(empty, empty.repeats))
    return _agreed(statistics.median(empty.seconds))


def _timed(trial: _Trial, repeats: int) -> float:
    """Wall time of one call with this number of repetitions, in seconds."""
    start = time.perf_counter()
    trial.run(repeats)
    return time.perf_counter() - start


def _agreed(value: float) -> float:
    """Broadcasts the first process's value, so that all processes run the same programs with the same repeats."""
    if jax.process_count() == 1:
        return value
    from jax.experimental import multihost_utils

    return float(multihost_utils.broadcast_one_to_all(np.float32(value)))


def _trials(mesh: Mesh, kinds: Collection[str] | None) -> Iterator[_Trial]:
    for trial in _all_trials(mesh):
        if kinds is None or trial.kind in kinds:
            yield trial


def _all_trials(mesh: Mesh) -> Iterator[_Trial]:
    platform = mesh.devices.flat[0].platform
    is_cpu = platform == "cpu"
    dtypes = ("float32", "bfloat16") if is_cpu else (
        "bfloat16", "float32", "float32:highest", "float16", "float8_e4m3fn", "int8",
    )  # fmt: skip
    for dtype in dtypes:
        for size in (16, 64, 256, 1024) if is_cpu else (128, 512, 2048) if ":" in dtype else (128, 512, 2048, 4096):
            many = _many(platform, 12 * size * size)
            yield _repeated(
                mesh, "matrix product", 2.0 * size**3, _product, (2, size, size), dtype, start=_operands, many=many
            )
    for channels in (8, 64) if is_cpu else (64, 256):
        flops = 2.0 * 4 * 16 * 16 * 9 * channels**2
        yield _repeated(mesh, "convolution", flops, _convolution, (4, 16, 16, channels), many=_many(platform, 0.0))
    for length in (1 << 8, 1 << 18):
        many = _many(platform, 0.0)  # small, as the convolutions
        yield _repeated(mesh, "transcendental", float(length), lambda x: jnp.exp(-x), (length,), many=many)
        yield _repeated(mesh, "arithmetic", 3.0 * _STEPS * length, _arithmetic, (length,), "uint32", many=many)
    for size in (1 << 8, *_SLOW_BYTES) if is_cpu else _FAST_BYTES:
        side = round((size / 4) ** 0.5)
        rows = max(1, size // 4 // 128)
        repeated = functools.partial(_repeated, many=_many(platform, 2 * size))
        yield repeated(mesh, "elementwise", 0.0, _elementwise, (size // 4,), start=lambda x: (x, x + 1.0))
        yield repeated(mesh, "reduction", 0.0, lambda x: x.at[0].set(jnp.max(x) * 0.5), (size // 4,))
        yield repeated(mesh, "transpose", 0.0, lambda x: jnp.transpose(x) + 0.0, (side, side))
        yield repeated(mesh, "gather", 0.0, _gather, (rows, 128))
        yield repeated(mesh, "scatter", 0.0, _scatter, (rows, 128))
        yield repeated(mesh, "sort", 2.0 * size, _sort, (size // 4,), start=_bits)
        yield repeated(mesh, "thin product", 0.0, _thin, (rows, 128), start=lambda x: (x, jnp.tile(x[:1].T, 16)))
    for size in (16, 64, 128, 256):
        repeated = functools.partial(_repeated, shape=(size, size), start=lambda x: (x, x @ x.T + jnp.eye(len(x))))
        yield repeated(mesh, "factorisation", size**3 / 3, lambda both: (lax.linalg.cholesky(both[1]), both[1]))
        yield repeated(mesh, "eigenvalues", 14 * size**3 / 3, lambda both: (lax.linalg.eigh(both[1])[0], both[1]))
    yield _repeated(mesh, "operation", 0.0, _small_operations, (_OPERATIONS, 128), start=lambda x: tuple(x))
    yield from _call(mesh)
    if is_cpu:
        yield _first_runs(mesh)
    for size in (1 << 16, 1 << 24):
        yield from _copies(mesh, size)
    for axis, members in mesh.shape.items():
        if members > 1:
            for kind in _COLLECTIVES:
                for size in _SLOW_BYTES[:3] if is_cpu else _FAST_BYTES[:4]:
                    yield _collective(mesh, kind, axis, members, size)


def _repeated(
    mesh: Mesh, kind: RateKind, amount: float, body: Body, shape: tuple[int, ...], dtype: str = "float32", *,
    start: Body = lambda x: x, axis: str = "", group_size: int = 1, many: int = 1,
) -> _Trial:  # fmt: skip
    """Makes a program that repeats an operation on every device, `many` times per loop iteration.

    Each operation waits for the previous operation, through its operand or at a barrier.
    """
    spec = P(tuple(mesh.axis_names))
    bare, _, precision = dtype.partition(":")

    def repeat(x: jax.Array, times: jax.Array) -> jax.Array:
        def once(_: jax.Array, value: Foreign) -> Foreign:
            for _number in range(many):
                value = lax.optimization_barrier(body(value))
            return value

        with jax.default_matmul_precision(precision or "default"):
            return jax.tree.leaves(lax.fori_loop(0, times[0], once, start(x[0])))[0][None]

    program = jax.jit(jax.shard_map(repeat, mesh=mesh, in_specs=(spec, P()), out_specs=spec, check_vma=False))
    sharding = NamedSharding(mesh, spec)
    inputs: list[jax.Array] = []
    compiled: list[jax.stages.Compiled] = []

    def numbers() -> np.ndarray:
        """Makes random numbers, because a chip would draw less power and run faster if all bits were the same."""
        random = np.random.default_rng(0)
        some = random.integers(-99, 99, 4099) if "int" in bare else random.standard_normal(4099)
        return np.resize(some.astype(jnp.dtype(bare)), (1, *shape))

    def build() -> None:
        x = jax.ShapeDtypeStruct((mesh.size, *shape), jnp.dtype(bare), sharding=sharding)
        compiled.append(program.lower(x, jax.ShapeDtypeStruct((1,), jnp.int32)).compile())

    def run(repeats: int) -> None:
        if not compiled:
            build()
        if not inputs:  # only programs that run allocate memory
            inputs.append(jax.make_array_from_callback((mesh.size, *shape), sharding, lambda _: numbers()))
        jax.block_until_ready(compiled[0](inputs[0], jnp.full((1,), repeats, jnp.int32)))

    trial = _Trial(kind, amount, run, dtype if kind == "matrix product" else "", axis, group_size, many)
    trial.build = build
    trial.counted = lambda: _counted(compiled[0])
    return trial


def _counted(compiled: jax.stages.Compiled) -> tuple[float, int]:
    """Bytes and number of the large memory accesses in one repetition, as `inspect` counts them."""
    instructions = [instruction for instruction in inspect_module(compiled).instructions if not instruction.fused]
    pending = [name for instruction in instructions if instruction.opcode == "while" for name in instruction.calls]
    sizes: list[int] = []
    while pending:
        computation = pending.pop()
        for instruction in instructions:
            if instruction.computation == computation:
                pending += [] if instruction.opcode == "fusion" else instruction.calls
                sizes.append(instruction.accessed_bytes)
    large = [size for size in sizes if size >= max(sizes) / 4]
    return float(sum(large)), len(large)


def _many(platform: str, size_bytes: float) -> int:
    """Number of operations in one repetition: several if they are small, to hide an accelerator's loop overhead."""
    return _SMALL_MANY if platform != "cpu" and size_bytes <= _SMALL_BYTES else 1


def _bits(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    return x, lax.bitcast_convert_type(x, jnp.uint32)


def _sort(both: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Sorts different numbers in each repetition, because a CPU learns the branches of a repeated order."""
    bits = both[1]
    numbers = lax.bitcast_convert_type(bits >> 9 | 0x3F800000, jnp.float32)  # between 1 and 2
    return jnp.sort(numbers), bits * 1664525 + 1013904223


def _operands(both: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    return _product((both[0], both[0], both[1]))


def _product(operands: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Multiplies two matrices; returns the product and both unchanged operands."""
    _, x, y = operands
    wide = {"int8": jnp.int32, "float8_e4m3fn": jnp.bfloat16}.get(str(x.dtype))
    return lax.dot(x, y, preferred_element_type=wide), x, y


def _elementwise(both: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Runs two out-of-place operations, like a real program; operands of in-place operations would stay in a cache."""
    first, second = both
    return second * 1.0001 + 0.5, first * 1.0002 + 0.5


def _arithmetic(x: jax.Array) -> jax.Array:
    """Computes shifts, sums and XORs without memory reads, as in random bit generation."""
    for number in range(_STEPS):
        x = (x ^ (x << (number % 13 + 1))) + jnp.uint32(number)
    return x


def _thin(both: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Computes a product with few columns, whose time depends on reading its operands."""
    x, weights = both
    return x * 0.999 + 1e-9 * (x @ weights)[:, :1], weights * 0.999


def _convolution(x: jax.Array) -> jax.Array:
    kernel = jnp.full((3, 3, x.shape[-1], x.shape[-1]), 1e-3) + 1e-9 * x[0, 0, 0, 0]
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _gather(x: jax.Array) -> jax.Array:
    first = jnp.int32(x[0, 0])  # depends on the values, so that no row is known at compile time
    return x[(jnp.arange(x.shape[0]) * 7 + first) % x.shape[0]]


def _scatter(x: jax.Array) -> jax.Array:
    first = jnp.int32(x[0, 0])
    return x.at[(jnp.arange(x.shape[0]) * 7 + first) % x.shape[0]].add(x * 0.5)


def _small_operations(arrays: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    return tuple(x * (1.0 + 0.0001 * number) for number, x in enumerate(arrays))


def _call(mesh: Mesh) -> Iterator[_Trial]:
    """Programs that measure the cost of a call, and of one additional argument and result."""
    add = jax.jit(lambda *arrays: [x + 1.0 for x in arrays])
    x = jax.device_put(jnp.zeros((mesh.size,)), NamedSharding(mesh, P(tuple(mesh.axis_names))))

    def calls(arrays: int) -> None:
        for _ in range(_BURST):
            jax.block_until_ready(add(*[x] * arrays))

    yield _Trial("call", 0.0, lambda repeats: calls(1), operations=_BURST)
    yield _Trial("array", 0.0, lambda repeats: calls(_ARRAYS if repeats else 1), operations=_BURST * (_ARRAYS - 1))


def _first_runs(mesh: Mesh) -> _Trial:
    """A program without a loop, whose operations run once per call and take longer than in a loop."""
    spec = P(tuple(mesh.axis_names))
    x = jax.device_put(jnp.zeros((mesh.size, 8)), NamedSharding(mesh, spec))
    compiled: dict[int, jax.stages.Compiled] = {}

    def build() -> None:
        for length in (1, _CHAIN):

            def chain(x: jax.Array, length: int = length) -> jax.Array:
                for number in range(length):
                    x = lax.optimization_barrier(x * jnp.exp(x * (1.0 + 0.001 * number)).sum())
                return x

            program = jax.jit(jax.shard_map(chain, mesh=mesh, in_specs=spec, out_specs=spec))
            compiled[length] = program.lower(x).compile()
        short, long = (
            sum(not instruction.fused for instruction in inspect_module(compiled[length]).instructions)
            for length in (1, _CHAIN)
        )
        trial.operations = _BURST * (long - short)

    def run(repeats: int) -> None:
        for _ in range(_BURST):
            jax.block_until_ready(compiled[_CHAIN if repeats else 1](x))

    trial = _Trial("first run", 0.0, run, build=build)
    return trial


def _copies(mesh: Mesh, size: int) -> Iterator[_Trial]:
    local = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    rows = np.ones((size // 4,), np.float32)
    add = jax.jit(lambda x: x + 1.0)
    arrays: list[jax.Array] = []

    def upload(repeats: int) -> None:
        for _ in range(repeats):
            jax.block_until_ready([jax.device_put(rows, device) for device in local])

    def download(repeats: int) -> None:
        if not arrays:
            arrays.extend(jax.device_put(rows, device) for device in local)
        for _ in range(repeats):
            for fresh in [add(array) for array in arrays]:  # JAX caches the host copy of an array
                np.asarray(fresh)

    yield _Trial("upload", float(size), upload)
    yield _Trial("download", float(size), download)


def _collective(mesh: Mesh, kind: RateKind, axis: str, members: int, size: int) -> _Trial:
    """Makes a program with one collective whose operand has `size` bytes on each device."""
    length = max(members, size // 4 // members * members)
    ring = [(i, (i + 1) % members) for i in range(members)]

    def body(x: jax.Array) -> jax.Array:
        if kind == "all-reduce":
            return lax.psum(x, axis) * (1.0 / members)
        if kind == "all-gather":
            return lax.optimization_barrier(lax.all_gather(x, axis))[0]
        if kind == "reduce-scatter":
            part = lax.optimization_barrier(lax.psum_scatter(x, axis, tiled=True))
            return x.at[0].set(part[0] * (1.0 / members))
        if kind == "all-to-all":
            return lax.all_to_all(x.reshape(members, -1), axis, 0, 0).reshape(-1)
        return lax.ppermute(x, axis, ring)

    return _repeated(mesh, kind, 4.0 * length, body, (length,), axis=axis, group_size=members)


def _chip(mesh: Mesh, rates: Sequence[RateRecord]) -> ChipRecord:
    """The chip record of the devices, with the best measured rates as peaks."""
    device = mesh.devices.flat[0]
    chip_row = _row(device.device_kind)
    every = [rate for rate in rates if rate.kind == "matrix product" and rate.seconds]
    products = [rate for rate in every if ":" not in rate.dtype]
    precise = [rate.amount / rate.seconds for rate in every if ":" in rate.dtype]
    shared = 1 if chip_row is None else chip_row.devices_per_chip
    peaks: dict[str, float] = {}
    for rate in products:
        peaks[rate.dtype] = max(peaks.get(rate.dtype, 0.0), rate.amount / rate.seconds * shared)
    streams = [rate for rate in rates if rate.kind == "elementwise" and rate.seconds]
    largest = max(streams, key=lambda rate: rate.amount)
    bandwidths = [rate.amount / rate.seconds for rate in rates if rate.kind == "collective-permute" and rate.seconds]
    stats = device.memory_stats() or {} if device.process_index == jax.process_index() else {}
    return ChipRecord(
        name=device.device_kind if chip_row is None else chip_row.name,
        peak_flops_per_second=peaks,
        vector_flops_per_second=max(precise, default=0.0) * shared,
        hbm_bytes=chip_row.hbm_bytes if chip_row is not None else int(stats.get("bytes_limit") or _host_bytes(mesh)),
        hbm_bytes_per_second=largest.amount / largest.seconds * shared,
        link_bytes_per_second=max(bandwidths, default=0.0),
        links=1 if chip_row is None else chip_row.links,
        topology="switch" if chip_row is None else chip_row.topology,
        devices_per_chip=shared,
        dcn_bytes_per_second=None if chip_row is None else chip_row.dcn_bytes_per_second,
        domain=None if chip_row is None else chip_row.domain,
        rates=tuple(rates),
        source=f"measured on {mesh.size} × {device.device_kind} with JAX {jax.__version__}",
        as_of=datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
    )


def _row(kind: str) -> ChipRecord | None:
    try:
        return known_chip(kind)
    except MeshError:
        return None


def _host_bytes(mesh: Mesh) -> int:
    """Host memory per device, for simulated devices."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // mesh.size
    except (ValueError, OSError, AttributeError):
        return 0
