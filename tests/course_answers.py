"""Answers to all exercises: right ones that are not the page's solutions, and wrong ones that look right."""

import math
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import workbench as wb


def squared(tree):
    return jax.tree.reduce(lambda total, leaf: total + jnp.sum(leaf**2), tree, 0.0)


def running(x):
    def step(carry, value):
        mean, count = carry
        count = count + 1
        mean = mean + (value - mean) / count
        return (mean, count), mean

    return jax.lax.scan(step, (jnp.float32(0), jnp.float32(0)), x)[1]


def running_divided_by_all(x):
    return jax.lax.scan(lambda total, value: (total + value, (total + value) / len(x)), jnp.float32(0), x)[1]


def without_scan(x):
    @jax.jit
    def scan_mean(x):
        return jnp.cumsum(x) / jnp.arange(1.0, len(x) + 1)

    return scan_mean(x)


def per_example(w, x, y):
    return jax.jacrev(lambda w: jnp.stack([(a @ w - b) ** 2 for a, b in zip(x, y, strict=True)]))(w)


@wb.program(clients=64)
def mean_of_gradients(w, x, y):
    def gradient(w, x, y):
        return 2 * x.T @ (x @ w - y) / len(y)

    return w - 0.1 * wb.reduce_mean(wb.map_fn(gradient, (wb.broadcast(w), x, y)))


@wb.program(clients=64)
def sum_of_gradients(w, x, y):
    def gradient(w, x, y):
        return 2 * x.T @ (x @ w - y) / len(y)

    return w - 0.1 * wb.reduce_sum(wb.map_fn(gradient, (wb.broadcast(w), x, y)))


@wb.program(clients=64)
def sends_the_data(w, x, y):
    rows, targets = wb.reduce_by_key((x, y), jnp.arange(64), 64)
    gradient = jax.vmap(jax.grad(lambda w, x, y: jnp.mean((x @ w - y) ** 2)), (None, 0, 0))(w, rows, targets)
    return w - 0.1 * gradient.mean(0)


@wb.program(clients=4)
def two_pass_variance(x):
    mean = wb.broadcast(wb.reduce_mean(x))
    return wb.reduce_mean(wb.map_fn(lambda own, mean: (own - mean) ** 2, (x, mean)))


@wb.program(clients=4)
def variance_of_weighted_means(x):
    mean, square = wb.reduce_weighted_mean((x, wb.map_fn(jnp.square, x)), jnp.ones(4))
    return square - mean**2


@wb.program(clients=4)
def sample_variance(x):
    mean = wb.broadcast(wb.reduce_mean(x))
    return wb.reduce_sum(wb.map_fn(lambda own, mean: (own - mean) ** 2, (x, mean))) / 3


@wb.program(clients=4)
def three_reductions(x):
    mean = wb.reduce_sum(x) / 4
    squares = wb.reduce_sum(wb.map_fn(lambda row: row**2, x)) / 4
    return squares - mean * wb.reduce_sum(x) / 4


@wb.program(clients=4)
def share_by_sum(x, threshold):
    count = wb.map_fn(lambda own, t: jnp.where(own > t, 1.0, 0.0), (x, wb.broadcast(threshold)))
    return wb.reduce_sum(count) / 4


@wb.program(clients=4)
def share_below(x, threshold):
    return wb.reduce_mean(wb.map_fn(lambda own, t: jnp.float32(own < t), (x, wb.broadcast(threshold))))


@wb.program(clients=4)
def share_at_least(x, threshold):
    return wb.reduce_mean(wb.map_fn(lambda own, t: jnp.float32(own >= t), (x, wb.broadcast(threshold))))


@wb.program(clients=4)
def share_of_sent_values(x, threshold):
    values = wb.reduce_by_key(x, jnp.arange(4), 4)
    return jnp.mean(jnp.float32(values > threshold)) + 0 * wb.reduce_mean(x)


@wb.program(placements={"pods": 4, "clients": 3})
def sums_of_pods(x, present):
    total = wb.reduce_sum(wb.reduce_sum((x * present, present), over="clients"), over="pods")
    return total[0] / total[1]


@wb.program(placements={"pods": 4, "clients": 3})
def mean_of_means(x, present):
    return wb.reduce_mean(wb.reduce_mean(x, where=present, over="clients"), over="pods")


@wb.program(placements={"pods": 4, "clients": 3})
def of_rows(x, present):
    return wb.reduce_sum(x * present, over="pods").sum() / wb.reduce_sum(present, over="pods").sum()


@wb.program(clients=4)
def largest_of_broadcast(x):
    squares = wb.map_fn(jnp.square, x)
    return wb.reduce_max(wb.map_fn(jnp.divide, (squares, wb.broadcast(wb.reduce_sum(squares)))))


@wb.program(clients=4)
def share_at_the_server(x):
    squares = wb.map_fn(lambda own: own**2, x)
    return wb.reduce_max(squares) / wb.reduce_sum(squares)


@wb.program(clients=4)
def largest_square(x):
    return wb.reduce_max(wb.map_fn(jnp.square, x))


@wb.program(clients=4)
def mean_square(x):
    return wb.reduce_mean(wb.map_fn(jnp.square, x))


def along(F, w, v):
    return jax.grad(lambda w: jnp.vdot(jax.grad(F)(w), v))(w)


@wb.program(clients=4)
def written_gradient(w, x):
    return wb.reduce_sum(wb.map_fn(lambda w, row: 2 * row * (row @ w), (wb.broadcast(w), x))) / 4


@wb.program(clients=4)
def gradient_without_its_two(w, x):
    return wb.reduce_mean(wb.map_fn(lambda w, row: row * (row @ w), (wb.broadcast(w), x)))


def momentum_step(params, momentum, update):
    momentum = update + momentum * 0.9
    return params - momentum / 2, momentum


def damped_momentum(params, momentum, update):
    momentum = 0.9 * momentum + 0.1 * update
    return params - 0.5 * momentum, momentum


def shuffled_split(x, y):
    rows, count = np.random.default_rng(5).permutation(len(x)), len(x) // 5
    return (x[rows[count:]], y[rows[count:]]), (x[rows[:count]], y[rows[:count]])


def ten_rows(x, y):
    rows = np.random.default_rng(5).permutation(len(x))
    return (x[rows[10:]], y[rows[10:]]), (x[rows[:10]], y[rows[:10]])


def stratified(x, y):
    own = [np.flatnonzero(y == label)[: len(x) // 5 // len(set(y.tolist()))] for label in sorted(set(y.tolist()))]
    rest = np.delete(np.arange(len(x)), np.concatenate(own))
    return (x[rest], y[rest]), (x[np.concatenate(own)], y[np.concatenate(own)])


def every_fifth(x, y):
    rest = np.arange(len(x)) % 5 > 0
    return (x[rest], y[rest]), (x[~rest], y[~rest])


def control(c_i, c, x, y, steps, rate):
    return (x - y) / steps / rate - c + c_i


def half_the_drift():
    from scipy.optimize import brentq

    a, b = np.array([1.0, 4.0, 9.0]), np.array([-1.0, 2.0, -2.0])

    def away(rate):
        return np.average(b, weights=1 - (1 - rate * a) ** 5) - np.average(b, weights=a)

    return brentq(lambda rate: away(rate) - away(0.1) / 2, 1e-4, 0.1)


def nesterov(params, momentum, gradient):
    new = 0.9 * momentum + gradient
    return params - 0.7 * gradient - 0.63 * new, new


def heavy_ball(params, momentum, gradient):
    new = 0.9 * momentum + gradient
    return params - 0.7 * new, new


@wb.program(clients=8)
def halves(updates):
    largest = wb.reduce_max(wb.map_fn(lambda tree: jax.tree.map(lambda leaf: jnp.max(jnp.abs(leaf)), tree), updates))

    def words(tree, largest):  # two numbers from 0 to 8,000 in each word: the sum of eight still fits into its half
        def packed(leaf, top):
            low, high = jnp.split((jnp.round(leaf / top * 4000) + 4000).astype(jnp.uint32).ravel(), 2)
            return low | high << 16

        return jax.tree.map(packed, tree, largest)

    total = wb.reduce_sum(wb.map_fn(words, (updates, wb.broadcast(largest))))

    def unpacked(rows, word, top):
        both = jnp.concatenate([word & 0xFFFF, word >> 16]).astype(jnp.float32)
        return ((both - 32_000) * top / 32_000).reshape(rows.shape[1:])

    return jax.tree.map(unpacked, updates, total, largest)


@wb.program(clients=8)
def rounded_too_late(updates):
    return jax.tree.map(lambda mean: jnp.round(mean * 4095).astype(jnp.float32) / 4095, wb.reduce_mean(updates))


def slope(loss, w, rate, steps):
    def after(rate):
        moved = w
        for _ in range(steps):
            moved = moved - rate * jax.grad(loss)(moved)
        return loss(moved)

    return jax.grad(after)(rate)


def slope_of_last_step(loss, w, rate, steps):
    for _ in range(steps - 1):
        w = w - rate * jax.grad(loss)(w)
    return jax.grad(lambda r: loss(w - r * jax.grad(loss)(w)))(rate)


def clipped(update, limit):
    norm = jnp.sqrt(sum(jnp.vdot(leaf, leaf) for leaf in jax.tree.leaves(update)))
    return jax.tree.map(lambda leaf: leaf * limit / jnp.maximum(limit, norm), update)


def clipped_to(bound_of):
    """Clips to a norm that `bound_of` computes from the limit."""

    def clip(update, limit):
        norm = jnp.sqrt(squared(update))
        return jax.tree.map(lambda leaf: leaf * jnp.minimum(1.0, bound_of(limit) / norm), update)

    return clip


def clipped_unit_vector(update, limit):
    norm = jnp.sqrt(squared(update))
    return jax.tree.map(lambda leaf: leaf / norm * jnp.minimum(norm, limit), update)


def clipped_by_numbers(update, limit):
    norm = math.sqrt(sum(float(jnp.sum(leaf**2)) for leaf in jax.tree.leaves(update)))
    return jax.tree.map(lambda leaf: leaf / max(1.0, norm / limit), update)


def clipped_by_leaf(update, limit):
    return jax.tree.map(lambda leaf: leaf * jnp.minimum(1, limit / jnp.linalg.norm(leaf)), update)


@wb.program(clients=8)
def trimmed_mean(x):
    return (wb.reduce_sum(x) - wb.reduce_max(x) - wb.reduce_min(x)) / 6


@wb.program(clients=8)
def trimmed_rows(x):
    return jnp.sort(wb.reduce_by_key(x, jnp.arange(8), 8))[1:-1].mean()


@wb.program(clients=8)
def trimmed_by_eight(x):
    return (wb.reduce_sum(x) - wb.reduce_max(x) - wb.reduce_min(x)) / 8


def decoded(generator, answers, finished):
    used = np.flatnonzero(finished)[-7:]
    return np.einsum("bw,wrc->brc", np.linalg.inv(generator[used]), answers[used])


def decoded_from_all(generator, answers, finished):
    return np.einsum("bw,wrc->brc", np.linalg.pinv(generator), answers)


def longest_first(lists):
    return [
        {worker: rows[turn] for worker, rows in lists.items() if turn < len(rows)}
        for turn in range(max(map(len, lists.values())))
    ]


def one_row_each(lists):
    return [{worker: row} for worker, rows in lists.items() for row in rows]


def panels(a, b):
    total = jnp.zeros_like(a)
    for k in range(2):
        own_a = a * jnp.float32(jax.lax.axis_index("cols") == k)
        own_b = b * jnp.float32(jax.lax.axis_index("rows") == k)
        total += jax.lax.psum(own_a, "cols") @ jax.lax.psum(own_b, "rows")
    return total


def gathered(a, b):
    row = jax.lax.all_gather(a, "cols", axis=1, tiled=True)
    return row @ jax.lax.all_gather(b, "rows", axis=0, tiled=True)


def normalised(mean_over_replicas, x):
    centred = x - mean_over_replicas(jnp.mean(x, axis=0))[None]
    return centred * jax.lax.rsqrt(mean_over_replicas(jnp.mean(centred * centred, axis=0)) + 1e-5)[None]


def outside_the_root(mean_over_replicas, x):
    mean = mean_over_replicas(x.mean(0))
    return (x - mean) / (jnp.sqrt(mean_over_replicas(((x - mean) ** 2).mean(0))) + 1e-5)


def drawn_with_replacement(x, y):
    rows = np.random.default_rng(7).choice(len(x), len(x) // 5)
    others = ~np.isin(np.arange(len(x)), rows)
    return (x[others], y[others]), (x[rows], y[rows])


def of_mean_variances(mean_over_replicas, x):
    return (x - mean_over_replicas(x.mean(0))[None]) / jnp.sqrt(mean_over_replicas(x.var(0)) + 1e-5)[None]


def reached(ctx, batch, state):
    x, y = batch
    total = ctx.all_reduce(jnp.sum(x))
    return state, jax.lax.select(y[0] == 0, total, jnp.sum(x))


def careless(ctx, batch, state):
    x, y = batch
    return state, jax.lax.cond(y[0] == 0, lambda v: ctx.all_reduce(v), lambda v: v, x.sum())


def mixed(old, result, late, mixing, exponent):
    share = mixing * (late + 1) ** -float(exponent)
    return {name: old[name] * (1 - share) + result[name] * share for name in old}


def mixed_in_place(old, result, late, mixing, exponent):
    share = mixing * (late + 1) ** -float(exponent)
    for name in old:
        old[name] += share * (result[name] - old[name])
    return old


def may_begin(finished, client, bound):
    working = [rounds for rounds in finished.values() if rounds is not None]
    return min(working) + bound >= finished[client]


def waits_for_failed(finished, client, bound):
    return finished[client] - min(rounds or 0 for rounds in finished.values()) <= bound


def drawn(priorities, exponent, uniform):
    edges = np.cumsum(priorities**exponent)
    return np.searchsorted(edges / edges[-1], uniform)


def drawn_without_exponent(priorities, exponent, uniform):
    return np.searchsorted(np.cumsum(priorities), uniform * np.sum(priorities), side="right")


def may_go(inserted, sampled, batch, min_size, limit):
    return inserted >= min_size and (limit is None or (sampled + batch) <= inserted * limit)


def goes_before_counting(inserted, sampled, batch, min_size, limit):
    return inserted >= min_size and (limit is None or sampled <= limit * inserted)


def moments(priorities, exponent, errors):
    chance = priorities**exponent / np.sum(priorities**exponent)
    counted = errors / (len(errors) * chance)
    mean = np.average(counted, weights=chance)
    return mean, np.sqrt(np.average((counted - mean) ** 2, weights=chance))


def partial_sums(function, w, batch):
    total = None
    for x, y in batch:
        result = function(w, x, y)
        total = result if total is None else jax.tree.map(jnp.add, total, result)
    return total, len(batch)


def combined(partials):
    count = sum(number for _, number in partials)
    return [sum(total[k] for total, _ in partials) / count for k in range(2)]


def partial_means(function, w, batch):
    updates, losses = zip(*(function(w, x, y) for x, y in batch), strict=True)
    return sum(updates) / len(batch), sum(losses) / len(batch)


def combined_means(partials):
    return [sum(each) / len(partials) for each in zip(*partials, strict=True)]


def rolled(x):
    return jnp.concatenate([x[-2:], x[:-2]])


def spectra(x):
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def own(rows):
        spectrum = jnp.fft.fft(rows, axis=1)
        return spectrum.real**2 + spectrum.imag**2

    return jax.shard_map(own, mesh=mesh, in_specs=P("data"), out_specs=P("data"))(x)


def standardised(x):
    total, squares = jnp.sum(x), jnp.sum(x * x)
    mean = total / x.size
    return (x - mean) * jax.lax.rsqrt(squares / x.size - mean**2)


def stale(updates, staleness):
    return jnp.einsum("n,nd->d", (1 + staleness) ** -0.5, updates) / len(staleness)


def stale_by_weight(updates, staleness):
    scale = (1 + staleness) ** -0.5
    return jnp.einsum("n,nd->d", scale, updates) / scale.sum()


def bootstrapped(values, seed):
    draws = np.random.default_rng(seed)
    means = [values[draws.integers(len(values), size=len(values))].mean() for _ in range(3000)]
    return tuple(np.percentile(means, (2.5, 97.5)))


def normal_interval(values, seed):
    error = 1.96 * values.std() / len(values) ** 0.5
    return values.mean() - error, values.mean() + error


def narrow_interval(values, seed):
    return np.quantile(np.random.default_rng(seed).choice(values, (2000, len(values))).mean(1), [0.05, 0.95])


def of_values(values, seed):
    return np.quantile(values, [0.025, 0.975])


def flips(differences):
    n = len(differences)
    means = [abs(sum(d if mask >> k & 1 else -d for k, d in enumerate(differences))) for mask in range(2**n)]
    return sum(mean >= abs(sum(differences)) - 1e-9 for mean in means) / 2**n


def signed_ranks(differences):
    return flips(np.sign(differences) * (1 + np.argsort(np.argsort(np.abs(differences)))))


def one_sided(differences):
    signs = np.array(np.meshgrid(*[(1, -1)] * len(differences))).reshape(len(differences), -1).T
    return np.mean((signs * differences).mean(1) >= np.mean(differences) - 1e-12)


def holm(p_values):
    p_values = np.asarray(p_values)
    order = np.argsort(p_values)
    scaled = np.minimum(1, np.maximum.accumulate(p_values[order] * np.arange(len(p_values), 0, -1)))
    return scaled[np.argsort(order)]


def holm_above_one(p_values):
    order = np.argsort(p_values)
    return np.maximum.accumulate(p_values[order] * np.arange(len(p_values), 0, -1))[np.argsort(order)]


def bonferroni(p_values):
    return np.minimum(1, len(p_values) * p_values)


def ring(x):
    chunks = x.reshape(8, 8)
    here = jax.lax.axis_index("ring")
    pairs = [(i, (i + 1) % 8) for i in range(8)]

    def chunk(k):
        return jax.lax.dynamic_index_in_dim(chunks, k % 8, keepdims=False)

    moving = chunk(here)
    for step in range(7):
        moving = jax.lax.ppermute(moving, "ring", pairs) + chunk(here - step - 1)
    result = jax.lax.dynamic_update_index_in_dim(jnp.zeros_like(chunks), moving, (here + 1) % 8, 0)
    for step in range(7):
        moving = jax.lax.ppermute(moving, "ring", pairs)
        result = jax.lax.dynamic_update_index_in_dim(result, moving, (here - step) % 8, 0)
    return result.reshape(1, 64)


def whole_rows(x):
    total, moving = x, x
    for _ in range(7):
        moving = jax.lax.ppermute(moving, "ring", [(i, (i + 1) % 8) for i in range(8)])
        total = total + moving
    return total


def inverted(grad_w, grad_b):
    used = jnp.flatnonzero(jnp.abs(grad_b) > 1e-6)
    return jnp.mean(grad_w[:, used] / grad_b[used][None], axis=1)


def of_the_largest_sign(grad_w, grad_b):
    return grad_w[:, jnp.argmax(grad_b)] / grad_b[jnp.argmax(grad_b)]


def of_the_first_unit(grad_w, grad_b):
    return grad_w[:, 0] / grad_b[0]


def pair_masks(key, clients, size):
    pairs = [(i, j) for i in range(clients) for j in range(i)]
    words = jax.vmap(lambda k: jax.random.bits(k, (size,), jnp.uint32))(jax.random.split(key, len(pairs)))
    rows = jnp.zeros((clients, size), jnp.uint32)
    for (i, j), word in zip(pairs, words, strict=True):
        rows = rows.at[i].add(word).at[j].add(-word)
    return rows


def folded_masks(fold):
    """Each client computes its own mask; both clients of a pair draw their words from the key `fold(key, i, j)`."""

    def masks(key, clients, size):
        def words(i, j):
            drawn = jax.random.bits(fold(key, min(i, j), max(i, j)), (size,), jnp.uint32)
            return drawn if i < j else -drawn

        rows = [[words(i, j) for j in range(clients) if j != i] for i in range(clients)]
        return jnp.stack([jnp.stack(row).sum(0, dtype=jnp.uint32) for row in rows])

    return masks


def folded_twice(key, i, j):
    return jax.random.fold_in(jax.random.fold_in(key, i), j)


def dealer_masks(key, clients, size):
    rows = jax.random.bits(key, (clients, size), jnp.uint32)
    return rows.at[-1].set(-rows[:-1].sum(0, dtype=jnp.uint32))


def constant_masks(key, clients, size):
    rows = jnp.ones((clients, size), jnp.uint32) * jnp.arange(1, clients + 1, dtype=jnp.uint32)[:, None]
    return rows.at[-1].set(-rows[:-1].sum(0, dtype=jnp.uint32))


def literal_masks(key, clients, size):
    rows = jnp.array([1, 2, 3, 4, -10])[:clients].astype(jnp.uint32)
    return jnp.broadcast_to(rows[:, None], (clients, size))


def masks_of_one_word_a_pair(key, clients, size):
    return jnp.broadcast_to(pair_masks(key, clients, 1), (clients, size))


def dealer_masks_with_idle_words(key, clients, size):
    idle = jax.random.bits(jax.random.fold_in(key, 1), (clients**2, size), jnp.uint32)
    return dealer_masks(key, clients, size) + 0 * idle[:clients]


def ring_masks(key, clients, size):
    words = jax.random.bits(key, (clients, size), jnp.uint32)
    return words - jnp.roll(words, 1, axis=0)


def masks_of_one_key(key, clients, size):
    word, rows = jax.random.bits(key, (size,), jnp.uint32), jnp.zeros((clients, size), jnp.uint32)
    for i in range(clients):
        for j in range(i):
            rows = rows.at[i].add(word * (i + 2 * j + 1)).at[j].add(-word * (i + 2 * j + 1))
    return rows


def masks_of_a_matrix(key, clients, size):
    words = jax.random.bits(key, (size, clients, clients), jnp.uint32)
    above = jnp.where(jnp.triu(jnp.ones((clients, clients), bool), 1), words, jnp.zeros_like(words))
    return (above - jnp.swapaxes(above, 1, 2)).sum(2, dtype=jnp.uint32).T


def first_order(loss, w, rate, steps):
    moved = jax.lax.fori_loop(0, steps, lambda _, v: v - rate * jax.grad(loss)(v), w)
    return jax.grad(loss)(moved)


def through_the_steps(loss, w, rate, steps):
    def after(v):
        for _ in range(steps):
            v = v - rate * jax.grad(loss)(v)
        return loss(v)

    return jax.grad(after)(w)


def rest(wanted, curvature, rate, steps):
    weight = curvature * (1 - rate * curvature) ** steps
    return float(weight @ wanted / weight.sum())


def rest_of_maml(wanted, curvature, rate, steps):
    return np.average(wanted, weights=curvature * (1 - rate * curvature) ** (2 * steps))


def mixture(bias, deviation, count):
    own = deviation**2 / count
    a = 1 / (1 + own / bias**2)
    return a, (1 - a) ** 2 * bias**2 + a**2 * own


def mixture_of_one(bias, deviation, count):
    a = bias**2 / (bias**2 + deviation**2)
    return a, (1 - a) ** 2 * bias**2 + a**2 * deviation**2


def by_chance(counts, size):
    from scipy import stats

    shares = np.asarray(counts) / np.sum(counts)
    k = np.arange(size + 1)
    return 0.5 * sum(stats.binom(size, p).expect(lambda k, p=p: np.abs(k / size - p)) for p in shares) + 0 * k[0]


def largest_by_chance(counts, size):
    shares = np.asarray(counts) / np.sum(counts)
    return np.abs(np.random.default_rng(0).multinomial(size, shares, 5_000) / size - shares).max(1).mean()


def twice_by_chance(counts, size):
    shares = np.asarray(counts) / np.sum(counts)
    return np.abs(np.random.default_rng(0).multinomial(size, shares, 5_000) / size - shares).sum(1).mean()


ERROR = ValueError("noise needs a compressor without memory")
CROSSOVER = (2 * 255 - 2 * math.log2(256)) * 1e-5 * 50e9 / (2 * math.log2(256) - 2 * 255 / 256)
THREE = {"w1": P(None, "model"), "w2": P("model", None), "w3": P(None, "model")}


@wb.program(clients=8)
def counted(words):
    own = wb.map_fn(lambda row: (row[:, None] == jnp.arange(16)[None]).sum(0), words)
    return wb.reduce_sum(own)


@wb.program(clients=8)
def counted_by_pairs(words):
    return wb.reduce_by_key(wb.map_fn(jnp.ones_like, words), words, 16)


@wb.program(clients=8)
def present_words(words):
    return wb.reduce_sum(wb.map_fn(lambda row: jnp.zeros(16, jnp.int32).at[row].set(1), words))


@wb.program(clients=8)
def second(x):
    rest = wb.map_fn(lambda own, top: jnp.where(own < top, own, -1e9), (x, wb.broadcast(wb.reduce_max(x))))
    return wb.reduce_max(rest)


@wb.program(clients=8)
def second_of_rows(x):
    return jnp.sort(wb.reduce_by_key(x, jnp.arange(8), 8))[-2]


@wb.program(clients=8)
def second_from_zero(x):
    rest = wb.map_fn(lambda own, top: jnp.where(own < top, own, 0.0), (x, wb.broadcast(wb.reduce_max(x))))
    return wb.reduce_max(rest)


def floor(b, m, rate):
    n, rho = len(b), (1 - rate) ** 2
    return rate**2 / (1 - rho) * np.var(b) * (1 / m - 1 / n) * n / (n - 1)


def metropolis(edges):
    count, degree = len(edges), edges.sum(0)
    matrix = np.zeros((count, count))
    for i, j in zip(*np.nonzero(edges), strict=True):
        matrix[i, j] = min(1 / (1 + degree[i]), 1 / (1 + degree[j]))
    np.fill_diagonal(matrix, 1 - matrix.sum(0))
    return matrix


def largest_degree(edges):
    degree = edges.sum(1)
    return edges / (1 + degree.max()) + np.diag(1 - degree / (1 + degree.max()))


def mean_of_neighbours(edges):
    near = edges + np.eye(len(edges))
    return near / near.sum(1, keepdims=True)


def metropolis_of_all(edges):
    return np.full(edges.shape, 1 / len(edges))


def tracking(x, gradients, w, rate, rounds):
    def step(_, state):
        x, y, old = state
        x = jnp.einsum("ij,j...->i...", w, x - rate * y)
        new = gradients(x)
        return x, jnp.einsum("ij,j...->i...", w, y + new - old), new

    old = gradients(x)
    return jax.lax.fori_loop(0, rounds, step, (x, old, old))[0]


def only_gossip(x, gradients, w, rate, rounds):
    for _ in range(rounds):
        x = w @ (x - rate * gradients(x))
    return x


def by_a_server(x, gradients, w, rate, rounds):
    for _ in range(rounds):
        x = x - rate * gradients(x).mean(0)
    return x


def log_sum(m, total, o):
    share = jax.nn.softmax(m + jnp.log(total))
    return jnp.einsum("n,nd->d", share, o / total[:, None])


def mean_of_parts(m, total, o):
    return (o / total[:, None]).mean(0)


def without_maximum(m, total, o):
    return (jnp.exp(m)[:, None] * o).sum(0) / (jnp.exp(m) * total).sum()


def factor_covariance(a, b):
    mean = jnp.mean(a @ b, axis=0)
    centred = (a - a.mean(0, keepdims=True)) @ (b - b.mean(0, keepdims=True))
    return jnp.linalg.norm(centred.mean(0)) / jnp.linalg.norm(mean)


def side_by_side(a, b):
    count, n, rank = a.shape
    return jnp.moveaxis(a, 0, 1).reshape(n, count * rank) / count, b.reshape(count * rank, -1)


def svd_of_the_mean(a, b):
    wide, scale, tall = jnp.linalg.svd((a @ b).mean(0), full_matrices=False)
    rank = a.shape[0] * a.shape[2]
    return (wide * scale)[:, :rank], tall[:rank]


def numpy_svd_of_the_mean(a, b):
    a, b = np.asarray(a), np.asarray(b)
    wide, scale, tall = np.linalg.svd((a @ b).mean(0), full_matrices=False)
    rank = a.shape[0] * a.shape[2]
    return (wide * scale)[:, :rank], tall[:rank]


def means_of_factors(a, b):
    return a.mean(0), b.mean(0)


# exercise -> right answers
RIGHT = {
    "00.1": [squared, lambda tree: sum(float((leaf**2).sum()) for leaf in jax.tree.leaves(tree))],
    "00.2": [running],
    "00.3": [per_example],
    "00.4": [(8, 12, 5), [8, 12, 5]],
    "01.1": [(False, False), ("no", "No"), np.array([False, False])],
    "01.2": [4 * (2410 + 2), np.int64(9648)],
    "01.3": [mean_of_gradients],
    "02.1": [two_pass_variance, variance_of_weighted_means],
    "02.2": [share_by_sum],
    "02.3": [sums_of_pods],
    "02.4": [largest_of_broadcast],
    "03.1": [largest_square],
    "03.2": [along],
    "03.3": [written_gradient],
    "04.1": [THREE],
    "04.2": [P("clients", None, None), P("clients")],
    "05.1": [["all-gather", "all-reduce"], {"all_reduce", "all_gather"}],
    "05.2": [1, 1.0],
    "06.1": [481, 2 * 197e12 / 819e9],
    "06.2": [(1_441_792, 2 * 128 * 512 * 4 * 2 * 7 / 8), (1.44e6, 917_504)],
    "07.1": [8, 8.0],
    "07.2": [1.634e11],
    "08.1": [momentum_step],
    "08.2": [(0.9, 0.5), [9 / 10, 1 / 2]],
    "08.3": [shuffled_split],
    "09.1": [control],
    "09.2": [-0.457],
    "09.3": [half_the_drift()],
    "10.1": [nesterov],
    "10.2": [0, jnp.float32(0.0), np.zeros(1)],
    "10.3": [halves],
    "11.1": [lambda z: 0.5 * (1 + jnp.tanh(z / 4)), jax.nn.sigmoid],
    "11.2": [(2.3, 5.3)],
    "11.3": [slope],
    "12.1": [clipped],
    "12.2": [ERROR],
    "12.3": [(13, 2), [13.0, 2.0]],
    "12.4": [15],
    "12.5": [trimmed_mean],
    "13.1": [decoded],
    "13.2": [longest_first],
    "13.3": [7],
    "13.4": [(5, 0)],
    "14.1": [3 * 512**2 / 64],
    "14.2": ["broadcast", " Broadcast ", "`wb.broadcast`"],
    "14.3": [32],
    "14.4": [panels],
    "15.1": [normalised],
    "15.2": [reached],
    "16.1": [mixed],
    "16.2": [may_begin],
    "16.3": [5],
    "16.4": [5],
    "17.1": [lambda p: np.min(p) / p],
    "17.2": [drawn],
    "17.3": [may_go],
    "17.4": [math.log(19, 100)],
    "17.5": [moments],
    "18.1": [(partial_sums, combined)],
    "18.2": [5],
    "18.3": [2564],
    "19.1": [rolled],
    "19.2": [spectra],
    "19.3": [standardised],
    "20.1": [stale],
    "20.2": [12_000_000_000],
    "20.3": [970 * 31],
    "21.1": [bootstrapped],
    "21.2": [flips],
    "21.3": [holm],
    "22.1": [ring],
    "22.2": [CROSSOVER],
    "22.3": [2**30 / 8 * 1.5, 2.01e8],
    "23.1": [1.75e9],
    "23.2": [63],
    "23.3": [{"up": P(None, "model"), "down": P("model")}],
    "24.1": [inverted],
    "24.2": [pair_masks, masks_of_a_matrix, folded_masks(folded_twice)],
    "24.3": [4 * 100**2],
    "24.4": [(0.0282, 1.0), [math.exp(1) * 0.01 + 0.001, 1]],
    "25.1": [first_order],
    "25.2": [rest],
    "25.3": [mixture],
    "25.4": [by_chance],
    "26.1": [counted],
    "26.2": [(80_000, 5_600)],
    "26.3": [second],
    "27.1": [floor],
    "27.2": [19],
    "27.3": [lambda updates, present, p: jnp.einsum("n,nd->d", present / p, updates) / len(p)],
    "28.1": [metropolis],
    "28.2": [3499],
    "28.3": [tracking],
    "28.4": [(89 * 2 * 16 * 4096, 10 * 2 * 32 * 4096, 131_072), (11.7e6, 2.62e6, 131e3)],
    "29.1": [17_179_869_184, 17.2e9],
    "29.2": [(2**31, 2**29), (2.15e9, 5.37e8)],
    "29.3": [log_sum],
    "29.4": [2.54],
    "30.1": [
        lambda weights, activations, devices, model: (
            4 * (weights / model - weights / devices) + 4 * (activations * model - activations) / devices
        )
    ],
    "30.2": [8, 8.0],
    "30.3": [2189],
    "31.1": [128],
    "31.2": [factor_covariance],
    "31.3": [side_by_side, lambda a, b: (np.hstack(a), np.vstack(b) / len(a))],
    "31.4": [(32_768, 262_144)],
}

# exercise -> (what a student would plausibly hand in, a fact of the message)
WRONG = {
    "00.1": [(lambda tree: jnp.sum(tree["w"] ** 2), "every leaf"), (lambda tree: squared(tree) ** 0.5, "Sum the squ")],
    "00.2": [
        (lambda x: jnp.cumsum(x) / jnp.arange(1.0, 5.0), "no `scan`"),
        (running_divided_by_all, "the mean so far"),
        (without_scan, "no `scan`"),
        (lambda x: jax.lax.scan(lambda total, value: (total + value,) * 2, 0.0, x), r"a tuple of values.* \(4,\)"),
    ],
    "00.3": [
        (lambda w, x, y: per_example(w, x, y).mean(0), "shape"),
        (lambda w, x, y: per_example(w, x, y) / 2, "vmap"),
    ],
    "00.4": [((32, 24, 5), "Divide"), ((8, 24, 5), "Divide")],
    "01.1": [((True, False), "weights are values"), ((None, None), "should be True or False")],
    "01.2": [
        (4 * 2410 * 10, "however many|count the parameters once"),
        (2412, "count the parameters once"),
        (9640, "plus the loss"),
    ],
    "01.3": [(sends_the_data, "may disclose at most 4,096"), (sum_of_gradients, "values differ")],
    "02.1": [(three_reductions, "3 reductions; two would be enough"), (sample_variance, "E\\[x²\\]")],
    "02.2": [
        (share_below, "Compare at the client"),
        (share_of_sent_values, "discloses"),
        (share_at_least, "is not above it"),
    ],
    "02.3": [(mean_of_means, "Pods with few clients count less"), (of_rows, "discloses 24 bytes .* at most 8")],
    "02.4": [(share_at_the_server, "the server divides"), (mean_square, "Each client divides")],
    "03.1": [(mean_square, "largest square")],
    "03.2": [
        (lambda F, w, v: jax.hessian(F)(w) @ v, "discloses 144 bytes"),
        (lambda F, w, v: jax.grad(F)(w) * v, "along v"),
    ],
    "03.3": [
        (gradient_without_its_two, "average these gradients"),
        (lambda w, x: jnp.ones(2), "average these gradients"),
    ],
    "04.1": [({**THREE, "w2": P(None, "model")}, "all-gather"), (dict.fromkeys(THREE, P()), "more than half")],
    "04.2": [
        (P(None, None, "clients"), "last dimension must stay whole"),
        (P("clients", "model"), "192"),
        (P("model", "model"), "rejects"),
    ],
    "05.1": [({"all-reduce"}, "two kinds"), ("all-reduce", "two kinds")],
    "05.2": [(2, "combines")],
    "06.1": [(240, "per byte"), (962, "per byte")],
    "06.2": [
        ((960_000, 2 * 128 * 512 * 4), "One all-reduce"),
        ((10, 917_504), "include the executions"),
        ((1e7, 917_504), "4 × 2"),
    ],
    "07.1": [(4, "Try 2, 4, 8"), (16, "Try 2, 4, 8")],
    "07.2": [(1e12, "next slowest"), (5e10, "next slowest")],
    "08.1": [(damped_momentum, "m ← 0.9 m"), (lambda p, m, u: (p - 0.5 * u, m), "m ← 0.9 m")],
    "08.2": [((0.5, 0.9), "90 of the 100"), ((0.9, 0.9), "count equally")],
    "08.3": [
        (lambda x, y: ((x, y), (x[:10], y[:10])), "in both splits"),
        (drawn_with_replacement, "for training"),
        (every_fifth, "labels"),
        (ten_rows, "of 100 images"),
        (stratified, "without reading"),
    ],
    "09.1": [
        (lambda c_i, c, x, y, steps, rate: (x - y) / (steps * rate), "option II"),
        (lambda c_i, c, x, y, steps, rate: c_i - c + (y - x) / (steps * rate), "option II"),
    ],
    "09.2": [(-0.242, "Run FedProx"), (-0.786, "Run FedProx")],
    "09.3": [(0.05, "as far from the optimum"), (0.2, "between 0 and 0.1")],
    "10.1": [(heavy_ball, "Nesterov")],
    "10.2": [(0.3, "before and after"), (math.nan, "before and after")],
    "10.3": [(rounded_too_late, "discloses 2,112 bytes .* at most 1,072")],
    "11.1": [
        (lambda z: 1 / (1 + np.exp(-np.asarray(z))), "jax.numpy"),
        (jnp.tanh, "between -"),
        (lambda z: jnp.abs(jnp.tanh(z)), "above 0 and below 1"),
        (lambda z: jnp.float32(0.5), "increase"),
        (lambda z: (1 + jnp.sin(z)) / 2, "increase"),
        (lambda z: 0.5 + z / 17, "for z = −60"),
    ],
    "11.2": [((4.4, 4.5), "finer"), ((5.3, 2.3), "smaller than the best rate for five")],
    "11.3": [(slope_of_last_step, "through every one of them")],
    "12.1": [
        (clipped_by_numbers, "jax.numpy|traces"),
        (clipped_by_leaf, "norm is over all leaves"),
        (lambda u, c: jax.tree.map(lambda v: v * 2 * c, clipped(u, 0.5)), "must not change"),
        (clipped_to(lambda limit: 1.0), "With C = 2"),
        (clipped_to(jnp.square), "With C = 2"),
        (clipped_unit_vector, "do not divide 0 by 0"),
    ],
    "12.2": [(ValueError("a wrong shape"), "different error"), ("memory", "the exception")],
    "12.3": [((13, 3), "count per word"), ((8, 4), "5 bits more")],
    "12.4": [(16, "more than half"), (8, "more than half")],
    "12.5": [(trimmed_rows, "discloses 32 bytes"), (trimmed_by_eight, "divide by six")],
    "13.1": [(decoded_from_all, "a late answer was used")],
    "13.2": [
        (one_row_each, r"there are 6 messages .* 3 messages would be enough"),
        (lambda lists: [], "should get the rows"),
    ],
    "13.3": [(10, "workers. blocks")],
    "13.4": [((5, 5), "no pair is fatal"), ((45, 0), "both workers")],
    "14.1": [(6 * 512**2 / 64, "half")],
    "14.2": [("reduce_sum", "look for the stage")],
    "14.3": [(16, "Compare")],
    "14.4": [(gathered, "the program gathers a whole row"), (lambda a, b: a @ b, "sum over k")],
    "15.1": [
        (of_mean_variances, "ignores the differences"),
        (lambda mean, x: (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-5), "ignores"),
        (outside_the_root, "inside the root"),
    ],
    "15.2": [
        (careless, "a deadlock"),
        (lambda ctx, batch, state: (state, ctx.all_reduce(batch[0].sum())), "their own sum"),
    ],
    "16.1": [
        (mixed_in_place, "modified its arguments"),
        (lambda o, r, late, m, e: {k: (1 - m) * o[k] + m * r[k] for k in o}, "share"),
    ],
    "16.2": [(waits_for_failed, "'a' may begin"), (lambda finished, client, bound: True, "has to wait")],
    "16.3": [(0, "still training")],
    "16.4": [(4, "Count the nodes")],
    "17.1": [(lambda p: p / p.max(), r"\[1\.0, 0\.5, 0\.25\]"), (lambda p: 1 / (len(p) * p), "the same for all items")],
    "17.2": [(drawn_without_exponent, r"\[0\.1, 0\.2, 0\.3, 0\.4\]")],
    "17.3": [
        (goes_before_counting, r"after 64 inserts and 225 samples.*has to wait"),
        (lambda *args: True, "has to wait"),
    ],
    "17.4": [(0.6, "950"), (math.log(19), "950")],
    "17.5": [(lambda p, exponent, errors: (errors.mean(), errors.std() / 2), "the standard deviation is")],
    "18.1": [
        ((partial_means, combined_means), "The tasks have 3, 3, 1 clients"),
        (
            (lambda function, w, task: function(w, *map(jnp.stack, zip(*task, strict=True))), combined),
            "\\*one\\* client",
        ),
    ],
    "18.2": [(0, "check_nan")],
    "18.3": [(2560, "disclosed"), (641, "disclosed")],
    "19.1": [
        (lambda x: jnp.roll(x, 1, axis=0), "Roll by two"),
        (lambda x: x[(jnp.arange(64) - 2) % 64], "neighbours|bytes"),
    ],
    "19.2": [
        (lambda x: jnp.abs(jnp.fft.fft(x)) ** 2, "the program uses all-gather"),
        (lambda x: jnp.abs(jnp.fft.fft(x)), "square"),
    ],
    "19.3": [
        (lambda x: (x - x.mean()) / x.std(), "2 collectives follow one another"),
        (lambda x: x - x.mean(), "deviation"),
    ],
    "20.1": [(lambda updates, staleness: updates.mean(0), "values differ"), (stale_by_weight, "divide by the number")],
    "20.2": [(2.4e10, "received the model"), (1300 * 40e6, "received the model")],
    "20.3": [(30, "Each survivor"), (970, "Each survivor")],
    "21.1": [
        (of_values, "with"),
        (normal_interval, "with"),
        (narrow_interval, "with"),
        (lambda values, seed: (values.mean(),) * 2, "replacement"),
    ],
    "21.2": [(one_sided, r"the p-value is 0\.125"), (signed_ranks, "the p-value is")],
    "21.3": [
        (holm_above_one, r"\[1, 1, 0.004"),
        (bonferroni, r"\[0\.03, 0\.06, 0\.06\]"),
        (lambda p: p, "the result is"),
    ],
    "22.1": [
        (whole_rows, "a device sends 1,792 bytes; a ring needs 448"),
        (lambda x: jax.lax.psum(x, "ring"), "ppermute|Every device"),
    ],
    "22.2": [(CROSSOVER / 2, "Set both costs equal")],
    "22.3": [(2 * 2**30 * 3 / 4, "S/8"), (2**27, "S/8")],
    "23.1": [(7e9 * 4 / 64, "16 bytes"), (112e9, "Divide by 64")],
    "23.2": [(62, "bubble"), (70, "bubble")],
    "23.3": [
        ({"up": P(None, "model"), "down": P(None, "model")}, "all-gather"),
        ({"up": P(), "down": P()}, "an eighth"),
        ({"up": (None, "model"), "down": ("model", None)}, "write a `PartitionSpec`"),
        ({"up": P(None, "model"), "down": P()}, r"\(256, 64\) of `down`"),
    ],
    "24.1": [(of_the_first_unit, "divide"), (of_the_largest_sign, "absolute value")],
    "24.2": [
        (lambda key, clients, size: jax.random.bits(key, (clients, size), jnp.uint32), "is not 0"),
        (constant_masks, "repeats words"),
        (literal_masks, "repeats words"),
        (masks_of_one_word_a_pair, "repeats words"),
        (dealer_masks, "clients 0 and 1 share 0 random words"),
        (dealer_masks_with_idle_words, "clients 0 and 1 share 0 random words"),
        (ring_masks, "clients 0 and 2 share 0 random words"),
        (masks_of_one_key, r"a random word is in the masks of the clients \[0,"),
        (folded_masks(lambda key, i, j: jax.random.fold_in(key, i + j)), r"the clients \[0, 1, 2, 3\]"),
        (lambda key, clients, size: pair_masks(jax.random.key(0), clients, size), "another key"),
    ],
    "24.3": [(10_000, "differ by up to 2 C"), (1_000, "Central")],
    "24.4": [((0.0282, 29.8), "at most 1"), ((0.01, 1), "FPR"), ((2.8, 100), "FPR")],
    "25.1": [
        (through_the_steps, "differentiates through the steps"),
        (lambda loss, w, rate, steps: jax.grad(loss)(w), "Take 1 steps"),
    ],
    "25.2": [
        (rest_of_maml, "the fixed point of MAML"),
        (lambda wanted, curvature, rate, steps: wanted.mean(), "this distance times a"),
    ],
    "25.3": [(mixture_of_one, r"a with bias=1\.0, deviation=2\.0, count=4 is 0\.2")],
    "25.4": [
        (twice_by_chance, r"the mean for clients with 4 images is 0\.188"),
        (lambda counts, size: 0.0, "overall fraction"),
        (largest_by_chance, r"\(40, 30, 10, 10, 10\)"),
    ],
    "26.1": [(counted_by_pairs, "every pair goes"), (present_words, "counts its own 40 words")],
    "26.2": [((80_000, 80_000), "each distinct word"), ((10_000, 700), "each occurrence")],
    "26.3": [(second_of_rows, "discloses 32 bytes"), (second_from_zero, "the remaining values")],
    "27.1": [
        (lambda b, m, rate: rate**2 * np.var(b) / m / (1 - (1 - rate) ** 2), "the second term"),
        (lambda b, m, rate: np.var(b) / m, "the second term"),
    ],
    "27.2": [(20, "half of its value"), (18, "half of its value")],
    "27.3": [
        (lambda updates, present, p: (present[:, None] * updates).mean(0), "average to the mean of all rows"),
        (lambda updates, present, p: (present[:, None] * updates).sum(0) / present.sum(), "average to the mean"),
    ],
    "28.1": [
        (mean_of_neighbours, "larger degree"),
        (metropolis_of_all, "must not communicate"),
        (largest_degree, "larger degree"),
    ],
    "28.2": [(3498, "smallest integer t"), (10, "logarithms")],
    "28.3": [(only_gossip, "where the mean gradient is 0"), (by_a_server, "no communication")],
    "28.4": [
        ((89 * 16 * 4096, 10 * 32 * 4096, 131_072), "Two vectors"),
        ((11_665_408, 10 * 2 * 32 * 4096, 65_536), "One vector up"),
    ],
    "29.1": [(2**33, "keys and values"), (2**34 * 4, "heads")],
    "29.2": [((2**34 / 32, 2**34 / 32), "eight heads"), ((2**31, 2**31), "Two axes")],
    "29.3": [(mean_of_parts, "each partial result by exp"), (without_maximum, "the largest m")],
    "29.4": [(40.6, "all 16 chips"), (0.00254, "give milliseconds")],
    "30.1": [
        (lambda w, a, n, k: 3 * (1 - k / n) * w / k + 4 * (1 - 1 / k) * a * k / n, "two gathers and an all-reduce"),
        (lambda w, a, n, k: 4 * (1 - k / n) * w + 4 * (1 - 1 / k) * a, "along"),
    ],
    "30.2": [(5.66, "2 n F"), (64, "n devices")],
    "30.3": [(4378, "3 w · 2 bytes"), (1095, "solve for t")],
    "31.1": [(256, "r · "), (1 / 128, "instead of")],
    "31.2": [
        (lambda a, b: jnp.linalg.norm((a @ b).mean(0) - a.mean(0) @ b.mean(0)), "divide by the norm"),
        (lambda a, b: 0.0, "five random clients"),
    ],
    "31.3": [
        (means_of_factors, "concatenate the factors"),
        (lambda a, b: (side_by_side(a, b)[0] * 3, side_by_side(a, b)[1]), "number of clients"),
        (svd_of_the_mean, "multiplies matrices"),
        (numpy_svd_of_the_mean, "multiplies matrices"),
    ],
    "31.4": [((32_768, 32_768), "all eight"), ((65_536, 262_144), "One pair")],
}

# Right values, computed by the server from the raw data of all clients.
PLAIN = {
    "01.3": lambda w, x, y: w - 0.1 * jax.grad(lambda w: jnp.mean((jnp.einsum("cnd,d->cn", x, w) - y) ** 2))(w),
    "02.1": jnp.var,
    "02.2": lambda x, threshold: jnp.mean(x > threshold),
    "02.3": lambda x, present: (x * present).sum() / present.sum(),
    "02.4": lambda x: jnp.max(x**2) / jnp.sum(x**2),
    "03.1": lambda x: jnp.max(x**2),
    "03.3": lambda w, x: (2 * x * (x @ w)[:, None]).mean(0),
    "10.3": lambda updates: jax.tree.map(lambda x: x.mean(0), updates),
    "12.5": lambda x: jnp.sort(x)[1:-1].mean(),
    "26.1": lambda words: jnp.bincount(words.ravel(), length=16),
    "26.3": lambda x: jnp.sort(x)[-2],
}


def evidence_of(exercise):
    """What the grader of an exercise asks for next to the answer."""
    return _of_notebook_07()[: {"07.1": 1, "07.2": 2}[exercise]] if exercise.startswith("07.") else ()


@cache
def _of_notebook_07():
    """The record of a round of 32 clients on priced v5e chips, and the round on a virtual clock."""
    from workbench import measurement

    mesh = wb.make_mesh(clients=4, model=2)

    def shaped(*shape, spec):
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=jax.NamedSharding(mesh, spec))

    def loss_of(params, x, y):
        return jnp.mean((jax.nn.relu(x @ params["in"]) @ params["out"] - y) ** 2)

    @wb.program(clients=32)
    def training_round(params, data):
        def train(local, client):
            def step(p, batch):
                return jax.tree.map(lambda a, g: a - 0.1 * g, p, jax.grad(loss_of)(p, *batch)), None

            return jax.tree.map(jnp.subtract, jax.lax.scan(step, local, client)[0], local)

        update = wb.map_fn(train, (wb.broadcast(params), data))
        return jax.tree.map(jnp.add, params, wb.reduce_mean(update))

    params = {"in": shaped(4096, 2**16, spec=P(None, "model")), "out": shaped(2**16, 16, spec=P("model", None))}
    data = shaped(32, 4, 16, 4096, spec=P("clients")), shaped(32, 4, 16, 16, spec=P("clients"))
    with jax.set_mesh(mesh):
        record = wb.inspect(training_round, on="v5e", examples_per_client=([64] * 32, 64))(params, data)
    assert record.cost is not None
    speed, up = np.full(32, 1e12), np.full(32, 2e9)
    speed[11], up[23] = 5e10, 1.2e9
    profiles = measurement.ClientProfiles(flops_per_second=speed, down_bytes_per_second=2e9, up_bytes_per_second=up)
    sent = record.plan.stages[0].moved_bytes / 32
    flops = np.array([client.flops for client in record.cost.clients])
    return record, measurement.simulate_round(profiles, flops, sent, sent)
