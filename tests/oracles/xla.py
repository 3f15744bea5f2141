"""XLA's own parser and cost analysis as a second reader of HLO text."""

from typing import Any


def compiled_flops(compiled: Any) -> float:
    """What XLA counts for a program without loops; it counts elementwise work too."""
    analysis = compiled.cost_analysis()
    return float((analysis[0] if isinstance(analysis, list) else analysis)["flops"])


def memory_totals(compiled: Any) -> tuple[int, int, int, int]:
    """Argument, output, temporary and aliased bytes, as the compiler assigned them."""
    stats = compiled.memory_analysis()
    return (
        stats.argument_size_in_bytes,
        stats.output_size_in_bytes,
        stats.temp_size_in_bytes,
        stats.alias_size_in_bytes,
    )
