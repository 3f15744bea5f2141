"""Reads an MLIR module with Shardy attributes into plain data (part of the access to JAX's internals)."""

import dataclasses
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxlib.mlir import ir as _ir
from jaxlib.mlir.dialects import sdy as _sdy

from workbench._open_types import Foreign

Frame = tuple[str, int, int, int, int, str]  # file, line, column, end line, end column, function
Spec = tuple[tuple[str, ...], ...]

_EDGE = re.compile(
    r'step-(?P<step>\d+) = |"(?P<axis>[^"]+)"(?::\((?P<pre>\d+)\)(?P<size>\d+))? = '
    r"(?P<source>(?:operand|result)-\d+) -> \[(?P<targets>[^\]]*)\]"
)
_AXIS = re.compile(r'"(?P<axis>[^"]+)"(?::\((?P<pre>\d+)\)(?P<size>\d+))?')
_BARE_AXIS = re.compile(r"(?P<axis>.+?)(?::\((?P<pre>\d+)\)(?P<size>\d+))?$")
_NESTING = ("stablehlo.while", "stablehlo.case", "stablehlo.if", "sdy.manual_computation", "sdy.named_computation")
_KINDS = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "collective_permute": "collective-permute",
    "collective_broadcast": "collective-broadcast",
    "reshard": "reshard",
    "sharded_to_unreduced": "all-gather",
}
_ITEM_BITS = re.compile(r"^(?:complex<)?[a-z]*?(\d+)")


@dataclasses.dataclass(frozen=True)
class ShardyValue:
    """A tensor in the program, with its sharding."""

    name: str
    operation: str
    shape: tuple[int, ...]
    dtype: str
    spec: Spec
    origins: dict[str, str]
    rule: str
    op_name: str
    frames: tuple[Frame, ...]
    operands: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class ShardyCollective:
    """A collective that Shardy inserted, or that the program itself contains inside a `shard_map`."""

    kind: str
    axes: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    device_bytes: int  # one device's operand
    op_name: str
    frames: tuple[Frame, ...]
    groups: tuple[tuple[int, ...], ...] = ()  # set if the program names devices instead of axes


@dataclasses.dataclass(frozen=True)
class ShardyProgram:
    """Result of one run of the passes; an edge is (step, axis, from value, to value)."""

    values: tuple[ShardyValue, ...]
    edges: tuple[tuple[int, str, str, str], ...]
    collectives: tuple[ShardyCollective, ...]
    axis_sizes: dict[str, int]


def read_module(module: _ir.Module, *, reasons: bool = True) -> ShardyProgram:
    """Values, edges and collectives of a module's function `main`, whose calls have been inlined.

    Without `reasons`, only shardings and collectives are read; the values then lack names, lines, rules and origins.
    """
    sizes: dict[str, int] = {}
    main = None
    for op in module.body.operations:
        if op.operation.name == "sdy.mesh":
            sizes.update(
                {
                    axis.name: axis.size
                    for axis in map(_sdy.MeshAxisAttr, _sdy.MeshAttr(op.operation.attributes["mesh"]).axes)
                }
            )
        elif op.operation.name == "func.func":
            main = op.operation
    reader = _Reader(sizes, reasons)
    if main is not None:
        reader.function(main)
    return ShardyProgram(
        tuple(reader.values.values()), tuple(sorted(set(reader.edges))), tuple(reader.collectives), sizes
    )


def op_name(location: object) -> str:
    """The name that JAX gave to an operation: its scopes, joined by slashes."""
    if isinstance(location, _ir.NameLoc):
        return location.name_str
    if isinstance(location, _ir.FusedLoc) and location.locations:
        return op_name(location.locations[0])
    return ""


def frames(location: object, *, outermost: bool = True) -> Iterator[Frame]:
    """The call frames of a location, innermost first."""
    if isinstance(location, _ir.NameLoc):
        child = location.child_loc
        if isinstance(child, _ir.FileLineColLoc):
            place = (child.filename, child.start_line, child.start_col, child.end_line, child.end_col)
            yield (*place, "" if outermost else location.name_str)
        else:
            yield from frames(child, outermost=False)
    elif isinstance(location, _ir.CallSiteLoc):
        yield from frames(location.callee, outermost=False)
        yield from frames(location.caller, outermost=False)
    elif isinstance(location, _ir.FusedLoc) and location.locations:
        yield from frames(location.locations[0], outermost=outermost)


class _Reader:
    def __init__(self, sizes: dict[str, int], reasons: bool) -> None:
        self._sizes = sizes
        self._reasons = reasons
        self._specs: dict[Any, Spec] = {}  # cached by attribute, because programs repeat a few attributes
        self._names: dict[Any, str] = {}
        self._twins: dict[str, list[str]] = {}  # a loop's result -> the corresponding arguments of condition and body
        self._count = 0
        self.values: dict[str, ShardyValue] = {}
        self.edges: list[tuple[int, str, str, str]] = []
        self.collectives: list[ShardyCollective] = []

    def function(self, function: _ir.Operation) -> None:
        block = function.regions[0].blocks[0]
        inputs = _dictionaries(function, "arg_attrs", len(block.arguments))
        for number, (argument, attributes) in enumerate(zip(block.arguments, inputs, strict=True)):
            self._edge_owner(argument, f"%arg{number}", "input", attributes, argument.location, f"input: {number}")
        operations = list(block.operations)
        for op in operations[:-1]:
            self._operation(op.operation, local=False)
        returned = list(operations[-1].operands)
        outputs = _dictionaries(function, "res_attrs", len(returned))
        for number, (value, attributes) in enumerate(zip(returned, outputs, strict=True)):
            name = f"%result{number}"
            self._edge_owner(value, name, "output", attributes, None, f"output: {number}", rename=False)
            self._edges(attributes, [self._name(value)], [name])

    def _edge_owner(
        self,
        value: _ir.Value,
        name: str,
        operation: str,
        attributes: dict[str, Any],
        location: _ir.Location | None,
        itself: str,
        rename: bool = True,
    ) -> None:
        """An input or output of the function, described by the function's attributes."""
        if rename:
            self._names[value] = name
        spec = self._spec(attributes.get("sdy.sharding"), value)
        origins = self._origins(attributes.get("sdy.sharding_origins"), itself)
        label = _text(attributes.get("jax.result_info")) if operation == "output" else op_name(location)
        self._add(value, name, operation, spec, origins, "", label, (), [value] if operation == "output" else ())

    def _block(self, block: _ir.Block, *, local: bool) -> list[Any]:
        """Reads a nested block; returns the block's results."""
        operations = list(block.operations)
        for op in operations[:-1]:
            self._operation(op.operation, local=local)
        return list(operations[-1].operands) if operations else []

    def _operation(self, op: _ir.Operation, *, local: bool) -> None:
        if op.name == "sdy.data_flow_edge":
            self._data_flow_edge(op)
            return
        number, self._count = self._count, self._count + 1
        results = list(op.results)
        attributes = _entries(op.attributes) if results else {}
        short = op.name.removeprefix("stablehlo.").removeprefix("sdy.")
        needs_name = self._reasons or short in _KINDS
        name, lines = (op_name(op.location), tuple(frames(op.location))) if needs_name else ("", ())
        specs = self._specs_of(op, attributes, results)
        origins = self._origins_of(attributes, len(results)) if self._reasons else [{}] * len(results)
        rule = _rule(attributes.get("sdy.sharding_rule")) if self._reasons else ""
        for index, value in enumerate(results):
            label = f"%{number}" if len(results) == 1 else f"%{number}#{index}"
            self._names[value] = label
            self._add(value, label, short, specs[index], origins[index], rule, name, lines, op.operands)
        self._edges(attributes, [self._name(v) for v in op.operands], [self._name(v) for v in results])
        if short in _KINDS:
            self._collective(op, short, attributes, name, lines, local=local)
        if op.name in _NESTING:
            self._regions(op, number, local=local or op.name == "sdy.manual_computation")

    def _regions(self, op: _ir.Operation, number: int, *, local: bool) -> None:
        results = list(op.results)
        kind = op.name.split(".")[-1]
        for index, region in enumerate(op.regions):
            for block in region.blocks:
                for position, argument in enumerate(block.arguments):
                    name = self._names[argument] = f"%{number}.{index}#{position}"
                    if kind == "while":
                        result = self._name(results[position])
                        carried = self.values.get(result)
                        spec = carried.spec if carried else self._spec(None, argument)
                        self._twins.setdefault(result, [result]).append(name)
                        self._twins[name] = self._twins[result]
                    else:
                        spec = self._spec(None, argument)
                    label = f"{kind} {'carry' if kind == 'while' else 'input'}"
                    self._add(argument, name, label, spec, {}, "", op_name(op.location), tuple(frames(op.location)))
                self._block(block, local=local)

    def _data_flow_edge(self, op: _ir.Operation) -> None:
        """Shardy's proxy for a value that crosses a region; the proxy's facts apply to that value."""
        target = op.operands[0]
        name = self._names[op.results[0]] = self._name(target)
        attributes = _entries(op.attributes)
        entry = self.values.get(name)
        if entry is not None:
            spec = self._spec(attributes.get("sharding"), target)
            origins = self._origins(attributes.get("sdy.sharding_origins"), "")
            self.values[name] = dataclasses.replace(entry, spec=spec, origins=origins)
            for twin in self._twins.get(name, []):
                self.values[twin] = dataclasses.replace(self.values[twin], spec=spec, origins=origins)
        self._edges(attributes, [self._name(value) for value in _sources(target)], [name])

    def _name(self, value: _ir.Value) -> str:
        return self._names.get(value, "")

    def _add(
        self, value: _ir.Value, name: str, operation: str, spec: Spec, origins: dict[str, str], rule: str, label: str,
        lines: tuple[Frame, ...], operands: Sequence[_ir.Value] = (),
    ) -> None:  # fmt: skip
        shape, dtype = _type(value)
        if shape is not None:
            operand_names = tuple(self._name(operand) for operand in operands) if self._reasons else ()
            self.values[name] = ShardyValue(
                name, operation, shape, dtype, spec, origins, rule, label, lines, operand_names
            )

    def _specs_of(self, op: _ir.Operation, attributes: dict[str, Any], results: list[Any]) -> list[Spec]:
        for key in ("sharding", "out_sharding"):
            if key in attributes and op.name.startswith("sdy."):
                return [self._spec(attributes[key], value) for value in results]
        sharding = attributes.get("sdy.sharding", attributes.get("out_shardings"))
        if sharding is None:
            return [self._spec(None, value) for value in results]
        shardings = _sdy.TensorShardingPerValueAttr(sharding).shardings
        return [self._spec(sharding, value) for sharding, value in zip(shardings, results, strict=True)]

    def _spec(self, sharding: _ir.Attribute | None, value: _ir.Value) -> Spec:
        if sharding is None:
            return ((),) * len(_type(value)[0] or ())
        if sharding not in self._specs:
            dimensions = map(_sdy.DimensionShardingAttr, _sdy.TensorShardingAttr(sharding).dimension_shardings)
            self._specs[sharding] = tuple(tuple(map(self._axis_ref, dimension.axes)) for dimension in dimensions)
        return self._specs[sharding]

    def _axis_ref(self, axis: _ir.Attribute) -> str:
        axis = _sdy.AxisRefAttr(axis)
        part = axis.sub_axis_info
        return axis.name if part is None else self._axis(axis.name, str(_sdy.SubAxisInfoAttr(part).size))

    def _axis(self, name: str, part: str | None) -> str:
        return name if part is None else f"{name}[{part} of {self._sizes.get(name, '?')}]"

    def _axes(self, text: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._axis(match["axis"], match["size"]) for match in _AXIS.finditer(text)))

    def _origins_of(self, attributes: dict[str, Any], count: int) -> list[dict[str, str]]:
        origins = attributes.get("sdy.sharding_origins")
        itself = _text(attributes.get("sdy.sharding_origin_name"))
        if isinstance(origins, _ir.ArrayAttr):
            return [self._origins(entry, itself) for entry in origins]
        return [self._origins(origins, itself)] * count

    def _origins(self, attribute_map: _ir.Attribute | None, itself: str) -> dict[str, str]:
        if not isinstance(attribute_map, _ir.DictAttr):
            return {}
        origins = {}
        for key, attribute in _entries(attribute_map).items():
            axis = _BARE_AXIS.match(key)
            text = _text(attribute)
            text = itself if text == "self" else text
            text = re.sub(r"^constraint_(\d+)$", r"constraint: \1", text)
            origins[self._axis(axis["axis"], axis["size"]) if axis else key] = text
        return origins

    def _edges(self, attributes: dict[str, Any], operands: list[str], results: list[str]) -> None:
        edges = attributes.get("sdy.propagation_edges")
        if edges is None:
            return
        ends = {f"operand-{i}": name for i, name in enumerate(operands)}
        ends |= {f"result-{i}": name for i, name in enumerate(results)}
        step = 0
        for match in _EDGE.finditer(str(edges)):
            if match["step"] is not None:
                step = int(match["step"])
                continue
            axis, source = self._axis(match["axis"], match["size"]), ends.get(match["source"], "")
            targets = [ends.get(target.strip(), "") for target in match["targets"].split(",")]
            for target in targets:
                names = [name for name in self._twins.get(target, [target]) if name in self.values]
                self.edges.extend((step, axis, source, name) for name in names if name != source)

    def _collective(
        self,
        op: _ir.Operation,
        short: str,
        attributes: dict[str, Any],
        name: str,
        lines: tuple[Frame, ...],
        *,
        local: bool,
    ) -> None:
        for operand, result in zip(op.operands, op.results, strict=False):
            before, after = self.values.get(self._name(operand)), self.values[self._name(result)]
            if op.name.startswith("stablehlo."):
                groups = _groups(attributes)
                axes = () if groups else self._axes(str(attributes.get("replica_groups", "")))
            else:
                groups = ()
                text = " ".join(str(attr) for key, attr in attributes.items() if "axes" in key or key == "params")
                axes = self._axes(text) or _moved_axes(before.spec if before else (), after.spec)
            shape, dtype = _type(operand)
            size_bytes = math.prod(shape or ()) * _item_bytes(dtype)
            spec = before.spec if before and not local else ((),) * len(shape or ())
            elements = math.prod(-(-n // self._parts(names)) for n, names in zip(shape or (), spec, strict=True))
            device_bytes = elements * _item_bytes(dtype)
            self.collectives.append(
                ShardyCollective(_KINDS[short], axes, after.shape, dtype, size_bytes, device_bytes, name, lines, groups)
            )

    def _parts(self, axes: tuple[str, ...]) -> int:
        return math.prod(int(a.split("[")[1].split(" ")[0]) if "[" in a else self._sizes.get(a, 1) for a in axes)


def _type(value: _ir.Value) -> tuple[tuple[int, ...] | None, str]:
    kind = value.type
    if not isinstance(kind, _ir.RankedTensorType):
        return None, ""
    return tuple(kind.shape), str(kind.element_type)


def _item_bytes(dtype: str) -> int:
    bits = _ITEM_BITS.match(dtype.removeprefix("!"))
    size = max(int(bits[1]) // 8, 1) if bits else 4
    return 2 * size if dtype.startswith("complex") else size


def _text(attribute: _ir.Attribute | None) -> str:
    return attribute.value if isinstance(attribute, _ir.StringAttr) else ""


def _rule(attribute: _ir.Attribute | None) -> str:
    if attribute is None:
        return ""
    return re.sub(r"^#sdy\.op_sharding_rule<(.*)>$", r"\1", str(attribute))


def _entries(attributes: Foreign) -> dict[str, Any]:
    """Named attributes, except the values of constants, because the bindings of 0.10.2 fail on complex constants."""
    names = (entry if isinstance(entry, str) else entry.name for entry in attributes)
    return {name: attributes[name] for name in names if name != "value"}


def _dictionaries(function: Foreign, key: str, count: int) -> list[dict[str, Any]]:
    if key not in function.attributes:
        return [{} for _ in range(count)]
    return [_entries(entry) for entry in function.attributes[key]]


def _sources(target: _ir.BlockArgument | _ir.OpResult) -> list[Any]:
    """The values that flow into a loop result, a branch result or a block argument, in Shardy's order."""
    index = target.arg_number if isinstance(target, _ir.BlockArgument) else target.result_number
    if isinstance(target, _ir.BlockArgument):
        return [target.owner.owner.operands[index]]
    owner = target.owner
    returned = [list(region.blocks[0].operations)[-1].operands for region in owner.regions if len(region.blocks)]
    if owner.name == "stablehlo.while":
        return [owner.operands[index], returned[1][index]]
    return [values[index] for values in returned] if returned else [owner.operands[index]]


def _moved_axes(before: Spec, after: Spec) -> tuple[str, ...]:
    """The axes whose position differs between two shardings; if a whole axis is listed, its parts are omitted."""
    places = [{(dim, axis) for dim, axes in enumerate(spec) for axis in axes} for spec in (before, after)]
    names = dict.fromkeys(axis for _, axis in sorted(places[0] ^ places[1]))
    return tuple(name for name in names if "[" not in name or name.partition("[")[0] not in names)


def _groups(attributes: dict[str, Any]) -> tuple[tuple[int, ...], ...]:
    """Replica groups or source-target pairs as device positions; empty if they are given as axes."""
    groups = attributes.get("replica_groups", attributes.get("source_target_pairs"))
    if not isinstance(groups, _ir.DenseElementsAttr):
        return ()
    return tuple(tuple(group) for group in np.array(groups).tolist())
