"""Predicted costs as figures and text: roofline, timeline, collective bytes by mesh axis and stage."""

import math
from typing import TYPE_CHECKING

from workbench.records.compiled import CostRecord, ModuleRecord, ScaledCostRecord, StageCostRecord
from workbench.render.units import bytes_text, count_text, counted_text, flops_text, seconds_text, share_text, work_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BOUNDS = {"compute": 0, "memory": 1, "collective": 5, "unknown": 7}  # indices of Okabe and Ito's colours
_MARKERS = {"compute": "o", "memory": "s", "collective": "D", "unknown": "x"}


def plot_roofline(
    cost: CostRecord, *, dtype: str | None = None, ax: "Axes | None" = None, dark: bool | None = None
) -> "Figure":
    """All stages in a roofline plot: predicted FLOP/s against FLOPs per byte of HBM traffic.

    Args:
        cost: The predicted cost; without a chip, the figure only states that a chip is needed.
        dtype: The dtype whose peak FLOP/s forms the flat part of the roof; by default the chip's first dtype.
        ax: The matplotlib axes to draw in; None creates a figure.
        dark: Colours for a dark or a light page; `None` uses colours that are readable on both.

    Example:
        >>> record = wb.inspect(lambda x: x @ x, on="v5e")(jnp.ones((64, 64)))
        >>> plot_roofline(record.cost).savefig("roofline.png")  # doctest: +SKIP
    """
    from workbench.render._figures import colour, grid, ink, label_point, legend, new_figure, say_nothing, title

    figure, axes = new_figure(7.2, 3.8, dark=dark, ax=ax)
    chip = cost.chip
    points = [(stage, place) for stage in cost.stages if (place := _roofline_point(stage)) is not None]
    if chip is None or not points:
        say_nothing(
            axes, dark, "a roofline needs a chip; none was chosen" if chip is None else "no stage has matrix FLOPs"
        )
        return figure
    named = dtype if dtype in chip.peak_flops_per_second else next(iter(chip.peak_flops_per_second))
    peak = chip.peak_flops_per_second[named] / chip.devices_per_chip
    bandwidth = chip.hbm_bytes_per_second / chip.devices_per_chip
    ridge = peak / bandwidth
    intensities = [place[0] for _, place in points]
    low, high = min(*intensities, ridge) / 4, max(*intensities, ridge) * 4
    axes.plot([low, ridge, high], [low * bandwidth, peak, peak], color=ink(dark), linewidth=1.6)
    label_point(axes, f"{named} peak {_rate(peak)}", (high, peak), (0, 5), dark, align="right")
    slope = math.sqrt(low * ridge)
    label_point(axes, f"HBM {bandwidth / 1e9:,.0f} GB/s", (slope, slope * bandwidth), (-8, 4), dark, align="right")
    for bound, index in _BOUNDS.items():
        bound_places = [place for stage, place in points if stage.bound == bound]
        if bound_places:
            axes.scatter(
                *zip(*bound_places, strict=True),
                color=colour(index),
                marker=_MARKERS[bound],
                s=46,
                zorder=3,
                label=bound,
            )
    for stage, (x, y) in points:
        at_edge = x > high / 8
        offset, align = ((0, -17), "center") if at_edge else ((8, -12), "left")
        label_point(axes, f"{stage.stage} {stage.name}", (x, y), offset, dark, align=align)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_ylim(min(low * bandwidth, *(y for _, (_, y) in points)) / 2, peak * 5)
    axes.set_xlabel("arithmetic intensity (matrix FLOP per byte of HBM traffic)")
    axes.set_ylabel("predicted FLOP/s per device")
    axes.yaxis.set_major_formatter(lambda value, _: _rate(value))
    title(axes, f"Roofline of one {chip.name} device (predicted)", dark)
    grid(axes, dark, "both")
    legend(axes, dark, title=None, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    return figure


def collective_bytes(module: ModuleRecord) -> dict[tuple[str, str], float]:
    """Bytes that one device sends per call, by (stage, mesh axes).

    Collectives in loops of unknown length are omitted. A collective that the compiler combined from several stages is
    divided among these stages, or listed under all their names ("1+2") if the shares are unknown.

    Example:
        >>> record = wb.inspect(lambda x: x.sum())(jnp.ones((4, 4)))
        >>> collective_bytes(record.module)  # one device: nothing is sent
        {}
    """
    table: dict[tuple[str, str], float] = {}
    for collective in module.collectives:
        if collective.executions is not None and collective.wire_bytes is not None:
            axes = "+".join(collective.axes) or "not a product of axes"
            for stage, share in (collective.stage_shares or {"+".join(collective.stages) or "unknown": 1.0}).items():
                sent_bytes = collective.wire_bytes * collective.executions * share
                table[stage, axes] = table.get((stage, axes), 0.0) + sent_bytes
    return table


def render_scaled_text(scaled: ScaledCostRecord) -> str:
    """An estimate for another size: the size, its chunk size, its measured error, memory and cost."""
    model = "" if scaled.model == 1.0 else f", {scaled.model:g} times the parameters"
    clients, devices = f"{count_text(scaled.clients)} {scaled.placement}", counted_text(scaled.devices, "device")
    share = f"at most {count_text(scaled.clients_per_device)} per device"
    lines = [
        f"Estimated, not compiled: {clients} on {devices}, {share}{model}.",
        *filter(None, (scaled.chunks, scaled.error)),
    ]
    if scaled.memory is not None:
        lines.append(f"Peak memory per device: {bytes_text(scaled.memory.peak_bytes)}.")
    return "\n".join([*lines, render_cost_text(scaled.cost)])


def render_cost_text(cost: CostRecord) -> str:
    """All stages with their predicted costs, the waste, and the prediction's assumptions."""
    where = f" on {cost.chip.name}" if cost.chip else " (no chip chosen, so no seconds)"
    total = f": {seconds_text(cost.seconds)} per call ({cost.error_bar})" if cost.seconds is not None else ""
    lines = [f"Predicted cost per device{where}{total}."]
    for stage in cost.stages:
        traffic = ", ".join(
            f"{bytes_text(amount)} over {axes}" for axes, amount in stage.collective_bytes.items() if amount
        )
        bound = f" ({stage.bound}-bound)" if stage.bound != "unknown" else ""
        seconds = f", {seconds_text(stage.seconds)}{bound}" if stage.seconds is not None else ""
        seconds += f"; not predicted: {'; '.join(stage.unknown_because)}" if stage.unknown_because else ""
        named = "" if stage.name == stage.kind else f" {stage.name}"
        lines.append(
            f"  {stage.stage} {stage.kind}{named}: {work_text(stage.flops, stage.elementwise_flops)}, "
            f"{bytes_text(stage.accessed_bytes)} of HBM{f', sends {traffic}' if traffic else ''}{seconds}"
        )
    if cost.clients:
        work = sorted((client.flops, client.elementwise_flops) for client in cost.clients)
        mean = [sum(column) / len(work) for column in zip(*work, strict=True)]
        least, most = work_text(*work[0]), work_text(*work[-1])
        amounts = f"{least} each" if least == most else f"{least} to {most} each, {work_text(*mean)} on average"
        lines.append(f"  {count_text(len(work))} clients: {amounts}")
    wastes = {
        "padding": cost.padding_waste,
        "running in lockstep": cost.lockstep_waste,
        "unequal devices": cost.imbalance_waste,
    }
    for name, share in wastes.items():
        if share is not None:
            lines.append(f"  wasted by {name}: {share_text(share)}")
    lines += [f"Assumes: {assumption}" for assumption in cost.assumptions]
    return "\n".join(lines)


def _roofline_point(stage: StageCostRecord) -> tuple[float, float] | None:
    """(FLOPs per byte, predicted FLOPs per second)."""
    if not stage.flops or not stage.accessed_bytes or not stage.seconds or not math.isfinite(stage.seconds):
        return None
    return stage.flops / stage.accessed_bytes, stage.flops / stage.seconds


def _rate(value: float) -> str:
    return f"{flops_text(value)}/s"
