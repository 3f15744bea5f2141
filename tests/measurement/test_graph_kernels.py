"""Kernels of command buffers get the instructions that the same program shows without command buffers."""

import random
from pathlib import Path

import pytest

from workbench._jax_compat.hlo import hlo_text_of_proto
from workbench.cost import known_chip, seconds_at_peak
from workbench.inspection import inspect_module
from workbench.measurement import open_profile
from workbench.measurement._device_events import DeviceEvent, read_plane
from workbench.measurement._graph_kernels import graph_name, name_kernels
from workbench.measurement._join import join_profile
from workbench.measurement._profile import Profile
from workbench.measurement._profile_reader import ProfileReader
from workbench.measurement._xplane import read_space

RECORDED = Path(__file__).parents[1] / "recorded"
NAMED = RECORDED / "h200_decoder_step_jax0.11.2.xplane.pb"
GRAPHS = RECORDED / "h200_decoder_step_graphs_jax0.11.2.xplane.pb"
KERNELS = 120  # of one step


def module_of(path):
    reader = ProfileReader(0, [])
    reader.read(path, None)
    (proto,) = (proto for name, proto in reader.protos.items() if name.startswith("jit_train_step("))
    return inspect_module(hlo_text_of_proto(proto))


def events_of(path):
    return [
        event
        for plane in read_space(path).planes
        if "GPU" in plane.name
        for event in read_plane(plane, origin_ps=0)
        if isinstance(event, DeviceEvent)
    ]


@pytest.fixture(scope="module")
def module():
    return module_of(NAMED)


@pytest.fixture(scope="module")
def step():
    """The kernels of one step, each with the instruction that the profile names."""
    return [(event.name, event.kernel) for event in events_of(NAMED)[:KERNELS]]


def hidden(step):
    return [(graph_name(0, 1, number), kernel) for number, (_, kernel) in enumerate(step)]


def test_every_kernel_gets_the_instruction_that_the_profile_names(module, step):
    found = name_kernels(hidden(step), module)
    assert [found[graph_name(0, 1, number)] for number in range(KERNELS)] == [name for name, _ in step]


def test_kernels_beside_a_command_buffer_keep_their_names(module, step):
    kernels = [*step[:50], *hidden(step)[50:]]
    found = name_kernels(kernels, module)
    assert found == {graph_name(0, 1, number): step[number][0] for number in range(50, KERNELS)}


def test_a_named_kernel_is_known_by_its_instruction_not_by_its_function(module, step):
    kernels = [*((name, "a_function_of_a_library") for name, _ in step[:50]), *hidden(step)[50:]]
    found = name_kernels(kernels, module)
    assert found == {graph_name(0, 1, number): step[number][0] for number in range(50, KERNELS)}


@pytest.mark.parametrize("first", [1, 17, 28, 48, 60, 77, 119])
def test_a_profile_that_began_in_the_middle_of_a_run_is_named_too(module, step, first):
    """`watch` profiles while earlier steps are on their way."""
    kernels = hidden(step)
    found = name_kernels([*kernels[first:], *kernels[:first]], module)
    assert found == {name: step[number][0] for number, (name, _) in enumerate(kernels)}


@pytest.mark.parametrize("seed", range(40))
def test_a_kernel_is_never_given_another_instruction(module, step, seed):
    """A lost or foreign kernel, or a part of the program: nothing, or the truth."""
    draw, known = random.Random(seed), list(enumerate(step))
    match seed % 4:
        case 0:
            for _ in range(draw.choice((1, 3, 10))):
                del known[draw.randrange(len(known))]
        case 1:
            first = draw.randrange(60)
            known = known[first : first + draw.randrange(5, 60)]
        case 2:
            known.insert(draw.randrange(len(known)), (KERNELS, ("", "loop_add_fusion_77")))
        case _:
            known.insert(draw.randrange(len(known)), (KERNELS, ("", "a_kernel_of_nobody")))
    found = name_kernels([(graph_name(0, 1, number), kernel) for number, (_, kernel) in known], module)
    truth = {graph_name(0, 1, number): name for number, (name, _) in known}
    assert all(truth[name] in ("", each) for name, each in found.items())


def test_a_profile_with_command_buffers_is_joined_whole():
    graphs, named = open_profile(GRAPHS), open_profile(NAMED)
    for profile in (graphs, named):
        assert (profile.joined, profile.joined_seconds, profile.unjoined) == (1.0, 1.0, ())
        assert sum(each.seconds for each in profile.operations) == pytest.approx(5.12e-3, rel=0.01)
        assert {each.executions for each in profile.operations} == {3.0}
    assert f"{KERNELS} kernels in command buffers" in " ".join(graphs.notes)

    def by_line(profile):
        lines = {}
        for each in profile.operations:
            if each.source is not None and each.source.file.endswith("loop.py"):
                lines[each.source.line] = lines.get(each.source.line, 0.0) + each.seconds
        return lines

    one, other = by_line(graphs), by_line(named)
    assert one.keys() == other.keys()
    for line, seconds in one.items():  # the compiler chose other kernels for some products
        assert seconds == pytest.approx(other[line], rel=0.12, abs=2e-5)


def test_seconds_are_those_of_the_lines_that_the_operations_name():
    (tree,) = open_profile(NAMED).trees.values()
    by_kind = {}
    for node in tree.nodes:
        by_kind[node.kind] = by_kind.get(node.kind, 0.0) + sum(node.own.measured_seconds.values())
    assert "unattributed" not in by_kind
    assert by_kind["operation"] == pytest.approx(5.12e-3, rel=0.01)


def test_measured_seconds_of_command_buffers_reach_the_module():
    module, events = module_of(GRAPHS), events_of(GRAPHS)
    joined = join_profile(Profile(events=tuple(events)), module)
    assert joined.joined == 1.0
    assert sum(leaf.event.seconds for leaf in joined.leaves) == pytest.approx(5.13e-3, rel=0.01)
    foreign = module.replace(instructions=module.instructions[:-30])
    lost = join_profile(Profile(events=tuple(events)), foreign)
    assert lost.joined == 0.0
    assert any("command buffers" in note for note in lost.notes)


def test_products_in_bfloat16_of_float32_parameters_have_the_peak_of_bfloat16(module):
    at_peak = seconds_at_peak(module.instructions, known_chip("H200"), "float32")
    assert at_peak == pytest.approx(module.flops / 989e12, rel=0.001)
