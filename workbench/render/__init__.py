"""Records as pictures, tables and text; sees no JAX."""

from workbench.render._advice import (
    amount_writer as amount_writer,
    gain_text as gain_text,
)
from workbench.render._arrivals import explain_axis as explain_axis, trace_axes as trace_axes
from workbench.render._card import display_object as display_object, display_record as display_record
from workbench.render._charts import (
    MeasuredPoint as MeasuredPoint,
    render_measured_roofline_svg as render_measured_roofline_svg,
    render_roofline_svg as render_roofline_svg,
    render_schedule_memory_svg as render_schedule_memory_svg,
)
from workbench.render._compare import amount_text as amount_text
from workbench.render._cost import (
    plot_collectives as plot_collectives,
    plot_roofline as plot_roofline,
    plot_timeline as plot_timeline,
)
from workbench.render._data import render_label_skew as render_label_skew
from workbench.render._disclosure import disclosed_blocks as disclosed_blocks
from workbench.render._glossary import (
    GLOSSARY as GLOSSARY,
    LESSONS as LESSONS,
    glossary as glossary,
    lesson as lesson,
)
from workbench.render._graph import node_glyph as node_glyph, render_graph_svg as render_graph_svg
from workbench.render._hlo import describe_hlo as describe_hlo, render_hlo_svg as render_hlo_svg
from workbench.render._html import figure as figure
from workbench.render._launch import (
    NODE_KINDS as NODE_KINDS,
    STATE_HUES as STATE_HUES,
    STATE_SIGNS as STATE_SIGNS,
    count_states as count_states,
    describe_graph as describe_graph,
    describe_launched as describe_launched,
    groups_of as groups_of,
    load_text as load_text,
    worst_hue as worst_hue,
)
from workbench.render._live import (
    describe_run as describe_run,
    render_run_svg as render_run_svg,
)
from workbench.render._live_rounds import (
    describe_samples as describe_samples,
    describe_timeline as describe_timeline,
    render_gantt_svg as render_gantt_svg,
    render_samples_svg as render_samples_svg,
)
from workbench.render._memory import (
    describe_memory as describe_memory,
    plot_memory as plot_memory,
    plot_memory_timeline as plot_memory_timeline,
)
from workbench.render._mesh import (
    arrange_devices as arrange_devices,
    describe_mesh as describe_mesh,
    render_mesh_svg as render_mesh_svg,
)
from workbench.render._notebook_figure import notebook_figure as notebook_figure
from workbench.render._overlay import (
    describe_overlay as describe_overlay,
    render_overlay_svg as render_overlay_svg,
)
from workbench.render._population import plot_costs as plot_costs
from workbench.render._profile_page import (
    render_profile_html as render_profile_html,
)
from workbench.render._program import (
    axes_text as axes_text,
    describe_program as describe_program,
    render_program_svg as render_program_svg,
)
from workbench.render._program_details import (
    collectives_block as collectives_block,
    facts as facts,
    stage_details as stage_details,
)
from workbench.render._program_layout import device_groups as device_groups
from workbench.render._propagation import (
    ROWS_AT_MOST as ROWS_AT_MOST,
    Playback as Playback,
    describe_propagation as describe_propagation,
    play_back as play_back,
    render_propagation_steps as render_propagation_steps,
    render_propagation_svg as render_propagation_svg,
)
from workbench.render._report import (
    ReportCode as ReportCode,
    ReportImage as ReportImage,
    ReportPicture as ReportPicture,
    ReportSection as ReportSection,
    ReportTable as ReportTable,
    ReportText as ReportText,
    render_report as render_report,
)
from workbench.render._rounds import (
    describe_rounds as describe_rounds,
    render_clients_svg as render_clients_svg,
    render_rounds_svg as render_rounds_svg,
)
from workbench.render._rounds_figures import (
    plot_clients_over_rounds as plot_clients_over_rounds,
    plot_gantt as plot_gantt,
    plot_rounds as plot_rounds,
    plot_run as plot_run,
)
from workbench.render._search import (
    placement_code as placement_code,
    sharding_code as sharding_code,
    spec_code as spec_code,
)
from workbench.render._sharding import (
    describe_leaf as describe_leaf,
    describe_sharding as describe_sharding,
    render_sharding_svg as render_sharding_svg,
    spec_text as spec_text,
)
from workbench.render._svg import (
    Markup as Markup,
    bytes_text as bytes_text,
    count_text as count_text,
    flops_text as flops_text,
    seconds_text as seconds_text,
    shape_text as shape_text,
    source_text as source_text,
    work_text as work_text,
)
from workbench.render._tables import (
    to_pandas as to_pandas,
)
from workbench.render._text import render_text as render_text
from workbench.render._theme import (
    css_variables as css_variables,
    palette as palette,
)
from workbench.render._treescope import (
    render_tap_html as render_tap_html,
    treescope_record as treescope_record,
)
from workbench.render._watch import render_watch_text as render_watch_text
from workbench.render._what_if import (
    change_sign as change_sign,
    describe_what_if as describe_what_if,
    what_if_amounts as what_if_amounts,
)
from workbench.render._why import render_why_text as render_why_text
