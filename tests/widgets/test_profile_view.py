"""A recorded profile as the state of its views."""

from pathlib import Path

import numpy as np
import pytest
import workbench_widgets
from workbench_widgets._profile import join_trees, profile_state

from workbench.measurement import open_profile
from workbench.records.profile import ProfiledDeviceRecord, ProfileRecord

RECORDED = Path(__file__).parents[1] / "recorded"


@pytest.fixture(scope="module")
def chips():
    return open_profile(RECORDED / "tpu_v6e_4chips_host_offload.xplane.pb")


def floats(arrays, name):
    return np.frombuffer(arrays[name], np.float32)


def test_call_tree_of_all_programs_has_all_seconds(chips):
    _, arrays = profile_state(chips)
    assert floats(arrays, "operations/tree.measured")[0] == pytest.approx(chips.seconds, rel=1e-5)
    by_device = [floats(arrays, f"operations/tree.tpu:{device}")[0] for device in range(4)]
    assert sum(by_device) == pytest.approx(chips.seconds, rel=1e-5)


def test_programs_are_below_one_root(chips):
    tree = join_trees(chips)
    assert [node.name for node in tree.nodes if node.parent == 0] == [program.name for program in chips.programs]
    assert all(node.parent is None or node.parent < node.id for node in tree.nodes)


def test_operations_are_columns_with_unknown_figures_as_nan(chips):
    parts, arrays = profile_state(chips)
    names = parts["measured"]["names"]
    seconds, predicted = floats(arrays, "measured/seconds"), floats(arrays, "measured/predicted")
    assert seconds.sum() == pytest.approx(chips.seconds, rel=1e-5)
    assert np.isnan(predicted[names.index("copy-done.2")])
    assert predicted[names.index("all-reduce")] > 0


def test_roof_is_that_of_one_device(chips):
    chip = profile_state(chips)[0]["measured"]["chip"]
    assert chips.chip is not None
    assert chip["bandwidth"] == chips.chip.hbm_bytes_per_second / chips.chip.devices_per_chip


def test_parts_of_a_device_sum_to_its_span():
    device = ProfiledDeviceRecord(
        where="tpu:0", platform="tpu", span_seconds=10.0, compute_seconds=4.0, collective_seconds=3.0, wait_seconds=1.0
    )
    state, _ = profile_state(ProfileRecord(name="p", files=(), devices=(device,)))
    # Of three seconds of collectives one is waiting; nothing ran for three of ten seconds.
    assert state["split"]["devices"][0]["seconds"] == [4.0, 2.0, 0.0, 0.0, 1.0, 3.0]


def test_record_opens_as_a_widget_with_the_tabs_that_it_has_something_for(chips):
    view = workbench_widgets.show_record(chips)
    assert [each["key"] for each in view.data["views"]] == ["operations", "measured", "split", "timeline"]
    assert "24 %" in view.data["headline"][0]["text"]
    view.close()


def test_unknown_view_of_a_profile_is_refused(chips):
    with pytest.raises(ValueError, match="has the views operations, measured"):
        workbench_widgets.ProfileView(chips, view="allocators")


def test_copy_has_one_name_for_its_start_and_its_end(chips):
    names = profile_state(chips)[0]["operations"]["names"]
    assert "copy-start and copy-done" in names
    assert not [name for name in names if name.endswith("-start")]


def test_headline_names_the_kind_of_operation_where_several_lead(chips):
    text = profile_state(chips)[0] and workbench_widgets.ProfileView(chips).data["headline"][0]["text"]
    by_category = chips.seconds_by_category()
    category = max(by_category, key=by_category.__getitem__)
    members = [each.seconds for each in chips.operations if each.category == category]
    share = round(100 * sum(members) / chips.seconds)
    assert text.startswith(f"{category}: {share} % of the busy time in {len(members)} operations, ")


def test_operation_carries_its_instruction_with_shapes(chips):
    measured = profile_state(chips)[0]["measured"]
    text = measured["hlo"][measured["names"].index("all-reduce")]
    assert "all-reduce(" in text
    assert "[" in text.partition("all-reduce(")[2]  # the shape of its operand
