"""Secure aggregation: exact sums above the threshold, nothing below it, and only masks at the server."""

import copy

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings, strategies as st
from scipy import stats

import workbench as wb
from workbench.errors import EngineError, ProgramError
from workbench.federated import algorithms
from workbench.federated.algorithms import (
    SecureSession,
    masked_sum,
    secure_aggregation_cost,
    secure_mean,
)
from workbench.federated.algorithms._chacha import chacha20_words
from workbench.federated.algorithms._shamir import PRIME, recover_secret, share_secret
from workbench.primitives import program

pytestmark = pytest.mark.usefixtures("little_optimized")
CLIENTS, SIZE = 6, 5


@pytest.fixture(autouse=True)
def cryptography():
    return pytest.importorskip("cryptography", reason="needs the extra `secure-aggregation`")


@wb.jit
@program(clients=CLIENTS)
def summed(values, masks, present):
    return masked_sum(values, masks, present)


def unmasked(values, present, threshold=4):
    masks = SecureSession(CLIENTS, threshold).masks(present)
    return np.asarray(summed(values, masks, jnp.asarray(present, jnp.float32))).view(np.int32)


@given(
    st.lists(st.integers(-(2**26), 2**26), min_size=CLIENTS * SIZE, max_size=CLIENTS * SIZE),
    st.sets(st.integers(0, CLIENTS - 1), max_size=2),
)
@settings(max_examples=12, deadline=None)
def test_sum_is_exact_with_any_tolerated_dropouts(numbers, dropped):
    values = np.array(numbers, np.int32).reshape(CLIENTS, SIZE)
    present = np.array([client not in dropped for client in range(CLIENTS)])
    np.testing.assert_array_equal(unmasked(values, present), values[present].sum(0))


@pytest.mark.parametrize("dropped", [{0}, {5}, {2, 3}], ids=str)
def test_below_the_threshold_nothing_is_recovered(dropped):
    opened = SecureSession(CLIENTS, 5).begin()
    alive = sorted(set(range(CLIENTS)) - dropped - {1})
    with pytest.raises(EngineError, match="otherwise the sum cannot be recovered"):
        opened.reveal(alive)
    assert not any(exchange == "unmasking" for exchange, _ in opened.received)


def test_clients_that_vanish_before_they_answer_do_not_matter_above_the_threshold():
    opened = SecureSession(CLIENTS, 4).begin()
    masks = opened.reveal(range(5), responders=[0, 2, 3, 4])
    values = np.arange(CLIENTS * SIZE, dtype=np.int32).reshape(CLIENTS, SIZE)
    found = summed(values, masks, jnp.asarray(masks.survived, jnp.float32))
    np.testing.assert_array_equal(np.asarray(found).view(np.int32), values[:5].sum(0))
    with pytest.raises(EngineError, match="answers of 3"):
        SecureSession(CLIENTS, 4).begin().reveal(range(5), responders=[0, 2, 3])


def test_a_client_answers_for_one_set_of_survivors_only():
    opened = SecureSession(CLIENTS, 4).begin()
    opened.reveal(range(6))
    with pytest.raises(ProgramError, match="begin a new round"):
        opened.reveal(range(5))


def test_what_the_server_receives_is_uniform_and_independent_of_the_values():
    # Two rows with very different values and all else alike: the server's words are uniform in both.
    pairs, own = begun().client_seeds()

    def row(value):
        from workbench.federated.algorithms._secure_mean import _masked

        words = _masked(jnp.full(4000, value, jnp.int32), pairs[0], own[0], jnp.int32(0), jnp.float32(1))
        return np.asarray(words) / 2**32

    assert min(stats.kstest(row(value), "uniform").pvalue for value in (0, 123_456)) > 1e-4


def test_the_plan_discloses_masked_words_only():
    masks = SecureSession(CLIENTS, 4).masks(np.ones(CLIENTS, bool))
    values = jnp.zeros((CLIENTS, SIZE), jnp.int32)
    plan = wb.trace(program(clients=CLIENTS)(masked_sum))(values, masks, jnp.ones(CLIENTS)).plan
    assert [(each.dtype, each.shape) for each in plan.disclosed] == [("uint32", (SIZE,))]
    assert {"values", "masks.pairs", "masks.own"} <= {each.name for each in plan.kept_local}


def test_revealed_seeds_are_either_a_clients_own_or_those_of_its_pairs():
    present = np.array([True, True, False, True, True, True])
    masks = SecureSession(CLIENTS, 4).masks(present)
    np.testing.assert_array_equal(masks.revealed_own.any(axis=1), present)
    np.testing.assert_array_equal(masks.revealed_pairs.any(axis=2), np.outer(~present, present))
    np.testing.assert_array_equal(masks.revealed_pairs[2, 0], masks.pairs[0, 2])


def test_seeds_of_a_pair_are_the_same_at_both_and_fresh_in_every_round():
    session = SecureSession(4, 3)
    (first, own), (second, _) = (session.begin().client_seeds() for _ in range(2))
    np.testing.assert_array_equal(first, first.transpose(1, 0, 2))
    assert len({tuple(seed) for seed in (*first[np.triu_indices(4, 1)], *own)}) == 10
    assert not (first[0, 1] == second[0, 1]).all()


def test_exchanged_bytes_are_those_of_the_cost():
    opened = SecureSession(CLIENTS, 4).begin()
    opened.reveal(range(CLIENTS))
    cost = {each.name: each for each in secure_aggregation_cost(CLIENTS, SIZE, threshold=4).rounds}
    for (exchange, _), message in opened.received.items():
        assert len(message) == cost[exchange].upload_bytes
    assert cost["masked input"].upload_bytes == 0


@pytest.mark.parametrize("words", [1, 16, 100])
def test_chacha20_is_that_of_the_library(words):
    from cryptography.hazmat.primitives.ciphers import Cipher
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

    key = bytes(range(7, 39))
    expected = np.frombuffer(Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(bytes(4 * words)), "<u4")
    np.testing.assert_array_equal(chacha20_words(jnp.asarray(np.frombuffer(key, "<u4")), words), expected)


@given(st.binary(min_size=32, max_size=32), st.integers(1, 6), st.integers(0, 3), st.randoms())
@settings(max_examples=40, deadline=None)
def test_any_threshold_of_shares_recovers_a_secret(secret, threshold, more, random):
    shares = share_secret(secret, shares=threshold + more, threshold=threshold)
    chosen = dict(random.sample(sorted(shares.items()), threshold))
    assert recover_secret(chosen, threshold=threshold) == secret


def test_fewer_shares_fit_every_secret():
    # With one share less, any secret has a polynomial through the shares: they say nothing about which it was.
    shares = share_secret(bytes(32), shares=3, threshold=3)
    two = {x: shares[x] for x in (1, 2)}
    for guess in (0, 1, 2**255):
        # The line through (0, guess) and the shares, extended to x = 3 by interpolation of degree 2 with any third.
        slope = [(two[x] - guess) * pow(x, -1, PRIME) % PRIME for x in (1, 2)]
        second = (slope[1] - slope[0]) % PRIME
        third = (guess + 3 * (slope[0] - second) + 9 * second) % PRIME
        assert int.from_bytes(recover_secret({**two, 3: third}, threshold=3), "little") == guess
    with pytest.raises(ProgramError, match="received 2 shares"):
        recover_secret(two, threshold=3)


def test_the_field_is_prime():
    # Fermat's test with some bases; a composite number passes all of them with no chance worth the name.
    assert all(pow(base, PRIME - 1, PRIME) == 1 for base in (2, 3, 5, 7, 11, 13, 17, 19, 23))


def loss(w, batch):
    return jnp.mean((w - batch["x"]) ** 2)


def test_fedavg_with_masks_is_fedavg():
    options = {"clients": CLIENTS, "client_optimizer": optax.sgd(0.25)}
    plain = algorithms.fedavg(loss, **options)
    secure = algorithms.fedavg(loss, **options, aggregator=secure_mean(CLIENTS, clip=10.0, bits=20))
    rounds = [wb.jit(plain.round), wb.jit(secure.round)]
    states = [plain.init(jnp.zeros(3)), secure.init(jnp.zeros(3))]
    x = jnp.asarray(np.random.default_rng(0).normal(size=(CLIENTS, 2, 3)), jnp.float32)
    for dropped in ((), (1,), (0, 4)):
        present = ~np.isin(np.arange(CLIENTS), dropped)
        states[1] = states[1]._replace(aggregation=SecureSession(CLIENTS, 4).masks(present))
        batches = {"x": x, "weight": jnp.asarray(present, jnp.float32)}
        states = [step(state, batches)[0] for step, state in zip(rounds, states, strict=True)]
        np.testing.assert_allclose(states[0].params, states[1].params, atol=4 * 10 / 2**20)


X = np.random.default_rng(1).normal(size=(CLIENTS, 2, 3)).astype(np.float32)


def one_round(present, weight=None, *, rounds=1):
    """Parameters after a secure round with masks for these clients, or without any masks."""
    secure = algorithms.fedavg(
        loss, clients=CLIENTS, client_optimizer=optax.sgd(0.25), aggregator=secure_mean(CLIENTS, clip=10.0, bits=20)
    )
    state = secure.init(jnp.zeros(3))
    if present is not None:
        state = state._replace(aggregation=SecureSession(CLIENTS, 4).masks(present))
    batches = {"x": jnp.asarray(X)} | ({} if weight is None else {"weight": jnp.asarray(weight, jnp.float32)})
    for _ in range(rounds):
        state = secure.round(state, batches)[0]
    return state.params


@pytest.mark.parametrize(("weight", "counted"), [(None, [0, 1, 2, 3]), ([1, 0, 3, 4, 5, 6], [0, 2, 3])], ids=str)
def test_masks_say_who_is_present_and_weights_who_counts(weight, counted):
    present = np.arange(CLIENTS) < 4
    # Two steps from 0 with rate 0.25 on the mean of three squares: each goes 1/6 of the way.
    moved = (X[:, 0] * 5 / 6 + X[:, 1]) / 6
    np.testing.assert_allclose(one_round(present, weight), moved[counted].mean(0), atol=1e-4)


def test_round_without_new_masks_gives_nan():
    everybody = np.ones(CLIENTS, bool)
    assert np.isfinite(one_round(everybody)).all()
    assert np.isnan(one_round(None)).all()
    assert np.isnan(one_round(everybody, rounds=2)).all()


def test_presence_of_another_number_of_clients_is_refused():
    with pytest.raises(ProgramError, match=r"`present` of shape \(4,\) for 5 clients"):
        SecureSession(5, 4).masks([True] * 4)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SecureSession(1, 1),
        lambda: SecureSession(6, 3),
        lambda: secure_mean(64, clip=1.0, bits=26),
        lambda: secure_mean(64, clip=1.0, noise_multiplier=1.0),
        lambda: secure_mean(64, clip=0.0),
        lambda: secure_aggregation_cost(10, 5, threshold=11),
    ],
    ids=["alone", "half", "overflow", "noise without threshold", "clip", "cost"],
)
def test_impossible_settings_are_refused(make):
    with pytest.raises(ProgramError, match="received"):
        make()


def test_cost_by_hand():
    cost = secure_aggregation_cost(100, 1000, dropouts=10)
    assert cost.threshold == 67
    assert cost.client_operations == 100 * 1000
    assert cost.server_operations == (90 + 10 * 90) * 1000
    assert cost.rounds[0].download_bytes == 99 * 2 * 32  # two X25519 keys of each other client
    assert secure_aggregation_cost(100, 1000, neighbours=20).upload_bytes < 0.25 * cost.upload_bytes


def test_masks_that_are_revealed_for_others_leave_noise():
    values = np.zeros((CLIENTS, SIZE), np.int32)
    masks = SecureSession(CLIENTS, 4).masks([True, True, True, True, True, False])
    assert np.abs(np.asarray(summed(values, masks, jnp.ones(CLIENTS))).view(np.int32)).min() > 100


def test_missing_library_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric.x25519", None)
    with pytest.raises(ImportError, match="secure-aggregation"):
        SecureSession(2, 2).begin()


# Parties that do not follow the protocol. What is not detected is in docs/threat-model.md.


def begun(threshold=4):
    return SecureSession(CLIENTS, threshold).begin()


@pytest.mark.parametrize("survivors", [[0], [0, 1, 2], [1, 2, 3, 4]], ids=str)
def test_clients_do_not_unmask_too_small_a_sum_or_one_without_themselves(survivors):
    party = begun()._parties[0]
    with pytest.raises(ProgramError, match="asked to unmask"):
        party.answer(survivors)
    assert len(party.answer([0, 1, 2, 3])) == CLIENTS  # the refusal used nothing up


def test_a_server_that_tells_clients_two_sets_of_survivors_gets_too_few_shares():
    # With more than half of the clients as the threshold, two sets cannot both get enough answers of honest clients.
    opened, answers = begun(), {}
    for number, told in [(n, [0, 1, 2, 3]) for n in range(3)] + [(n, [2, 3, 4, 5]) for n in range(3, 6)]:
        answers[number] = opened._parties[number].answer(told)
    for client in (0, 1, 4, 5):  # alive in one of the sets: shares of its seed from some, of its key from the others
        seed = {n + 1: answers[n][client] for n in range(CLIENTS) if (n < 3) == (client < 2)}
        with pytest.raises(ProgramError, match="received 3 shares"):
            recover_secret(seed, threshold=4)


@pytest.mark.parametrize("survivors", [range(6), range(5)], ids=["all stay", "one dropped out"])
@pytest.mark.parametrize("of", [0, 5])
def test_a_wrong_share_is_detected_where_more_than_the_threshold_answer(monkeypatch, survivors, of):
    opened = begun()
    honest = opened._parties[2].answer

    def lying(alive):
        shares = honest(alive)
        shares[of] = (shares[of] + 1) % PRIME
        return shares

    monkeypatch.setattr(opened._parties[2], "answer", lying)
    with pytest.raises(EngineError, match=f"a secret of client {of}"):
        opened.reveal(survivors)


def test_a_wrong_share_of_a_key_is_detected_at_the_threshold(monkeypatch):
    opened = begun()
    honest = opened._parties[2].answer
    monkeypatch.setattr(opened._parties[2], "answer", lambda alive: [share ^ 2**100 for share in honest(alive)])
    with pytest.raises(EngineError, match="inconsistent shares"):
        opened.reveal(range(4))


@pytest.mark.parametrize("share", [-1, PRIME, 2**600], ids=["negative", "the prime", "too long"])
def test_a_share_that_is_out_of_range_is_refused_with_the_client(monkeypatch, share):
    opened = begun()
    monkeypatch.setattr(opened._parties[2], "answer", lambda alive: [share] * CLIENTS)
    with pytest.raises(EngineError, match="as a share of client 2"):
        opened.reveal(range(6))


def test_words_out_of_the_range_of_updates_are_taken_modulo_two_to_the_32():
    values = np.zeros((CLIENTS, SIZE), np.int32)
    values[0], values[1] = 2**31 - 1, 2
    np.testing.assert_array_equal(unmasked(values, [True] * CLIENTS), np.full(SIZE, 1 - 2**31))


@pytest.mark.parametrize(("threshold", "unmasked_by_two"), [(4, True), (5, False)])
def test_a_server_with_two_clients_needs_a_threshold_of_half_of_all_and_them(threshold, unmasked_by_two):
    # Out of scope below that threshold. Clients 2 and 3 answer for both sets of survivors.
    opened = begun(threshold)
    sets = ([0, 1, 2, 3, 4][:threshold], [5, 4, 3, 2, 1][:threshold])
    told = {0: 0, 1: 0, 4: 1, 5: 1}
    answers = ({}, {})
    for each, survivors in enumerate(sets):
        for number in (2, 3, *(n for n in told if told[n] == each)):
            answers[each][number] = copy.deepcopy(opened._parties[number]).answer(sorted(survivors))
    shares = [{number + 1: answer[0] for number, answer in each.items()} for each in answers]  # of client 0
    assert [len(each) >= threshold for each in shares] == [unmasked_by_two] * 2
    if unmasked_by_two:
        assert recover_secret(shares[0], threshold=threshold) == opened._parties[0].seed
        assert recover_secret(shares[1], threshold=threshold) == opened._parties[0]._masking


def test_a_server_that_invents_all_other_clients_reads_an_update():
    # Out of scope: keys are not signed.
    values = np.zeros((CLIENTS, SIZE), np.int32)
    values[3] = 7
    np.testing.assert_array_equal(unmasked(values, [True] * CLIENTS), values[3])


def test_changed_and_replayed_messages_of_shares_are_refused():
    earlier, opened = begun(), begun()
    party = opened._parties[1]
    party.sealed[3] = earlier._parties[1].sealed[3]
    with pytest.raises(EngineError, match="client 3 sealed"):
        party.answer(list(range(6)))


def test_a_client_that_lies_about_its_update_is_not_noticed():
    # Out of scope: words are masked, so nobody can bound them. Stated in the threat model.
    values = np.ones((CLIENTS, SIZE), np.int32)
    values[2] = 10**6
    np.testing.assert_array_equal(unmasked(values, [True] * CLIENTS), np.full(SIZE, 10**6 + CLIENTS - 1))
