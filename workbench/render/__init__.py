"""Records as pictures, tables and text; does not depend on JAX."""

from workbench.render import launch as launch, report as report, units as units
from workbench.render._advice import gain_texts as gain_texts, quantity_text as quantity_text
from workbench.render._arrivals import (
    AxisChains as AxisChains,
    explain_axis as explain_axis,
    trace_axes as trace_axes,
)
from workbench.render._blocks import StageDetails as StageDetails, note as note
from workbench.render._card import display_object as display_object, display_record as display_record
from workbench.render._glossary import GLOSSARY as GLOSSARY, LESSONS as LESSONS
from workbench.render._graph import node_glyph as node_glyph
from workbench.render._html import figure as figure
from workbench.render._mark import icon_link as icon_link, mark as mark
from workbench.render._mesh_layout import FEW as FEW, arrange_mesh as arrange_mesh
from workbench.render._notebook_figure import notebook_figure as notebook_figure
from workbench.render._picture import describe as describe, plot as plot, svg as svg
from workbench.render._program_details import program_blocks as program_blocks, stage_details as stage_details
from workbench.render._program_layout import device_groups as device_groups
from workbench.render._propagation import Playback as Playback, play_back as play_back
from workbench.render._rounds import render_clients_svg as render_clients_svg
from workbench.render._rounds_figures import rounds_png as rounds_png
from workbench.render._search import (
    placement_code as placement_code,
    sharding_code as sharding_code,
)
from workbench.render._svg import Markup as Markup
from workbench.render._tables import to_pandas as to_pandas
from workbench.render._text import text as text
from workbench.render._theme import css_variables as css_variables, palette as palette
from workbench.render._treescope import render_tap_html as render_tap_html, treescope_record as treescope_record
from workbench.render._what_if import change_sign as change_sign, what_if_amounts as what_if_amounts
