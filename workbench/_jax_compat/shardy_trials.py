"""Tries many argument shardings on one lowered program: Shardy propagates them, and costs are summed over operations.

This module is part of the access to JAX's internals. The module edits MLIR attributes of the function `main` instead of
lowering again, and reads the per-device operations.
"""

import dataclasses
import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from jax._src.interpreters import mlir as _mlir
from jaxlib.mlir import ir as _ir, passmanager as _passmanager
from jaxlib.mlir.dialects import sdy as _sdy

from workbench._jax_compat.shardy import COLLECTIVE_PASSES, ShardyError, _add_rules, _errors, _inline_calls
from workbench._jax_compat.shardy_read import _dictionaries, _item_bytes, _type
from workbench._open_types import Foreign

Spec = tuple[tuple[str, ...], ...]
_COLLECTIVES = {
    "sdy.all_reduce": "all-reduce",
    "sdy.all_gather": "all-gather",
    "sdy.reduce_scatter": "reduce-scatter",
    "sdy.all_to_all": "all-to-all",
    "sdy.collective_permute": "collective-permute",
    "sdy.reshard": "all-gather",
    "sdy.sharded_to_unreduced": "all-gather",
    "stablehlo.all_reduce": "all-reduce",
    "stablehlo.all_gather": "all-gather",
    "stablehlo.reduce_scatter": "reduce-scatter",
    "stablehlo.all_to_all": "all-to-all",
    "stablehlo.collective_permute": "collective-permute",
}
# Rearrangements, and values that a compiler recomputes where they are read.
_FREE = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("constant", "iota", "broadcast_in_dim", "reshape", "transpose", "convert", "slice", "get_tuple_element"),
        *("tuple", "return", "custom_call", "optimization_barrier", "compare", "select", "and", "or", "not"),
    )
)
_LOOP, _MANUAL = "stablehlo.while", "sdy.manual_computation"


@dataclasses.dataclass(frozen=True)
class TrialCollective:
    """Collectives of one kind over the same axes in one loop, with a device's operand bytes per execution."""

    kind: str
    axes: tuple[str, ...]
    group_size: int
    payload_bytes: float
    executions: float


@dataclasses.dataclass(frozen=True)
class Trial:
    """Cost of the program on one device for one choice of shardings."""

    inputs: tuple[Spec, ...]  # shardings of every argument, after propagation
    results: tuple[Spec, ...]
    flops: float
    traffic_bytes: float
    collectives: tuple[TrialCollective, ...]
    argument_bytes: float
    peak_bytes: float  # arguments, results that reuse no donated argument, and the largest sum of live values


class ShardyTrials:
    """A program lowered once, with a sharding over `mesh` on every argument, for trying other shardings."""

    def __init__(self, text: str) -> None:
        self._lock = threading.Lock()
        with _errors():
            self._context = _mlir.make_ir_context()
            with self._context:
                self._whole = _ir.Module.parse(text)
                self._inlined = _ir.Module.parse(text)
                _inline_calls(self._inlined)
                _add_rules(self._inlined)
                self.axis_sizes, self._mesh = _mesh_of(self._whole)
                if not self._mesh:
                    message = "the program does not specify a mesh"
                    raise ShardyError(message)

    def plan(
        self, inputs: Mapping[int, Spec | None], outputs: Mapping[int, Spec], *, without: Sequence[int] = ()
    ) -> Trial:
        """Propagates shardings and sums costs; a spec of None leaves the argument's sharding to Shardy."""
        with self._lock, _errors(), self._context, _ir.Location.unknown():
            module = self._inlined.operation.clone()
            try:
                self._set(module, inputs, outputs)
                _leave_out(module, without)
                manager = _passmanager.PassManager.parse(f"builtin.module({COLLECTIVE_PASSES})")
                manager.enable_verifier(False)
                manager.run(module)
                return _Walk(self.axis_sizes).trial(_main(module))
            finally:
                module.erase()

    def text(self, inputs: Mapping[int, Spec | None], outputs: Mapping[int, Spec]) -> str:
        """The program text with these shardings, for use by a compiler."""
        with self._lock, _errors(), self._context, _ir.Location.unknown():
            module = self._whole.operation.clone()
            try:
                self._set(module, inputs, outputs)
                return str(module.get_asm())
            finally:
                module.erase()

    def _set(self, module: _ir.Operation, inputs: Mapping[int, Spec | None], outputs: Mapping[int, Spec]) -> None:
        main = _main(module)
        block = main.regions[0].blocks[0]
        self._set_all(main, "arg_attrs", [argument.type for argument in block.arguments], inputs)
        returned = list(list(block.operations)[-1].operands)
        self._set_all(main, "res_attrs", [value.type for value in returned], outputs)

    def _set_all(self, main: _ir.OpView, key: str, types: Sequence[Any], specs: Mapping[int, Spec | None]) -> None:
        entries = [dict(entry) for entry in _attributes(main, key, len(types))]
        for number, spec in specs.items():
            rank = len(types[number].shape) if isinstance(types[number], _ir.RankedTensorType) else 0
            entries[number]["sdy.sharding"] = self._sharding(spec, rank)
        dict_attrs = [_ir.DictAttr.get(entry) for entry in entries]
        if dict_attrs:
            main.attributes[key] = _ir.ArrayAttr.get(dict_attrs)

    def _sharding(self, spec: Spec | None, rank: int) -> _ir.Attribute:
        if spec is None:
            dims = ", ".join(["{?}"] * rank)
        else:
            # A random key has more dimensions here than in JAX; Shardy crashes if one of them has no entry.
            entries = (*spec, *[()] * (rank - len(spec)))
            dims = ", ".join("{" + ", ".join(f'"{axis}"' for axis in axes) + "}" for axes in entries)
        return _ir.Attribute.parse(f"#sdy.sharding<@{self._mesh}, [{dims}]>")


def _leave_out(module: _ir.Operation, numbers: Sequence[int]) -> None:
    """Removes sharding constraints from the program."""
    if not numbers:
        return
    constraints: list[Any] = []

    def visit(op: _ir.Operation) -> _ir.WalkResult:
        if op.name == "sdy.sharding_constraint":
            constraints.append(op)
        return _ir.WalkResult.ADVANCE

    _main(module).walk(visit)
    for number in numbers:
        constraint = constraints[number]
        constraint.results[0].replace_all_uses_with(constraint.operands[0])
        constraint.erase()


def _main(module: _ir.Operation) -> _ir.OpView:
    for op in module.regions[0].blocks[0].operations:
        name = op.operation.attributes["sym_name"] if "sym_name" in op.operation.attributes else None
        if op.operation.name == "func.func" and name is not None and _ir.StringAttr(name).value == "main":
            return op.operation
    message = "the module has no function `main`"
    raise ShardyError(message)


def _mesh_of(module: _ir.Module) -> tuple[dict[str, int], str]:
    for op in module.body.operations:
        if op.operation.name == "sdy.mesh":
            axes = map(_sdy.MeshAxisAttr, _sdy.MeshAttr(op.operation.attributes["mesh"]).axes)
            return {axis.name: axis.size for axis in axes}, _ir.StringAttr(op.operation.attributes["sym_name"]).value
    return {}, ""


def _attributes(function: Foreign, key: str, count: int) -> list[dict[str, Any]]:
    if key not in function.attributes:
        return [{} for _ in range(count)]
    return [
        {(e if isinstance(e, str) else e.name): attributes[e if isinstance(e, str) else e.name] for e in attributes}
        for attributes in map(_ir.DictAttr, function.attributes[key])
    ]


class _Walk:
    """Sums the work of one device; collectives are combined by kind, axes and loop, as compilers do."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes
        self._specs: dict[Any, Spec] = {}
        self._of: dict[Any, Spec] = {}  # by value
        self._types: dict[Any, tuple[tuple[int, ...] | None, int]] = {}  # shape and bytes of an item, by type
        self.flops = self.traffic = 0.0
        self._sent: dict[tuple[str, tuple[str, ...], float, int], float] = {}

    def trial(self, main: _ir.OpView) -> Trial:
        block = main.regions[0].blocks[0]
        inputs = []
        arguments = 0.0
        argument_attributes = _dictionaries(main, "arg_attrs", len(block.arguments))
        donated = 0.0
        for value, attributes in zip(block.arguments, argument_attributes, strict=True):
            spec = self._spec(attributes.get("sdy.sharding"), value)
            self._of[value] = spec
            inputs.append(spec)
            size = self._held(value)
            arguments += size
            if "tf.aliasing_output" in attributes or "jax.buffer_donor" in attributes:
                donated += size
        live = self._block(block, 1.0, 0, local=False)
        returned = list(list(block.operations)[-1].operands)
        results = sum(map(self._held, returned))
        return Trial(
            inputs=tuple(inputs),
            results=tuple(self._of.get(value, ()) for value in returned),
            flops=self.flops,
            traffic_bytes=self.traffic + arguments + results,
            collectives=tuple(
                TrialCollective(kind, axes, math.prod(map(self._size, axes)), payload, times)
                for (kind, axes, times, _), payload in self._sent.items()
            ),
            argument_bytes=arguments,
            peak_bytes=arguments + max(0.0, results - donated) + live,
        )

    def _block(self, block: _ir.Block, times: float, loop: int, *, local: bool) -> float:
        """Sums the costs in a block; returns the peak bytes of the live values created in the block."""
        operations = [op.operation for op in block.operations]
        ends: dict[Any, int] = {}
        for at, op in enumerate(operations):
            for operand in op.operands:
                ends[operand] = at
        alive, peak, leaving = 0.0, 0.0, {}
        for at, op in enumerate(operations):
            inside = self._operation(op, times, loop, local=local)
            if op.name not in _FREE:
                for value in op.results:
                    size = self._held(value, local=local)
                    alive += size
                    leaving.setdefault(ends.get(value, at), []).append(size)
            peak = max(peak, alive + inside)
            alive -= sum(leaving.pop(at, ()))
        return peak

    def _operation(self, op: _ir.Operation, times: float, loop: int, *, local: bool) -> float:
        """Sums the cost of one operation; returns the live bytes inside its regions."""
        specs = self._result_specs(op)
        for value, spec in zip(op.results, specs, strict=True):
            self._of[value] = spec
        name = op.name
        if name in _COLLECTIVES:
            self._collective(op, _COLLECTIVES[name], times, loop, local=local)
            return 0.0
        if name in (_LOOP, _MANUAL, "stablehlo.case", "stablehlo.if", "sdy.named_computation"):
            return self._regions(op, times, loop, local=local)
        if name in ("stablehlo.dot_general", "stablehlo.dot", "stablehlo.convolution"):
            self._dot(op, times, local=local)
        elif name not in _FREE and not name.startswith("sdy."):
            self.traffic += times * sum(self._held(value, local=local) for value in op.results)
        return 0.0

    def _regions(self, op: _ir.Operation, times: float, loop: int, *, local: bool) -> float:
        inner = times * (_trip_count(op) if op.name == _LOOP else 1.0)
        number = loop if op.name != _LOOP else id(op) or loop + 1
        local = local or op.name == _MANUAL
        peak = 0.0
        for region in op.regions:
            for block in region.blocks:
                for position, argument in enumerate(block.arguments):
                    if op.name == _LOOP:
                        self._of[argument] = self._of.get(op.results[position], ())
                    elif op.name == "sdy.named_computation":
                        self._of[argument] = self._of.get(op.operands[position], ())
                peak = max(peak, self._block(block, inner, number, local=local))
        return peak

    def _dot(self, op: _ir.Operation, times: float, *, local: bool) -> None:
        lhs, out = op.operands[0], op.results[0]
        result = math.prod(self._shape(out, local=local))
        if op.name == "stablehlo.convolution":
            kernel = self._shape(op.operands[1], local=local)
            contracted = math.prod(kernel) / max(kernel[-1] if kernel else 1, 1)
        else:
            contracted = math.prod(self._shape(lhs, local=local)[dim] for dim in _contracting(op))
        # Shardy keeps the result's sharding; the partial sums of a sharded contraction follow from the operand.
        self.flops += times * 2.0 * result * contracted
        self.traffic += times * sum(self._held(value, local=local) for value in (*op.operands, *op.results))

    def _collective(self, op: _ir.Operation, kind: str, times: float, loop: int, *, local: bool) -> None:
        for operand, result in zip(op.operands, op.results, strict=False):
            if op.name.startswith("stablehlo."):
                axes = tuple(name for name in self._sizes if f'"{name}"' in str(op.attributes))
                axes = axes or tuple(self._sizes)
            else:
                axes = self._moved(op, operand, result)
            if not axes or math.prod(map(self._size, axes)) < 2:
                continue
            how = kind
            if kind == "all-reduce" and _only_sliced(result):
                how = "reduce-scatter"
            key = (how, axes, times, loop)
            self._sent[key] = self._sent.get(key, 0.0) + self._held(operand, local=local)

    def _moved(self, op: _ir.Operation, operand: _ir.Value, result: _ir.Value) -> tuple[str, ...]:
        """The axes of a Shardy collective, from its attributes or from how the sharding changes."""
        written = " ".join(str(op.attributes[k]) for k in ("reduction_axes", "gathering_axes", "reduce_scatter_axes",
                                                           "params") if k in op.attributes)  # fmt: skip
        named = tuple(axis for axis in self._sizes if f'"{axis}"' in written)
        if named:
            return named
        before, after = self._of.get(operand, ()), self._of.get(result, ())
        places = [{(dim, axis) for dim, axes in enumerate(spec) for axis in axes} for spec in (before, after)]
        return tuple(axis for axis in self._sizes if any(entry == axis for _, entry in places[0] ^ places[1]))

    def _result_specs(self, op: _ir.Operation) -> list[Spec]:
        results = list(op.results)
        if not results:
            return []
        attributes = op.attributes
        for key in ("sharding", "out_sharding"):
            if op.name.startswith("sdy.") and key in attributes:
                return [self._spec(attributes[key], value) for value in results]
        key = "sdy.sharding" if "sdy.sharding" in attributes else "out_shardings"
        if key not in attributes:
            return [self._spec(None, value) for value in results]
        shardings = _sdy.TensorShardingPerValueAttr(attributes[key]).shardings
        return [self._spec(sharding, value) for sharding, value in zip(shardings, results, strict=True)]

    def _spec(self, sharding: _ir.Attribute | None, value: _ir.Value) -> Spec:
        if sharding is None:
            return ((),) * len(self._type(value)[0] or ())
        if sharding not in self._specs:
            dims = map(_sdy.DimensionShardingAttr, _sdy.TensorShardingAttr(sharding).dimension_shardings)
            self._specs[sharding] = tuple(tuple(map(_axis, dim.axes)) for dim in dims)
        return self._specs[sharding]

    def _size(self, axis: str) -> int:
        name, _, part = axis.partition("[")
        return int(part) if part else self._sizes.get(name, 1)

    def _shape(self, value: _ir.Value, *, local: bool = False) -> list[int]:
        shape = self._type(value)[0] or ()
        if local:
            return list(shape)
        spec = self._of.get(value, ())
        return [
            n if dim >= len(spec) or not spec[dim] else -(-n // math.prod(map(self._size, spec[dim])))
            for dim, n in enumerate(shape)
        ]

    def _type(self, value: _ir.Value) -> tuple[tuple[int, ...] | None, int]:
        kind = value.type
        if kind not in self._types:
            shape, dtype = _type(value)
            self._types[kind] = (shape, 0 if shape is None else _item_bytes(dtype))
        return self._types[kind]

    def _held(self, value: _ir.Value, *, local: bool = False) -> float:
        size = self._type(value)[1]
        return float(math.prod(self._shape(value, local=local)) * size) if size else 0.0


def _axis(axis: _ir.Attribute) -> str:
    axis = _sdy.AxisRefAttr(axis)
    part = axis.sub_axis_info
    return axis.name if part is None else f"{axis.name}[{_sdy.SubAxisInfoAttr(part).size}"


def _contracting(op: _ir.Operation) -> list[int]:
    if op.name == "stablehlo.dot":
        return [len(op.operands[0].type.shape) - 1]
    text = str(op.attributes["dot_dimension_numbers"])
    _, _, after = text.partition("lhs_contracting_dimensions = [")
    return [int(dim) for dim in after.partition("]")[0].split(",") if dim.strip()]


def _only_sliced(value: _ir.Value) -> bool:
    users = [use.owner for use in value.uses]
    return bool(users) and all(user.operation.name == "sdy.all_slice" for user in users)


def _trip_count(op: _ir.Operation) -> float:
    """Iterations of a loop that counts up to a constant; 1 if the number is unknown."""
    block = op.regions[0].blocks[0]
    operations = [operation.operation for operation in block.operations]
    for operation in operations:
        if operation.name == "stablehlo.compare":
            for operand in operation.operands:
                limit = _constant(operand, op, block)
                if limit is not None and limit > 0:
                    return float(limit)
    return 1.0


def _constant(value: Foreign, loop: _ir.Operation, block: _ir.Block) -> int | None:
    if isinstance(value, _ir.BlockArgument):
        if value.owner != block:
            return None
        value = loop.operands[value.arg_number]
        if isinstance(value, _ir.BlockArgument):
            return None
    owner = value.owner
    owner = getattr(owner, "operation", owner)
    if owner.name in ("stablehlo.convert", "stablehlo.broadcast_in_dim", "stablehlo.reshape", "sdy.all_slice"):
        return _constant(owner.operands[0], loop, block)
    if owner.name not in ("stablehlo.constant", "sdy.constant"):
        return None
    text = str(owner.attributes["value"])
    _, _, after = text.partition("dense<")
    number = after.partition(">")[0]
    return int(number) if number.lstrip("-").isdigit() else None
