"""Joins derived by hand: four devices in a 2 x 2 mesh, a loop, and one collective over each axis."""

import pytest
from records_parts import toy_module

from workbench.measurement._device_events import DeviceEvent, OtherEvent
from workbench.measurement._join import _group, event_records, find_instruction, join_profile
from workbench.measurement._profile import Profile
from workbench.records.compiled import CollectiveRecord, InstructionRecord
from workbench.records.hardware import AxisRecord, DeviceRecord, MeshRecord
from workbench.records.program import SourceLine

LABELS = {device: f"cpu:{device}" for device in range(4)}
MESH = MeshRecord(
    axes=(AxisRecord(name="clients", size=2), AxisRecord(name="model", size=2)),
    devices=tuple(DeviceRecord(id=device, position=divmod(device, 2)) for device in range(4)),
)


def instruction(name, opcode, *, stage=None, computation="main", calls=()):
    return InstructionRecord(
        name=name,
        opcode=opcode,
        computation=computation,
        shape="f32[]",
        size_bytes=4,
        executions=1,
        stage=stage,
        calls=calls,
        source=SourceLine(file="round.py", line=3),
    )


def collective(name, *axes):
    return CollectiveRecord(
        name=name, kind="all-reduce", axes=axes, group_size=2, groups=2, payload_bytes=4, wire_bytes=4.0, executions=1
    )


MODULE = toy_module(
    name="jit_round",
    devices=4,
    instructions=(
        instruction("dot", "dot", stage="1", computation="body"),
        instruction("while", "while", stage="1", calls=("condition", "body")),
        instruction("over_model", "all-reduce", stage="2"),
        instruction("over_clients", "fusion", stage="2"),
        instruction("copy", "copy"),
    ),
    collectives=(collective("over_model", "model"), collective("over_clients", "clients")),
    attributed_instructions=0.0,
    attributed_flops=0.0,
    attributed_bytes=0.0,
)


def event(device, name, start, seconds, *, module="jit_round", run=1):
    return DeviceEvent(device=device, name=name, module=module, run=run, start_seconds=start, seconds=seconds)


def join(*events, mesh=MESH, others=()):
    return join_profile(Profile(events=events, others=others), MODULE, mesh=mesh)


def waits(joined):
    return {(leaf.event.device, leaf.event.name, leaf.event.start_seconds): leaf.wait_seconds for leaf in joined.leaves}


def test_wait_is_what_a_device_needs_longer_than_the_quickest_of_its_group():
    # Over "model" devices 0 and 1 meet, and 2 and 3; each group ends at one moment.
    joined = join(
        event(0, "over_model", 0.0, 5.0),
        event(1, "over_model", 3.0, 2.0),
        event(2, "over_model", 0.0, 9.0),
        event(3, "over_model", 8.0, 1.0),
    )
    assert [leaf.wait_seconds for leaf in joined.leaves] == [3.0, 0.0, 8.0, 0.0]
    assert [leaf.work_seconds for leaf in joined.leaves] == [2.0, 2.0, 1.0, 1.0]


def test_collective_over_the_other_axis_has_other_groups():
    # Over "clients" devices 0 and 2 meet, and 1 and 3.
    joined = join(
        event(0, "over_clients", 0.0, 5.0),
        event(1, "over_clients", 0.0, 3.0),
        event(2, "over_clients", 4.0, 1.0),
        event(3, "over_clients", 0.0, 3.0),
    )
    assert [leaf.wait_seconds for leaf in joined.leaves] == [4.0, 0.0, 0.0, 0.0]
    assert {leaf.kind for leaf in joined.leaves} == {"collective"}


@pytest.mark.parametrize("mesh", [None, MeshRecord(axes=(), devices=())], ids=["no mesh", "foreign mesh"])
def test_without_the_mesh_all_devices_meet(mesh):
    joined = join(event(0, "over_model", 0.0, 5.0), event(2, "over_model", 4.0, 1.0), mesh=mesh)
    assert [leaf.wait_seconds for leaf in joined.leaves] == [4.0, 0.0]


def test_each_execution_is_compared_with_the_same_execution_elsewhere():
    joined = join(
        event(0, "over_model", 0.0, 5.0),
        event(1, "over_model", 4.0, 1.0),
        event(0, "over_model", 10.0, 2.0),
        event(1, "over_model", 9.0, 3.0),
    )
    assert list(waits(joined).values()) == [4.0, 0.0, 0.0, 1.0]


def test_executions_without_run_numbers_are_those_that_overlap_although_each_device_lost_an_event():
    joined = join(
        event(0, "over_model", 0.0, 5.0, run=None),
        event(0, "over_model", 10.0, 2.0, run=None),
        event(1, "over_model", 9.0, 3.0, run=None),
        event(1, "over_model", 20.0, 1.0, run=None),
    )
    assert list(waits(joined).values()) == [0.0, 0.0, 1.0, 0.0]


def test_execution_that_one_device_lost_is_left_out_of_its_run():
    joined = join(event(0, "over_model", 0.0, 5.0), event(0, "over_model", 10.0, 2.0), event(1, "over_model", 9.0, 3.0))
    assert list(waits(joined).values()) == [0.0, 0.0, 1.0]


def test_computing_never_waits():
    joined = join(event(0, "dot", 0.0, 5.0), event(1, "dot", 0.0, 1.0))
    assert [(leaf.kind, leaf.wait_seconds) for leaf in joined.leaves] == [("compute", 0.0)] * 2


def test_loop_around_events_is_not_counted_again():
    joined = join(event(0, "while", 0.0, 4.0), event(0, "dot", 0.0, 1.0), event(0, "dot", 2.0, 1.0))
    assert [leaf.event.name for leaf in joined.leaves] == ["dot", "dot"]
    assert [item.event.name for item in joined.containers] == ["while"]


def test_loop_whose_inside_left_no_events_counts_itself():
    assert [leaf.event.name for leaf in join(event(0, "while", 0.0, 4.0)).leaves] == ["while"]


def test_shares_are_of_events_and_of_seconds():
    joined = join(
        event(0, "dot", 0.0, 6.0),
        event(0, "copy", 6.0, 2.0),
        event(0, "unheard_of", 8.0, 1.0),
        event(0, "dot", 9.0, 1.0),
    )
    assert joined.joined == 3 / 4
    assert joined.attributed == 7 / 10


def test_events_of_other_programs_are_left_out_and_named():
    others = (OtherEvent(0, "memory copies and fills", "memcpy", 2.0, 0.5),) * 2
    joined = join(event(0, "dot", 0.0, 1.0), event(0, "dot", 1.0, 1.0, module="jit_other"), others=others)
    assert len(joined.leaves) == 1
    assert joined.notes == (
        "1 events of other programs were ignored: jit_other.",
        "2 events of 1 s on devices: memory copies and fills.",
    )


def test_events_without_an_instruction_count_in_the_share():
    others = (OtherEvent(0, "kernels that name no instruction", "k", 2.0, 0.5),) * 3
    assert join(event(0, "dot", 0.0, 1.0), others=others).joined == 1 / 4


def test_three_names_without_an_instruction_are_noted():
    events = [event(0, name, float(n), 0.5) for n, name in enumerate("abcdabcab")]
    assert join(*events).notes == ("9 events (4.5 s) do not name an instruction of the module: `a`, `b`, `c`.",)


@pytest.mark.parametrize(
    ("name", "found"), [("dot", "dot"), ("call.1", None), ("conv.1", "conv.1"), ("conv.1.0", "conv.1"), ("dot.0", None)]
)
def test_library_calls_are_found_without_the_number_of_an_older_profile(name, found):
    instructions = {name: instruction(name, opcode) for name, opcode in (("dot", "dot"), ("conv.1", "custom-call"))}
    instruction_of = find_instruction(instructions, name)
    assert (None if instruction_of is None else instruction_of.name) == found


@pytest.mark.parametrize(
    ("axes", "device", "group"),
    [(("model",), 2, (1,)), (("clients",), 2, (0,)), (("clients", "model"), 2, ()), ((), 2, ()),
     (("model", "other"), 2, ()), (("model",), 9, ())],
)  # fmt: skip
def test_group_of_a_device_is_its_place_on_the_other_axes(axes, device, group):
    assert _group(collective("c", *axes), device, MESH) == group
    assert _group(None, device, MESH) == _group(collective("c", *axes), device, None) == ()


def test_profile_of_other_programs_alone_joins_nothing():
    joined = join(event(0, "dot", 0.0, 1.0, module="jit_other"))
    assert (joined.leaves, joined.joined) == ((), 0.0)


def test_lost_event_shifts_no_later_execution():
    # Device 1 lost its first event: by number its second would meet the first of device 0.
    starts = [(0, 0.0, 5.0), (0, 10.0, 2.0), (1, 11.0, 1.0)]
    events = [event(device, "over_model", start, seconds)._replace(run=None) for device, start, seconds in starts]
    assert [leaf.wait_seconds for leaf in join(*events).leaves] == [0.0, 1.0, 0.0]


def test_programs_of_one_name_are_distinguished_by_their_instructions():
    mine = [event(0, "dot", float(n), 1.0)._replace(program=11) for n in range(2)]
    foreign = [event(0, "other", 5.0 + n, 1.0)._replace(program=28) for n in range(5)]
    joined = join(*mine, *foreign)
    assert [leaf.event.program for leaf in joined.leaves] == [11, 11]
    assert joined.joined == 1.0


def test_kernels_of_one_execution_share_its_costs():
    names = ["im2col", "gemm", "im2col", "gemm"]
    kernels = [event(0, "dot", float(n), 1.0)._replace(kernel=name) for n, name in enumerate(names)]
    assert [leaf.execution_share for leaf in join(*kernels).leaves] == [0.5] * 4


def test_nothing_joins_to_nothing():
    joined = join()
    assert (joined.leaves, joined.joined, joined.attributed) == ((), 0.0, 0.0)


def test_waiting_is_drawn_before_the_work_with_stage_and_line():
    joined = join(event(0, "over_model", 1.0, 5.0), event(1, "over_model", 4.0, 2.0))
    spans = [(span.where, span.kind, span.start_seconds, span.seconds) for span in event_records(joined.leaves, LABELS)]
    assert spans == [
        ("cpu:0", "wait", 1.0, 3.0),
        ("cpu:0", "collective", 4.0, 2.0),
        ("cpu:1", "collective", 4.0, 2.0),
    ]
    assert {(span.stage, str(span.source)) for span in event_records(joined.leaves, LABELS)} == {("2", "round.py:3")}
