"""Teaches treescope to show our records, where it is loaded; never imports it on its own account."""

import dataclasses
import importlib.util
import sys
from typing import Any

from workbench.records import LeafShardingRecord, MeshRecord, Record, ShardingRecord
from workbench.views._mesh import render_mesh_svg
from workbench.views._sharding import render_sharding_svg


def register_treescope(*, load: bool = False) -> bool:
    """Puts a handler for our records into treescope's registry; doing it twice changes nothing.

    A record holds what is known of arrays, never the arrays, so that treescope shows a sharding without reading a
    single value (its own array view fails on large explicitly sharded arrays, treescope 0.1.10).

    Args:
        load: Import treescope if nobody has yet; otherwise a treescope that is not loaded is left alone.

    Returns:
        Whether treescope shows our records now.
    """
    if "treescope" not in sys.modules and (not load or importlib.util.find_spec("treescope") is None):
        return False
    from treescope import type_registries

    type_registries.TREESCOPE_HANDLER_REGISTRY[Record] = show_record
    return True


def show_record(node: Any, path: str | None, subtree_renderer: Any) -> Any:
    """A treescope handler: a record as a foldable tree of its fields, with a picture of meshes and shardings."""
    from treescope import rendering_parts as parts, repr_lib

    # `results` of a run and the like stay out: they hold the user's arrays.
    shown = {field.name: getattr(node, field.name) for field in dataclasses.fields(node) if field.repr}
    tree = repr_lib.render_object_constructor(
        object_type=type(node), attributes=shown, path=path, subtree_renderer=subtree_renderer, roundtrippable=True
    )
    picture = _picture(node)
    if picture is None:
        return tree
    frame = parts.embedded_iframe(picture, fallback_in_text_mode=parts.text("# (a picture, not shown as text)"))
    label = parts.comment_color(parts.text("# picture"))
    box = parts.in_outlined_box(
        parts.build_full_line_with_annotations(
            parts.build_custom_foldable_tree_node(
                label=label, contents=parts.fold_condition(expanded=frame), expand_state=parts.ExpandState.EXPANDED
            )
        )
    )
    below = parts.indented_children([parts.floating_annotation_with_separate_focus(box)])
    only_shown = parts.fold_condition(expanded=parts.roundtrip_condition(not_roundtrip=below))
    return parts.siblings_with_annotations(tree, only_shown)


def _picture(node: Any) -> str | None:
    if isinstance(node, MeshRecord):
        return render_mesh_svg(node)
    if isinstance(node, ShardingRecord | LeafShardingRecord):
        return render_sharding_svg(node)
    return None
