"""Rules about network links: a busy axis on a slow network, and groups that are far apart on the torus."""

from collections.abc import Iterator, Sequence

import numpy as np

from workbench.advice._module import Compiled, estimated
from workbench.inspection import link_distances, order_of_jax
from workbench.records.advice import FindingRecord
from workbench.records.compiled import CollectiveRecord
from workbench.records.hardware import MeshRecord
from workbench.render.units import bytes_text


def slow_axis(program: Compiled) -> Iterator[FindingRecord]:
    """A busy mesh axis that crosses slices, although a less busy axis stays inside slices."""
    between: dict[str, float] = {}
    within: dict[str, float] = {}
    for collective in program.module.collectives:
        for axis in collective.axes:
            there = between if collective.across_slices else within
            there[axis] = there.get(axis, 0.0) + collective.sent_bytes
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
            f"between slices {chip.dcn_bytes_per_second / 1e9:,.4g} GB/s per chip, within slices "
            f"{chip.link_bytes_per_second * chip.links / 1e9:,.4g} GB/s",
        )
    yield FindingRecord(
        rule="mesh axis on the slow network",
        what=f"`{busy}` sends {bytes_text(between[busy])} per device between slices; `{other}` sends "
        f"{bytes_text(quiet[other])} within slices.",
        why=f"The mesh places `{busy}` across slices, which only the data-centre network connects.",
        change=f"Place `{other}` across slices and `{busy}` inside slices: build the mesh with "
        "`jax.experimental.mesh_utils.create_hybrid_device_mesh`.",
        evidence=(
            f"mesh: {', '.join(f'{name}={size}' for name, size in sizes.items())}",
            f"one device sends {bytes_text(sum(between.values()))} between slices per call",
            *speeds,
        ),
        weight=min(1.0, between[busy] / program.sent_bytes) if program.sent_bytes else 0.0,
        instructions=tuple(c.name for c in program.module.collectives if c.across_slices)[:8],
        axes=(busy, other),
    )


_CLEARLY = 1.1  # minimum ratio between the distances and those in JAX's order


def device_order(program: Compiled) -> Iterator[FindingRecord]:
    """A device order whose groups are farther apart on the torus than in the order of `jax.make_mesh`."""
    mesh = program.record.mesh
    jax_mesh = None if mesh is None else order_of_jax(mesh)
    here = None if mesh is None else link_distances(mesh)
    there = None if jax_mesh is None else link_distances(jax_mesh)
    if mesh is None or jax_mesh is None or here is None or there is None:
        return
    before, after = (crossed_links(layout, program.module.collectives) for layout in (mesh, jax_mesh))
    assert before is not None
    assert after is not None
    now, then = sum(before.values()), sum(after.values())
    if now <= _CLEARLY * then:
        return
    axes = max(before, key=lambda axes: before[axes] - after[axes])
    names = [axis.name for axis in mesh.axes]
    where = [names.index(name) for name in axes]
    lengths = [_length(distances, mesh.shape, where, neighbours=False) for distances in (here, there)]
    shown = ", ".join(f"`{name}`" for name in axes)
    sizes, quoted = ", ".join(map(str, mesh.shape)), ", ".join(f'"{name}"' for name in names)
    code = f"mesh = jax.make_mesh(({sizes}{',' * (len(names) == 1)}), ({quoted}{',' * (len(names) == 1)}))"
    yield FindingRecord(
        rule="order of devices",
        what=f"Devices that communicate over {shown} are {lengths[0]:.2g} links apart on average; in the order of "
        f"`jax.make_mesh`, they would be {lengths[1]:.2g} links apart.",
        why="The mesh was built from devices in an order that does not follow the torus. A message between devices "
        "of one group crosses links that other groups also use.",
        change="Let JAX order the devices: `jax.make_mesh(shape, names)` instead of "
        "`Mesh(devices.reshape(shape), names)`.",
        code=code,
        evidence=(
            f"bytes sent x links between the devices of a group: {bytes_text(now)} in this order, {bytes_text(then)} "
            "in JAX's order",
            "counted from the devices' positions in the torus; the compiler chooses the route inside a group",
        ),
        weight=min(1.0, 1.0 - then / now),
        instructions=tuple(collective.name for collective in program.module.collectives if collective.axes == axes)[:8],
        axes=axes,
        gain=estimated(
            "bytes sent x links",
            now,
            then,
            "estimated from the current collectives; the program was not recompiled for JAX's order",
        ),
    )


def crossed_links(mesh: MeshRecord, collectives: Sequence[CollectiveRecord]) -> dict[tuple[str, ...], float] | None:
    """Bytes that one device sends, times the mean number of links in its group, per tuple of mesh axes.

    Returns:
        Byte-links for one device in one call; None if the positions of the devices are unknown.
    """
    distances = link_distances(mesh)
    if distances is None:
        return None
    names, crossed = [axis.name for axis in mesh.axes], {}
    for collective in collectives:
        if not collective.axes or not set(collective.axes) <= set(names):
            continue
        where = [names.index(name) for name in collective.axes]
        length = _length(distances, mesh.shape, where, neighbours=collective.kind == "collective-permute")
        crossed[collective.axes] = crossed.get(collective.axes, 0.0) + collective.sent_bytes * length
    return crossed


def _length(distances: np.ndarray, shape: Sequence[int], axes: Sequence[int], *, neighbours: bool) -> float:
    """Mean distance in links within a group: between neighbours for a permutation, otherwise between all pairs."""
    places = np.moveaxis(np.arange(len(distances)).reshape(tuple(shape)), axes, range(-len(axes), 0))
    size = int(np.prod([shape[axis] for axis in axes]))
    if size < 2:
        return 0.0
    groups = places.reshape(-1, size)
    if neighbours:
        return float(distances[groups, np.roll(groups, -1, axis=1)].mean())
    return float(distances[groups[:, :, None], groups[:, None, :]].sum() / (len(groups) * size * (size - 1)))
