"""Whose value a masked sum holds, against runs of the program with other values of each client."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb

CLIENTS, FEATURES = 4, 3
PROGRAMS = 240

# Masks of one number per client, from a number `i` of the caller and a constant `k`.
MASKS = {
    "equal": lambda i, k: jnp.arange(CLIENTS) == i,
    "equal to a constant": lambda i, k: jnp.arange(CLIENTS) == k,
    "set": lambda i, k: jnp.zeros(CLIENTS).at[i].set(2.0),
    "set a constant": lambda i, k: jnp.zeros(CLIENTS).at[k].set(1.0),
    "add": lambda i, k: jnp.zeros(CLIENTS, jnp.int32).at[i].add(3),
    "row of eye": lambda i, k: jnp.eye(CLIENTS)[i],
    "row of eye by a constant": lambda i, k: jnp.eye(CLIENTS)[k],
    "column of eye": lambda i, k: jnp.eye(CLIENTS)[:, i],
    "one-hot": lambda i, k: jax.nn.one_hot(i, CLIENTS),
    "one-hot and its square": lambda i, k: jax.nn.one_hot(k, CLIENTS) ** 2,
    "dynamic update": lambda i, k: jax.lax.dynamic_update_slice(jnp.zeros(CLIENTS), jnp.ones(1), (i,)),
    "dynamic slice": lambda i, k: jax.lax.dynamic_slice(jnp.eye(CLIENTS), (i, 0), (1, CLIENTS))[0],
    "sorted": lambda i, k: jnp.sort(jnp.zeros(CLIENTS).at[i].set(1.0)),
    "by rank": lambda i, k: jnp.argsort(jnp.arange(CLIENTS)[::-1]) == k,
    "reversed": lambda i, k: jnp.zeros(CLIENTS).at[i].set(1.0)[::-1],
    "permuted": lambda i, k: (jnp.arange(CLIENTS) == i)[jnp.array([2, 0, 3, 1])],
    "rolled": lambda i, k: jnp.roll(jnp.eye(CLIENTS)[0], k),
    "difference": lambda i, k: (jnp.arange(CLIENTS) >= k).astype("float32") - (jnp.arange(CLIENTS) > k),
    "distance": lambda i, k: jnp.maximum(0, 1 - abs(jnp.arange(CLIENTS) - i)),
    "product": lambda i, k: (jnp.arange(CLIENTS) >= k) * (jnp.arange(CLIENTS) <= k),
    "complement": lambda i, k: 1 - jnp.ones(CLIENTS).at[i].set(0.0),
    "first": lambda i, k: jnp.cumsum(jnp.ones(CLIENTS)) == 1,
    # Several clients.
    "at least": lambda i, k: jnp.arange(CLIENTS) >= 2,
    "others": lambda i, k: 1 - jnp.eye(CLIENTS)[i],
    "weights": lambda i, k: jnp.arange(1.0, CLIENTS + 1),
    "set two": lambda i, k: jnp.zeros(CLIENTS).at[jnp.array([0, 2])].set(1.0),
    "set and one more": lambda i, k: jnp.zeros(CLIENTS).at[i].set(1.0).at[(i + 1) % CLIENTS].set(1.0),
    "parity": lambda i, k: jnp.arange(CLIENTS) % 2,
    "all": lambda i, k: jnp.ones(CLIENTS),
}

# How a mask `m` keeps values `x` of all clients.
USES = {
    "product": lambda x, m: wb.reduce_sum(x * m[:, None]),
    "product, mask first": lambda x, m: wb.reduce_sum(m[:, None] * x),
    "where": lambda x, m: wb.reduce_sum(jnp.where((m != 0)[:, None], x, 0.0)),
    "where not": lambda x, m: wb.reduce_sum(jnp.where((m == 0)[:, None], 0.0, x)),
    "inside": lambda x, m: wb.reduce_sum(wb.map_fn(lambda row, m: row * m, (x, m))),
    "where inside": lambda x, m: wb.reduce_sum(wb.map_fn(lambda row, m: jnp.where(m > 0, row, 0.0), (x, m))),
    "mean": lambda x, m: wb.reduce_mean(x * m[:, None]),
    "work after": lambda x, m: wb.reduce_sum(wb.map_fn(lambda row, m: -(row * m) / 2, (x, m))),
    "work before": lambda x, m: wb.reduce_sum(wb.map_fn(lambda row, m: jnp.tanh(row) * m, (x, m))),
    "sum of the row": lambda x, m: wb.reduce_sum(wb.map_fn(lambda row, m: row.sum() * m, (x, m))),
    "compiled": lambda x, m: wb.reduce_sum(jax.jit(lambda x, m: x * m[:, None])(x, m)),
}


def drawn_programs():
    """Pairs of a mask and its use with a constant: each mask with each use at least about once."""
    generator = np.random.default_rng(0)
    pairs = [(mask, use) for mask in MASKS for use in USES]
    chosen = generator.permutation(len(pairs))[:PROGRAMS]
    return [(*pairs[n], int(generator.integers(CLIENTS))) for n in sorted(chosen)]


def clients_in(fn, i):
    """The clients whose values change the result: what a run of the program shows."""
    x = np.random.default_rng(1).uniform(0.5, 1.5, (CLIENTS, FEATURES)).astype(np.float32)
    result = jax.jit(fn)
    base = np.asarray(result(x, i))
    found = set()
    for client in range(CLIENTS):
        other = x.copy()
        other[client] += 0.25
        if not np.array_equal(base, result(other, i)):
            found.add(client)
    return found


@pytest.mark.parametrize(("mask", "use", "k"), drawn_programs())
def test_sums_of_one_client_are_found_and_no_others(mask, use, k):
    def reduced(x, i):
        return USES[use](x, MASKS[mask](i, k))

    program = wb.program(clients=CLIENTS)(reduced)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        shown = wb.trace(program)(np.ones((CLIENTS, FEATURES), np.float32), jnp.int32(1)).plan.disclosed
        several = [clients_in(program, np.int32(i)) for i in range(CLIENTS)]
    found = [each.single_client for each in shown if each.kind == "partial result"]
    if max(map(len, several)) > 1:
        assert found == [""]
    elif all(clients == several[0] for clients in several):
        assert found == [f"client {next(iter(several[0]))}"] or found == ["one client"]
    else:
        assert found == ["one client"]
