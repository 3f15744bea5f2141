import math

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from workbench.errors import DataError
from workbench.federated import data as wd
from workbench.federated.data._partition import Partition

LABELS = np.random.default_rng(0).integers(0, 5, 200)

MAKERS = {
    "iid": lambda seed, clients=10: wd.iid(200, clients, seed=seed),
    "dirichlet": lambda seed, clients=10: wd.dirichlet(LABELS, clients, alpha=0.3, seed=seed),
    "dirichlet extreme": lambda seed, clients=10: wd.dirichlet(LABELS, clients, alpha=1e-4, seed=seed),
    "dirichlet infinite": lambda seed, clients=10: wd.dirichlet(LABELS, clients, alpha=math.inf, seed=seed),
    "hsu": lambda seed, clients=10: wd.dirichlet(LABELS, clients, alpha=0.3, seed=seed, equal_sizes=True),
    "hsu extreme": lambda seed, clients=10: wd.dirichlet(LABELS, clients, alpha=1e-4, seed=seed, equal_sizes=True),
    "hsu infinite": lambda seed, clients=10: wd.dirichlet(LABELS, clients, alpha=math.inf, seed=seed, equal_sizes=True),
    "shards": lambda seed, clients=10: wd.shards(LABELS, clients, seed=seed),
}


def held(partition):
    return [rows.tolist() for rows in partition.rows]


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32), clients=st.integers(1, 60))
def test_every_example_is_held_exactly_once_and_nobody_is_empty(make, seed, clients):
    partition = make(seed, clients)
    assert sorted(np.concatenate(partition.rows).tolist()) == list(range(200))
    assert len(partition.clients) == clients
    assert min(len(rows) for rows in partition.rows) >= 1


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_the_seed_decides_the_partition(make):
    assert held(make(3)) == held(make(3))
    assert held(make(3)) != held(make(4))


@pytest.mark.parametrize("make", [MAKERS["iid"], MAKERS["hsu"]], ids=["iid", "hsu"])
def test_equal_sizes_differ_by_one_at_most(make):
    sizes = [len(rows) for rows in make(0, 7).rows]
    assert max(sizes) - min(sizes) == 1  # 200 = 7 * 28 + 4


def skew(partition):
    return wd.describe(wd.federate(LABELS, LABELS, partition)).mean_total_variation


# Hsu's alpha is spread over the classes: 5 of it is 1 for each of 5 classes.
@pytest.mark.parametrize(("mild", "equal_sizes"), [(1.0, False), (5.0, True)], ids=["ragged", "hsu"])
def test_smaller_alpha_means_more_label_heterogeneity(mild, equal_sizes):
    skews = [
        skew(wd.dirichlet(LABELS, 8, alpha=alpha, seed=1, equal_sizes=equal_sizes)) for alpha in (0.01, mild, math.inf)
    ]
    assert skews[0] > skews[1] + 0.1 > skews[2] + 0.2


def test_dirichlet_of_infinite_alpha_splits_every_class_evenly():
    labels = np.repeat([0, 1, 2], 8)
    for rows in wd.dirichlet(labels, 4, alpha=math.inf, seed=0).rows:
        assert np.bincount(labels[rows]).tolist() == [2, 2, 2]


def test_hsu_at_tiny_alpha_gives_one_class_each_while_classes_last():
    # 4 clients of 10, 4 classes of 10: as long as a class is left whole, a client's only class fills its share.
    labels = np.repeat([0, 1, 2, 3], 10)
    rows = wd.dirichlet(labels, 4, alpha=1e-6, seed=0, equal_sizes=True).rows
    assert len(set(labels[rows[0]].tolist())) == 1


def test_dirichlet_proportions_have_the_moments_of_the_law():
    # One class, n = 20000 examples, J = 4 clients: shares ~ Dirichlet(a, a, a, a) with mean 1/4 and variance
    # (1/4)(3/4) / (4a + 1) = 0.0375 at a = 1. Over 400 draws of 4 shares the variance is known to about 6 %.
    labels = np.zeros(20_000, int)
    sizes = [[len(r) for r in wd.dirichlet(labels, 4, alpha=1.0, seed=s).rows] for s in range(400)]
    shares = np.array(sizes) / 20_000
    assert shares.mean() == pytest.approx(0.25)
    assert shares.var() == pytest.approx(0.0375, rel=0.2)


def test_min_examples_is_kept_when_heterogeneity_would_break_it():
    partition = wd.dirichlet(LABELS, 40, alpha=0.01, seed=0, min_examples=4)
    assert min(len(rows) for rows in partition.rows) >= 4


def test_two_shards_of_whole_classes_show_at_most_two_classes():
    # 20 shards of 10 over 5 classes of exactly 40: no shard crosses a class.
    labels = np.tile(np.arange(5), 40)
    partition = wd.shards(labels, 10, shards_per_client=2, seed=0)
    assert all(len(rows) == 20 for rows in partition.rows)
    assert max(len(set(labels[rows].tolist())) for rows in partition.rows) == 2


def test_natural_ids_become_clients():
    partition = wd.by_natural_id([7, 3, 7, 12])
    assert partition.clients == ("3", "7", "12")
    assert held(partition) == [[1], [0, 2], [3]]


def test_client_ids_sort_like_their_numbers():
    ids = wd.iid(20, 11, seed=0).clients
    assert ids[:2] == ("client_00", "client_01")
    assert list(ids) == sorted(ids)


def rows(*lists):
    return tuple(np.array(values) for values in lists)


WRONG = {
    "twice": (lambda: Partition(rows([0, 1], [1])), r"rows of several clients: \[1\], rows of no client: \[2\]"),
    "hole": (lambda: Partition(rows([0, 3], [1])), r"rows of no client: \[2\]"),
    "negative": (lambda: Partition(rows([0, -1])), r"rows of no client: \[1\]"),
    "float rows": (lambda: Partition(rows([0.0, 1.0])), "row numbers of dtype float64"),
    "nothing": (lambda: Partition(()), "no examples at all"),
    "same id": (lambda: Partition(rows([0], [1]), ("a", "a")), "1 distinct ids for 2 clients"),
    "alpha": (lambda: wd.dirichlet([0, 1], 2, alpha=0.0, seed=0), r"alpha=0\.0.*must be positive: use 0\.1"),
    "alpha nan": (lambda: wd.dirichlet([0, 1], 2, alpha=math.nan, seed=0), "alpha=nan"),
    "float labels": (
        lambda: wd.dirichlet([0.5, 1.5], 2, alpha=1, seed=0),
        r"dtype float64 and shape \(2,\).*numpy\.digitize",
    ),
    "2-D labels": (
        lambda: wd.shards([[0, 1]], 1, seed=0),
        r"`shards` was given labels of dtype int64 and shape \(1, 2",
    ),
    "too few": (lambda: wd.iid(3, 0, seed=0), "3 examples over 0 clients"),
    "too few each": (
        lambda: wd.dirichlet([0, 1, 1], 2, alpha=1, seed=0, min_examples=2),
        r"3 examples over 2 clients with at least 2 each, which needs 4.*use 1 clients or fewer",
    ),
    "more shards than rows": (lambda: wd.shards([0, 1, 2], 2, seed=0), "with at least 2 each"),
}


@pytest.mark.parametrize(("make", "fact"), WRONG.values(), ids=WRONG.keys())
def test_impossible_partitions_are_explained(make, fact):
    with pytest.raises(DataError, match=fact):
        make()
