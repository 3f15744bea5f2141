"""Client operations on every kind of mesh, in processes whose exit code is part of the answer.

Operations that have a lowering of their own run on all kinds of mesh, every other one on two of the eight, in turn. All
on all are run by `python benchmarks/client_meshes.py`.
"""

import pytest
from mesh_operations import ALONE, MESHES, OPERATIONS, Answers, Orders, answer

KINDS = list(MESHES)
ON_ALL = ALONE | {"take", "take_along_axis", "cross_entropy", "embedding_gradient"}
ORDERS: Orders = [
    (kind, [operation])
    for number, operation in enumerate(OPERATIONS)
    for kind in (KINDS if operation in ON_ALL else (KINDS[number % 8], KINDS[(number + 3) % 8]))
]


@pytest.fixture(scope="module")
def answers() -> Answers:
    """What is wrong with each (kind of mesh, *operations), empty where nothing is."""
    return answer(ORDERS)


def test_table_is_as_wide_as_promised() -> None:
    assert len(OPERATIONS) >= 60
    assert len(MESHES) == 8
    assert ON_ALL <= OPERATIONS.keys()


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_client_operations_equal_vmap_and_end_no_process(mesh: str, answers: Answers) -> None:
    of_mesh = {key[1:]: wrong for key, wrong in answers.items() if key[0] == mesh}
    assert len(of_mesh) == sum(kind == mesh for kind, _ in ORDERS)
    assert {names: wrong for names, wrong in of_mesh.items() if wrong} == {}
