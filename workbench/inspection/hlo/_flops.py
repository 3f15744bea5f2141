"""FLOPs of dot products and convolutions in HLO; a multiply-add counts as 2 FLOPs.

Elementwise operations and reductions are not counted: a roofline's peak refers to the matrix unit, and memory bandwidth
limits all other operations. If a compiler rewrites a product with a vector as elementwise operations, the product
counts as 0 here, and the module has a note.
"""

import math
import re

from workbench.errors import InspectionError
from workbench.inspection.hlo._shapes import Shape
from workbench.inspection.hlo._text import Hlo, Instruction, unreadable
from workbench.plan import valid_positions

_LABELS = re.compile(r"(\w*)_(\w*)->(\w*)")
_DECLARED = re.compile(r'"cost_estimate":\{"flops":"?(\d+)')
_PRECISIONS = re.compile(r"operand_precision\"?[=:][{\[]\"?(\w+)\"?,\"?(\w+)", re.IGNORECASE)
_ALGORITHM = re.compile(r"algorithm\"?[=:]\"?(?:ALG_)?(\w+)", re.IGNORECASE)
# The dtype in which a stated algorithm multiplies, and the number of passes.
_ALGORITHMS = {
    "dot_bf16_bf16_f32": "bfloat16", "dot_bf16_bf16_bf16": "bfloat16", "dot_bf16_bf16_f32_x3": "bfloat16*3",
    "dot_bf16_bf16_f32_x6": "bfloat16*6", "dot_bf16_bf16_f32_x9": "bfloat16*9", "dot_f16_f16_f16": "float16",
    "dot_f16_f16_f32": "float16", "dot_tf32_tf32_f32": "float32", "dot_tf32_tf32_f32_x3": "float32*3",
    "dot_f32_f32_f32": "float32:highest", "dot_f64_f64_f64": "float64",
}  # fmt: skip
_DTYPES = {
    "s4": "int4", "u4": "uint4", "s8": "int8", "u8": "uint8", "s16": "int16", "u16": "uint16", "s32": "int32",
    "u32": "uint32", "s64": "int64", "u64": "uint64", "f16": "float16", "bf16": "bfloat16", "f32": "float32",
    "f64": "float64", "c64": "float32", "c128": "float64", "pred": "int8", "f4e2m1fn": "float4_e2m1fn",
    "f8e5m2": "float8_e5m2", "f8e4m3fn": "float8_e4m3fn", "f8e4m3": "float8_e4m3fn", "f8e8m0fnu": "float8_e5m2",
    "f8e4m3b11fnuz": "float8_e4m3b11fnuz", "f8e5m2fnuz": "float8_e5m2fnuz", "f8e4m3fnuz": "float8_e4m3fnuz",
}  # fmt: skip
_GEMM_LISTS = re.compile(r'"(lhs|rhs)_contracting_dimensions":\[([^\]]*)\]')
_FREE_CALLS = frozenset(
    "AllocateBuffer ConcatBitcast PrepareAsyncCallStart PrepareAsyncCallDone Sharding SPMDFullToShardShape "
    "SPMDShardToFullShape annotate_device_placement MoveToHost MoveToDevice TopK ApproxTopK AssumeGatherIndicesInBound "
    "GlobalToLocal LocalToGlobal X64Combine X64SplitLow X64SplitHigh".split()
)


class FlopCounter:
    """Counts the FLOPs of one run of a module's instructions and computations; notes parts that cannot be counted."""

    def __init__(self, hlo: Hlo) -> None:
        self._hlo = hlo
        self._computations: dict[str, float] = {}
        self._products: dict[str, dict[str, float]] = {}
        self.notes: dict[str, str] = {}  # custom call target -> note

    def fusion(self, name: str) -> float:
        """FLOPs of one run of a computation, including the contents of fusions."""
        if name not in self._computations:
            computation = self._hlo.computations[name]
            self._computations[name] = sum(self.instruction(i) for i in computation.instructions)
        return self._computations[name]

    def instruction(self, instruction: Instruction) -> float:
        """FLOPs of one run of an instruction; loops, calls and branches themselves count as 0."""
        opcode = instruction.opcode
        if opcode == "fusion":
            return sum(self.fusion(name) for name in set(instruction.calls("calls")))
        if opcode in ("dot", "ragged-dot", "scaled-dot"):
            return self._dot(instruction)
        if opcode == "convolution":
            return self._convolution(instruction)
        if opcode == "custom-call":
            return self._custom_call(instruction)
        return 0.0

    def products(self, instruction: Instruction) -> dict[str, float]:
        """FLOPs of one run of an instruction, by the dtype that is multiplied, as in `InstructionRecord.products`."""
        if instruction.opcode != "fusion":
            flops = self.instruction(instruction)
            return {self._multiplier(instruction): flops} if flops else {}
        by_dtype: dict[str, float] = {}
        for name in set(instruction.calls("calls")):
            if name not in self._products:
                inside: dict[str, float] = {}
                for inner in self._hlo.computations[name].instructions:
                    _add(inside, self.products(inner))
                self._products[name] = inside
            _add(by_dtype, self._products[name])
        return by_dtype

    def _multiplier(self, instruction: Instruction) -> str:
        """The wider of the operands' dtypes, together with the requested precision; "" if unknown."""
        algorithm = _ALGORITHM.search(instruction.attributes)
        if algorithm is not None and algorithm[1].lower() in _ALGORITHMS:
            return _ALGORITHMS[algorithm[1].lower()]
        if instruction.opcode == "custom-call" and not (instruction.attribute("custom_call_target") or "").startswith(
            ('"__cublas$', '"__cudnn$')
        ):
            return ""  # a kernel that declares its FLOPs, but not its dtype
        leaves = [leaf for index in (0, 1) for leaf in self._operand(instruction, index).leaves[:1]]
        widest = max(leaves, key=lambda leaf: leaf.size_bytes / max(1, leaf.elements)).dtype
        dtype = _DTYPES.get(widest, widest)
        stated = _PRECISIONS.search(instruction.attributes)
        precisions = {stated[1].lower(), stated[2].lower()} if stated else set()
        precision = next((name for name in ("highest", "high") if name in precisions), None)
        return f"{dtype}:{precision}" if dtype == "float32" and precision else dtype

    def _operand(self, instruction: Instruction, index: int) -> Shape:
        computation = self._hlo.computations[instruction.computation]
        return computation.by_name[instruction.operands[index]].shape

    def _dot(self, instruction: Instruction) -> float:
        lhs = self._operand(instruction, 0).dimensions
        dimensions = instruction.attribute("lhs_contracting_dims")
        if dimensions is None:
            raise InspectionError(unreadable(f"`{instruction.name}` has no `lhs_contracting_dims`"))
        contracting = _integers(dimensions)
        return (
            2.0
            * _real_products(instruction.shape)
            * instruction.shape.elements
            * math.prod(lhs[d] for d in contracting)
        )

    def _convolution(self, instruction: Instruction) -> float:
        if _LABELS.search(instruction.attribute("dim_labels") or "") is None:
            self.notes[instruction.name] = f"FLOPs of `{instruction.name}` are not counted: no dim_labels"
            return 0.0
        lhs, rhs = self._operand(instruction, 0), self._operand(instruction, 1)
        flops = convolution_flops(instruction, lhs.dimensions, rhs.dimensions, instruction.shape.dimensions)
        return _real_products(instruction.shape) * flops

    def _custom_call(self, instruction: Instruction) -> float:
        target = instruction.attribute("custom_call_target") or '"?"'
        target = target.strip('"')
        if target.startswith("__cublas$"):
            return self._gemm(instruction)
        if target.startswith("__cudnn$conv"):
            return self._cudnn(instruction, target)
        declared = _DECLARED.search(instruction.attributes)
        if declared:
            self.notes[target] = f"FLOPs of custom call `{target}` are declared by its author"
            return float(declared[1])
        if "python" in target and target.endswith("callback"):
            self.notes[target] = f"the time of host callbacks (`{target}`) is not counted"
        elif target not in _FREE_CALLS:
            self.notes[target] = f"FLOPs inside custom call `{target}` are not counted"
        return 0.0

    def _gemm(self, instruction: Instruction) -> float:
        contracting = {side: _integers(dims) for side, dims in _GEMM_LISTS.findall(instruction.attributes)}
        lhs = self._operand(instruction, 0).dimensions
        if "lhs" not in contracting or any(d >= len(lhs) for d in contracting["lhs"]):
            self.notes[instruction.name] = f"FLOPs of `{instruction.name}` are not counted: no dimension numbers"
            return 0.0
        return 2.0 * instruction.shape.elements * math.prod(lhs[d] for d in contracting["lhs"])

    def _cudnn(self, instruction: Instruction, target: str) -> float:
        first, second = (self._operand(instruction, i).dimensions for i in (0, 1))
        result = instruction.shape.dimensions
        if "BackwardInput" in target:  # dim_labels describe the forward convolution, whose input is the result here
            return convolution_flops(instruction, result, second, first)
        if "BackwardFilter" in target:
            return convolution_flops(instruction, first, result, second)
        return convolution_flops(instruction, first, second, result)


def _add(total: dict[str, float], more: dict[str, float]) -> None:
    for key, amount in more.items():
        total[key] = total.get(key, 0.0) + amount


def convolution_flops(
    instruction: Instruction, lhs: tuple[int, ...], rhs: tuple[int, ...], out: tuple[int, ...]
) -> float:
    """FLOPs of a convolution, counting only taps on actual (not padded) elements of the input.

    Returns:
        Twice the number of multiplications.
    """
    labels = _LABELS.search(instruction.attribute("dim_labels") or "")
    if labels is None:
        raise InspectionError(unreadable(f"convolution `{instruction.name}` has no `dim_labels`"))
    lhs_labels, rhs_labels, out_labels = labels.groups()
    window = _window(instruction.attribute("window") or "")
    positions = 1
    for dimension in (label for label in rhs_labels if label.isdigit()):
        index = int(dimension)
        positions *= valid_positions(
            lhs[lhs_labels.index(dimension)],
            rhs[rhs_labels.index(dimension)],
            out[out_labels.index(dimension)],
            stride=_at(window, "stride", index, 1),
            padding_low=_at(window, "pad", index, 0),
            base_dilation=_at(window, "lhs_dilate", index, 1),
            dilation=_at(window, "rhs_dilate", index, 1),
        )
    batch = lhs[lhs_labels.index("b")] // int(instruction.attribute("batch_group_count") or 1)
    features_in, features_out = rhs[rhs_labels.index("i")], rhs[rhs_labels.index("o")]
    return 2.0 * batch * features_in * features_out * positions  # the kernel's "i" already refers to one group


def _real_products(shape: Shape) -> float:
    """Factor for complex numbers: a complex multiply-add is four real multiply-adds."""
    return 4.0 if shape.leaves and shape.leaves[0].dtype in ("c64", "c128") else 1.0


def _window(text: str) -> dict[str, list[int]]:
    """The first number of every dimension, by field, in text such as `size=3x3 pad=1_1x1_1`."""
    fields = dict(part.split("=", 1) for part in text.split() if "=" in part)
    return {
        key: [int(v.split("_")[0]) for v in value.split("x")] for key, value in fields.items() if key != "rhs_reversal"
    }


def _at(window: dict[str, list[int]], key: str, index: int, default: int) -> int:
    values = window.get(key)
    return values[index] if values else default


def _integers(text: str) -> list[int]:
    return [int(part.strip(' "')) for part in text.split(",") if part.strip(' "')]
