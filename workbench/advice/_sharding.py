"""Rules about array placement: large replicated arrays, unused mesh axes, and uneven shards."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workbench.advice._module import Compiled, estimated
from workbench.advice._planning import plan_with, planned_base, planned_bytes
from workbench.advice._search._groups import ArgumentLeaf, group_leaves
from workbench.records.advice import FindingRecord, Spec
from workbench.records.compiled import ProgramRecord
from workbench.records.sharding import LeafShardingRecord, PlannedValueRecord, PropagationRecord, pattern_of
from workbench.render.units import bytes_text, flops_text, share_text, spec_text

_LARGE = 0.1  # of the arguments of one device
_LARGE_BYTES = 1 << 16  # for smaller arrays, a collective is not worthwhile
_LARGE_VALUES = 1 << 12  # number of entries; padding of smaller arrays is ignored
_PADDED, _WAITED = 0.2, 0.3  # share of padding in client work; excess over the mean time
_WASTE = 0.1  # of the entries
_MOST = 3  # findings about replicated arguments
TRADE = " A trade: "


@dataclass(frozen=True, kw_only=True)
class Replicated:
    """Similar arguments that a spec would shard over a mesh axis."""

    leaves: tuple[LeafShardingRecord, ...]
    axis: str
    spec: Spec
    is_requested: bool  # by a `jax.shard_map` of the program

    @property
    def held_bytes(self) -> int:
        return sum(leaf.bytes_per_device for leaf in self.leaves)

    @property
    def kind(self) -> tuple[object, ...]:
        """The groups with the same kind are one finding: `query` and `out` of attention, with their moments."""
        leaf = self.leaves[0]
        sizes = tuple(sorted(leaf.shape))
        return self.axis, sizes, len(self.leaves), leaf.replication, leaf.bytes_per_device, self.is_requested


def large_replicated(program: Compiled) -> Iterator[FindingRecord]:
    """A large replicated argument that has a dimension divisible by a mesh axis."""
    kinds: dict[object, list[Replicated]] = {}
    for group in replicated_groups(program):
        kinds.setdefault(group.kind, []).append(group)
    for groups in list(kinds.values())[:_MOST]:
        yield replicated_finding(program, groups)


def replicated_groups(program: Compiled) -> list[Replicated]:
    """The large replicated arguments that a mesh axis can shard, grouped by name and shape, largest first."""
    record = program.record
    if record.inputs is None or record.mesh is None:
        return []
    sizes = {axis.name: axis.size for axis in record.mesh.axes if axis.size > 1}
    total = sum(leaf.bytes_per_device for leaf in record.inputs.leaves)
    memory = program.module.memory
    is_tight = bool(memory.available_bytes) and (memory.peak_bytes or 0) > 0.5 * (memory.available_bytes or 0)
    groups = []
    for leaves in alike(record):
        leaf, held_bytes = leaves[0], sum(member.bytes_per_device for member in leaves)
        requested = None if any(leaf.spec) else _of_shard_map(record.propagation, leaf, sizes)
        choice = requested or best_spec(leaf, sizes)
        if leaf.replication <= 1 or choice is None or held_bytes < max(_LARGE * total, _LARGE_BYTES):
            continue
        if leaf.bytes_per_device < leaf.size_bytes and not is_tight:
            continue  # a batch over `data` is intentionally replicated over `model`
        axis, spec = choice
        groups.append(Replicated(leaves=tuple(leaves), axis=axis, spec=spec, is_requested=requested is not None))
    return groups


def replicated_finding(program: Compiled, groups: Sequence[Replicated]) -> FindingRecord:
    """The finding about groups of one kind; a trade if the plan sends more bytes than the change frees."""
    record = program.record
    sizes = {} if record.mesh is None else {axis.name: axis.size for axis in record.mesh.axes}
    leaves = [leaf for group in groups for leaf in group.leaves]
    leaf, axis, held_bytes = leaves[0], groups[0].axis, sum(group.held_bytes for group in groups)
    total = 0 if record.inputs is None else sum(member.bytes_per_device for member in record.inputs.leaves)
    is_whole = leaf.bytes_per_device >= leaf.size_bytes
    stored = "in full" if is_whole else f"in parts of {bytes_text(leaf.bytes_per_device)}, each"
    freed = held_bytes - held_bytes // sizes[axis]
    evidence, price = _planned_price(program, groups, freed)
    return FindingRecord(
        rule="large replicated array",
        what=f"{named(leaves)} stored {stored} on {leaf.replication} devices.",
        why="The array is passed unsharded, but a `jax.shard_map` of the program splits it."
        if groups[0].is_requested
        else "No spec shards the array, and nothing in the program requests a shard of the array."
        if is_whole
        else f"The spec omits `{axis}`, and the program needs more than half of the memory.",
        change=f"Shard {_with_specs(groups)}, over `{axis}`.{price}",
        evidence=(
            f"{share_text(held_bytes / total, 0)} of one device's argument bytes",
            f"sharded over {axis}, one device would store {bytes_text(held_bytes // sizes[axis])}",
            *evidence,
        ),
        weight=held_bytes / total * (0.5 if price else 1.0),
        specs={member.path: group.spec for group in groups for member in group.leaves},
        leaves=tuple(member.path for member in leaves),
        axes=(axis,),
        size_bytes=float(held_bytes),
        gain=estimated("argument bytes", float(total), float(total - freed), "counted from the shapes and specs"),
    )


def _with_specs(groups: Sequence[Replicated]) -> str:
    """The arguments of the groups with their specs; of several groups, the pattern of the first argument."""
    if len(groups) == 1:
        return f"{all_of(groups[0].leaves)} as `{spec_text(groups[0].spec)}`"
    names: dict[Spec, list[str]] = {}
    for group in groups:
        rest = len(group.leaves) - 1
        more = f" and {rest} similar" if rest else ""
        names.setdefault(group.spec, []).append(f"`{pattern_of(group.leaves[0].path)}`{more}")
    return "; ".join(f"{', '.join(patterns)} as `{spec_text(spec)}`" for spec, patterns in names.items())


def _planned_price(program: Compiled, groups: Sequence[Replicated], freed: float) -> tuple[tuple[str, ...], str]:
    """The planned bytes as evidence, and a sentence about them if they exceed the memory that the change frees."""
    planner, base = planned_base(program)
    specs = {leaf.path: group.spec for group in groups for leaf in group.leaves}
    if planner is None or base is None:
        return (), ""
    tried = list(base.specs)
    for at, group in enumerate(planner.groups):
        paths = {planner.leaves[i].name for i in group.leaves}
        if paths.intersection(specs) and not paths <= set(specs):  # the plan has one spec for all of them
            return (), ""
        if paths <= set(specs):
            tried[at] = specs[next(iter(paths))]
    after = plan_with(planner, tuple(tried))
    if after is None:
        return (), ""
    before_bytes, after_bytes = sum(base.sent.values()), sum(after.sent.values())
    price, flops = "", (base.flops or 0.0, after.flops or 0.0)
    work = f", and computes {flops_text(flops[1])} instead of {flops_text(flops[0])}" * (flops[1] > 1.05 * flops[0])
    if after_bytes - before_bytes > freed:
        price = (
            f"{TRADE}one device stores {bytes_text(freed)} less, but sends {bytes_text(after_bytes - before_bytes)} "
            f"more per call{work}, according to the plan."
        )
    return (planned_bytes(program, before_bytes, after_bytes),), price


def _of_shard_map(
    propagation: PropagationRecord | None, leaf: LeafShardingRecord, sizes: dict[str, int]
) -> tuple[str, tuple[tuple[str, ...], ...]] | None:
    """An axis over which a `shard_map` splits an argument, with the spec; None if there is none, or several fit."""
    values = {} if propagation is None else {value.name: value for value in propagation.values}
    argument = next((v.name for v in values.values() if (v.operation, v.op_name) == ("input", leaf.path)), None)
    for value in values.values():
        if value.operation != "manual_computation" or argument not in value.operands:
            continue
        part = values.get(f"{value.name.partition('#')[0]}.0#{value.operands.index(argument)}")
        if part is None or len(part.shape) != len(leaf.shape):
            continue
        splits = [(dim, size // share) for dim, (size, share) in enumerate(zip(leaf.shape, part.shape, strict=True))]
        cut = [(dim, parts) for dim, parts in splits if parts > 1]
        axes = [axis for axis, size in sizes.items() if cut and size == cut[0][1]]
        if len(cut) == len(axes) == 1:
            return axes[0], tuple((axes[0],) if dim == cut[0][0] else () for dim in range(len(leaf.shape)))
    return None


def alike(record: ProgramRecord) -> list[list[LeafShardingRecord]]:
    """Arguments grouped by spec, largest first: for example, one parameter in all layers and its optimizer state."""
    leaves = () if record.inputs is None else record.inputs.leaves
    arrays = [ArgumentLeaf(leaf.path, leaf.shape, leaf.dtype, 1) for leaf in leaves]
    groups: dict[object, list[LeafShardingRecord]] = {}
    for group in group_leaves(arrays, ()):
        for at in group.leaves:
            groups.setdefault((group.pattern, group.shape, leaves[at].spec), []).append(leaves[at])
    return sorted(groups.values(), key=lambda leaves: -sum(leaf.bytes_per_device for leaf in leaves))


def named(leaves: Sequence[LeafShardingRecord]) -> str:
    """The arguments of one group as the subject of a sentence, with their total bytes."""
    size = bytes_text(sum(leaf.size_bytes for leaf in leaves))
    if len(leaves) == 1:
        return f"`{leaves[0].path}` ({size}) is"
    return f"`{leaves[0].path}` and {len(leaves) - 1} similar arguments ({size} together) are"


def all_of(leaves: Sequence[LeafShardingRecord]) -> str:
    """The arguments of one group; only the first few are named."""
    shown = [f"`{leaf.path}`" for leaf in leaves[:3]]
    if len(leaves) > 3:
        return f"{', '.join(shown)} and {len(leaves) - 3} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def unused_axis(program: Compiled) -> Iterator[FindingRecord]:
    """A mesh axis that no argument, value or collective uses, so that its devices repeat the same work."""
    record = program.record
    if record.mesh is None:
        return
    used = {axis for leaf in record.inputs.leaves for axes in leaf.spec for axis in axes} if record.inputs else set()
    if record.propagation is not None:
        used |= {axis for value in record.propagation.values for axes in value.spec for axis in axes}
    used |= {axis.partition("[")[0] for collective in program.module.collectives for axis in collective.axes}
    used |= {placement.name for placement in record.plan.placements}
    for axis in record.mesh.axes:
        if axis.size > 1 and axis.name not in used:
            yield FindingRecord(
                rule="unused mesh axis",
                what=f"Nothing uses the mesh axis `{axis.name}`: groups of {axis.size} devices do the same work.",
                why="No argument is sharded over this axis, and no operation of the program uses the axis.",
                change=f'Shard the batch or the parameters over `{axis.name}`, as `P("{axis.name}")`, or remove '
                "the axis from the mesh.",
                evidence=(f"mesh: {', '.join(f'{a.name}={a.size}' for a in record.mesh.axes)}",),
                weight=1 - 1 / axis.size,
                axes=(axis.name,),
            )


def unbalanced_clients(program: Compiled) -> Iterator[FindingRecord]:
    """Clients of different sizes, so that devices compute padding or wait for the largest client."""
    cost = program.record.cost
    if cost is None or cost.lockstep_waste is None:  # `examples_per_client` was not given
        return
    padding, waiting, apart = cost.padding_waste or 0.0, cost.lockstep_waste, cost.imbalance_waste or 0.0
    if padding <= _PADDED and waiting <= _WAITED and apart <= _WAITED:
        return
    sizes = sorted(client.examples for client in cost.clients if client.examples is not None)
    listed = f": from {sizes[0]:,} to {sizes[-1]:,} examples, median {sizes[len(sizes) // 2]:,}" if sizes else ""
    count = next((stage.clients for stage in program.record.plan.walk() if stage.kind == "clients"), 0)
    shares = [padding, waiting / (1 + waiting), apart / (1 + apart)]
    worst = 0 if padding > max(shares) - 0.01 else shares.index(max(shares))
    costs = [
        f"{share_text(padding, 0)} of the clients' work is padding",
        f"Clients that run together wait for the slowest client, which takes {share_text(waiting, 0)} longer than "
        "their mean",
        f"The slowest device takes {share_text(apart, 0)} longer than the mean of all devices",
    ]
    changes = [
        "Cap a round's examples (`wb.data.pad_clients(..., examples=…)`), or group clients by size, so that few "
        "clients are padded to the size of the largest client.",
        "Order clients by size before placing them, so that clients of similar size run together.",
        "Assign clients by size, largest first, each to the device that has the least work, so that devices finish at "
        "the same time.",
    ]
    yield FindingRecord(
        rule="unbalanced clients",
        what=f"{costs[worst]}, since clients differ in size{listed}.",
        why="Every client is padded to the size of the largest client. Clients in the same chunk of a device run in "
        "lockstep, and all devices wait for the slowest device before they reduce.",
        change=changes[worst],
        evidence=(f"{count} clients", *costs),
        weight=min(1.0, max(shares)),
        axes=tuple(axis for placement in program.record.plan.placements for axis in placement.mesh_axes),
    )


def empty_slots(program: Compiled) -> Iterator[FindingRecord]:
    """A number of clients that is not divisible by the number of devices, so that some devices compute empty slots."""
    mesh = program.record.mesh
    if mesh is None:
        return
    for name in dict.fromkeys(client.placement for client in mesh.clients):
        members = [client for client in mesh.clients if client.placement == name]
        copies = sum(client.start == 0 for client in members)  # over the other mesh axes
        clients = sum(client.stop - client.start for client in members) // copies
        empty = sum(client.padding for client in members) // copies
        if not empty or empty < 0.1 * (clients + empty):
            continue
        most = max(client.stop - client.start + client.padding for client in members)
        groups = (clients + empty) // most
        where = "devices" if copies == 1 else "groups of devices"
        sizes = sorted({clients - clients % groups or groups, -(-clients // groups) * groups})
        yield FindingRecord(
            rule="uneven clients",
            what=f"{clients} `{name}` on {groups} {where} leave {empty} of {clients + empty} slots empty.",
            why=f"Every device processes all of its {most} slots, including the empty slots.",
            change=f"Use a multiple of {groups} `{name}`, such as {' or '.join(map(str, sizes))}.",
            evidence=(f"{most} slots on each of {groups} {where}, {empty} empty",),
            weight=empty / (clients + empty),
            axes=(name,),
        )


def uneven_shards(program: Compiled) -> Iterator[FindingRecord]:
    """Values whose dimensions are not divisible by the mesh axes, so that shards are padded."""
    record = program.record
    if record.propagation is None or record.mesh is None:
        return
    sizes = {axis.name: axis.size for axis in record.mesh.axes}
    worst: dict[tuple[int, tuple[str, ...]], tuple[float, PlannedValueRecord, int, int]] = {}
    largest = max((math.prod(value.shape) for value in record.propagation.values), default=0)
    least = max(_LARGE_VALUES, largest / 4)  # a scan splits into uneven halves, whose padding is negligible
    for value in record.propagation.values:
        for dim, axes in enumerate(value.spec):
            count = math.prod(sizes.get(axis, 1) for axis in axes)
            n = value.shape[dim] if dim < len(value.shape) else 0
            if count < 2 or n % count == 0 or math.prod(value.shape) < least:
                continue
            waste = 1 - n / (-(-n // count) * count)
            if waste >= _WASTE and (n, axes) not in worst:
                worst[n, axes] = waste, value, dim, count
    for waste, value, dim, count in sorted(worst.values(), key=lambda entry: -entry[0])[:2]:
        n, axes = value.shape[dim], value.spec[dim]
        up, down = -(-n // count) * count, n // count * count
        yield FindingRecord(
            rule="uneven shards",
            what=f"Dimension {dim} of a value with shape {list(value.shape)} has {n} entries, which cannot be divided "
            f"evenly among {count} devices: {share_text(waste, 0)} of the stored entries are padding.",
            why=f"Every device holds {-(-n // count)} entries, including padding.",
            change=f"Make the dimension {up}" + (f" or {down}" if down else "") + f", a multiple of {count}, or shard "
            "another dimension.",
            evidence=(f"{value.name}: {spec_text(value.spec)} on {', '.join(f'{a}={sizes.get(a, 1)}' for a in axes)}",),
            weight=waste,
            sources=() if value.source is None else (value.source,),
            axes=tuple(axes),
        )


def best_spec(leaf: LeafShardingRecord, sizes: dict[str, int]) -> tuple[str, tuple[tuple[str, ...], ...]] | None:
    """The largest unused axis, and a spec that uses it for the largest divisible dimension."""
    used = {axis for axes in leaf.spec for axis in axes}
    for axis in sorted((a for a in sizes if a not in used), key=lambda a: -sizes[a]):
        fitting = [d for d, n in enumerate(leaf.shape) if n % sizes[axis] == 0 and not (leaf.spec[d:] or ((),))[0]]
        if fitting:
            chosen = max(fitting, key=lambda d: leaf.shape[d])
            entries = [*leaf.spec, *[()] * (len(leaf.shape) - len(leaf.spec))]
            entries[chosen] = (axis,)
            return axis, tuple(tuple(axes) for axes in entries)
    return None
