"""Predicts the time of one operation on one device; used by all predictions."""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from workbench.cost._rates import OperationClass, family_of, rates_of
from workbench.records.compiled import InstructionRecord
from workbench.records.hardware import ChipRecord, RateKind, RateRecord

Bound = Literal["compute", "memory", "overhead"]

_PASSES_ON_TPU = {"": 1, "high": 3, "highest": 6}  # bfloat16 products per float32 product
# They only name, forward or wait for values, so they take no time.
FREE = frozenset(
    "parameter constant tuple get-tuple-element bitcast while conditional call call-start async-start async-update "
    "async-done call-done after-all partition-id replica-id opt-barrier domain add-dependency".split()
)
_MEASURED_CLASSES: tuple[tuple[str, RateKind], ...] = (
    ("scatter", "scatter"), ("gather", "gather"), ("sort", "sort"), ("transpose", "transpose"), ("copy", "transpose"),
    ("reverse", "transpose"), ("reduce", "reduction")
)  # fmt: skip
TRANSCENDENTAL = frozenset(
    "atan2 cbrt cosine erf exponential exponential-minus-one log log-plus-one logistic power sine tan tanh".split()
)


class Prediction(NamedTuple):
    """Time of one execution on one device in seconds, and the resource that limits the speed."""

    seconds: float
    bound: Bound


class OperationTime(NamedTuple):
    """Time of one execution of an instruction on one device in seconds; None if unknown."""

    seconds: float | None
    compute: float | None
    memory: float
    unknown: str = ""  # reason that seconds are None


def classify_operation(category: str, opcode: str, flops: float) -> OperationClass:
    """The class of an operation, which determines its share of the peaks.

    Args:
        category: XProf's category, such as "loop fusion".
        opcode: HLO opcode, if known.
        flops: FLOPs of dot products and convolutions.

    Example:
        >>> classify_operation("convolution fusion", "fusion", flops=1e9)
        'convolution'
    """
    if "convolution" in category or opcode == "convolution":
        return "convolution"
    if flops:
        return "matrix product"
    if category in ("input fusion", "data formatting") or opcode in ("reduce", "transpose", "copy"):
        return "reduction or transpose"
    if category in ("loop fusion", "broadcast", "non-fusion elementwise") or "elementwise" in category:
        return "elementwise"
    return "other"


def nearest_dtype(dtype: str, chip: ChipRecord) -> str:
    """The dtype whose published peak is used for `dtype`: itself, another float8, bfloat16 or float16.

    Example:
        >>> from workbench.cost import known_chip
        >>> nearest_dtype("float8_e4m3b11fnuz", known_chip("v6e")), nearest_dtype("float32", known_chip("v6e"))
        ('float8_e4m3fn', 'bfloat16')
    """
    peaks = chip.peak_flops_per_second
    if dtype in peaks:
        return dtype
    family = next((name for name in ("float8", "float4") if dtype.startswith(name)), None)
    near = next((name for name in peaks if family and name.startswith(family)), None)
    return near or next((name for name in ("bfloat16", "float16") if name in peaks), next(iter(peaks), dtype))


def product_peak(product: str, chip: ChipRecord) -> float | None:
    """One device's published FLOP/s for one kind of product; None if unknown.

    A TPU multiplies float32 as one, three or six products of bfloat16 (precision "default", "high", "highest"). A GPU
    multiplies float32 without its matrix units at precision "highest", and as TF32 at lower precisions.

    Args:
        product: A key of `InstructionRecord.products`, such as "bfloat16", "float32:highest" or "bfloat16*3".
        chip: Chip with published peaks.

    Example:
        >>> from workbench.cost import known_chip
        >>> v6e, h100 = known_chip("v6e"), known_chip("H100")
        >>> [product_peak(name, v6e) / 1e12 for name in ("float32", "float32:highest", "int8")]
        [918.0, 153.0, 1836.0]
        >>> [product_peak(name, h100) / 1e12 for name in ("bfloat16", "float32", "float32:highest")]
        [989.0, 494.5, 67.0]
    """
    name, _, times = product.partition("*")
    dtype, _, precision = name.partition(":")
    peaks, shared = chip.peak_flops_per_second, chip.devices_per_chip * float(times or 1)
    if family_of(chip) == "TPU" and dtype in ("float32", "float16"):
        passes = _PASSES_ON_TPU[precision]
        return peaks["bfloat16"] / passes / shared if "bfloat16" in peaks else None
    if dtype == "float32" and precision == "highest" and family_of(chip) in ("NVIDIA", "AMD"):
        return chip.vector_flops_per_second / shared or None
    if dtype in peaks:
        return peaks[dtype] / shared
    if dtype.startswith(("int", "uint")):
        small = dtype.endswith(("int4", "int8")) and family_of(chip) == "TPU"  # widened to bfloat16
        return peaks["bfloat16"] / shared if small and "bfloat16" in peaks else None
    if dtype == "float64":
        return None
    near = nearest_dtype(dtype, chip)
    return peaks[near] / shared if near in peaks else None


def seconds_at_peak(instructions: Iterable[InstructionRecord], chip: ChipRecord, dtype: str) -> float | None:
    """Time in seconds of all products in a call, each at the chip's published peak; None if a peak is unknown.

    Args:
        instructions: Instructions of a compiled module, per device.
        chip: Chip with published peaks.
        dtype: The dtype assumed for kernels that do not state their dtype.

    Example:
        >>> from workbench.cost import known_chip
        >>> module = wb.inspect(lambda x: x @ x)(jnp.ones((512, 512))).module
        >>> round(seconds_at_peak(module.instructions, known_chip("H100"), "float32") * 1e9)  # 268 MFLOP as TF32
        543
    """
    seconds = 0.0
    for instruction in instructions:
        products = instruction.products or ({dtype: instruction.flops} if instruction.flops else {})
        for product, flops in products.items():
            peak = product_peak(product or dtype, chip)
            if not peak or instruction.executions is None:
                return None
            seconds += flops * instruction.executions / peak
    return seconds


def predict_operation(
    flops: float, accessed_bytes: float, dtype: str, chip: ChipRecord, *, kind: OperationClass = "other"
) -> Prediction:
    """Predicts the time of one execution of an operation on one device.

    Args:
        flops: FLOPs of dot products and convolutions.
        accessed_bytes: Bytes read from and written to main memory.
        dtype: JAX's name of the compute dtype, or a key of `InstructionRecord.products`; "" counts as bfloat16. A dtype
            without a published peak counts as the nearest dtype with a peak.
        chip: Chip with published peaks.
        kind: From `classify_operation`.

    Returns:
        The larger of compute and memory time at the attained rates of the chip's family, plus the fixed cost of an
        operation.

    Example:
        >>> from workbench.cost import known_chip
        >>> predict_operation(0.0, 10737418240, "float32", known_chip("v6e"), kind="elementwise").bound
        'memory'
    """
    products = {dtype: flops} if flops else {}
    if flops and product_peak(dtype, chip) is None:
        products = {nearest_dtype(dtype.partition(":")[0] or "bfloat16", chip): flops}
    time = _time(products, accessed_bytes, chip, kind, "elementwise")
    fixed, compute = rates_of(chip).operation_seconds, time.compute or 0.0
    bounds: dict[Bound, float] = {"memory": time.memory, "compute": compute, "overhead": fixed}
    return Prediction(time.seconds or 0.0, max(bounds, key=lambda bound: bounds[bound]))


def predict_instruction(
    instruction: InstructionRecord,
    chip: ChipRecord,
    dtype: str = "bfloat16",
    *,
    fixed: bool = True,
    reach_bytes: float = 0.0,
    transcendentals: float = 0.0,
    arithmetic: float = 0.0,
) -> OperationTime:
    """Predicts the time of one execution of a compiled instruction, except collectives.

    Args:
        instruction: From `inspect_module`.
        chip: Chip with published peaks.
        dtype: The dtype assumed for kernels that do not state their dtype.
        fixed: Whether to add the fixed cost of an operation.
        reach_bytes: Bytes that the program has written since the operands were written; with measured rates, they
            determine which cache still contains the operands.
        transcendentals: Number of exponentials, logarithms and similar operations; priced if their rate was measured.
        arithmetic: Number of remaining elementwise operations, such as random bit generation; priced if their rate was
            measured.

    Returns:
        The time; zero for instructions that only name or wait for values.
    """
    free = instruction.opcode in FREE or instruction.opcode.endswith(("-done", "-update"))
    if free or instruction.fused or not (instruction.flops or instruction.accessed_bytes or _works(instruction)):
        return OperationTime(0.0, 0.0, 0.0)
    products = instruction.products
    if not products and instruction.flops:
        products = {dtype: instruction.flops}
    elif "" in products:
        products = {key or dtype: amount for key, amount in products.items()}
    kind = classify_operation("", instruction.opcode, instruction.flops)
    if kind == "other" and instruction.opcode == "fusion":
        kind = "elementwise"
    measured = _measured_class(instruction, chip)
    size, runs = instruction.accessed_bytes, max(1.0, instruction.executions or 1.0)
    time = _time(products, size, chip, kind, measured, fixed=fixed, reach_bytes=reach_bytes, executions=runs)
    counted = (("transcendental", transcendentals), ("arithmetic", arithmetic))
    special = sum(_counted_seconds(rows_of(chip, kind), amount) for kind, amount in counted if amount)
    special += _routine_seconds(instruction, chip)
    if not special or time.seconds is None or time.compute is None:
        return time
    return time._replace(seconds=max(time.seconds, special), compute=max(time.compute, special))


def _counted_seconds(rows: list[RateRecord], amount: float) -> float:
    """Time in seconds of counted operations; in proportion to `amount` below the smallest measured amount."""
    share = min(1.0, amount / rows[0].amount) if rows else 0.0
    return share * (interpolate(rows, amount) or 0.0)


def _works(instruction: InstructionRecord) -> bool:
    """Returns whether an instruction works without main memory, such as a fusion in fast memory."""
    return instruction.opcode in ("fusion", "dot", "convolution") and instruction.size_bytes > 0


def _time(
    products: Mapping[str, float], accessed_bytes: float, chip: ChipRecord, kind: OperationClass, measured: RateKind,
    *, fixed: bool = True, reach_bytes: float = 0.0, executions: float = 1.0,
) -> OperationTime:  # fmt: skip
    rates = rates_of(chip)
    memory = _measured_seconds(chip, measured, accessed_bytes, reach_bytes) if chip.rates and accessed_bytes else None
    if memory is None:
        bandwidth = chip.hbm_bytes_per_second / chip.devices_per_chip
        memory = accessed_bytes / bandwidth / rates.memory[kind] if accessed_bytes else 0.0
    compute = 0.0
    for product, flops in products.items():
        seconds = _product_seconds(product, flops, chip, rates.matrix[kind], kind)
        if seconds is None:
            return OperationTime(None, None, memory, f"no peak rate of {product} products is known for {chip.name}")
        compute += seconds
    if chip.rates:  # the measured rows include the fixed cost
        least, first = (sum(row.seconds for row in rows_of(chip, name) if fixed) for name in ("operation", "first run"))
        # On a CPU, the core that multiplies also moves its operands; other chips overlap the two.
        busy = compute + memory if family_of(chip) == "CPU" else max(compute, memory)
        return OperationTime(max(busy, least) + first / executions, compute, memory)
    return OperationTime(max(compute, memory) + (rates.operation_seconds if fixed else 0.0), compute, memory)


def _measured_seconds(chip: ChipRecord, measured: RateKind, accessed_bytes: float, reach_bytes: float) -> float | None:
    """Time in seconds of memory traffic at measured rates, by its size or by the cache that holds its operands."""
    rows = rows_of(chip, measured) or (rows_of(chip, "elementwise") if measured == "thin product" else [])
    seconds = interpolate(rows, accessed_bytes)
    if seconds is None or reach_bytes <= accessed_bytes:
        return seconds
    return max(seconds, (interpolate(rows, reach_bytes) or 0.0) * accessed_bytes / reach_bytes)


def _product_seconds(product: str, flops: float, chip: ChipRecord, share: float, kind: OperationClass) -> float | None:
    if kind == "convolution" and chip.rates and (measured := interpolate(rows_of(chip, "convolution"), flops)):
        return measured
    name = product.partition("*")[0]
    dtype, _, precision = name.partition(":")
    rows = rows_of(chip, "matrix product", name)
    if not rows and not (precision == "highest" and family_of(chip) in ("NVIDIA", "AMD")):  # without matrix units
        rows = rows_of(chip, "matrix product", dtype) or rows_of(chip, "matrix product", "float32")
    measured = interpolate(rows, flops)
    if measured is not None:
        return measured * float(product.partition("*")[2] or 1)
    peak = product_peak(product, chip)
    return None if not peak else flops / peak / share


def _routine_seconds(instruction: InstructionRecord, chip: ChipRecord) -> float:
    """Time in seconds of a library routine from its own work; 0 if the bytes of the instruction determine its time."""
    routine = instruction.routine
    if routine is None:
        return 0.0
    if routine.kind in ("factorisation", "eigenvalues"):
        seconds = interpolate(rows_of(chip, routine.kind), routine.work)
        peak = chip.vector_flops_per_second / chip.devices_per_chip or product_peak("float32", chip)
        return routine.calls * (seconds or (routine.work / peak if peak else 0.0))
    if not chip.rates and family_of(chip) == "NVIDIA":  # each pass of a radix sort reads and writes everything
        bandwidth = chip.hbm_bytes_per_second / chip.devices_per_chip * rates_of(chip).radix
        return instruction.accessed_bytes * routine.key_bytes / bandwidth
    rows = rows_of(chip, "sort") if family_of(chip) == "CPU" else []
    if not rows:
        return 0.0
    sorted_bytes = max(8.0 * routine.length, rows[0].amount)  # a measured sort reads and writes 4 bytes per number
    comparisons = sorted_bytes / 8 * math.log2(sorted_bytes / 8)
    return routine.calls * routine.work * (interpolate(rows, sorted_bytes) or 0.0) / comparisons


def _measured_class(instruction: InstructionRecord, chip: ChipRecord) -> RateKind:
    """The measured class, by opcode or by the words in XLA's name for a fusion."""
    if instruction.routine is not None and family_of(chip) != "CPU" and instruction.routine.length:
        return "sort"  # a radix sort, whose time depends on its bytes
    if instruction.routine is not None:
        return "elementwise"
    if instruction.flops and instruction.opcode != "convolution":
        return "thin product"
    text = instruction.name if instruction.opcode == "fusion" else instruction.opcode
    for word, kind in _MEASURED_CLASSES:
        if word in text:
            return kind
    return "elementwise"


def seconds_of_call(chip: ChipRecord, arrays: int) -> float:
    """Time in seconds that a call adds to its operations, at measured rates; 0 without measured rates.

    Example:
        >>> seconds_of_call(wb.calibrate(kinds=("call", "array"), seconds=1, progress=False, store=False), 8) > 0
        True
    """
    rows = {row.kind: row.seconds for row in chip.rates if row.kind in ("call", "array")}
    return rows.get("call", 0.0) + rows.get("array", 0.0) * max(0, arrays - 2) / 2


def rows_of(chip: ChipRecord, kind: str, dtype: str | None = None) -> list[RateRecord]:
    """The measured rows of one kind (and dtype), sorted by amount."""
    rows = [row for row in chip.rates if row.kind == kind and (dtype is None or row.dtype == dtype)]
    return sorted(rows, key=lambda row: row.amount)


def interpolate(rows: Iterable[RateRecord], amount: float) -> float | None:
    """Interpolates measured times by amount on logarithmic scales; None without rows.

    Below the smallest amount the time is constant; above the largest amount it grows with the amount. A smaller amount
    never takes longer than a larger amount; measurements that contradict this rule are assumed to be disturbed.
    """
    rows = list(rows)
    if not rows:
        return None
    seconds = [row.seconds for row in rows]
    least = list(itertools.accumulate(reversed(seconds), min))[::-1]
    points = [(row.amount, duration) for row, duration in zip(rows, least, strict=True)]
    if amount <= points[0][0]:
        return points[0][1]
    for (low, quick), (high, slow) in itertools.pairwise(points):
        if amount <= high and high > low:
            return quick * (slow / quick) ** (math.log(amount / low) / math.log(high / low))
    return points[-1][1] * amount / points[-1][0]
