"""The noise of `secure_mean`: its distribution, whose secret it is, and what it is worth."""

import functools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import workbench as wb
from workbench.errors import ProgramError
from workbench.federated import algorithms
from workbench.federated.algorithms import SecureSession, secure_epsilon, secure_mean
from workbench.federated.algorithms._discrete_gaussian import MOST_LOG2_DEVIATION, discrete_gaussian, squares_exceed
from workbench.federated.algorithms._secure_noise import NoiseGrid, noise_grid, sum_divergence
from workbench.primitives import program

pytestmark = pytest.mark.usefixtures("little_optimized")
CLIENTS, THRESHOLD, VALUES = 5, 3, 3000
ALL = np.ones(CLIENTS, bool)
KEY = bytes(range(40, 72))


@pytest.fixture(autouse=True)
def cryptography():
    return pytest.importorskip("cryptography", reason="needs the extra `secure-aggregation`")


def words(key: bytes):
    return jnp.asarray(np.frombuffer(key, "<u4"))


# An independent sampler: nested loops over Python's integers, and the library's key stream.


class Coins:
    """The random bits of one lane, two words for each question."""

    def __init__(self, key: bytes, lane: int, lanes: int, bits: int) -> None:
        self._key, self._lane, self._lanes, self._bits, self._step = key, lane, lanes, bits, 0

    def next(self) -> tuple[int, int, int]:
        from cryptography.hazmat.primitives.ciphers import Cipher
        from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

        nonce = bytes(4) + self._step.to_bytes(4, "little") + bytes(8)
        self._step += 1
        stream = Cipher(ChaCha20(self._key, nonce), None).encryptor().update(bytes(8 * self._lanes))
        row = np.frombuffer(stream, "<u4")
        first, second = int(row[self._lane]), int(row[self._lanes + self._lane])
        return first >> (32 - self._bits), second >> (32 - self._bits), first % 64 + 64 * (second % 64)


def event(coins: Coins, chance) -> bool:
    """True with probability exp(-x), where one trial of `chance(a, b, choice, n)` has probability x / n, or is None."""
    n = 1
    while True:
        trial = chance(*coins.next(), n)
        if trial is None:
            continue
        if not trial:
            return n % 2 == 1
        n += 1


def one_of(options: int, choice: int) -> bool | None:
    return None if choice >= 4096 // options * options else choice % options == 0


def half(a, b, choice, n):
    return one_of(2 * n, choice)


def reference_draw(coins: Coins, bits: int) -> int:
    """Karney's algorithm D for the deviation 2^bits."""
    while True:
        v = 0
        while event(coins, half):
            v += 1
        if not all(event(coins, half) for _ in range(v * (v - 1))):
            continue
        u, b, _ = coins.next()
        if b % 2 == 1 and (u, v) == (0, 0):
            continue

        def linear(a, _, choice, n, u=u):
            free = one_of(n, choice)
            return free and a < u

        def square(a, b, choice, n, u=u):
            free = one_of(2 * n, choice)
            return free and a < u and b < u

        if all(event(coins, linear) for _ in range(v)) and event(coins, square):
            return (-1) ** (b % 2) * (v * 2**bits + u)


def reference_integers(bits: int, size: int) -> np.ndarray:
    lanes = -(-size // 64)
    coins = [Coins(KEY, lane, lanes, bits) for lane in range(lanes)]
    rows = [[reference_draw(coins[lane], bits) for lane in range(lanes)] for _ in range(-(-size // lanes))]
    return np.array(rows).reshape(-1)[:size]


# The deviation is an argument here, so that all deviations share one compiled program.
drawn_at = jax.jit(discrete_gaussian, static_argnums=1)


@pytest.mark.parametrize(("bits", "size"), [(1, 70), (2, 5), (26, 70)])
def test_integers_are_those_of_the_algorithm_with_python_integers(bits, size):
    np.testing.assert_array_equal(discrete_gaussian(words(KEY), size, bits), reference_integers(bits, size))


@pytest.mark.parametrize("bits", range(1, MOST_LOG2_DEVIATION + 1))
def test_integers_of_every_deviation_are_those_of_the_algorithm(bits):
    np.testing.assert_array_equal(drawn_at(words(KEY), 70, jnp.uint32(bits)), reference_integers(bits, 70))


def probabilities(deviation: int, most: int) -> np.ndarray:
    """Of -most … most, from the definition."""
    x = np.arange(-most, most + 1, dtype=np.float64)
    found = np.exp(-(x**2) / (2 * deviation**2))
    return found / found.sum()


@pytest.mark.parametrize("log2", [1, 2, 3])
def test_small_deviations_have_the_probabilities_of_the_definition(log2):
    drawn = np.asarray(drawn_at(words(KEY), 20_000, jnp.uint32(log2)))
    most = 3 * 2**log2
    expected = probabilities(2**log2, 40 * 2**log2)
    middle = expected[len(expected) // 2 - most : len(expected) // 2 + most + 1]
    counts = np.array([(drawn == x).sum() for x in range(-most, most + 1)])
    outside = [len(drawn) - counts.sum(), len(drawn) * (1 - middle.sum())]
    found, due = np.append(counts, outside[0]), np.append(middle * len(drawn), outside[1])
    assert stats.chisquare(found, due).pvalue > 1e-4


@wb.jit
@program(clients=CLIENTS)
def raw_noise(secret):
    return wb.map_fn(lambda key: discrete_gaussian(key, 4000, 14), (secret,))


def test_clients_draw_independently():
    rows = np.asarray(raw_noise(SecureSession(CLIENTS, THRESHOLD).masks(ALL).noise), np.float64)
    assert np.abs(np.corrcoef(rows) - np.eye(CLIENTS)).max() < 5 / math.sqrt(rows.shape[1])


@functools.cache
def mean_of(bits: int, multiplier: float):
    aggregator = secure_mean(CLIENTS, clip=1.0, bits=bits, noise_multiplier=multiplier, threshold=THRESHOLD)

    @wb.jit
    @program(clients=CLIENTS)
    def mean(update, masks):
        return aggregator.combine(update, jnp.ones(CLIENTS), masks)[0]

    return mean


def published(bits: int, multiplier: float, present, *, update=None, masks=None) -> np.ndarray:
    """The integers of the published sum, for zeros as updates."""
    grid = grid_of(bits, multiplier)
    masks = SecureSession(CLIENTS, THRESHOLD).masks(present) if masks is None else masks
    found = mean_of(bits, multiplier)(jnp.zeros((CLIENTS, VALUES)) if update is None else update, masks)
    total = np.asarray(found, np.float64) * np.sum(present) / grid.unit
    assert np.abs(total - np.round(total)).max() < 0.01 + 2**-22 * np.abs(total).max()
    return np.round(total).astype(np.int64)


FEW = [(6, 0.5), (12, 1.0), (16, 2.0), (20, 1.0), (24, 0.25)]
GRID = [(b, m) for b in (1, 4, 6, 8, 12, 16, 20, 24, 28) for m in (0.125, 0.25, 0.5, 1.0, 2.0, 4.0)]


def grid_of(bits, multiplier):
    return noise_grid(CLIENTS, clip=1.0, bits=bits, noise_multiplier=multiplier, threshold=THRESHOLD)


def smallest_middle_and_largest_deviation() -> list[tuple[int, float]]:
    """One pair for each of three deviations that no pair of FEW has."""
    pairs: dict[int, list[tuple[int, float]]] = {}
    for pair in GRID:
        try:
            pairs.setdefault(grid_of(*pair).log2_deviation, []).append(pair)
        except ProgramError:  # tested below
            continue
    others = sorted(log2 for log2, same in pairs.items() if not set(same) & set(FEW))
    return [pairs[log2][log2 % len(pairs[log2])] for log2 in (others[0], others[len(others) // 2], others[-1])]


@pytest.mark.parametrize(("bits", "multiplier"), GRID)
def test_grid_has_the_deviation_that_was_asked_for_or_is_refused(bits, multiplier):
    try:
        grid = grid_of(bits, multiplier)
    except ProgramError:
        assert (bits, multiplier) not in FEW
        with pytest.raises(
            ProgramError, match=rf"bits={bits}, noise_multiplier={multiplier} and threshold={THRESHOLD}"
        ):
            secure_mean(CLIENTS, clip=1.0, bits=bits, noise_multiplier=multiplier, threshold=THRESHOLD)
    else:
        secure_mean(CLIENTS, clip=1.0, bits=bits, noise_multiplier=multiplier, threshold=THRESHOLD)
        assert math.sqrt(THRESHOLD) * 2**grid.log2_deviation * grid.unit == pytest.approx(multiplier)


@pytest.mark.slow
@pytest.mark.parametrize(("bits", "multiplier"), smallest_middle_and_largest_deviation())
def test_noise_is_right_at_the_ends_and_middle_of_the_deviations(bits, multiplier):
    place = GRID.index((bits, multiplier))
    assert_right_noise(bits, multiplier, ([], [0], [0, 4])[(place + place // 6) % 3])


@pytest.mark.parametrize("dropped", [[], [0], [0, 4]], ids=str)
@pytest.mark.parametrize(("bits", "multiplier"), FEW)
def test_noise_is_right_at_every_number_of_bits_and_multiplier(bits, multiplier, dropped):
    assert_right_noise(bits, multiplier, dropped)


def assert_right_noise(bits, multiplier, dropped):
    present = ~np.isin(np.arange(CLIENTS), dropped)
    masks = SecureSession(CLIENTS, THRESHOLD).masks(present)
    seeded = np.random.default_rng([bits, *dropped]).integers(0, 2**32, masks.noise.shape, np.uint32)
    drawn = published(bits, multiplier, present, masks=masks._replace(noise=seeded))
    grid = grid_of(bits, multiplier)
    # What was asked for: `threshold` clients together have the deviation `multiplier * clip`.
    due = multiplier / grid.unit * math.sqrt(present.sum() / THRESHOLD)
    size = len(drawn)
    assert abs(drawn.mean()) < 4.5 * due / math.sqrt(size)
    assert abs(drawn.var() / due**2 - 1) < 4.5 * math.sqrt(2 / size)
    assert abs(stats.kurtosis(drawn)) < 4.5 * math.sqrt(24 / size)
    assert stats.kstest(drawn / due, "norm").pvalue > 1e-5 or due < 50  # small ones are steps, not a curve
    modulus = 4 if grid.log2_deviation < 6 else 16  # float32 holds 24 bits of the mean
    if due * 6 < 2**24:
        assert stats.chisquare(np.bincount(drawn % modulus, minlength=modulus)).pvalue > 1e-5


@pytest.mark.parametrize("dropped", [[], [0]], ids=str)
def test_noise_of_two_rounds_is_independent(dropped):
    present = ~np.isin(np.arange(CLIENTS), dropped)
    first, second = (published(12, 1.0, present) for _ in range(2))
    assert not np.array_equal(first, second)
    assert abs(np.corrcoef(first, second)[0, 1]) < 4.5 / math.sqrt(len(first))


def test_no_other_party_holds_the_secret_of_the_noise():
    opened = SecureSession(CLIENTS, THRESHOLD).begin()
    masks = opened.reveal([1, 2, 3, 4])
    server = b"".join(opened.received.values()) + masks.revealed_own.tobytes() + masks.revealed_pairs.tobytes()
    for client, secret in enumerate(masks.noise):
        assert secret.any()
        assert secret.tobytes() not in server
        others = np.delete(masks.own, client, axis=0).tobytes() + masks.pairs.tobytes()
        assert secret.tobytes() not in others
    assert len({secret.tobytes() for secret in masks.noise}) == CLIENTS


def test_server_computes_nothing_from_the_secrets_of_the_noise():
    aggregator = secure_mean(CLIENTS, clip=1.0, bits=12, noise_multiplier=1.0, threshold=THRESHOLD)

    @program(clients=CLIENTS)
    def mean(update, masks):
        return aggregator.combine(update, jnp.ones(CLIENTS), masks)[0]

    plan = wb.trace(mean)(jnp.zeros((CLIENTS, 4)), SecureSession(CLIENTS, THRESHOLD).masks(ALL)).plan
    assert {"update", "masks.pairs", "masks.own", "masks.noise"} <= {each.name for each in plan.kept_local}
    assert [(each.name, each.dtype, each.shape, each.kind) for each in plan.disclosed] == [
        ("emit('client norm')", "float32", (), "row"),  # for listeners, if there are any
        ("reduce_sum", "uint32", (6,), "partial result"),
    ]


def test_noise_does_not_depend_on_what_the_server_recovers():
    # Another set of revealed seeds, the same secrets of the clients: the same noise comes out.
    session = SecureSession(CLIENTS, THRESHOLD)
    one, other = session.masks(ALL), session.masks(ALL)
    same = other._replace(noise=one.noise)
    np.testing.assert_array_equal(published(12, 1.0, ALL, masks=one), published(12, 1.0, ALL, masks=same))
    assert not np.array_equal(published(12, 1.0, ALL, masks=one), published(12, 1.0, ALL, masks=other))


def test_noise_hides_an_update_and_keeps_its_mean():
    update = jnp.full((CLIENTS, VALUES), 0.5 / math.sqrt(VALUES))
    moved = published(12, 1.0, ALL, update=update) - published(12, 1.0, ALL)
    grid = noise_grid(CLIENTS, clip=1.0, bits=12, noise_multiplier=1.0, threshold=THRESHOLD)
    due = CLIENTS * round(0.5 / math.sqrt(VALUES) / grid.unit)
    deviation = 2**grid.log2_deviation * math.sqrt(2 * CLIENTS)
    assert abs(moved.mean() - due) < 4.5 * deviation / math.sqrt(VALUES)


def test_update_that_is_not_finite_adds_zeros():
    update = jnp.zeros((CLIENTS, VALUES)).at[1, 5].set(jnp.nan).at[2, 7].set(jnp.inf)
    assert np.abs(published(12, 1.0, ALL, update=update)).max() < 8 * 2**11 * math.sqrt(CLIENTS)


@pytest.mark.parametrize("size", [1, 70_000])
def test_squares_are_compared_without_rounding(size):
    values = np.random.default_rng(size).integers(-(2**30), 2**30, size)
    total = sum(int(x) ** 2 for x in values)
    assert [bool(squares_exceed(jnp.asarray(values, jnp.int32), total + x)) for x in (-1, 0, 1)] == [True, False, False]


def test_clients_of_weight_zero_are_not_counted_by_a_number_that_has_no_noise():
    aggregator = secure_mean(CLIENTS, clip=1.0, bits=24, noise_multiplier=1e-5, threshold=THRESHOLD)

    @program(clients=CLIENTS)
    def mean(update, weight, masks):
        return aggregator.combine(update, weight, masks)[0]

    masks = SecureSession(CLIENTS, THRESHOLD).masks(ALL)
    found = mean(jnp.full((CLIENTS, 1), 0.5), jnp.array([0.0, 1, 1, 1, 1]), masks)
    assert float(found[0]) == pytest.approx(0.4, abs=1e-3)  # 4 · 0.5 / 5


def test_words_of_another_round_give_nan():
    session = SecureSession(CLIENTS, THRESHOLD)
    one, other = session.masks(ALL), session.masks(ALL)
    replayed = one._replace(own=np.concatenate([other.own[:1], one.own[1:]]))  # client 0 sends what it masked before
    aggregator = secure_mean(CLIENTS, clip=1.0, bits=12)

    @program(clients=CLIENTS)
    def mean(update, masks):
        return aggregator.combine(update, jnp.ones(CLIENTS), masks)[0]

    assert np.isnan(mean(jnp.zeros((CLIENTS, 3)), replayed)).all()
    assert not np.isnan(mean(jnp.zeros((CLIENTS, 3)), one)).any()


@pytest.mark.parametrize(
    "options",
    [
        {"bits": 20, "noise_multiplier": 1000.0, "threshold": 3},
        {"bits": 4, "noise_multiplier": 0.1, "threshold": 3},
        {"bits": 31},
        {"bits": 30},
        {"noise_multiplier": math.nan, "threshold": 3},
        {"noise_multiplier": 1.0},
        {"noise_multiplier": 1.0, "threshold": 6},
        {"noise_multiplier": -1.0, "threshold": 3},
    ],
    ids=str,
)
def test_noise_that_cannot_be_right_is_refused(options):
    with pytest.raises(ProgramError, match="received"):
        secure_mean(CLIENTS, clip=1.0, **options)


# What the noise is worth.


def exact_divergence(order: float, shift: int, log2: int, noises: int) -> float:
    """Rényi divergence of a sum of discrete Gaussians from the same sum moved by `shift`, by convolution."""
    one = probabilities(2**log2, 24 * 2**log2)
    total = one
    for _ in range(noises - 1):
        total = np.convolve(total, one)
    p, q = np.pad(total, (shift, 0)), np.pad(total, (0, shift))
    there = (p > 1e-280) & (q > 1e-280)
    with np.errstate(under="ignore"):
        return math.log(np.sum(np.exp(order * np.log(p[there]) + (1 - order) * np.log(q[there])))) / (order - 1)


@pytest.mark.parametrize(("log2", "shift", "noises"), [(0, 1, 2), (1, 1, 3), (2, 3, 1), (2, 8, 4)])
@pytest.mark.parametrize("order", [1.5, 4.0])
def test_divergence_bounds_that_of_sums_of_discrete_gaussians(order, log2, shift, noises):
    exact = exact_divergence(order, shift, log2, noises)
    bound = sum_divergence(order, shift, log2, noises, 1)
    assert exact <= bound * (1 + 1e-9)
    assert log2 == 0 or bound <= 1.0001 * exact


def test_rounding_lengthens_an_update_by_half_a_unit_per_value():
    grid = NoiseGrid(clip=6.0, unit=2.0, largest=3, log2_deviation=0, is_noisy=True)
    assert grid.most_squared(values=16) == (3 + 4 / 2) ** 2  # of 3 units, and 16 values


@pytest.fixture
def dp_accounting():
    return pytest.importorskip("dp_accounting", reason="needs the extra `privacy`")


@pytest.mark.parametrize("multiplier", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("colluding", [0, 20])
def test_epsilon_is_that_of_a_gaussian_of_the_noise_that_counts(dp_accounting, multiplier, colluding):
    from dp_accounting.rdp import RdpAccountant

    found = secure_epsilon(
        multiplier, clients=100, threshold=60, bits=20, values=1, rounds=10, delta=1e-5, colluding=colluding
    )
    # dp-accounting counts a discrete Gaussian as a Gaussian of the same deviation; of 60 clients' noise, 40 are left.
    event = dp_accounting.GaussianDpEvent(multiplier * math.sqrt(Fraction(60 - colluding, 60)))
    published = RdpAccountant().compose(dp_accounting.SelfComposedDpEvent(event, 10)).get_epsilon(1e-5)
    assert found == pytest.approx(published, rel=0.01)
    assert found >= published * 0.99


def published_epsilon(clients, deviation, unit, values, rounds, delta):
    """Theorem 1 of arXiv 2102.06387 with clip 1 and β = exp(-1/2), at the orders of the authors' program."""
    from dp_accounting.rdp import compute_epsilon

    terms = [math.exp(-2 * (math.pi * deviation / unit) ** 2 * k / (k + 1)) for k in range(1, clients)]
    tau, steps = 10 * sum(terms), unit * math.sqrt(values)
    longest = min((1 + steps) ** 2, 1 + steps**2 / 4 + unit * (1 + steps / 2))
    scale = math.sqrt(longest / clients) / deviation
    orders = [*range(2, 21), 22, 24, 28, 32, 64, 128, 256]
    divergences = [
        rounds * min(a * scale**2 / 2 + tau * values, a / 2 * (scale + math.sqrt(values) * tau) ** 2) for a in orders
    ]
    return compute_epsilon(orders, divergences, delta)[0]


@pytest.mark.parametrize("dropped", [0, 20, 40])
@pytest.mark.parametrize("multiplier", [30.0, 60.0, 100.0])
def test_epsilon_is_that_of_the_published_program_with_dropouts(dp_accounting, multiplier, dropped):
    # The setting of the authors' figure of dropouts: 100 clients, 2^20 values, 1500 rounds, δ = 1e-5.
    stay, values = 100 - dropped, 2**20
    left = multiplier * math.sqrt(stay / 100)
    found = secure_epsilon(left, clients=100, threshold=stay, bits=18, values=values, rounds=1500, delta=1e-5)
    grid = noise_grid(100, clip=1.0, bits=18, noise_multiplier=left, threshold=stay)
    due = published_epsilon(stay, 2**grid.log2_deviation * grid.unit, grid.unit, values, 1500, 1e-5)
    assert found == pytest.approx(due, rel=0.01)  # they bound the rounding by chance, and we its largest length


def test_epsilon_of_one_value_bounds_the_exact_delta(dp_accounting):
    # The exact δ of the 1-dimensional mechanism: sum of max(0, p - exp(ε) q).
    clients = threshold = 2
    bits, multiplier = 7, 2.0
    epsilon = secure_epsilon(
        multiplier, clients=clients, threshold=threshold, bits=bits, values=1, rounds=1, delta=1e-4
    )
    grid = noise_grid(clients, clip=1.0, bits=bits, noise_multiplier=multiplier, threshold=threshold)
    one = probabilities(2**grid.log2_deviation, 12 * 2**grid.log2_deviation)
    total, shift = np.convolve(one, one), grid.largest
    p, q = np.pad(total, (shift, 0)), np.pad(total, (0, shift))
    exact = np.maximum(p - math.exp(epsilon) * q, 0).sum()
    assert 1e-6 < exact <= 1e-4


def test_epsilon_counts_rounding_rounds_and_noise(dp_accounting):
    def of(**options):
        return secure_epsilon(
            **{
                "noise_multiplier": 1.0, "clients": 10, "threshold": 6, "bits": 12, "values": 10, "rounds": 5,
                "delta": 1e-5, **options,
            }
        )  # fmt: skip

    assert of(values=10**6) > of() < of(rounds=6)
    assert of(noise_multiplier=2.0) < of() < of(colluding=1)
    assert (of(rounds=0), of(noise_multiplier=0.0)) == (0.0, math.inf)
    assert algorithms.epsilon(1.0, rounds=5, participation=1.0, delta=1e-5) < of()
    with pytest.raises(ProgramError, match="colluding=6"):
        of(colluding=6)
