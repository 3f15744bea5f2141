"""XLA's own parser and cost analysis as a second reader of HLO text."""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import pytest


def memory_totals(compiled: Any) -> tuple[int, int, int, int]:
    """Argument, output, temporary and aliased bytes, as the compiler assigned them."""
    stats = compiled.memory_analysis()
    return (
        stats.argument_size_in_bytes,
        stats.output_size_in_bytes,
        stats.temp_size_in_bytes,
        stats.alias_size_in_bytes,
    )


@dataclasses.dataclass(frozen=True)
class Parsed:
    """An instruction as jaxlib's own parser reads it."""

    name: str
    printed: str  # what stands behind its shape
    operands: tuple[str, ...]
    arrays: tuple[tuple[str, tuple[int, ...]], ...]  # dtype and dimensions of everything in its shape


def parsed(text: str) -> dict[str, list[Parsed]]:
    """The instructions of every computation, without those that only jaxlib makes for asynchronous operations."""
    hlo = pytest.importorskip("jaxlib._hlo", reason="this jaxlib has no parser of its own")
    return {
        computation.name: [_parsed(hlo, instruction) for instruction in computation.instructions()]
        for computation in hlo.hlo_module_from_text(text).computations()
        if not computation.name.startswith("async_wrapped")  # written in short, it has no computation in the text
    }


def _parsed(hlo: Any, instruction: Any) -> Parsed:
    printed = re.sub(r"/\*.*?\*/", "", instruction.to_string().split(" = ", 1)[1])
    for space in re.finditer(" ", printed):  # the shape ends at the first space where jaxlib can read what is before
        try:
            shape = hlo.Shape(printed[: space.start()])
        except Exception:  # jaxlib's own class of errors is not public
            continue
        operands = tuple(operand.name for operand in instruction.operands())
        return Parsed(instruction.name, printed[space.end() :], operands, tuple(_arrays(shape)))
    message = f"no shape at the beginning of {printed!r}"
    raise AssertionError(message)


def _arrays(shape: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    if shape.is_tuple():
        for each in shape.tuple_shapes():
            yield from _arrays(each)
    else:
        dtype = str(shape).partition("[")[0]
        yield dtype, () if shape.is_token() else tuple(shape.dimensions())
