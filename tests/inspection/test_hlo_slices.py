"""Programs on several slices of a TPU: each slice runs a module of its own, and they meet by send and receive."""

import pytest

from workbench.cost import collective_seconds, known_chip
from workbench.inspection import inspect_module
from workbench.records.hardware import AxisRecord, DeviceRecord, MeshRecord

TRANSFER = """is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",\
_xla_host_transfer_rendezvous="all-reduce_0",_xla_megascale_reduce_operation="SUM",_xla_megascale_target="{1,2}x{0:3}",\
_xla_megascale_transfer_type="ALL_REDUCE"}"""
# As libtpu compiles the mean over the clients of two slices, without layouts and backend configuration.
HLO = f"""HloModule jit_f, is_scheduled=true, num_partitions=4

add {{
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}}

ENTRY main {{
  %p = f32[8,16] parameter(0)
  %work = f32[8,16] multiply(%p, %p), metadata={{op_name="jit(f)/wb:1:clients/mul"}}
  %after-all = token[] after-all()
  %reduce-scatter = f32[2,16] reduce-scatter(%work), channel_id=1, replica_groups={{{{0,1,2,3}}}}, \
use_global_device_ids=true, dimensions={{0}}, to_apply=add
  %send = (f32[2,16], u32[], token[]) send(%reduce-scatter, %after-all), channel_id=2, {TRANSFER}
  %recv = (f32[2,16], u32[], token[]) recv(%after-all), channel_id=1, {TRANSFER}
  %send-done = token[] send-done(%send), channel_id=2
  %recv-done = (f32[2,16], token[]) recv-done(%recv), channel_id=1
  %received = f32[2,16] get-tuple-element(%recv-done), index=0
  %all-gather = f32[8,16] all-gather(%received), channel_id=3, replica_groups={{{{0,1,2,3}}}}, dimensions={{0}}, \
use_global_device_ids=true
  ROOT %mean = f32[8,16] multiply(%all-gather, %all-gather), metadata={{op_name="jit(f)/wb:2:reduce/div"}}
}}
"""


def mesh(*axes: tuple[str, int]) -> MeshRecord:
    """Eight devices of two slices of four, the first axis across them."""
    devices = tuple(DeviceRecord(id=i, position=(), platform="tpu", slice_index=i // 4) for i in range(8))
    return MeshRecord(axes=tuple(AxisRecord(name=name, size=size) for name, size in axes), devices=devices)


@pytest.fixture(scope="module")
def found():
    return {c.kind: c for c in inspect_module(HLO, mesh=mesh(("slices", 2), ("clients", 4))).collectives}


def test_axes_inside_of_a_slice_and_across_slices_are_named(found):
    assert {kind: (c.axes, c.group_size) for kind, c in found.items()} == {
        "reduce-scatter": (("clients",), 4),
        "send": (("slices",), 2),
        "recv": (("slices",), 2),
        "all-gather": (("clients",), 4),
    }


def test_parts_of_one_axis_are_named_where_it_spans_the_slices():
    collectives = inspect_module(HLO, mesh=mesh(("clients", 8))).collectives
    assert {c.kind: c.axes for c in collectives} == {
        "reduce-scatter": ("clients[4 of 8]",),
        "send": ("clients[2 of 8]",),
        "recv": ("clients[2 of 8]",),
        "all-gather": ("clients[4 of 8]",),
    }


def test_all_parts_of_a_reduction_over_slices_are_of_its_stage(found):
    assert {c.stages for c in found.values()} == {("2",)}


def test_only_what_leaves_the_slice_takes_the_data_centre_network(found):
    assert {kind for kind, c in found.items() if c.across_slices} == {"send", "recv"}
    chip = known_chip("v5p")
    assert found["send"].wire_bytes == 2 * 16 * 4
    seconds = collective_seconds("send", 1e9, 2, chip, across_slices=True)
    attained = 0.88  # share of the published bandwidth that networks between hosts reach
    assert seconds == pytest.approx(1e9 / (attained * chip.dcn_bytes_per_second), rel=1e-3)
    assert collective_seconds("send", 1e9, 2, known_chip("v4"), across_slices=True) is None  # not published


SUM = """HloModule jit_f, is_scheduled=true, num_partitions=8

add {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT sum = f32[] add(x, y)
}

ENTRY main {
  %p = f32[8,16] parameter(0)
  %inside = f32[8,16] all-reduce(%p), channel_id=1, replica_groups={{0,1,2,3},{4,5,6,7}}, \
use_global_device_ids=true, to_apply=add
  ROOT %between = f32[8,16] all-reduce(%inside), channel_id=2, replica_groups={{0,4},{1,5},{2,6},{3,7}}, \
use_global_device_ids=true, to_apply=add
}
"""


@pytest.mark.parametrize(
    ("platform", "per_host", "hosts"),
    [
        ("cuda", 4, {"inside": 1, "between": 2}),
        ("cuda", 8, {"inside": 1, "between": 1}),
        ("cuda", 1, {"inside": None, "between": None}),  # a process for each GPU may share a host with others
        ("tpu", 4, {"inside": None, "between": None}),
    ],
)
def test_hosts_of_a_group_of_gpus_are_counted(platform, per_host, hosts):
    devices = tuple(DeviceRecord(id=i, position=(), platform=platform, host=i // per_host) for i in range(8))
    axes = (AxisRecord(name="data", size=2), AxisRecord(name="model", size=4))
    found = inspect_module(SUM, mesh=MeshRecord(axes=axes, devices=devices)).collectives
    assert {c.name: c.hosts for c in found} == hosts
