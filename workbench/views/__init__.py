"""Records as pictures, tables and text; sees no JAX."""

from workbench.views._data import render_label_skew as render_label_skew, tabulate_clients as tabulate_clients
from workbench.views._glossary import GLOSSARY as GLOSSARY, explain as explain
from workbench.views._graph import describe_graph as describe_graph, render_graph_svg as render_graph_svg
from workbench.views._html import figure as figure, page as page, section as section
from workbench.views._program import (
    axes_text as axes_text,
    describe_program as describe_program,
    render_program_svg as render_program_svg,
    render_program_text as render_program_text,
    walk as walk,
)
from workbench.views._program_details import (
    collectives_block as collectives_block,
    facts as facts,
    stage_details as stage_details,
    table as table,
)
from workbench.views._program_layout import device_groups as device_groups
from workbench.views._svg import (
    Markup as Markup,
    bytes_text as bytes_text,
    count_text as count_text,
    data_uri as data_uri,
    element as element,
    escape as escape,
    flops_text as flops_text,
    seconds_text as seconds_text,
    shape_text as shape_text,
)
from workbench.views._theme import (
    css_variables as css_variables,
    palette as palette,
    sequential as sequential,
    svg_style as svg_style,
)
