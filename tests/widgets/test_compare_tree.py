import numpy as np
from workbench_widgets._compare_tree import compare_tree_state

from workbench.records.call_tree import CallFiguresRecord, CallNodeRecord, CallTreeRecord


def tree(*nodes: tuple[int | None, str, str, float]) -> CallTreeRecord:
    made = tuple(
        CallNodeRecord(
            id=at,
            parent=parent,
            kind=kind,  # pyright: ignore[reportArgumentType]
            name=name,
            total=CallFiguresRecord(flops_matmul=flops),
        )
        for at, (parent, kind, name, flops) in enumerate(nodes)
    )
    return CallTreeRecord(made_from="compiled", nodes=made)


BEFORE = tree(
    (None, "root", "step", 9.0), (0, "function", "f", 6.0), (1, "scope", "Linear", 6.0), (0, "scope", "old", 3.0)
)
AFTER = tree(
    (None, "root", "step2", 12.0), (0, "scope", "new", 2.0), (0, "function", "f", 10.0), (2, "scope", "Linear", 10.0)
)


def column(arrays: dict, name: str) -> np.ndarray:
    return np.frombuffer(arrays[name], dtype=np.float32)


def test_nodes_of_the_same_place_are_one_row_with_both_figures():
    state, arrays = compare_tree_state([BEFORE, AFTER])
    assert state["tree_names"] == ["step2", "f", "Linear", "old", "new"]
    np.testing.assert_array_equal(column(arrays, "tree.parent"), [-1, 0, 1, 0, 0])
    np.testing.assert_array_equal(column(arrays, "tree.flops.a"), [9, 6, 6, 3, np.nan])
    np.testing.assert_array_equal(column(arrays, "tree.flops.b"), [12, 10, 10, np.nan, 2])


def test_figures_that_are_zero_everywhere_have_no_column():
    state, _ = compare_tree_state([BEFORE, AFTER])
    assert [each["key"] for each in state["tree_columns"]] == ["flops", "matmul"]


def test_the_only_function_of_a_program_is_matched_whatever_it_is_called():
    before = tree((None, "root", "f", 4.0), (0, "function", "loss", 4.0), (1, "scope", "Linear", 4.0))
    after = tree((None, "root", "g", 6.0), (0, "function", "loss_with_remat", 6.0), (1, "scope", "Linear", 6.0))
    state, arrays = compare_tree_state([before, after])
    assert state["tree_names"] == ["g", "loss_with_remat", "Linear"]
    np.testing.assert_array_equal(column(arrays, "tree.flops.a"), [4, 4, 4])
    np.testing.assert_array_equal(column(arrays, "tree.flops.b"), [6, 6, 6])
