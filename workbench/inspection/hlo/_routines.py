"""Work of library routines that HLO does not state: factorisations, sorts and top-k.

FLOPs of factorisations are textbook counts (LAPACK Working Note 41). The counts for eigenvalues of symmetric matrices
and for singular values include a reduction, divide and conquer (4/3 n³ for each set of vectors) and a transformation
of the vectors. A module's FLOPs include none of these counts, because XLA counts 0 for a custom call.
"""

import math
import re
from collections.abc import Callable

from workbench.inspection.hlo._shapes import Shape
from workbench.inspection.hlo._text import Hlo, Instruction
from workbench.records.compiled import RoutineRecord

_WITHOUT_VECTORS = re.compile(r"\bmode = 78\b|\bcompute_uv = false")  # LAPACK's "N"
# FLOPs for a matrix of m rows and n columns, with m >= n.
_FACTORISATIONS: dict[str, Callable[[float, float], float]] = {
    "potrf|cholesky": lambda m, n: n**3 / 3,
    "getrf": lambda m, n: m * n**2 - n**3 / 3,
    "geqrf|orgqr|ungqr": lambda m, n: 2 * m * n**2 - 2 * n**3 / 3,
}
# The same for routines that reduce a matrix from both sides: with vectors, and without vectors.
_EIGENVALUES: dict[str, tuple[Callable[[float, float], float], Callable[[float, float], float]]] = {
    "syevd?|heevd?": (lambda m, n: 14 * n**3 / 3, lambda m, n: 4 * n**3 / 3),
    "gesdd|gesvd": (lambda m, n: 8 * m * n**2 + 4 * n**3 / 3, lambda m, n: 4 * m * n**2 - 4 * n**3 / 3),
    "geev|gees": (lambda m, n: 25 * n**3, lambda m, n: 10 * n**3),
    "gehrd": (lambda m, n: 10 * n**3 / 3, lambda m, n: 10 * n**3 / 3),
    "sytrd|hetrd": (lambda m, n: 4 * n**3 / 3, lambda m, n: 4 * n**3 / 3),
}
_LIBRARY = re.compile(r"(lapack|blas|__cusolver|cusolver|__cublas|hipsolver)[_$]")


def routine_of(hlo: Hlo, instruction: Instruction) -> RoutineRecord | None:
    """The library routine that an instruction calls, with its work; None for all other instructions."""
    if instruction.opcode == "fusion":
        fused = (i for name in instruction.calls("calls") for i in hlo.computations[name].instructions)
        return next((routine_of(hlo, i) for i in fused if i.opcode == "sort"), None)
    if instruction.opcode not in ("sort", "custom-call", "cholesky", "triangular-solve"):
        return None
    by_name = hlo.computations[instruction.computation].by_name
    operands = [by_name[operand].shape for operand in instruction.operands]
    if not operands or not operands[0].elements or not operands[0].dimensions:
        return None
    target = (instruction.attribute("custom_call_target") or "").strip('"')
    if instruction.opcode == "sort" or target in ("TopK", "__gpu$TopK") or target.startswith("__cub$"):
        return _order(instruction, operands)
    if instruction.opcode == "custom-call" and not _LIBRARY.match(target):
        return None
    return _factorisation(target or instruction.opcode, operands, instruction)


def _order(instruction: Instruction, operands: list[Shape]) -> RoutineRecord:
    first = operands[0]
    length = first.dimensions[int(instruction.attribute("dimensions") or -1)]
    calls, key_bytes = first.elements / length, max(1, first.leaves[0].size_bytes // first.elements)
    if instruction.opcode == "custom-call" and len(operands) == 1:
        top = max(1, instruction.shape.dimensions[-1])
        # A heap of the largest: about k ln(n / k) elements enter the heap, and it is sorted. The comparison of each
        # element with the least of the heap is predictable, and takes about 1/8 of the time of another comparison.
        work = length / 8 + top * math.log2(max(2, top)) * (1 + math.log(length / top))
        return RoutineRecord(kind="top-k", work=work, calls=calls, length=length, key_bytes=key_bytes)
    work = length * math.log2(max(2, length))
    return RoutineRecord(kind="sort", work=work, calls=calls, length=length, key_bytes=key_bytes)


def _factorisation(name: str, operands: list[Shape], instruction: Instruction) -> RoutineRecord | None:
    *batch, rows, columns = map(float, (1, 1, *operands[0].dimensions))
    calls, m, n = math.prod(batch), max(rows, columns), min(rows, columns)
    real = 4.0 if operands[0].leaves[0].dtype in ("c64", "c128") else 1.0
    bare = _WITHOUT_VECTORS.search(instruction.attributes) is not None
    if re.search("trsm|triangular-?solve", name, re.IGNORECASE):
        return RoutineRecord(kind="factorisation", work=real * n * operands[1].elements / calls, calls=calls)
    for names, flops in _FACTORISATIONS.items():
        if re.search(names, name):
            return RoutineRecord(kind="factorisation", work=real * flops(m, n), calls=calls)
    for names, both in _EIGENVALUES.items():
        if re.search(names, name):
            return RoutineRecord(kind="eigenvalues", work=real * both[bare](m, n), calls=calls)
    return None
