"""Programs of nodes as pictures: counted from the SVG itself."""

import xml.etree.ElementTree as ElementTree

import pytest

from workbench import render
from workbench.records.launch import EdgeRecord, LaunchedRecord, NodeRecord, NodeStateRecord, ProgramGraphRecord
from workbench.render import node_glyph
from workbench.render.launch import STATE_HUES, STATE_SIGNS, load_text

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
    return ElementTree.fromstring(render.svg(graph, **options))


def words(root):
    return [text.text for text in root.iter(f"{SVG}text")]


def cards(root):
    found = [group for group in root.iter(f"{SVG}g") if group.get("data-group")]
    return {group.get("data-group"): group.find(f"{SVG}rect[last()-1]") for group in found}


def marks(root):
    return {each.get("data-node"): each for each in root.iter(f"{SVG}g") if each.get("data-node")}


def state(label, name="running", **fields):
    return NodeStateRecord(label=label, state=name, where=f"process {label}", **fields)


def launched(*states, graph=None, **fields):
    known = {"engine": "processes", "status": "running", "elapsed_seconds": 2.0} | fields
    return LaunchedRecord(graph=graph or chain(), states=states, **known)


def test_there_is_one_card_per_group_and_one_wire_per_pair_of_groups():
    root = parsed(chain())
    wires = [path.get("data-edge") for path in root.iter(f"{SVG}path") if path.get("data-edge")]
    assert list(cards(root)) == ["replay", "learner", "actors"]
    assert sorted(wires) == ["actors → learner", "actors → replay", "learner → replay"]
    assert words(root).count("× 6") == 2


def test_callers_are_left_of_what_they_call():
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


def test_there_is_a_mark_for_every_node_with_the_sign_of_its_state():
    root = parsed(chain(), states=[state(f"actors/{i}", "running" if i else "raised") for i in range(6)])
    assert set(marks(root)) == {node.label for node in chain().nodes}
    raised, running = marks(root)["actors/0"], marks(root)["actors/1"]
    assert raised.find(f"{SVG}title").text == "actors/0: raised"
    assert (raised.find(f"{SVG}path").get("d"), running.find(f"{SVG}path").get("d")) == (
        node_glyph("raised"),
        node_glyph("running"),
    )


def test_marks_of_many_nodes_are_smaller_and_all_there():
    many = ProgramGraphRecord(name="many", nodes=tuple(node(f"w/{i}") for i in range(400)))
    root = parsed(many, states=[state("w/0")])
    assert len(marks(root)) == 300
    assert "▶ 1 running (+ 100 without a mark)" in words(root)
    assert 0 < float(root.get("height")) < 400


def test_every_state_has_a_sign_a_colour_and_a_glyph_and_those_that_fail_look_alike():
    assert set(STATE_SIGNS) == set(STATE_HUES)
    assert {node_glyph(name) for name in ("raised", "killed", "hung")} == {node_glyph("raised")}
    assert len({node_glyph(name) for name in STATE_SIGNS}) == len(STATE_SIGNS) - 2


def test_states_are_counted_in_words_failures_first_with_the_load_of_the_group():
    states = [
        state(f"actors/{i}", "running" if i else "raised", calls_per_second=2.0, queue_length=1) for i in range(6)
    ]
    shown = words(parsed(chain(), states=states))
    assert "✗ 1 raised · ▶ 5 running" in shown
    assert "12 calls/s · 6 waiting" in shown


def test_memory_of_nodes_that_share_a_process_is_counted_once():
    together = [
        NodeStateRecord(label=f"a/{i}", state="running", where="process 7", memory_bytes=2**20, cpu_cores=0.5)
        for i in range(2)
    ]
    assert load_text(together) == "0.5 cores · 1 MiB"


def test_a_program_before_launch_is_shown_group_by_group():
    assert render.text(chain()).splitlines() == [
        "Program chain: 8 nodes, not launched.",
        "  replay: 1 × Target (service)",
        "    .insert(), .sample()",
        "    9 calls at once",
        "  learner: 1 × Target (service), calls replay",
        "    .current()",
        "    GPU 1 · restarts ≤ 2",
        "  actors: 6 × Target (run loop), calls learner, replay",
    ]


def test_a_launched_program_is_shown_with_what_each_node_does_and_how_it_failed():
    said = render.text(
        launched(
            state("replay/0", "serving", calls=1200, heartbeat_age_seconds=0.25, log_tail=("old", "newest")),
            state("learner/0", "raised", error="Traceback\nValueError: no data\n", exit_code=1, restarts=2),
        )
    )
    assert said.startswith("Program chain on processes: running for 2 s, 8 nodes: ✗ 1 raised · ● 1 serving.")
    assert (
        "    replay/0: ● serving · process replay/0 · last heartbeat 250 ms ago · 1,200 calls\n      log: newest"
        in said
    )
    assert "learner/0: ✗ raised · process learner/0 · restarted 2 × · exit code 1\n" in said
    assert "      ValueError: no data" in said


def test_long_groups_are_cut_but_failures_never():
    graph = ProgramGraphRecord(name="many", nodes=tuple(node(f"w/{i}") for i in range(50)))
    states = [state(f"w/{i}", "hung" if i == 40 else "running") for i in range(50)]
    said = render.text(launched(*states, graph=graph))
    assert "w/40: ✗ hung" in said
    assert said.splitlines()[-1].strip() == "… and 41 more"


def test_a_program_that_ended_says_after_how_long():
    assert render.describe(launched(status="failed")) == "Program chain on processes: failed after 2 s, 8 nodes."


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
    assert render.describe(chain()).endswith("actors: 6 × Target (run loop), calls learner, replay.")
