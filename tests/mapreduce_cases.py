"""Programs with every primitive, each next to the same numbers in plain `jnp`, for the tests of several floors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import workbench as wb

FEATURES = 3
KEYS = 4


@dataclass(frozen=True)
class Case:
    """`ours(w, x)` runs inside a program; `w` is `[features]` at the server and `x` is `[clients, features]`."""

    name: str
    ours: Callable[[Any, Any], Any]
    plain: Callable[[Any, Any], Any]


def inputs(clients: int) -> tuple[Any, Any]:
    """The server's vector and the clients' rows."""
    random = np.random.default_rng(0)
    w = random.normal(size=FEATURES).astype(np.float32)
    x = random.normal(size=(clients, FEATURES)).astype(np.float32)
    return jnp.asarray(w), jnp.asarray(x)


def _rows(w: Any, x: Any) -> Any:
    return wb.map_fn(lambda row: jnp.tanh(row * w) + row, x)


def _plain_rows(w: Any, x: Any) -> Any:
    return jnp.tanh(x * w[None]) + x


def _keys(x: Any) -> Any:
    return np.arange(x.shape[0], dtype=np.int32) * 7 % KEYS  # with 10 clients every key comes 2 or 3 times


def _some(x: Any) -> Any:
    return np.arange(x.shape[0]) % 3 != 1


def _weights(x: Any) -> Any:
    return wb.map_fn(lambda row: jnp.exp(row[0]), x)


def _plain_weighted(w: Any, x: Any) -> Any:
    weight = jnp.exp(x[:, 0])[:, None]
    return (weight * _plain_rows(w, x)).sum(0) / weight.sum(0)


def _cohort(w: Any, x: Any) -> Any:
    rows = wb.select(_rows(w, x), _COHORT)
    with wb.program(clients=len(_COHORT)):
        return wb.reduce_mean(wb.map_fn(lambda row: row**2, rows))


_COHORT = np.array([5, 0, 5, 2], dtype=np.int32)


def _by_key_plain(w: Any, x: Any) -> Any:
    return jnp.stack([_plain_rows(w, x)[_keys(x) == key].sum(0) for key in range(KEYS)])


def _by_key_mean_plain(w: Any, x: Any) -> Any:
    counts = np.maximum(np.bincount(_keys(x), minlength=KEYS), 1).astype(np.float32)
    return _by_key_plain(w, x) / counts[:, None]


CASES = [
    Case(
        "broadcast",
        lambda w, x: wb.map_fn(lambda v, row: jnp.sin(v) * row, (wb.broadcast(w), x)),
        lambda w, x: jnp.sin(w)[None] * x,
    ),
    Case("map_fn", _rows, _plain_rows),
    Case("reduce_sum", lambda w, x: wb.reduce_sum(_rows(w, x)), lambda w, x: _plain_rows(w, x).sum(0)),
    Case("reduce_mean", lambda w, x: wb.reduce_mean(_rows(w, x)), lambda w, x: _plain_rows(w, x).mean(0)),
    Case(
        "reduce_mean of some",
        lambda w, x: wb.reduce_mean(_rows(w, x), where=_some(x)),
        lambda w, x: _plain_rows(w, x)[_some(x)].mean(0),
    ),
    Case(
        "reduce_weighted_mean",
        lambda w, x: wb.reduce_weighted_mean(_rows(w, x), _weights(x)),
        _plain_weighted,
    ),
    Case("reduce_max", lambda w, x: wb.reduce_max(_rows(w, x)), lambda w, x: _plain_rows(w, x).max(0)),
    Case("reduce_min", lambda w, x: wb.reduce_min(_rows(w, x)), lambda w, x: _plain_rows(w, x).min(0)),
    Case("reduce_by_key", lambda w, x: wb.reduce_by_key(_rows(w, x), _keys(x), KEYS), _by_key_plain),
    Case(
        "reduce_by_key mean",
        lambda w, x: wb.reduce_by_key(_rows(w, x), _keys(x), KEYS, op="mean"),
        _by_key_mean_plain,
    ),
    Case("select", _cohort, lambda w, x: (_plain_rows(w, x)[_COHORT] ** 2).mean(0)),
    Case(
        "two rounds",
        lambda w, x: wb.reduce_mean(_rows(wb.reduce_mean(_rows(w, x)), x)),
        lambda w, x: _plain_rows(_plain_rows(w, x).mean(0), x).mean(0),
    ),
]


def _loss(fn: Callable) -> Callable:
    return lambda w, x: jnp.sum(jnp.sin(fn(w, x)))


def _stack(w: Any) -> Any:
    return jnp.stack([w, 2 * w])


def _over_columns(x: Any) -> Any:
    return jnp.stack([x, -x], axis=1)


def _rounds(fn: Callable) -> Callable:
    def rounds(w: Any, x: Any) -> Any:
        return jax.lax.scan(lambda v, _: (v + 0.1 * jax.grad(_loss(fn))(v, x), None), w, None, length=2)[0]

    return rounds


TRANSFORMATIONS: dict[str, Callable[[Callable], Callable]] = {
    "value": lambda fn: fn,
    "grad": lambda fn: jax.grad(_loss(fn), argnums=(0, 1)),
    "jacfwd": jax.jacfwd,
    "jacrev": jax.jacrev,
    "hessian": lambda fn: jax.hessian(_loss(fn)),
    "forward over reverse": lambda fn: (
        lambda w, x: jax.jvp(lambda v: jax.grad(_loss(fn))(v, x), (w,), (jnp.cos(w),))[1]
    ),
    "reverse over reverse": lambda fn: jax.grad(lambda w, x: jnp.sum(jax.grad(_loss(fn))(w, x) ** 2), argnums=(0, 1)),
    "vmap of the server's": lambda fn: lambda w, x: jax.vmap(fn, in_axes=(0, None))(_stack(w), x),
    "vmap of the clients'": lambda fn: lambda w, x: jax.vmap(fn, in_axes=(None, 1), out_axes=1)(w, _over_columns(x)),
    "vmap of both": lambda fn: lambda w, x: jax.vmap(fn, in_axes=(0, -2), out_axes=-1)(_stack(w), _over_columns(x)),
    "vmap of grad": lambda fn: lambda w, x: jax.vmap(jax.grad(_loss(fn)), in_axes=(0, None))(_stack(w), x),
    "checkpoint": lambda fn: jax.grad(_loss(jax.checkpoint(fn))),
    "scan over rounds": _rounds,
}
