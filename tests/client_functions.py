"""Client functions of every kind and ways of running them, each with what plain `vmap` gives for it."""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import mesh_operations
import numpy as np
import optax
from jax.sharding import AxisType
from mesh_operations import OPERATIONS, Row

import workbench as wb

CLIENTS = 7  # divides neither by 3 nor by 8

Client = Callable[[Row], Any]
Result = Callable[[Client, Row], Any]


def _train(optimizer: Any, r: Row) -> Any:
    target = jnp.linspace(-1.0, 1.0, 16)
    params = {"w": jnp.full(16, 0.1), "m": jnp.full((16, 2), 0.2)}

    def loss(params: Any, row: Any) -> Any:
        return jnp.mean((params["w"] * row - target) ** 2) + jnp.mean((row @ params["m"]) ** 2)

    def step(carry: Any, row: Any) -> Any:
        params, state = carry
        value, slope = jax.value_and_grad(loss)(params, row)
        kwargs = {"value": value} if isinstance(optimizer, optax.GradientTransformationExtraArgs) else {}
        updates, state = optimizer.update(slope, state, params, **kwargs)
        return (optax.apply_updates(params, updates), state), value

    (params, _), losses = jax.lax.scan(step, (params, optimizer.init(params)), r["a"][:3])
    return params, losses


_ALIASES = """
    adabelief adadelta adafactor adagrad adam adamax adamaxw adamw adan amsgrad fromage lamb lars lion nadam nadamw
    novograd optimistic_adam optimistic_gradient_descent polyak_sgd radam rmsprop rprop sgd sign_sgd sm3 yogi
    """.split()
_CONTRIB = """
    acprop ademamix adopt cocob dadapt_adamw dog dowg momo momo_adam muon prodigy schedule_free_adamw
    schedule_free_sgd simplified_ademamix sophia
    """.split()
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    **{name: lambda name=name: getattr(optax, name)(0.01) for name in _ALIASES if hasattr(optax, name)},
    **{
        f"contrib_{name}": lambda name=name: getattr(optax.contrib, name)(0.01)
        for name in _CONTRIB
        if hasattr(optax.contrib, name)
    },
    "momentum": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "noisy_sgd": lambda: optax.noisy_sgd(0.1, key=jax.random.key(0)),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(optax.cosine_decay_schedule(0.1, 10))),
    "multi_steps": lambda: optax.MultiSteps(optax.adam(0.1), 2),
    "masked": lambda: optax.masked(optax.sgd(0.1), {"w": True, "m": False}),
    "inject_hyperparams": lambda: optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
    "apply_if_finite": lambda: optax.apply_if_finite(optax.sgd(0.1), 3),
}


def _optimizer(name: str) -> Client:
    return lambda r: _train(OPTIMIZERS[name](), r)


def _through(dtype: Any) -> Client:
    """Computes in a dtype and returns it."""

    def client(r: Row) -> Any:
        x = r["a"]
        if dtype == jnp.bool_:
            return (x > 0) & (x < 1)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            return (x + 1j * x).astype(dtype) ** 2
        if jnp.issubdtype(dtype, jnp.integer):
            return (x * 3).astype(jnp.int32).astype(dtype) + jnp.ones((), dtype)
        return x.astype(dtype)

    return client


DTYPES = {
    f"dtype_{jnp.dtype(dtype).name}": _through(dtype)
    for dtype in (
        jnp.bool_,
        jnp.int8,
        jnp.uint8,
        jnp.int16,
        jnp.uint16,
        jnp.int32,
        jnp.uint32,
        jnp.bfloat16,
        jnp.float16,
        jnp.float32,
        jnp.float8_e4m3fn,
        jnp.float8_e5m2,
        jnp.complex64,
    )
}


def _nnx_training(r: Row) -> Any:
    from flax import nnx

    model = nnx.Linear(16, 4, rngs=nnx.Rngs(0))
    graph, params = nnx.split(model)
    slope = jax.grad(lambda p: jnp.sum(nnx.merge(graph, p)(r["a"]) ** 2))(params)
    return jax.tree.leaves(jax.tree.map(lambda p, g: p - 0.01 * g, params, slope))


def _equinox_training(r: Row) -> Any:
    import equinox as eqx

    model = eqx.nn.MLP(16, 2, 8, 1, key=jax.random.key(0))
    slope = eqx.filter_grad(lambda m: jnp.sum(jax.vmap(m)(r["a"]) ** 2))(model)
    return jax.tree.leaves(eqx.filter(slope, eqx.is_array))


def _raw_keys(r: Row) -> Any:
    return jax.random.uniform(jax.random.fold_in(jax.random.PRNGKey(0), r["i"][0]), (4,))


def _checkify(r: Row) -> Any:
    from jax.experimental import checkify

    def positive(x: Any) -> Any:
        checkify.check(jnp.all(x > -100), "not positive")
        return x * 2

    _, y = checkify.checkify(positive)(r["a"])
    return y


def _lbfgs_free_newton(r: Row) -> Any:
    def step(x: Any, _: Any) -> Any:
        slope, curve = jax.grad(lambda v: (v**4 + v**2).sum())(x), jax.hessian(lambda v: (v**4 + v**2).sum())(x)
        return x - jnp.linalg.solve(curve, slope), None

    return jax.lax.scan(step, r["a"][0, :3], None, length=2)[0]


MORE: dict[str, Client] = {
    "nothing": lambda r: {},
    "scalar_results": lambda r: (1, 2.5, r["a"].sum()),
    "nested_pytree": lambda r: {"x": [r["a"], (r["m"], {"y": r["i"]})], "none": None},
    "zero_size": lambda r: jnp.zeros((0, 3)),
    "random_keys_out": lambda r: jax.random.key_data(
        jax.random.split(jax.random.fold_in(jax.random.key(0), r["i"][0]))
    ),
    "raw_keys": _raw_keys,
    "shuffle_choice": lambda r: jax.random.choice(jax.random.fold_in(jax.random.key(1), r["i"][1]), r["a"], (3,)),
    "gamma": lambda r: jax.random.gamma(jax.random.key(3), jnp.abs(r["a"][0]) + 0.5),
    "checkify": _checkify,
    "newton": _lbfgs_free_newton,
    "nnx_training": _nnx_training,
    "equinox_training": _equinox_training,
    "where_safe": lambda r: jnp.where(r["a"] > 0, jnp.sqrt(jnp.where(r["a"] > 0, r["a"], 1.0)), 0.0),
    "integer_division": lambda r: r["i"] // (r["y"] + 1),
    "bits": lambda r: (r["i"] ^ r["y"]) | (r["i"] << 2),
    "special_functions": lambda r: jax.scipy.special.gammaln(jnp.abs(r["a"]) + 1),
    "erf": lambda r: jax.scipy.special.erf(r["a"]),
    "logsumexp": lambda r: jax.nn.logsumexp(r["a"], axis=1),
    "cumulative": lambda r: (jnp.cumprod(r["a"], axis=1), jax.lax.cummax(r["a"])),
    "scan_of_cond": lambda r: jax.lax.scan(
        lambda c, x: (jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, c), c), r["a"][0], r["a"]
    ),
    "reverse_unrolled_scan": lambda r: jax.lax.scan(
        lambda c, x: (c * 0.5 + x, c), r["a"][0], r["a"], reverse=True, unroll=2
    ),
    "jacobian": lambda r: jax.jacfwd(lambda v: jnp.sin(v) * v.sum())(r["a"][0, :4]),
    "linearize": lambda r: jax.linearize(jnp.sin, r["a"])[1](r["a"]),
    "custom_jvp": lambda r: jax.grad(lambda a: jax.nn.relu(a).sum())(r["a"]),
    "stop_gradient": lambda r: jax.grad(lambda a: (a * jax.lax.stop_gradient(a)).sum())(r["a"]),
    "optimization_barrier": lambda r: jax.lax.optimization_barrier(r["a"] * 2),
    "kron": lambda r: jnp.kron(r["m"][:2, :2], r["m"][:2, :2]),
    "lstsq": lambda r: jnp.linalg.pinv(r["m"]) @ r["a"],
    "interp": lambda r: jnp.interp(r["a"][0], jnp.arange(4.0), jnp.arange(4.0) ** 2),
    "digitize": lambda r: jnp.digitize(r["a"][0], jnp.array([-1.0, 0.0, 1.0])),
    "batched_map": lambda r: jax.lax.map(jnp.sin, r["a"], batch_size=3),
}

FUNCTIONS: dict[str, Client] = {
    **OPERATIONS,
    **{f"optax_{name}": _optimizer(name) for name in OPTIMIZERS},
    **DTYPES,
    **MORE,
}


def _rows(clients: int) -> Row:
    return {key: value[:clients] for key, value in mesh_operations.rows().items()}


def _program(client: Client, clients: int) -> Callable[[Row], Any]:
    return wb.program(clients=clients)(lambda x: wb.map_fn(lambda row: client(row), (x,)))


def _loss_of(run: Callable[[Row], Any]) -> Callable[[Any, Row], Any]:
    def loss(a: Any, x: Row) -> Any:
        leaves = [y for y in jax.tree.leaves(run({**x, "a": a})) if jnp.issubdtype(y.dtype, jnp.floating)]
        return sum((jnp.sum(jnp.sin(y.astype(jnp.float32))) for y in leaves), jnp.float32(0))

    return loss


def _plain(client: Client, x: Row) -> Any:
    return jax.jit(jax.vmap(client))(x)


def _plain_gradient(client: Client, x: Row) -> Any:
    return jax.jit(jax.grad(_loss_of(jax.vmap(client))))(x["a"], x)


def _here(transform: Callable[[Any], Any]) -> Result:
    return lambda client, x: transform(_program(client, CLIENTS))(x)


def _gradient(transform: Callable[[Any], Any]) -> Result:
    return lambda client, x: transform(jax.grad(_loss_of(_program(client, CLIENTS))))(x["a"], x)


def _forward_derivative(run: Callable[[Any], Any], a: Any) -> Any:
    """Of what is a float, along ones."""

    def floats(a: Any) -> Any:
        return [y for y in jax.tree.leaves(run(a)) if jnp.issubdtype(y.dtype, jnp.floating)]

    return jax.jvp(floats, (a,), (jnp.ones_like(a),))


def _plain_forward(client: Client, x: Row) -> Any:
    return jax.jit(lambda a: _forward_derivative(lambda a: jax.vmap(client)({**x, "a": a}), a))(x["a"])


def _forward(transform: Callable[[Any], Any]) -> Result:
    def run(client: Client, x: Row) -> Any:
        program = _program(client, CLIENTS)
        return transform(lambda a: _forward_derivative(lambda a: program({**x, "a": a}), a))(x["a"])

    return run


def _gradient_on_mesh(client: Client, x: Row) -> Any:
    with jax.set_mesh(wb.make_mesh(clients=8)):
        return jax.device_get(wb.jit(jax.grad(_loss_of(_program(client, CLIENTS))))(x["a"], x))


def _on_mesh(kind: AxisType, transform: Callable[[Any], Any]) -> Result:
    def run(client: Client, x: Row) -> Any:
        with jax.set_mesh(wb.make_mesh(clients=8, axis_types=kind)):
            return jax.device_get(transform(_program(client, CLIENTS))(x))

    return run


WAYS: dict[str, tuple[Result, Callable[[Client, Row], Any]]] = {
    "wb.jit": (_here(wb.jit), _plain),
    "gradient, chunks of 3": (_gradient(lambda fn: wb.jit(fn, chunk_size=3)), _plain_gradient),
    "chunks of 3": (_here(lambda fn: wb.jit(fn, chunk_size=3)), _plain),
    "Explicit mesh, wb.jit": (_on_mesh(AxisType.Explicit, wb.jit), _plain),
    "one at a time": (_here(lambda fn: wb.jit(fn, chunk_size=1)), _plain),
    "Auto mesh, wb.jit": (_on_mesh(AxisType.Auto, wb.jit), _plain),
    "jax.jit": (_here(jax.jit), _plain),
    "gradient": (_gradient(jax.jit), _plain_gradient),
    "eager": (_here(lambda fn: fn), _plain),
    "Auto mesh, jax.jit": (_on_mesh(AxisType.Auto, jax.jit), _plain),
    "forward derivative, chunks of 3": (_forward(lambda fn: wb.jit(fn, chunk_size=3)), _plain_forward),
    "Auto mesh, gradient": (_gradient_on_mesh, _plain_gradient),
}


@contextlib.contextmanager
def promoting() -> Any:
    """Libraries such as optax promote dtypes and ranks, which this repository's tests forbid elsewhere."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def is_close(got: Any, expected: Any) -> bool:
    a, b = np.asarray(jax.device_get(got)), np.asarray(jax.device_get(expected))
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.kind in "biu":
        return bool((a == b).all())
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    a, b = a.astype(wide), b.astype(wide)
    tolerance = 1e-4 * max(float(np.nanmax(np.abs(b))) if b.size else 0.0, 1.0)
    return bool(np.allclose(a, b, rtol=1e-4, atol=tolerance, equal_nan=True))


def difference(function: str, way: str, expected: dict[Any, Any] | None = None) -> str | None:
    """What one function gives otherwise than plain `vmap`, "" where nothing, None where `vmap` itself cannot.

    Args:
        function: A key of `FUNCTIONS`.
        way: A key of `WAYS`.
        expected: Keeps what plain `vmap` gave, for the next way.
    """
    client, x = FUNCTIONS[function], _rows(CLIENTS)
    ours, plain = WAYS[way]
    kept = {} if expected is None else expected
    with promoting():
        if (function, plain) not in kept:
            try:
                kept[function, plain] = jax.device_get(plain(client, x))
            except Exception:  # whatever JAX cannot do is no promise of ours
                kept[function, plain] = None
        if (right := kept[function, plain]) is None:
            return None
        got = ours(client, x)
        jax.effects_barrier()
    if jax.tree.structure(got) != jax.tree.structure(right):
        return f"another structure: {jax.tree.structure(got)} for {jax.tree.structure(right)}"
    for number, (a, b) in enumerate(zip(jax.tree.leaves(got), jax.tree.leaves(right), strict=True)):
        if not is_close(a, b):
            return f"leaf {number}: {np.asarray(jax.device_get(a))} for {np.asarray(b)}"[:400]
    return ""


@wb.program(clients=4)
def emitting_fedavg(params: Any, data: Any) -> Any:
    """Federated averaging whose clients emit a loss in every local step."""

    def train(weights: Any, rows: Any) -> Any:
        def step(weights: Any, row: Any) -> Any:
            loss, slope = jax.value_and_grad(lambda w: ((w - row) ** 2).mean())(weights)
            wb.emit("loss", loss)
            return weights - 0.5 * slope, None

        return jax.lax.scan(step, weights, rows)[0]

    return wb.reduce_mean(wb.map_fn(train, (wb.broadcast(params), data)))
