"""Rule about results that are computed in shards, but gathered only to be returned."""

import ast
import linecache
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import jax
from jax.sharding import NamedSharding, PartitionSpec

from workbench import _jax_compat
from workbench._types import Aval, PyTree
from workbench.advice._collectives import share
from workbench.advice._evidence import placing_code
from workbench.advice._module import Compiled, estimated, less_sent
from workbench.advice._search._groups import pattern_argument
from workbench.records.advice import FindingRecord, Spec
from workbench.records.compiled import CollectiveRecord, InstructionRecord
from workbench.records.program import SourceLine
from workbench.records.sharding import LeafShardingRecord, PlannedValueRecord
from workbench.render.units import bytes_text, line_text, spec_text

RULE = "gathered results"
TRADE = "A trade: "
UNCOMPILED = ", and may send as many bytes as now, or more if several operations use them"
_SMALL_BYTES = 1 << 12  # sent for one result
_SHOWN = 3  # maximum number of results that a sentence names
# Instructions that keep the number of elements, or gather more of them.
_PASSING = frozenset(
    "bitcast copy reshape transpose convert get-tuple-element tuple copy-start copy-done all-gather all-gather-start "
    "all-gather-done opt-barrier fusion".split()
)


@dataclass(frozen=True, kw_only=True)
class GatheredResult:
    """A result that the program computes in shards and returns with fewer mesh axes."""

    at: int  # position among the program's results
    name: str
    computed: Spec
    requested: Spec
    maker: SourceLine | None  # line that computes the result
    constraint: SourceLine | None  # line of the final constraint that gathers; None for `out_shardings`
    collectives: tuple[CollectiveRecord, ...]
    replaces: tuple[LeafShardingRecord, ...]  # arguments that the result replaces in the next call

    @property
    def replicated(self) -> tuple[LeafShardingRecord, ...]:
        """The arguments that the next call needs in the gathered sharding."""
        return tuple(leaf for leaf in self.replaces if _padded(leaf.spec, leaf.shape) == self.requested)


def gathered_results(program: Compiled) -> Iterator[FindingRecord]:
    """Results that are computed in shards, but gathered because `out_shardings` or a final constraint requests it."""
    groups: dict[tuple[SourceLine | None, bool], list[GatheredResult]] = {}
    for result in read_gathered(program):
        groups.setdefault((result.constraint, bool(result.replicated)), []).append(result)
    for (_, is_fed), group in groups.items():
        yield _trade(program, group) if is_fed else _finding(program, group)


def read_gathered(program: Compiled) -> list[GatheredResult]:
    """The results that are gathered only to be returned, with the all-gathers that serve no other value."""
    propagation, planner = program.record.propagation, program.planner
    if propagation is None or planner is None:
        return []
    outputs = [value for value in propagation.values if value.operation == "output"]
    avals = planner.call.closed.out_avals
    if len(outputs) != len(avals):  # a reference is also a result of the compiled program
        return []
    values = {value.name: value for value in propagation.values}
    readers: dict[str, int] = {}
    for value in propagation.values:
        for operand in value.operands:
            readers[operand] = readers.get(operand, 0) + 1
    requests = _jax_compat.jit_options(planner.call.stage)["out_shardings"]
    candidates: dict[int, tuple[PlannedValueRecord, PlannedValueRecord | None]] = {}
    for at, output in enumerate(outputs):
        maker, constraint = values.get(next(iter(output.operands), "")), None
        if maker is not None and maker.operation == "sharding_constraint" and readers[maker.name] == 1:
            maker, constraint = values.get(next(iter(maker.operands), "")), maker
        is_requested = isinstance(requests[at], NamedSharding)
        if maker is not None and is_requested == (constraint is None) and _is_gathered(maker.spec, output.spec):
            candidates[at] = maker, constraint
    gathers = _gathers(program, candidates) if candidates else {}
    return [
        GatheredResult(
            at=at,
            name=outputs[at].op_name,
            computed=maker.spec,
            requested=outputs[at].spec,
            maker=maker.source,
            constraint=None if constraint is None else constraint.source,
            collectives=gathers[at],
            replaces=_replaced(program, outputs[at].op_name, avals[at]),
        )
        for at, (maker, constraint) in candidates.items()
        if sum(collective.sent_bytes for collective in gathers.get(at, ())) >= _SMALL_BYTES
    ]


def _finding(program: Compiled, results: Sequence[GatheredResult]) -> FindingRecord:
    is_one, where = len(results) == 1, _request(results)
    saved = sum(collective.sent_bytes for collective in _collectives(results))
    requested = " and ".join(dict.fromkeys(f"`{spec_text(r.requested)}`" for r in results))
    again = [leaf.path for r in results for leaf in r.replaces if _padded(leaf.spec, leaf.shape) == r.computed]
    return FindingRecord(
        rule=RULE,
        what=f"{_names(results)} {'is' if is_one else 'are'} computed in shards, and gathered only because "
        f"{'it is' if is_one else 'they are'} returned: one device sends {bytes_text(saved)}.",
        why=f"{where[:1].upper()}{where[1:]} requests {requested}. Nothing else in the program reads the gathered "
        f"{'array' if is_one else 'arrays'}."
        + f" The next call receives {_listed([f'`{path}`' for path in again])} gathered instead of in shards, and is "
        "therefore compiled again." * bool(again),
        change=f"Keep the computed sharding in {where}: {_listed(_specs(results))}. Code that reads the "
        f"{'result' if is_one else 'results'} then receives shards, and gathers them only where it needs whole arrays.",
        code=_code(program, results),
        evidence=_evidence(results),
        weight=share(program, saved),
        instructions=tuple(collective.name for collective in _collectives(results)),
        sources=tuple(dict.fromkeys(line for r in results if (line := r.constraint or r.maker) is not None)),
        gain=less_sent(program, saved, "without the all-gathers of the results"),
    )


def _trade(program: Compiled, results: Sequence[GatheredResult]) -> FindingRecord:
    """The finding about results that replace replicated arguments: shards of both, and what they cost."""
    is_one, mesh = len(results) == 1, program.record.mesh
    sizes = {} if mesh is None else {axis.name: axis.size for axis in mesh.axes}
    saved = sum(collective.sent_bytes for collective in _collectives(results))
    arguments = {leaf.path: (leaf, r) for r in results for leaf in r.replicated}
    less = sum(leaf.bytes_per_device * (1 - 1 / _parts(r, sizes)) for leaf, r in arguments.values())
    peak, paths = float(program.module.memory.peak_bytes or 0), _listed([f"`{path}`" for path in arguments])
    where, specs = _request(results), {path: r.computed for path, (_, r) in arguments.items()}
    code = _code(program, results)
    return FindingRecord(
        rule=RULE,
        what=f"{_names(results)} {'is' if is_one else 'are'} computed in shards, and gathered to replace {paths} in "
        f"the next call: one device sends {bytes_text(saved)}.",
        why=f"{where[:1].upper()}{where[1:]} requests the sharding in which {paths} "
        f"{'is' if len(arguments) == 1 else 'are'} passed.",
        change=f"{TRADE}keep shards between calls, as {_listed(_specs(results))}, for {paths} and in {where}. One "
        f"device then stores {bytes_text(less)} less. Each call gathers the arguments where it uses all of "
        f"them{UNCOMPILED}.",
        code=f"{placing_code(specs, program.record)}\n\n{code}" if code else "",
        evidence=_evidence(results),
        weight=0.5 * less / peak if peak else 0.0,
        instructions=tuple(collective.name for collective in _collectives(results)),
        leaves=tuple(arguments),
        specs=specs,
        size_bytes=saved,
        sources=tuple(dict.fromkeys(r.constraint for r in results if r.constraint is not None)),
        gain=estimated("peak bytes", peak, max(0.0, peak - less), "the arguments in shards; copies are not counted"),
    )


def _request(results: Sequence[GatheredResult]) -> str:
    """The origin of a gathered result: an option, or a constraint at a line."""
    constraint = results[0].constraint
    return "`out_shardings`" if constraint is None else f"the constraint at {line_text(constraint)}"


def _names(results: Sequence[GatheredResult]) -> str:
    return _listed([f"`{r.name}`" for r in results])


def _evidence(results: Sequence[GatheredResult]) -> tuple[str, ...]:
    return tuple(
        f"`{r.name}`: computed as {spec_text(r.computed)}, returned as {spec_text(r.requested)}, "
        + ", ".join(f"{c.name} over {'+'.join(c.axes)} sends {bytes_text(c.sent_bytes)}" for c in r.collectives)
        for r in sorted(results, key=lambda r: -sum(c.sent_bytes for c in r.collectives))[:_SHOWN]
    )


def _collectives(results: Sequence[GatheredResult]) -> list[CollectiveRecord]:
    return list({c.name: c for r in results for c in r.collectives}.values())


def _specs(results: Sequence[GatheredResult]) -> list[str]:
    specs = {r.computed for r in results}
    if len(specs) == 1:
        return [f"`{spec_text(results[0].computed)}`"]
    return [f"`{spec_text(r.computed)}` for `{r.name}`" for r in results]


def _listed(words: Sequence[str]) -> str:
    """The first few words as an enumeration."""
    if len(words) > _SHOWN:
        return f"{', '.join(words[: _SHOWN - 1])} and {len(words) - _SHOWN + 1} more"
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _padded(spec: Sequence[Sequence[str]], shape: Sequence[int]) -> Spec:
    return tuple(tuple(axes) for axes in (*spec, *[()] * (len(shape) - len(spec))))


def _is_gathered(computed: Spec, returned: Spec) -> bool:
    """Returns whether a sharding becomes another one by gathering dimensions."""
    pairs = list(zip(computed, returned, strict=False))
    return computed != returned and all(before[: len(after)] == after for before, after in pairs)


def _parts(result: GatheredResult, sizes: Mapping[str, int]) -> int:
    return math.prod(sizes.get(axis, 1) for axes in result.computed for axis in axes)


# ---- the compiled program


def _gathers(program: Compiled, results: Collection[int]) -> dict[int, tuple[CollectiveRecord, ...]]:
    """The all-gathers that only these results need, by position of the result."""
    roots = [line.strip() for line in program.entry_lines if line.lstrip().startswith("ROOT ")]
    root = program.by_name.get(roots[0].removeprefix("ROOT ").partition(" = ")[0].lstrip("%")) if roots else None
    gathers: dict[int, list[CollectiveRecord]] = {}
    if root is None:
        return {}
    for collective in program.module.collectives:
        instruction = program.by_name.get(collective.name)
        if collective.kind != "all-gather" or instruction is None or instruction.computation != root.computation:
            continue
        reached = _results_of(program, instruction, root)
        if reached and reached <= set(results):
            for at in reached:
                gathers.setdefault(at, []).append(collective)
    return {at: tuple(group) for at, group in gathers.items()}


def _results_of(program: Compiled, start: InstructionRecord, root: InstructionRecord) -> set[int]:
    """The positions of the results that copy a value or compute each element from it; empty if others read it."""
    positions, seen, waiting = set[int](), set[str](), [start]
    while waiting:
        value = waiting.pop()
        if value.name == root.name:
            positions.add(0)
        for user in program.users.get(value.name, ()):
            if user.name == root.name and root.opcode == "tuple":
                positions |= {at for at, name in enumerate(root.operands) if name == value.name}
            elif not _is_passing(user, value):
                return set()
            elif user.name not in seen:
                seen.add(user.name)
                waiting.append(user)
    return positions


def _is_passing(user: InstructionRecord, value: InstructionRecord) -> bool:
    is_elementwise = user.opcode in _PASSING or bool(user.elementwise_flops)
    if user.flops or not is_elementwise:
        return False
    before, after = _elements(value), _elements(user)
    return before is None or after is None or after >= before


def _elements(instruction: InstructionRecord) -> int | None:
    """Number of elements; None for tuples."""
    if instruction.shape.startswith("("):
        return None
    sizes = instruction.shape.partition("[")[2].partition("]")[0]
    return math.prod(int(size) for size in sizes.split(",") if size.isdigit())


def _replaced(program: Compiled, result: str, aval: Aval) -> tuple[LeafShardingRecord, ...]:
    """The arguments that a result may replace: with the longest common end of the path, or else with its shape."""
    leaves = () if program.record.inputs is None else program.record.inputs.leaves
    alike = [leaf for leaf in leaves if (leaf.shape, leaf.dtype) == (tuple(aval.shape), str(aval.dtype))]
    ends = {leaf.path: leaf.path.removeprefix(pattern_argument(leaf.path)) for leaf in alike}
    longest = max((len(end) for end in ends.values() if result.endswith(end)), default=0)
    return tuple(leaf for leaf in alike if len(end := ends[leaf.path]) == longest and result.endswith(end))


# ---- code


def _code(program: Compiled, results: Sequence[GatheredResult]) -> str:
    """Code for the change; empty if it cannot be written."""
    constraint = results[0].constraint
    if constraint is None:
        return _jitting(program, results)
    specs = {result.computed for result in results}
    return _constraining(constraint, spec_text(specs.pop())) if len(specs) == 1 else ""


def _jitting(program: Compiled, results: Sequence[GatheredResult]) -> str:
    """Code that jits the function with the computed shardings."""
    planner, name = program.planner, program.record.name
    if planner is None or program.wrapper != "jax.jit" or program.references or not name.isidentifier():
        return ""
    call = planner.call
    options = _jax_compat.jit_options(call.stage)
    computed = {result.at: spec_text(result.computed) for result in results}
    texts = []
    for at, sharding in enumerate(options["out_shardings"]):
        if at not in computed and sharding is not None and not isinstance(sharding, NamedSharding):
            return ""
        spec = computed.get(at) or ("None" if sharding is None else spec_text(_spec_of(sharding.spec)))
        texts.append(spec if spec == "None" or call.mesh is not None else f"NamedSharding(mesh, {spec})")
    sizes, axes = tuple(planner.axes.values()), tuple(planner.axes)
    lines = ["import jax", "from jax.sharding import PartitionSpec as P", ""]
    if call.mesh is None:
        lines[1] = "from jax.sharding import AxisType, NamedSharding, PartitionSpec as P"
        lines += [f"mesh = jax.make_mesh({sizes}, {axes}, axis_types=(AxisType.Auto,) * {len(axes)})"]
    expression = _expression(jax.tree.unflatten(call.out_tree, texts))
    if expression is None:
        if call.kwargs or len(program.parameters) != len(call.args) or "static" in planner.jit.options:
            return ""
        lines += _by_path(jax.tree.unflatten(call.out_tree, texts), f"{name}, {', '.join(program.parameters)}")
        expression = "out_shardings"
    if not _jax_compat.is_jitted(call.fn) or any(options["in_shardings"]):  # its other options stay as they are
        return "\n".join([*lines, f"out_shardings = {expression}  # option of the jit of `{name}`"])
    rest = f", {planner.jit.options}" if planner.jit.options else ""
    return "\n".join([*lines, f"{name} = jax.jit({name}.__wrapped__, out_shardings={expression}{rest})"])


def _spec_of(spec: PartitionSpec) -> Spec:
    return tuple((axes,) if isinstance(axes, str) else tuple(axes or ()) for axes in spec)


def _expression(tree: PyTree) -> str | None:
    """A pytree of code as one expression; equal entries are written once. None if a node has no literal."""
    leaves = jax.tree.leaves(tree)
    if leaves and len(set(leaves)) == 1:
        return leaves[0]
    if tree is None:
        return "None"
    if type(tree) is dict:
        entries = {key: _expression(tree[key]) for key in sorted(tree)}
        literal = "{" + ", ".join(f"{key!r}: {entry}" for key, entry in entries.items()) + "}"
        return None if None in entries.values() else literal
    if type(tree) in (tuple, list):
        parts = [_expression(entry) for entry in tree]
        if any(part is None for part in parts):
            return None
        inner = ", ".join(filter(None, parts))
        return f"({inner}{',' * (len(parts) == 1)})" if type(tree) is tuple else f"[{inner}]"
    return None


def _by_path(tree: PyTree, call: str) -> list[str]:
    """Lines that assign the shardings by the paths of the results."""
    texts = {jax.tree_util.keystr(path): text for path, text in jax.tree_util.tree_flatten_with_path(tree)[0]}
    common = max(texts.values(), key=[*texts.values()].count)
    return [
        "SHARDINGS = {  # by the path of a result",
        *(f"    {path!r}: {text}," for path, text in texts.items() if text != common),
        "}",
        "out_shardings = jax.tree_util.tree_map_with_path(",
        f"    lambda path, _: SHARDINGS.get(jax.tree_util.keystr(path), {common}), jax.eval_shape({call})",
        ")",
    ]


def _constraining(constraint: SourceLine, spec: str) -> str:
    """The statement of a constraint with another spec; empty if the statement does not contain the spec."""
    try:
        tree = ast.parse("".join(linecache.getlines(constraint.file)))
    except SyntaxError:
        return ""
    for statement in (node for node in ast.walk(tree) if isinstance(node, ast.Return | ast.Assign)):
        for call in (node for node in ast.walk(statement) if isinstance(node, ast.Call)):
            if (call.lineno, call.col_offset) != (constraint.line, constraint.column):
                continue
            requests = [*call.args[1:], *(keyword.value for keyword in call.keywords)]
            specs = [n for request in requests for n in ast.walk(request) if isinstance(n, ast.Call) and _is_spec(n)]
            if len(specs) == 1:
                specs[0].args = _arguments_of(spec)
                return ast.unparse(statement)
    return ""


def _is_spec(call: ast.Call) -> bool:
    return ast.unparse(call.func).rpartition(".")[2] in ("P", "PartitionSpec")


def _arguments_of(spec: str) -> list[ast.expr]:
    call = ast.parse(spec, mode="eval").body
    return call.args if isinstance(call, ast.Call) else []
