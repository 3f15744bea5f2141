"""Rules about memory: donation, kept activations, and recomputation."""

import contextlib
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from jax.extend.core import ClosedJaxpr

from workbench.advice._module import Compiled, estimated
from workbench.advice._remat import KEPT, Kept, kept_for_backward
from workbench.advice._search._groups import pattern_argument
from workbench.records.advice import FindingRecord
from workbench.records.sharding import ShardingRecord
from workbench.render.units import bytes_text, line_text, share_text

_ROOT = re.compile(r"ROOT %?([^ ]+) = .*")
_CARRYING = frozenset(("tuple", "get-tuple-element", "while", "conditional", "call"))
_REDUCING = frozenset(("dot", "convolution", "reduce", "custom-call", "all-reduce", "gather", "sort"))
_SMALL = 0.05  # smaller shares of the peak are ignored

_SMALL_BYTES = 1 << 10  # arguments are ignored if they are smaller than this in total
_WORTH_BYTES = 1 << 20  # ignore smaller buffers
_WORTH = 0.1  # of the peak: minimum share of the values that layers keep


def missing_donation(program: Compiled) -> Iterator[FindingRecord]:
    """Arguments whose memory could be reused for results of the same shape, dtype and sharding."""
    memory, inputs, outputs = program.module.memory, program.record.inputs, program.record.outputs
    if inputs is None or outputs is None or not memory.peak_bytes:
        return
    if program.is_gradient:  # its arguments are still needed afterwards, because the update reads them
        return
    references = [leaf for leaf in inputs.leaves if leaf.path in program.references]  # always updated in place
    arrays = [leaf for leaf in inputs.leaves if leaf.path not in program.references]
    updated = _updated(program, len(outputs.leaves))
    room = Counter((leaf.shape, leaf.dtype, leaf.shard_shape) for leaf in outputs.leaves)
    reusable, paths = 0, []
    for leaf in arrays:
        key = (leaf.shape, leaf.dtype, leaf.shard_shape)
        if room[key] > 0 and updated[leaf.shard_shape] > 0:
            room[key] -= 1
            updated[leaf.shard_shape] -= 1
            reusable += leaf.bytes_per_device
            paths.append(leaf.path)
    aliased = max(0, (memory.alias_bytes or 0) - sum(leaf.bytes_per_device for leaf in references))
    missing = reusable - aliased
    if missing < max(_SMALL * memory.peak_bytes, _SMALL_BYTES):
        return
    positions, mixed = _argument_positions(program, inputs, paths)
    name = program.record.name if program.record.name.isidentifier() else "fn"
    donating = _donating(program.wrapper, name, positions)
    yield FindingRecord(
        rule="missing donation",
        what=f"The results could reuse {bytes_text(missing)} of argument memory, but both are kept.",
        why="Some results have the same shapes and shardings as arguments (usually a training state). These arguments "
        "are not donated, so old and new values are in memory at the same time.",
        change=" ".join(
            [f"Donate these arguments: `{donating}`. The caller must not read the old values afterwards."]
            * bool(donating)
            + [
                f"JAX cannot donate `{argument}`, because it also contains references: pass its arrays as an argument "
                "of their own, and donate this argument."
                for argument in mixed
            ]
        )
        or "Donate the arguments that the results replace: `jax.jit(fn, donate_argnums=…)`.",
        evidence=(
            f"{len(paths)} argument{' matches a result' if len(paths) == 1 else 's match results'}: "
            f"{', '.join(paths[:4])}{', …' if len(paths) > 4 else ''}",
            f"aliased now: {bytes_text(aliased)}; peak: {bytes_text(memory.peak_bytes)}",
        ),
        weight=min(1.0, missing / memory.peak_bytes),
        code=f"{name} = {donating}" if donating else "",
        leaves=tuple(paths),
        size_bytes=float(missing),
    )


def recomputation(program: Compiled) -> Iterator[FindingRecord]:
    """A large share of recomputed (rematerialised) work, although memory is available."""
    tree = program.record.call_tree
    memory = program.module.memory
    if tree is None or not tree.nodes:
        return
    total = tree.nodes[0].total.flops
    again = sum(node.own.flops for node in tree.nodes if node.pass_name == "remat")
    if not total or again < 0.15 * total:
        return
    matrix = tree.nodes[0].total.flops_matmul
    matrix_again = sum(node.own.flops_matmul for node in tree.nodes if node.pass_name == "remat")
    room = memory.available_bytes and memory.peak_bytes and memory.peak_bytes < 0.5 * memory.available_bytes
    yield FindingRecord(
        rule="recomputation",
        what=f"{share_text(again / total, 0)} of all FLOPs recompute values of the forward pass."
        + (" Half of the memory is free." if room else ""),
        why="`jax.checkpoint` (remat) discards values and recomputes them for the gradient.",
        change="Keep the expensive values: `jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable)`, or "
        "remove "
        "the checkpoint if memory allows.",
        evidence=(f"{again:,.0f} of {total:,.0f} FLOPs recompute values",),
        weight=min(1.0, again / total) * (1.0 if room else 0.5),
        gain=estimated(
            "FLOPs",
            *(matrix, matrix - matrix_again),
            "not compiled, because the checkpoint is inside the program; memory grows without the checkpoint",
        ),
    )


def kept_activations(program: Compiled) -> Iterator[FindingRecord]:
    """Values that layers keep for the backward pass, although `jax.checkpoint` could recompute them."""
    peak, recompile = program.module.memory.peak_bytes, program.recompile
    loops: list[Kept] = []

    def read(closed: ClosedJaxpr, _: object) -> tuple[ClosedJaxpr, int]:
        loops.extend(kept_for_backward(closed))
        return closed, 0  # nothing is changed, so nothing is compiled

    if recompile is None or not peak or "transpose(" not in program.module.text:
        return
    with contextlib.suppress(Exception):  # the other rules work even if the program cannot be traced again
        recompile(rewrite=read)
    for loop in loops[:2]:
        size = min(loop.size_bytes, _alive(program, loop))
        if size < max(_WORTH * peak, _WORTH_BYTES):
            continue
        change, code = _wrapping(loop)
        name = loop.function.rpartition("<locals>.")[2].strip("<>")
        times = "iterations" if loop.is_scan else "repetitions"
        calls = f"{loop.copies} calls of `{name}`" if name not in ("", "lambda") else f"{loop.copies} {times}"
        place = f"{'loop' if loop.is_scan else 'repeated'} at {line_text(loop.source)}"
        yield FindingRecord(
            rule=KEPT,
            what=f"{calls} keep {bytes_text(size)} for the backward pass, {share_text(size / peak, 0)} of the peak "
            "memory.",
            why="The gradient of a layer needs values of its forward pass. These values stay in memory until the "
            "backward pass reaches the layer.",
            change=f"{change} The backward pass then computes each layer again: less memory, more FLOPs.",
            evidence=(place, *(f"each of the {loop.copies} {times} keeps {value}" for value in loop.values)),
            weight=size / peak,
            code=code,
            size_bytes=float(size),
            sources=(loop.source,),
            gain=estimated(
                "peak bytes",
                float(peak),
                peak - size * (1 - 1 / loop.copies),
                "one layer's values in memory at a time; the FLOPs grow",
            ),
        )


def _alive(program: Compiled, loop: Kept) -> float:
    """Bytes that the loop's kept values can occupy at the peak, according to the buffers of the compiled module."""
    buffers = [b for b in program.module.memory.largest if b.name in program.by_name and _is_temporary(program, b.name)]
    if not buffers:
        return math.inf if program.module.devices == 1 else 0.0  # the share of one device is unknown
    if loop.is_scan:  # values of all iterations are one buffer
        return sum(b.size_bytes for b in buffers if re.match(rf"\w+\[{loop.copies},", b.shape))
    return sum(b.size_bytes for b in buffers if "transpose(" not in program.by_name[b.name].op_name)


def _wrapping(loop: Kept) -> tuple[str, str]:
    """The sentence that names the function to checkpoint, and code for the function's library."""
    checkpoint, scan = {
        "linen": ("nn.remat", "nn.scan"),
        "nnx": ("nnx.remat", "nnx.scan"),
        "equinox": ("eqx.filter_checkpoint", "jax.lax.scan"),
    }.get(loop.library, ("jax.checkpoint", "jax.lax.scan"))
    name, line = loop.function.removesuffix(".__call__").rpartition(".")[2], loop.source.line
    is_module = loop.function.endswith(".__call__") and not loop.is_scan
    if is_module and loop.library == "linen":
        return f"Wrap the module: `nn.remat({name})`.", f"{name} = nn.remat({name})"
    if is_module and loop.library == "nnx":
        return f"Decorate `{name}.__call__` with `nnx.remat`.", f"{name}.__call__ = nnx.remat({name}.__call__)"
    if loop.is_scan:
        options = "" if loop.library == "equinox" else ", prevent_cse=False"
        code = f"{scan}({checkpoint}(body{options}), …)"
        return f"Wrap the body of the scan at line {line} in `{checkpoint}`.", code
    checkpoint = checkpoint if loop.library == "equinox" else "jax.checkpoint"
    if not loop.function and loop.library == "linen":
        place = f"Move the layers that line {line} repeats into a module"
        return f"{place}, and wrap the module: `nn.remat(Layer)`.", "Layer = nn.remat(Layer)"
    if not loop.function:
        place = f"Move the code that line {line} repeats into a function"
        return f"{place}, and wrap the function in `{checkpoint}`.", f"layer = {checkpoint}(layer)"
    called = "layer" if is_module else name
    return f"Wrap `{name}`, called at line {line}, in `{checkpoint}`.", f"{called} = {checkpoint}({called})"


def _donating(wrapper: str, name: str, positions: list[int]) -> str:
    """The code that donates these arguments; Equinox donates all arguments, or all but the first."""
    if wrapper == "eqx.filter_jit":
        return f'eqx.filter_jit({name}, donate="{"all" if not positions or 0 in positions else "all-except-first"}")'
    donated = tuple(positions) if len(positions) != 1 else positions[0]
    return f"{wrapper}({name}, donate_argnums={donated})" if positions else ""


def _updated(program: Compiled, results: int) -> Counter[tuple[int, ...]]:
    """Shapes of the parameters that an elementwise update turns into a result of the same shape.

    The result of a product or a reduction does not replace an argument, even if their shapes are identical.
    """
    roots = [line for line in program.entry_lines if line.lstrip().startswith("ROOT ")]
    root = program.by_name.get(_ROOT.sub(r"\1", roots[0].strip())) if roots else None
    if root is None:
        return Counter()
    reached: dict[str, tuple[int, ...]] = {}
    for name in root.operands[:results] if root.opcode == "tuple" else (root.name,):  # then the values of references
        reached |= _parameters_of(program, name)
    return Counter(reached.values())


def _parameters_of(program: Compiled, result: str) -> dict[str, tuple[int, ...]]:
    """The parameters on which a result depends through size-preserving operations."""
    parameters, seen, waiting = {}, set(), [result]
    size = math.prod(_dims(program, result))
    while waiting:
        name = waiting.pop()
        instruction = program.by_name.get(name)
        if instruction is None or name in seen:
            continue
        seen.add(name)
        if instruction.opcode == "parameter":
            parameters[name] = _dims(program, name)
        elif instruction.opcode in _CARRYING:
            waiting += instruction.operands
        elif not instruction.flops and instruction.opcode not in _REDUCING and math.prod(_dims(program, name)) == size:
            waiting += [operand for operand in instruction.operands if math.prod(_dims(program, operand)) == size]
    return {name: dims for name, dims in parameters.items() if math.prod(dims) == size}


def _dims(program: Compiled, name: str) -> tuple[int, ...]:
    instruction = program.by_name.get(name)
    shape = re.match(r"\w+\[([\d,]*)\]", instruction.shape) if instruction is not None else None
    return tuple(int(size) for size in shape[1].split(",") if size) if shape is not None else (0,)


def _is_temporary(program: Compiled, name: str) -> bool:
    return program.by_name[name].opcode not in ("parameter", "constant")


def _argument_positions(
    program: Compiled, inputs: ShardingRecord, paths: Collection[str]
) -> tuple[list[int], list[str]]:
    """Arguments that have at least half of their arrays in `paths`: positions, and names of those with references."""
    matched: dict[int, list[bool]] = {}
    for leaf in inputs.leaves:
        position = _position(leaf.path, program.parameters)
        if position is not None and leaf.path not in program.references:
            matched.setdefault(position, []).append(leaf.path in paths)
    names = {_position(path, program.parameters): pattern_argument(path) for path in program.references}
    chosen = sorted(position for position, flags in matched.items() if sum(flags) * 2 >= len(flags))
    return [at for at in chosen if at not in names], [names[at] for at in chosen if at in names]


def _position(path: str, parameters: Sequence[str]) -> int | None:
    """Position of the argument that an array belongs to; None if the array's name contains no argument.

    Example:
        >>> _position("state['w']", ["batch", "state"]), _position("args[3]['w']", [])
        (1, 3)
    """
    unnamed = re.match(r"args\[(\d+)\]", path)
    name = pattern_argument(path)
    return parameters.index(name) if name in parameters else int(unnamed[1]) if unnamed else None
