"""Numbers of clients are uniform, independent and the same whenever they are looked at."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

from workbench.federated.population._draws import Permutation, draw_bits, draw_normal, draw_uniform, key_of, parts_of

IDS = np.arange(50_000)


def test_uniform_draws_are_uniform():
    assert stats.kstest(draw_uniform(key_of(0, "a"), IDS), "uniform").pvalue > 0.001


def test_normal_draws_are_normal():
    assert stats.kstest(draw_normal(key_of(0, "a"), IDS), "norm").pvalue > 0.001


def test_parts_of_one_draw_are_uniform_and_independent():
    parts = np.stack(parts_of(draw_bits(key_of(0, "a"), IDS)))
    assert min(stats.kstest(part, "uniform").pvalue for part in parts) > 0.001
    np.testing.assert_allclose(np.corrcoef(parts), np.eye(4), atol=0.02)


def test_streams_of_two_keys_are_independent():
    first, second = (draw_uniform(key_of(seed, "a"), IDS) for seed in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.02


def test_neighbouring_counters_are_independent():
    draws = draw_uniform(key_of(0, "a"), IDS)
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.02


@given(st.integers(1, 3000), st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_permutation_holds_every_number_once(size: int, seed: int):
    order = Permutation(size, key_of(seed, "order"))
    assert sorted(order.stretch(0, order.positions).tolist()) == list(range(size))


def test_permutation_is_the_same_in_stretches():
    order = Permutation(1000, key_of(0, "order"))
    parts = [order.stretch(start, start + 100) for start in range(0, order.positions, 100)]
    np.testing.assert_array_equal(np.concatenate(parts), order.stretch(0, order.positions))


@pytest.mark.parametrize("size", [97, 10_000])
def test_first_number_of_an_order_is_uniform(size: int):
    firsts = [Permutation(size, key_of(seed, "order")).stretch(0, 8)[0] for seed in range(2000)]
    assert stats.kstest(np.array(firsts) / size, "uniform").pvalue > 0.001
