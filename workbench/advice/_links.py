"""Rules about the wires below the mesh: an axis on the slow network, an order of devices that takes detours."""

from collections.abc import Iterator

from workbench.advice._module import Compiled, sent
from workbench.records import FindingRecord
from workbench.render import bytes_text

_DETOUR = 1.5  # hops between neighbours of an axis, on average


def slow_axis(program: Compiled) -> Iterator[FindingRecord]:
    """A busy mesh axis on the network between slices, while a quieter axis stays inside them."""
    between: dict[str, float] = {}
    within: dict[str, float] = {}
    for each in program.module.collectives:
        for axis in each.axes:
            there = between if each.across_slices else within
            there[axis] = there.get(axis, 0.0) + sent(each)
    quiet = {axis: amount for axis, amount in within.items() if axis not in between}
    mesh = program.record.mesh
    if not between or not quiet or mesh is None:
        return
    sizes = {axis.name: axis.size for axis in mesh.axes}
    busy = max(between, key=lambda axis: between[axis])
    other = min(quiet, key=lambda axis: quiet[axis])
    if between[busy] <= 2 * quiet[other]:
        return
    chip = None if program.record.cost is None else program.record.cost.chip
    speeds = ()
    if chip is not None and chip.dcn_bytes_per_second:
        speeds = (
            f"between slices {bytes_text(chip.dcn_bytes_per_second)}/s per chip, "
            f"inside {bytes_text(chip.link_bytes_per_second * chip.links)}/s",
        )
    yield FindingRecord(
        rule="mesh axis on the slow network",
        what=f"`{busy}` sends {bytes_text(between[busy])} per device between slices, `{other}` "
        f"{bytes_text(quiet[other])} inside them.",
        why=f"The mesh lays `{busy}` across slices, where the data-centre network is the only way.",
        change=f"Lay `{other}` across the slices and `{busy}` inside one: build the mesh with "
        "`jax.experimental.mesh_utils.create_hybrid_device_mesh`.",
        evidence=(
            f"mesh: {', '.join(f'{name}={size}' for name, size in sizes.items())}",
            f"one device sends {bytes_text(sum(between.values()))} between slices per call",
            *speeds,
        ),
        weight=min(1.0, between[busy] / program.sent_bytes) if program.sent_bytes else 0.0,
        instructions=tuple(each.name for each in program.module.collectives if each.across_slices)[:8],
        axes=(busy, other),
    )


def device_order(program: Compiled) -> Iterator[FindingRecord]:
    """Devices in an order in which neighbours along a mesh axis are not neighbours on the torus."""
    mesh = program.record.mesh
    if mesh is None:
        return
    used: dict[str, float] = {}
    for each in program.module.collectives:
        for axis in each.axes:
            used[axis] = used.get(axis, 0.0) + sent(each)
    for axis in mesh.axes:
        if axis.name not in used or axis.mean_hops is None or axis.mean_hops < _DETOUR:
            continue
        yield FindingRecord(
            rule="order of devices",
            what=f"Neighbours along `{axis.name}` are {axis.mean_hops:.1f} links apart on average, at most "
            f"{axis.max_hops}.",
            why="The devices stand in the mesh in an order that does not follow the torus, so that a message between "
            "neighbours of the mesh crosses links of others.",
            change="Let JAX order them: `jax.make_mesh(shape, names)` instead of `Mesh(devices.reshape(...), names)`.",
            evidence=(f"one device sends {bytes_text(used[axis.name])} over `{axis.name}` per call",),
            weight=min(1.0, used[axis.name] / program.sent_bytes * (1 - 1 / axis.mean_hops)),
            axes=(axis.name,),
        )
