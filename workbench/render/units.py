"""Numbers with units, array types, axes and lines of code as text."""

import math
from collections.abc import Iterable, Sequence

from workbench.records import cell_name
from workbench.records.program import SourceLine


def number(value: float, digits: int = 2) -> str:
    """A coordinate without unnecessary zeros.

    Example:
        >>> number(10.0), number(1.005), number(-0.0001)
        ('10', '1', '0')
    """
    if not math.isfinite(value):
        return "0"
    shown = f"{value:.{digits}f}".rstrip("0").rstrip(".") if digits else f"{value:.0f}"
    return "0" if shown in ("-0", "") else shown


def bytes_text(value: float | None) -> str:
    """A number of bytes with a binary unit; "unknown" for None.

    Example:
        >>> bytes_text(512), bytes_text(1536), bytes_text(3 * 2**30), bytes_text(None)
        ('512 B', '1.5 KiB', '3 GiB', 'unknown')
    """
    return _scaled(value, 1024.0, ("B", "KiB", "MiB", "GiB", "TiB", "PiB"))


def flops_text(value: float | None) -> str:
    """A number of floating-point operations with a decimal unit.

    Example:
        >>> flops_text(1234), flops_text(2e12)
        ('1.23 kFLOP', '2 TFLOP')
    """
    return _scaled(value, 1000.0, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"))


def work_text(flops: float | None, elementwise: float | None) -> str:
    """FLOPs of matrix products and of elementwise operations, counted separately.

    Example:
        >>> work_text(2e6, 1500.0), work_text(2e6, 0.0), work_text(0.0, 1500.0), work_text(None, None)
        ('2 MFLOP and 1.5 kFLOP elementwise', '2 MFLOP', '1.5 kFLOP elementwise', 'unknown')
    """
    if not elementwise and (elementwise is not None or flops is None):
        return flops_text(flops)
    if flops == 0:
        return f"{flops_text(elementwise)} elementwise"
    return f"{flops_text(flops)} and {flops_text(elementwise)} elementwise"


def count_text(value: float | None) -> str:
    """A plain number, with thousands separated.

    Example:
        >>> count_text(4096), count_text(0.5), count_text(None)
        ('4,096', '0.5', 'unknown')
    """
    if value is None:
        return "unknown"
    return f"{value:,.0f}" if float(value).is_integer() or abs(value) >= 1000 else f"{value:,.3g}"


def counted_text(count: float, noun: str) -> str:
    """A number of things, with the plural of a regular noun.

    Example:
        >>> counted_text(1, "device"), counted_text(1024, "device")
        ('1 device', '1,024 devices')
    """
    return f"{count_text(count)} {noun}{'' if count == 1 else 's'}"


def seconds_text(value: float | None) -> str:
    """A duration with a suitable unit.

    Example:
        >>> seconds_text(0.0021), seconds_text(3e-7), seconds_text(12.5), seconds_text(None)
        ('2.1 ms', '300 ns', '12.5 s', 'unknown')
    """
    if value is None:
        return "unknown"
    if value == 0:
        return "0 s"
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if abs(value) >= 0.9995 * scale:  # otherwise 999.6 µs would be written as 1000 µs
            return f"{_three_digits(value / scale)} {unit}"
    return f"{_three_digits(value / 1e-9)} ns"


def shape_text(dtype: str, shape: Iterable[int]) -> str:
    """The type of an array, as JAX writes it.

    Example:
        >>> shape_text("float32", (64, 8))
        'f32[64,8]'
    """
    return f"{_SHORT_DTYPES.get(dtype, dtype)}[{','.join(str(size) for size in shape)}]"


def source_text(file: str, line: int) -> str:
    """A place in the code: the file name without its folders, and the line.

    Example:
        >>> source_text("lab/fedavg.py", 12), source_text("/tmp/ipykernel_7/123.py", 3)
        ('fedavg.py:12', 'notebook cell:3')
    """
    # A notebook cell's file name is a temporary path with a hash, which means nothing to the author.
    if file.startswith("In ["):  # call trees contain the cell number
        return f"{file}:{line}"
    if "ipykernel_" in file or file.startswith("<ipython-input"):
        return f"{cell_name(file) or 'notebook cell'}:{line}"
    return f"{file.replace(chr(92), '/').rsplit('/', 1)[-1]}:{line}"


def sources_text(sources: Iterable[SourceLine]) -> str:
    """The first of several lines, and how many more there are; empty without lines.

    Example:
        >>> sources_text([SourceLine(file="lab/fedavg.py", line=12), SourceLine(file="lab/fedavg.py", line=14)])
        'fedavg.py:12 +1'
    """
    places = list(dict.fromkeys(source_text(source.file, source.line) for source in sources))
    return " +".join([*places[:1], *([str(len(places) - 1)] if len(places) > 1 else [])])


def line_text(line: SourceLine) -> str:
    """A source line with its full path, which terminals can open; a notebook cell is named by its number.

    Example:
        >>> line_text(SourceLine(file="lab/fedavg.py", line=12))
        'lab/fedavg.py:12'
        >>> line_text(SourceLine(file="/tmp/ipykernel_7/1.py", line=3))
        'notebook cell:3'
    """
    cell = line.file.startswith("<ipython-input") or "ipykernel_" in line.file
    return source_text(line.file, line.line) if cell else str(line)


_SHORT_DTYPES = {
    **{f"float{bits}": f"f{bits}" for bits in (16, 32, 64)},
    **{f"int{bits}": f"i{bits}" for bits in (4, 8, 16, 32, 64)},
    **{f"uint{bits}": f"u{bits}" for bits in (4, 8, 16, 32, 64)},
    **{"bfloat16": "bf16", "complex64": "c64", "complex128": "c128"},
}


def _scaled(value: float | None, base: float, units: tuple[str, ...]) -> str:
    if value is None:
        return "unknown"
    power = 0
    while abs(value) >= base - 0.5 and power < len(units) - 1:  # otherwise 999.6 would be written as 1000
        value /= base
        power += 1
    return f"{_three_digits(value)} {units[power]}"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else number(value, 1 if abs(value) >= 10 else 2)


def axes_text(axes: tuple[str, ...]) -> str:
    """Mesh axes in words.

    Example:
        >>> axes_text(("data", "model"))
        'data × model'
    """
    return " × ".join(axes) if axes else "a group that is not a mesh axis"


def spec_text(spec: Sequence[Sequence[str]]) -> str:
    """A spec as JAX writes it; dimensions at the end that are not sharded are left out.

    Example:
        >>> spec_text((("clients",), (), ("data", "model"), ()))
        "P('clients', None, ('data', 'model'))"
    """
    last = max((at for at, axes in enumerate(spec, 1) if axes), default=0)
    return f"P({', '.join(map(spec_entry, spec[:last]))})"


def spec_entry(axes: Sequence[str]) -> str:
    """The mesh axes of one dimension as JAX writes them in a spec.

    Example:
        >>> spec_entry(("data",)), spec_entry(())
        ("'data'", 'None')
    """
    return "None" if not axes else repr(axes[0]) if len(axes) == 1 else repr(tuple(axes))


def amount_text(value: float | str | None, unit: str) -> str:
    """A compared value with its unit; a dash if the value is missing or unknown.

    Example:
        >>> amount_text(2048.0, "bytes"), amount_text(None, "flops"), amount_text("v5e", "")
        ('2 KiB', '–', 'v5e')
    """
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    return FORMATS.get(unit, count_text)(value)


def amount_texts(values: Sequence[float | str | None], unit: str) -> list[str]:
    """Compared values with their unit; whole numbers get all digits if rounding hides a difference.

    Example:
        >>> amount_texts([14336, 20000], "bytes"), amount_texts([14336, 14343], "bytes")
        (['14 KiB', '19.5 KiB'], ['14,336 B', '14,343 B'])
    """
    texts = [amount_text(value, unit) for value in values]
    if len({*texts}) == len({*values}):
        return texts
    suffix = {"bytes": " B", "flops": " FLOP"}.get(unit, "")
    return [
        text if value is None or isinstance(value, str) or not float(value).is_integer() else f"{value:,.0f}{suffix}"
        for value, text in zip(values, texts, strict=True)
    ]


# Headings of the metrics that a watched loop adds; the views use the same headings.
METRIC_TITLES = {
    "flops_per_second": "FLOPs per second",
    "bytes_per_second": "memory traffic per second",
    "between_seconds": "time between steps",
    "compile_seconds": "compilation",
    "peak_flops_share": "model FLOP utilization (MFU)",
    "peak_bandwidth_share": "fraction of the peak memory bandwidth",
}


def metric_text(name: str, value: float) -> str:
    """Formats a metric with the unit at the end of its name, or as a plain number if there is no unit.

    Example:
        >>> metric_text("flops_per_second", 2e12), metric_text("step_seconds", 0.5), metric_text("loss", 0.25)
        ('2 TFLOP/s', '500 ms', '0.25')
    """
    if name == "flops_per_second":
        return f"{flops_text(value)}/s"
    if name == "bytes_per_second":
        return bandwidth_text(value)
    return FORMATS.get(name.rsplit("_", 1)[-1], count_text)(value)


def share_text(value: float | None, digits: int = 1) -> str:
    """A share as a percentage; "unknown" for None.

    Example:
        >>> share_text(0.421), share_text(0.421, 0), share_text(None)
        ('42.1 %', '42 %', 'unknown')
    """
    return "unknown" if value is None else f"{100 * value:.{digits}f} %"


def bandwidth_text(value: float | None) -> str:
    """Bytes per second with the decimal units of data sheets.

    Example:
        >>> bandwidth_text(819e9)
        '819 GB/s'
    """
    return _scaled(value, 1000.0, ("B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s"))


FORMATS = {"bytes": bytes_text, "flops": flops_text, "seconds": seconds_text, "share": share_text}
