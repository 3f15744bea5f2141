"""Sections of the demo report, made from records, with headings, sentences, pictures and tables."""

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from workbench import render
from workbench.records.compiled import ProgramRecord
from workbench.records.hardware import ClientRange, MeshRecord
from workbench.records.program import ClientDataRecord, StageRecord
from workbench.records.sharding import ShardingRecord
from workbench.render import palette
from workbench.render.report import ReportCode, ReportImage, ReportPicture, ReportSection, ReportTable, ReportText
from workbench.render.units import axes_text, bytes_text, count_text, seconds_text, work_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def data_section(record: ClientDataRecord) -> ReportSection:
    """Lists every client's data."""
    examples = record.examples
    skew = "" if record.mean_total_variation is None else f" (mean total variation {record.mean_total_variation:.2f})"
    text = (
        f"{sum(examples):,} real handwritten digits are stored at {len(examples)} clients, {min(examples)} to "
        f"{max(examples)} each. No client has a representative sample: the labels follow a Dirichlet "
        f"distribution{skew}."
    )
    caption = "Number of examples of each client; each colour is one digit."
    return ReportSection(
        heading="The data stay with their clients",
        pieces=(ReportText(text=text), _image(caption, *(render.plot(record, dark=d) for d in (False, True)))),
    )


def training_section(losses: Sequence[float], accuracies: Sequence[float], seconds: float) -> ReportSection:
    """Shows the losses and accuracies of the rounds."""
    good = next((n + 1 for n, accuracy in enumerate(accuracies) if accuracy >= 0.9), None)
    reached = f" It passed 90 % in round {good}." if good else ""
    text = (
        f"After {len(accuracies)} rounds the network names {accuracies[-1]:.1%} of the held-out digits "
        f"correctly.{reached} Compiling and training took {seconds_text(seconds)} on this machine."
    )
    caption = "Test accuracy after each round, and the clients' loss on their own examples during that round."
    figures = (_curves(losses, accuracies, dark) for dark in (False, True))
    return ReportSection(heading="Training", pieces=(ReportText(text=text), _image(caption, *figures)))


def program_section(record: ProgramRecord, code: str) -> ReportSection:
    """Shows the user's code and its stages."""
    return ReportSection(
        heading="The program",
        pieces=(
            ReportText(text="These lines define the work of the clients and the aggregation:"),
            ReportCode(text=code),
            ReportText(text="They were traced once; this is the plan from that trace:"),
            ReportPicture(svg=render.svg(record, width=760), caption=render.describe(record)),
        ),
    )


def stages_section(record: ProgramRecord) -> ReportSection:
    """Lists every stage with its moved bytes and FLOPs."""
    rows = tuple(
        (stage.path, stage.name or stage.kind, stage.kind, _where(stage),
         bytes_text(stage.moved_bytes) if stage.moved_bytes else "–",
         "–" if stage.flops_per_client is None
         else work_text(stage.flops_per_client, stage.elementwise_flops_per_client))
        for stage in record.plan.walk()
    )  # fmt: skip
    text = "FLOPs are those of one client's function, counted in its jaxpr with every loop iteration."
    table = ReportTable(
        caption="The stages in program order, predicted from the trace",
        header=("path", "name", "kind", "where", "moved between server and clients", "FLOPs per client"),
        rows=rows,
    )
    return ReportSection(heading="Stages", pieces=(ReportText(text=text), table))


def placement_section(mesh: MeshRecord) -> ReportSection:
    """Shows each client's device."""
    axes = " × ".join(f"{axis.name}={axis.size}" for axis in mesh.axes)
    text = (
        f"The mesh is {axes}: {len(mesh.devices)} devices of kind {mesh.devices[0].kind or mesh.devices[0].platform}."
    )
    rows = tuple((f"device {range_.device_id}", range_.placement, _clients(range_)) for range_ in mesh.clients)
    table = ReportTable(caption="Clients by device", header=("device", "placement", "clients"), rows=rows)
    picture = ReportPicture(svg=render.svg(mesh), caption="Devices by position in the mesh, each with its clients.")
    return ReportSection(heading="Placement", pieces=(ReportText(text=text), picture, table))


def sharding_section(record: ShardingRecord) -> ReportSection:
    """Shows the sharding of every array."""
    rows = tuple(
        (leaf.path, "×".join(map(str, leaf.shape)) or "scalar", leaf.dtype, _spec(leaf.spec),
         "×".join(map(str, leaf.shard_shape)) or "scalar", leaf.replication, bytes_text(leaf.bytes_per_device))
        for leaf in record.leaves
    )  # fmt: skip
    table = ReportTable(
        caption=f"{bytes_text(record.total_bytes)} in all, {bytes_text(record.bytes_per_device)} on the fullest device",
        header=(
            "array",
            "shape",
            "dtype",
            "mesh axes by dimension",
            "shape on one device",
            "copies",
            "bytes per device",
        ),
        rows=rows,
    )
    picture = ReportPicture(svg=render.svg(record), caption="The part of every array on each device.")
    return ReportSection(heading="Sharding", pieces=(picture, table))


def collectives_section(record: ProgramRecord) -> ReportSection:
    """Lists the collectives of the compiled program."""
    collectives = record.module.collectives if record.module else ()
    rows = tuple(
        (c.kind, axes_text(c.axes), c.group_size, bytes_text(c.payload_bytes), bytes_text(c.wire_bytes),
         ", ".join(c.stages) or "unknown")
        for c in collectives
    )  # fmt: skip
    kinds = sorted({f"{collective.kind} over {axes_text(collective.axes)}" for collective in collectives})
    count = f"{len(collectives)} collective{'' if len(collectives) == 1 else 's'}"
    text = f"The compiled round has {count}" + (f": {', '.join(kinds)}." if kinds else ".")
    table = ReportTable(
        caption="Collectives of the compiled module; a stage is named by its path",
        header=("collective", "mesh axes", "devices in a group", "payload per device", "sent per device", "stages"),
        rows=rows,
    )
    return ReportSection(heading="Collectives", pieces=(ReportText(text=text), *((table,) if collectives else ())))


def cost_section(record: ProgramRecord) -> ReportSection | None:
    """Shows the predicted cost of each stage on one device; returns None without a prediction."""
    if record.cost is None:
        return None
    rows = tuple(
        (stage.stage, stage.name or stage.kind, work_text(stage.flops, stage.elementwise_flops),
         bytes_text(stage.accessed_bytes),
         bytes_text(sum(stage.collective_bytes.values())), stage.bound)
        for stage in record.cost.stages
    )  # fmt: skip
    chip = record.cost.chip.name if record.cost.chip else "no chip assumed"
    table = ReportTable(
        caption=f"Predicted per device and call ({chip})",
        header=("path", "name", "FLOPs", "memory traffic", "sent over the network", "bound by"),
        rows=rows,
    )
    waste, assumed = record.cost.padding_waste, "; ".join(record.cost.assumptions)
    texts = [
        *([f"{waste:.0%} of the clients' work is spent on padding."] if waste else []),
        *([f"This rests on: {assumed}."] if assumed else []),
    ]
    return ReportSection(heading="Cost", pieces=(table, *(ReportText(text=text) for text in texts)))


def derivative_section(record: ProgramRecord) -> ReportSection:
    """Shows the gradient of the round, which uses the same primitives."""
    operations = ", ".join(dict.fromkeys(f"{s.operation}" for s in record.plan.walk() if s.operation))
    text = (
        "The derivative of the whole round with respect to the server's parameters, through every client's training, "
        f"is a program of the same few primitives ({operations}), so the workbench plans it, draws it and estimates "
        "its cost in the same way."
    )
    picture = ReportPicture(svg=render.svg(record, width=760), caption=render.describe(record))
    count = count_text(len(list(record.plan.walk())))
    return ReportSection(
        heading="Its derivative", pieces=(ReportText(text=text), picture, ReportText(text=f"It has {count} stages."))
    )


def _where(stage: StageRecord) -> str:
    return f"{count_text(stage.clients)} × {stage.placement}" if stage.placement else "server"


def _clients(range_: ClientRange) -> str:
    slots = f", {range_.padding} empty slots" if range_.padding else ""
    return f"from {range_.start} to {range_.stop - 1}{slots}"


def _spec(spec: tuple[tuple[str, ...], ...]) -> str:
    return ", ".join("+".join(axes) or "–" for axes in spec) or "–"


def _curves(losses: Sequence[float], accuracies: Sequence[float], dark: bool) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    colours = palette(dark)
    figure = Figure(figsize=(8.4, 3.2), dpi=120, layout="constrained", facecolor=colours["bg"])
    FigureCanvasAgg(figure)
    rounds = range(1, len(losses) + 1)
    for place, (values, title, style) in enumerate(
        ((accuracies, "test accuracy", "-o"), (losses, "clients' loss", "-s"))
    ):
        axes = figure.add_subplot(1, 2, place + 1, facecolor=colours["bg"])
        axes.plot(rounds, values, style, color=colours[f"series-{place}"], markersize=3, linewidth=1.5)
        axes.set_title(title, color=colours["fg"], loc="left", fontsize=11)
        axes.set_xlabel("round", color=colours["muted"])
        axes.tick_params(colors=colours["muted"])
        axes.grid(color=colours["line"], linewidth=0.5)
        axes.spines[:].set_visible(False)
        axes.set_ylim(bottom=0, top=1 if title == "test accuracy" else None)
    return figure


def _image(caption: str, light: "Figure", dark: "Figure") -> ReportImage:
    return ReportImage(png=_png(light), dark=_png(dark), caption=caption)


def _png(figure: "Figure") -> bytes:
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return file.getvalue()
