"""Programs of nodes as pictures: counted from the SVG itself."""

import xml.etree.ElementTree as ElementTree

import pytest

from workbench.records import EdgeRecord, NodeRecord, NodeStateRecord, ProgramGraphRecord
from workbench.views import describe_graph, render_graph_svg

SVG = "{http://www.w3.org/2000/svg}"


def node(label, kind="class", host=0, **fields):
    return NodeRecord(label=label, group=label.split("/")[0], kind=kind, target="Target", host=host, **fields)


def chain():
    """Actors call the learner and the replay table, the learner calls the table."""
    nodes = (
        node("replay/0", "service", 0, methods=("insert", "sample"), concurrency=9),
        node("learner/0", "service", 1, methods=("current",), restart_limit=2, resources={"GPU": 1}),
        *(node(f"actors/{index}", host=2 + index) for index in range(6)),
    )
    edges = [EdgeRecord(source="learner/0", target="replay/0")]
    edges += [EdgeRecord(source=f"actors/{i}", target=t) for i in range(6) for t in ("learner/0", "replay/0")]
    return ProgramGraphRecord(name="chain", nodes=nodes, edges=tuple(edges))


def parsed(graph, **options):
    return ElementTree.fromstring(render_graph_svg(graph, **options))


def words(root):
    return [text.text for text in root.iter(f"{SVG}text")]


def cards(root):
    found = [group for group in root.iter(f"{SVG}g") if group.get("data-group")]
    return {group.get("data-group"): group.findall(f"{SVG}rect")[-2] for group in found}


def test_there_is_one_card_per_group_and_one_wire_per_pair_of_groups():
    root = parsed(chain())
    wires = [path.get("data-edge") for path in root.iter(f"{SVG}path") if path.get("data-edge")]
    assert list(cards(root)) == ["replay", "learner", "actors"]
    assert sorted(wires) == ["actors → learner", "actors → replay", "learner → replay"]
    assert words(root).count("× 6") == 2


def test_callers_stand_left_of_what_they_call():
    x = {label: float(card.get("x")) for label, card in cards(parsed(chain())).items()}
    assert x["actors"] < x["learner"] < x["replay"]


def test_everything_lies_inside_the_picture():
    root = parsed(chain())
    width, height = float(root.get("width")), float(root.get("height"))
    for card in root.iter(f"{SVG}rect"):
        assert float(card.get("x")) + float(card.get("width")) <= width
        assert float(card.get("y")) + float(card.get("height")) <= height


def test_a_card_says_what_its_nodes_offer_and_need():
    shown = words(parsed(chain()))
    assert ".insert(), .sample()" in shown
    assert "9 calls at once" in shown
    assert "GPU 1 · restarts ≤ 2" in shown
    assert "nodes 0, 1, 2, 3 … 5" in shown


def test_states_are_counted_in_words_with_their_rate():
    states = [
        NodeStateRecord(label=f"actors/{i}", state="running" if i else "raised", where="thread 1", calls_per_second=2.0)
        for i in range(6)
    ]
    shown = words(parsed(chain(), states=states))
    assert "▶ 5 running · 10 calls/s" in shown
    assert "✗ 1 raised · 2 calls/s" in shown


def test_groups_in_a_ring_are_drawn_too():
    ring = ProgramGraphRecord(
        name="ring",
        nodes=(node("a/0", "service"), node("a/1"), node("b/0", "service")),
        edges=(
            EdgeRecord(source="a/0", target="b/0"),
            EdgeRecord(source="b/0", target="a/1"),
            EdgeRecord(source="a/1", target="a/0"),
        ),
    )
    root = parsed(ring)
    assert len([path for path in root.iter(f"{SVG}path") if path.get("data-edge")]) == 3


@pytest.mark.parametrize("dark", [True, False, None], ids=["dark", "light", "system"])
def test_names_are_escaped_on_every_page(dark):
    evil = ProgramGraphRecord(name="<script>", nodes=(node("<b>/0", methods=('"&',)),))
    root = parsed(evil, dark=dark)
    assert "<b>" in words(root)
    assert root.get("aria-label").startswith("Program <script>")


def test_an_empty_program_is_an_empty_picture_with_a_name():
    empty = ProgramGraphRecord(name="p", nodes=())
    assert parsed(empty).get("aria-label") == "Program p: no nodes."
    assert describe_graph(chain()).endswith("actors: 6 × Target (run loop), calls learner, replay.")
