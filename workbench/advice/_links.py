"""Rules about the wires below the mesh: a busy axis on the slow network."""

from collections.abc import Iterator

from workbench.advice._module import Compiled, sent
from workbench.records import FindingRecord
from workbench.render import bytes_text


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
            f"between slices {chip.dcn_bytes_per_second / 1e9:,.4g} GB/s per chip, "
            f"inside {chip.link_bytes_per_second * chip.links / 1e9:,.4g} GB/s",
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
