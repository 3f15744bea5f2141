"""Any record as one sentence, one picture for pages, or one figure for papers."""

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from workbench._open_types import Option
from workbench.records.call_tree import CallTreeRecord
from workbench.records.compiled import CostRecord, MemoryRecord, ModuleRecord, ProgramRecord, WhatIfRecord
from workbench.records.hardware import MeshRecord
from workbench.records.launch import LaunchedRecord, ProgramGraphRecord
from workbench.records.live import RoundRecord, SampleRecord, TimelineRecord
from workbench.records.program import ClientDataRecord
from workbench.records.run import RunOverlayRecord, RunRecord
from workbench.records.sharding import LeafShardingRecord, ShardingRecord
from workbench.render._call_tree import describe_call_tree
from workbench.render._charts import render_schedule_memory_svg
from workbench.render._cost import plot_roofline
from workbench.render._data import render_label_skew
from workbench.render._graph import render_graph_svg
from workbench.render._hlo import describe_hlo, render_hlo_svg
from workbench.render._live import describe_run
from workbench.render._live_rounds import describe_samples, describe_timeline, render_gantt_svg
from workbench.render._memory import describe_memory
from workbench.render._mesh import describe_mesh, render_mesh_svg
from workbench.render._overlay import describe_overlay
from workbench.render._program import describe_program, render_program_svg
from workbench.render._propagation import Playback, describe_propagation, render_propagation_svg
from workbench.render._rounds import describe_rounds
from workbench.render._rounds_figures import plot_costs, plot_rounds
from workbench.render._sharding import describe_leaf, describe_sharding
from workbench.render._svg import Markup
from workbench.render._text import text
from workbench.render._what_if import describe_what_if
from workbench.render.launch import describe_graph, describe_launched

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@functools.singledispatch
def describe(record: object, **options: Option) -> str:
    """Summarizes a record in one sentence, which labels its picture and begins its text.

    Args:
        record: Any record; a list of finished rounds or of samples of devices.
        options: For finished rounds: `rounds` (their planned number) and `unit` (the word for a round).

    Example:
        >>> describe(MemoryRecord(peak_bytes=2**30, available_bytes=2**31, fits=True))
        'Peak of 1 GiB per device, fits into 2 GiB'
    """
    return text(record, **options).partition("\n")[0]


@functools.singledispatch
def svg(record: object, **options: Option) -> Markup:
    """A picture of a record for pages and slides; empty if the record contains nothing that can be drawn.

    Args:
        record: A program, or its module or memory; a mesh; a simulated round; a graph of services.
        options: For most pictures: `width` in pixels, and `dark`; `dark=None` follows the reader's system setting.

    Raises:
        TypeError: if the record has no picture.

    Example:
        >>> svg(MeshRecord(axes=(), devices=()))[:4]
        '<svg'
    """
    kinds = ", ".join(sorted(kind.__name__ for kind in svg.registry if kind is not object))
    message = (
        f"`svg` received an object of type {type(record).__name__}. `svg` draws {kinds}: pass one of these, or use "
        "`plot(record)` for a figure of costs or of finished rounds, and `text(record)` for the numbers."
    )
    raise TypeError(message)


@functools.singledispatch
def plot(record: object, **options: Option) -> "Figure":
    """A matplotlib figure of a record, for papers.

    Args:
        record: A `CostRecord` (draws its roofline), finished rounds (`run.history`), tables from `population.train` by
            name (draws the cost of learning), or a `ClientDataRecord` (draws the labels of each client).
        options: `ax`, the matplotlib axes to draw in; `dark`; and options specific to the kind of figure: `dtype` for a
            roofline, `metric` and `against` for costs, `kind` and `sort` for labels.

    Raises:
        TypeError: if the record has no figure.

    Example:
        >>> record = wb.inspect(lambda x: x @ x, on="v5e")(jnp.ones((64, 64)))
        >>> plot(record.cost).axes[0].get_xlabel()
        'arithmetic intensity (matrix FLOP per byte of HBM traffic)'
    """
    message = (
        f"`plot` received an object of type {type(record).__name__}. `plot` draws costs, finished rounds, tables of "
        "costs and client data: pass one of these, or use `svg(record)` for a picture and `to_pandas(record)` for the "
        "numbers."
    )
    raise TypeError(message)


def _describe_list(records: Sequence[object], **options: Option) -> str:
    if isinstance(records[0] if records else None, SampleRecord):
        return describe_samples(records, **options)  # type: ignore[arg-type]
    wrong = next((record for record in records if not isinstance(record, RoundRecord)), None)
    if wrong is not None:
        message = (
            f"`describe` received an object of type {type(records).__name__} that contains an object of type "
            f"{type(wrong).__name__}. A list contains finished rounds or samples of devices: pass `run.history`, or "
            "one record."
        )
        raise TypeError(message)
    return describe_rounds(records, **options)  # type: ignore[arg-type]


def _launched(record: LaunchedRecord, **options: Option) -> Markup:
    return render_graph_svg(record.graph, states=record.states, **options)


for _kind, _sentence, _draw in (
    (CallTreeRecord, describe_call_tree, None),
    (LaunchedRecord, describe_launched, _launched),
    (LeafShardingRecord, describe_leaf, None),
    (MemoryRecord, describe_memory, render_schedule_memory_svg),
    (MeshRecord, describe_mesh, render_mesh_svg),
    (ModuleRecord, describe_hlo, render_hlo_svg),
    (Playback, describe_propagation, render_propagation_svg),
    (ProgramGraphRecord, describe_graph, render_graph_svg),
    (ProgramRecord, describe_program, render_program_svg),
    (RunOverlayRecord, describe_overlay, None),
    (RunRecord, describe_run, None),
    (Sequence, _describe_list, None),
    (ShardingRecord, describe_sharding, None),
    (TimelineRecord, describe_timeline, render_gantt_svg),
    (WhatIfRecord, describe_what_if, None),
):
    if _sentence is not None:
        describe.register(_kind, _sentence)
    if _draw is not None:
        svg.register(_kind, _draw)

plot.register(CostRecord, plot_roofline)
plot.register(ClientDataRecord, render_label_skew)
plot.register(Mapping, plot_costs)
plot.register(Sequence, plot_rounds)
