"""Records in treescope; importing this module does not import treescope."""

import dataclasses
import importlib.util
from collections.abc import Callable

from workbench._open_types import Foreign
from workbench.records import Record
from workbench.records.hardware import MeshRecord
from workbench.records.live import TapRecord
from workbench.render._mesh import render_mesh_svg
from workbench.render._svg import Markup, escape
from workbench.render.units import source_text


def treescope_record(node: Record, path: str | None, subtree_renderer: Callable) -> Foreign:
    """A record as a foldable treescope tree, with the picture of a mesh.

    A record describes arrays but never contains them, so treescope shows a sharding without reading values.
    (Treescope's own array view fails on large explicitly sharded arrays, treescope 0.1.10.)
    """
    from treescope import rendering_parts as parts, repr_lib

    if isinstance(node, TapRecord):  # values as arrays, which treescope can draw
        return subtree_renderer(node.to_tree(), path)

    # Fields such as `results` of a run are omitted, because they contain the user's arrays.
    shown = {field.name: getattr(node, field.name) for field in dataclasses.fields(node) if field.repr}
    tree = repr_lib.render_object_constructor(
        object_type=type(node), attributes=shown, path=path, subtree_renderer=subtree_renderer, roundtrippable=True
    )
    picture = picture_of(node)
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


def render_tap_html(tap: TapRecord) -> str:
    """A client's values as a page: a foldable treescope tree, or text if treescope is missing.

    Example:
        >>> "no values" in render_tap_html(TapRecord(name="round", client=(3,), stages={}, values=()))
        True
    """
    if not tap.values or importlib.util.find_spec("treescope") is None:
        return f"<pre>{escape(render_tap_text(tap))}</pre>"
    import treescope

    with treescope.active_autovisualizer.set_scoped(treescope.ArrayAutovisualizer()):
        return treescope.render_to_html(tap.to_tree(), roundtrip_mode=False)


def render_tap_text(tap: TapRecord) -> str:
    """A client's values as lines: stage, round, step, name, type and range.

    Example:
        >>> from workbench.records.live import TappedValueRecord
        >>> value = TappedValueRecord(stage="1", name="loss", operation="div", shape=(), dtype="float32", mean=0.5)
        >>> print(render_tap_text(TapRecord(name="round", client=(3,), stages={"1": "train"}, values=(value,))))
        Values of client 3 in round: 1, all of them finite.
        stage 1: train
          loss: float32 0.5
    """
    client = "/".join(map(str, tap.client))
    if not tap.values:
        return f"Values of client {client} in {tap.name}: no values."
    first = tap.first_nonfinite
    state = "all of them finite" if first is None else f"the first that is not finite is {first.name}"
    at = "" if first is None or first.source is None else f" at {source_text(first.source.file, first.source.line)}"
    lines = [f"Values of client {client} in {tap.name}: {len(tap.values)}, {state}{at}."]
    rounds = len({value.round for value in tap.values}) > 1
    place: tuple[object, ...] = ()
    for value in tap.values:
        here = (value.stage, value.round, value.client, value.steps)
        if here != place:
            parts = [f"stage {value.stage}: {tap.stages.get(value.stage, '')}"]
            parts += [f"round {value.round}"] * rounds
            parts += [f"client {value.client}"] * ("/" in value.client)
            parts += [f"step {step}" for step in value.steps]
            lines.append(", ".join(parts))
            place = here
        lines.append(f"  {value.name}: {value.figures}")
    return "\n".join([*lines, *(f"Note: {note}" for note in tap.notes)])


def picture_of(node: object) -> Markup | None:
    """The picture of a mesh; None for other records."""
    return render_mesh_svg(node) if isinstance(node, MeshRecord) else None
