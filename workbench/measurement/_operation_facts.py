"""Facts about a profiled operation: category, kind, dtype and line."""

import re
from collections.abc import Mapping
from typing import Any

from workbench.records.compiled import InstructionRecord, ModuleRecord
from workbench.records.program import SourceLine

_PROGRAM = re.compile(r"(.+)\((\d+)\)$")
_SOURCE = re.compile(r"(.+):(\d+)$")
COLLECTIVES = re.compile(r"(all-reduce|all-gather|reduce-scatter|(ragged-)?all-to-all|collective-|send|recv)")
_COPIES = re.compile(r"(copy|slice|dynamic-slice|dynamic-update-slice)(-start|-done)$|^infeed|^outfeed")
_DTYPES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64", "s8": "int8", "u8": "uint8",
           "s4": "int4", "u4": "uint4", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
           "f8e4m3fnuz": "float8_e4m3fnuz", "f8e5m2fnuz": "float8_e5m2fnuz"}  # fmt: skip
_ELEMENTS = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")


def program_name(module: str, program: int | None) -> str:
    return f"{module}({program})" if program is not None else module


def module_name(program: str) -> str:
    match = _PROGRAM.match(program)
    return match[1] if match else program


_LATEST: list[tuple[ModuleRecord, dict[str, InstructionRecord]]] = []  # one module; operations come module by module


def instructions_of(module: ModuleRecord) -> dict[str, InstructionRecord]:
    if not _LATEST or _LATEST[0][0] is not module:  # holds the object, because a bare `id` may be reused
        _LATEST[:] = [(module, {instruction.name: instruction for instruction in module.instructions})]
    return _LATEST[0][1]


def category_of(instruction: InstructionRecord, module: ModuleRecord) -> str:
    """Returns the category that XProf shows, from XLA's `HloInstruction::ToCategory`."""
    opcode = instruction.opcode
    if opcode == "fusion":
        match = re.search(rf"%?{re.escape(instruction.name)} = [^\n]*?kind=k(\w+)", module.text)
        return f"{match[1].lower()} fusion" if match else "fusion"
    return "data formatting" if opcode in ("copy", "transpose", "reshape", "dynamic-reshape") else opcode


def kind_of(name: str, category: str, instruction: InstructionRecord | None) -> str:
    opcode = instruction.opcode if instruction else category
    if COLLECTIVES.match(opcode) or (not opcode and COLLECTIVES.match(name)):
        return "collective"
    return "copy" if _COPIES.search(opcode) else "compute"


def dtype_of(instruction: InstructionRecord, module: ModuleRecord) -> str:
    """Dtype of the largest operand, either of a fusion's matrix product or, without a product, of the operation."""
    inside = [i for i in module.instructions if i.computation in instruction.calls] if instruction.calls else []
    product = next((i for i in inside if i.opcode in ("dot", "convolution")), instruction)
    where = {i.name: i for i in inside} if product is not instruction else instructions_of(module)
    operands = " ".join(where[name].shape for name in product.operands if name in where)
    return dtype_of_text(operands) or dtype_of_text(instruction.shape)


def dtype_of_text(text: str) -> str:
    """The dtype of the largest array in a text that lists shapes."""
    best, most = "", -1
    for dtype, dimensions in _ELEMENTS.findall(text):
        size = 1
        for dimension in dimensions.split(","):
            size *= int(dimension) if dimension else 1
        if dtype in _DTYPES and size > most:
            best, most = _DTYPES[dtype], size
    return best


def fact_of(facts: Mapping[str, Any], *names: str) -> float | None:
    for name in names:
        value = facts.get(name)
        if value is not None:
            try:
                return float(value)
            except (TypeError, ValueError):
                continue
    return None


def source_of(text: str) -> SourceLine | None:
    match = _SOURCE.match(text)
    return SourceLine(file=match[1], line=int(match[2])) if match else None


def natural_order(where: str) -> tuple[Any, ...]:
    return tuple(int(part) if part.isdigit() else part for part in re.split(r"(\d+)", where))
