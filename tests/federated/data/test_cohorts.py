import itertools

import jax
import numpy as np
import pytest

from workbench.errors import DataError
from workbench.federated import data as wd
from workbench.federated.data._cohorts import sample_clients


def clients(n=10):
    return wd.ClientData(arrays={f"c{i}": {"x": np.full(i + 1, float(i))} for i in range(n)})


def test_a_cohort_holds_distinct_clients_in_order():
    drawn = sample_clients(0, 50, 20)
    assert len(set(drawn.tolist())) == 20
    assert drawn.tolist() == sorted(drawn.tolist())
    assert 0 <= drawn.min() <= drawn.max() < 50


def test_the_key_decides_the_cohort():
    assert sample_clients(7, 50, 5).tolist() == sample_clients(7, 50, 5).tolist()
    assert len({tuple(sample_clients(key, 50, 5).tolist()) for key in range(10)}) == 10
    key = jax.random.key(7)
    assert sample_clients(key, 50, 5).tolist() == sample_clients(key, 50, 5).tolist()


def test_every_client_is_drawn_equally_often():
    # 2000 rounds of 3 out of 6: each client 1000 times on average, standard deviation sqrt(2000 / 4) = 22.4.
    times = np.bincount(np.concatenate([sample_clients(key, 6, 3) for key in range(2000)]), minlength=6)
    assert abs(times - 1000).max() < 5 * 22.4


def test_a_weight_of_zero_is_never_drawn():
    drawn = [sample_clients(key, 4, 2, weight=[1, 0, 1, 2]) for key in range(50)]
    assert 1 not in np.concatenate(drawn)


def test_rounds_have_equal_shapes_and_different_cohorts():
    rounds = list(wd.cohorts(clients(), 4, key=0, rounds=6, batch_size=3, epochs=2, multiple_of=8))
    assert {padded["x"].shape for padded in rounds} == {(8, 8, 3)}  # longest client 10: 4 steps of 3, twice
    assert all(padded.clients[4:] == ("",) * 4 for padded in rounds)
    assert len({padded.clients for padded in rounds}) > 1


def test_a_round_depends_on_the_key_and_its_number_only():
    short = list(wd.cohorts(clients(), 3, key=1, rounds=3))
    endless = list(itertools.islice(wd.cohorts(clients(), 3, key=1), 5))
    assert [r.clients for r in short] == [r.clients for r in endless[:3]]
    assert [r.clients for r in wd.cohorts(clients(), 3, key=2, rounds=3)] != [r.clients for r in short]


def test_a_program_over_cohorts_compiles_once():
    traced = []

    @jax.jit
    def total(tree):
        traced.append(1)
        return jax.numpy.sum(tree["x"], where=tree["mask"])

    for padded in wd.cohorts(clients(), 3, key=0, rounds=4):
        expected = sum(int(c[1:]) * (int(c[1:]) + 1) for c in padded.clients)  # client i holds i + 1 times i
        assert float(total(padded.tree)) == expected
    assert len(traced) == 1


@pytest.mark.parametrize(
    ("call", "fact"),
    [
        (
            lambda: sample_clients(0, 5, 6),
            "cohort of 6 from 5 clients, of which 5 can be drawn.*pass a `cohort` from 1 to 5",
        ),
        (lambda: sample_clients(0, 5, 0), "cohort of 0"),
        (lambda: sample_clients(0, 3, 3, weight=[1, 1, 0]), "of which 2 can be"),
        (lambda: sample_clients(0, 3, 1, weight=[1, 1]), r"weights of shape \(2,\).*pass shape \(3,\)"),
        (lambda: sample_clients(0, 2, 1, weight=[1, -1]), r"smallest -1\.0"),
        (lambda: sample_clients(0, 2, 1, weight=[0, 0]), "at least one weight must be positive"),
        (lambda: next(wd.cohorts(clients(3), 4, key=0)), "cohort of 4 from 3"),
    ],
    ids=["too many", "none", "too many by weight", "shape", "negative", "all zero", "in cohorts"],
)
def test_impossible_cohorts_are_explained(call, fact):
    with pytest.raises(DataError, match=fact):
        call()
