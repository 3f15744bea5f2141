"""Operations that a client function may hold, and meshes to run them on, in a process whose death is an answer.

    python tests/mesh_operations.py '[["clients x tensor", ["take", "roll"]], ["clients", ["sort"]]]'

prints one JSON line before and one after every group, so that the parent knows which one ended the process.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

Row = dict[str, jax.Array]
Operation = Callable[[Row], Any]
CLIENTS = 8


def rows() -> Row:
    """One row per client: `a` [8, 16], a well-conditioned `m` [8, 8], indices `i` [8] and labels `y` [8] below 8."""
    random = np.random.default_rng(7)
    m = 0.1 * random.normal(size=(CLIENTS, 8, 8)) + 3 * np.eye(8)
    return {
        "a": jnp.asarray(random.normal(size=(CLIENTS, 8, 16)), jnp.float32),
        "m": jnp.asarray(m, jnp.float32),
        "i": jnp.asarray(random.integers(0, 8, size=(CLIENTS, 8)), jnp.int32),
        "y": jnp.asarray(random.integers(0, 16, size=(CLIENTS, 8)), jnp.int32),
    }


def _double_kernel(source: Any, target: Any) -> None:
    target[...] = source[...] * 2


def _pallas(r: Row) -> Any:
    shape = jax.ShapeDtypeStruct((8, 16), jnp.float32)
    return pl.pallas_call(_double_kernel, out_shape=shape, interpret=True)(r["a"])


def _pallas_grid(r: Row) -> Any:
    spec = pl.BlockSpec((4, 16), lambda i: (i, 0))
    shape = jax.ShapeDtypeStruct((8, 16), jnp.float32)
    return pl.pallas_call(_double_kernel, out_shape=shape, grid=(2,), in_specs=[spec], out_specs=spec, interpret=True)(
        r["a"]
    )


def _ref(r: Row) -> Any:
    ref = jax.new_ref(r["a"])
    ref[...] = ref[...] * 2
    ref[0] = ref[1] + 1
    return ref[...]


def _ref_in_scan(r: Row) -> Any:
    ref = jax.new_ref(jnp.zeros(16))

    def step(carry: Any, row: Any) -> Any:
        ref[...] += row
        return carry + row.sum(), None

    total, _ = jax.lax.scan(step, jnp.float32(0), r["a"])
    return total, ref[...]


def _cross_entropy(r: Row) -> Any:
    def loss(a: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(a), r["y"][:, None], axis=1).mean()

    return jax.value_and_grad(loss)(r["a"])


def _embedding_gradient(r: Row) -> Any:
    return jax.grad(lambda a: (a[r["i"]] ** 2).sum())(r["a"])


def _local_sgd(r: Row) -> Any:
    def step(w: Any, sample: Any) -> Any:
        row, label = sample
        loss, slope = jax.value_and_grad(lambda w: -jax.nn.log_softmax(row @ w)[label % 8])(w)
        return w - 0.1 * slope, loss

    return jax.lax.scan(step, jnp.ones((16, 8)) * 0.1, (r["a"], r["i"]))


def _attention(r: Row) -> Any:
    q = r["a"].reshape(8, 4, 4)
    weights = jax.nn.softmax(jnp.einsum("qhd,khd->hqk", q, q))
    return jnp.einsum("hqk,khd->qhd", weights, q)


def _pure_callback(method: str) -> Operation:
    def call(r: Row) -> Any:
        result = jax.ShapeDtypeStruct((8, 16), jnp.float32)
        return jax.pure_callback(lambda a: np.tanh(a), result, r["a"], vmap_method=method)

    return call


def _io_callback(r: Row) -> Any:
    from jax.experimental import io_callback

    return io_callback(lambda a: np.float32(a.sum()), jax.ShapeDtypeStruct((), jnp.float32), r["i"].astype(jnp.float32))


def _debug_print(r: Row) -> Any:
    jax.debug.print("{}", r["a"][0, 0])
    return r["a"]


def _cg(r: Row) -> Any:
    import jax.scipy.sparse.linalg

    return jax.scipy.sparse.linalg.cg(lambda v: 3 * v, r["a"][0])[0]


def _linear_solve(r: Row) -> Any:
    m = r["m"]
    return jax.lax.custom_linear_solve(
        lambda v: m @ v, m[0], lambda _, b: jnp.linalg.inv(m) @ b, lambda _, b: jnp.linalg.inv(m).T @ b
    )


def _while_on_row(r: Row) -> Any:
    return jax.lax.while_loop(lambda s: s[1] < r["i"][0] + 1, lambda s: (s[0] * 0.9, s[1] + 1), (r["a"], 0))


def _custom_vjp(r: Row) -> Any:
    @jax.custom_vjp
    def f(x: Any) -> Any:
        return jnp.sin(x)

    f.defvjp(lambda x: (jnp.sin(x), x), lambda x, ct: (2 * ct * jnp.cos(x),))
    return jax.grad(lambda x: f(x).sum())(r["a"])


OPERATIONS: dict[str, Operation] = {
    "add": lambda r: r["a"] + 1,
    "matmul": lambda r: r["a"] @ r["a"].T,
    "einsum": lambda r: jnp.einsum("ij,kj,ki->j", r["a"], r["a"], r["m"]),
    "tanh_grad": lambda r: jax.grad(lambda a: jnp.tanh(a).sum())(r["a"]),
    "softmax": lambda r: jax.nn.softmax(r["a"]),
    "layer_norm": lambda r: jax.nn.standardize(r["a"]),
    "attention": _attention,
    "reduce_max": lambda r: r["a"].max(0),
    "argmax": lambda r: r["a"].argmax(1),
    "cumsum": lambda r: r["a"].cumsum(0),
    "sort": lambda r: jnp.sort(r["a"], axis=1),
    "argsort": lambda r: jnp.argsort(r["a"][0]),
    "top_k": lambda r: jax.lax.top_k(r["a"], 3),
    "median": lambda r: jnp.median(r["a"], axis=1),
    "quantile": lambda r: jnp.quantile(r["a"], jnp.float32(0.3), axis=1),
    "transpose": lambda r: r["a"].T.reshape(8, 16),
    "concatenate": lambda r: jnp.concatenate([r["a"], r["m"]], axis=1),
    "pad": lambda r: jnp.pad(r["a"], 1),
    "reverse": lambda r: r["a"][::-1],
    "roll": lambda r: jnp.roll(r["a"], 3, axis=0),
    "slice": lambda r: r["a"][2:5, ::2],
    "take": lambda r: r["a"][r["i"]],
    "take_columns": lambda r: r["a"][:, r["y"]],
    "take_two": lambda r: r["a"][r["i"], r["y"]],
    "take_along_axis": lambda r: jnp.take_along_axis(r["a"], r["y"][:, None], axis=1),
    "embedding_gradient": _embedding_gradient,
    "cross_entropy": _cross_entropy,
    "one_hot": lambda r: jax.nn.one_hot(r["y"], 16),
    "scatter_set": lambda r: r["a"].at[r["i"]].set(1.0),
    "scatter_add": lambda r: r["a"].at[r["i"]].add(1.0),
    "scatter_max": lambda r: r["a"].at[r["i"], r["y"]].max(0.5),
    "segment_sum": lambda r: jax.ops.segment_sum(r["a"], r["i"], 8),
    "bincount": lambda r: jnp.bincount(r["i"], length=8),
    "unique": lambda r: jnp.unique(r["i"], size=8),
    "searchsorted": lambda r: jnp.searchsorted(jnp.arange(16.0), r["a"][0]),
    "dynamic_slice": lambda r: jax.lax.dynamic_slice(r["a"], (r["i"][0], r["y"][0]), (2, 4)),
    "dynamic_update_slice": lambda r: jax.lax.dynamic_update_slice(r["a"], r["m"][:2, :2], (r["i"][0], r["i"][1])),
    "convolution": lambda r: jax.lax.conv_general_dilated(
        r["a"][None, None], r["m"][None, None, :3, :3], (1, 1), "SAME"
    ),
    "pooling": lambda r: jax.lax.reduce_window(r["a"], -jnp.inf, jax.lax.max, (2, 2), (2, 2), "VALID"),
    "fft": lambda r: jnp.abs(jnp.fft.fft(r["a"], axis=1)),
    "rfft2": lambda r: jnp.fft.rfft2(r["a"]),
    "cholesky": lambda r: jnp.linalg.cholesky(r["m"] @ r["m"].T),
    "solve": lambda r: jnp.linalg.solve(r["m"], r["a"]),
    "qr": lambda r: jnp.abs(jnp.linalg.qr(r["m"])[1]),
    "svd_values": lambda r: jnp.linalg.svd(r["m"], compute_uv=False),
    "eigvalsh": lambda r: jnp.linalg.eigvalsh(r["m"] + r["m"].T),
    "determinant": lambda r: jnp.linalg.slogdet(r["m"]),
    "expm": lambda r: jax.scipy.linalg.expm(0.1 * r["m"]),
    "triangular_solve": lambda r: jax.scipy.linalg.solve_triangular(r["m"], r["a"], lower=True),
    "conjugate_gradient": _cg,
    "custom_linear_solve": _linear_solve,
    "random_normal": lambda r: r["a"] + jax.random.normal(jax.random.key(0), (8, 16)),
    "random_from_row": lambda r: jax.random.normal(jax.random.fold_in(jax.random.key(0), r["i"][0]), (8, 16)),
    "permutation": lambda r: jax.random.permutation(jax.random.fold_in(jax.random.key(0), r["i"][0]), r["a"]),
    "categorical": lambda r: jax.random.categorical(jax.random.key(1), r["a"]),
    "dropout": lambda r: jnp.where(jax.random.bernoulli(jax.random.key(2), 0.5, (8, 16)), r["a"], 0.0),
    "scan": lambda r: jax.lax.scan(lambda c, x: (c + x, c.sum()), jnp.zeros(16), r["a"]),
    "scan_constant": lambda r: jax.lax.scan(lambda c, x: (c * x, None), r["a"], np.float32([1, 2, 3]))[0],
    "associative_scan": lambda r: jax.lax.associative_scan(jnp.add, r["a"]),
    "fori_loop": lambda r: jax.lax.fori_loop(0, 3, lambda i, c: c * 0.5 + i, r["a"]),
    "while_on_row": _while_on_row,
    "cond_on_row": lambda r: jax.lax.cond(r["i"][0] > 3, jnp.sin, jnp.cos, r["a"]),
    "switch_on_row": lambda r: jax.lax.switch(r["i"][0] % 3, [jnp.sin, jnp.cos, jnp.tanh], r["a"]),
    "lax_map": lambda r: jax.lax.map(lambda x: x * x.sum(), r["a"]),
    "vmap_inside": lambda r: jax.vmap(lambda x, i: x[i])(r["a"], r["y"]),
    "checkpoint": lambda r: jax.grad(lambda a: jax.checkpoint(lambda v: jnp.sin(jnp.sin(v)))(a).sum())(r["a"]),
    "hessian": lambda r: jax.hessian(lambda v: (v**3).sum())(r["a"][0, :4]),
    "custom_vjp": _custom_vjp,
    "local_sgd": _local_sgd,
    "nested_jit": lambda r: jax.jit(lambda a: jax.jit(jnp.sin)(a) @ a.T)(r["a"]),
    "bfloat16": lambda r: (r["a"].astype(jnp.bfloat16) * 2).astype(jnp.float32),
    "int8": lambda r: r["i"].astype(jnp.int8) << 1,
    "float8": lambda r: r["a"].astype(jnp.float8_e4m3fn).astype(jnp.float32),
    "complex": lambda r: (r["a"] + 1j * r["a"]) ** 2,
    "pallas": _pallas,
    "pallas_grid": _pallas_grid,
    "ref": _ref,
    "ref_in_scan": _ref_in_scan,
    "pure_callback_sequential": _pure_callback("sequential"),
    "pure_callback_vectorized": _pure_callback("broadcast_all"),
    "io_callback": _io_callback,
    "debug_print": _debug_print,
    "shard_map": lambda r: r["a"],  # replaced by one over the model axes of the mesh, where it has some
}

# Those with a lowering of their own.
ALONE = frozenset(
    "conjugate_gradient custom_linear_solve pallas pallas_grid ref ref_in_scan pure_callback_sequential "
    "pure_callback_vectorized io_callback debug_print shard_map scan_constant".split()
)


Orders = list[tuple[str, list[str]]]  # kinds of mesh, each with operations that make one program
Answers = dict[tuple[str, ...], str]  # what is wrong with each (kind of mesh, *operations), empty where nothing is


def _mesh(sizes: dict[str, int], explicit: tuple[str, ...]) -> Any:
    types = tuple(AxisType.Explicit if name in explicit else AxisType.Auto for name in sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=types)


# The sizes, the Explicit axes, and the specs of the trailing axes of the rows.
MESHES: dict[str, tuple[dict[str, int], tuple[str, ...], dict[str, tuple[Any, ...]]]] = {
    "clients": ({"clients": 8}, (), {}),
    "clients, explicit": ({"clients": 8}, ("clients",), {}),
    "clients x tensor": ({"clients": 4, "tensor": 2}, (), {}),
    "clients x tensor, sharded": ({"clients": 4, "tensor": 2}, (), {"a": (None, "tensor"), "i": ("tensor",)}),
    "clients x tensor, mixed": ({"clients": 4, "tensor": 2}, ("clients",), {"a": (None, "tensor")}),
    "clients x fsdp x tensor": ({"clients": 2, "fsdp": 2, "tensor": 2}, (), {}),
    "clients x fsdp x tensor, sharded": (
        {"clients": 2, "fsdp": 2, "tensor": 2},
        (),
        {"a": ("fsdp", "tensor"), "m": ("tensor", "fsdp"), "i": ("fsdp",), "y": ("tensor",)},
    ),
    "clients x fsdp x tensor, mixed": (
        {"clients": 2, "fsdp": 2, "tensor": 2},
        ("clients",),
        {"a": ("tensor", "fsdp"), "y": ("fsdp",)},
    ),
}


def _program(names: list[str], mesh: Any) -> Callable[[Row], Any]:
    import workbench as wb

    operations = {name: OPERATIONS[name] for name in names}
    if "shard_map" in names and "tensor" in mesh.axis_names:
        operations["shard_map"] = lambda r: jax.shard_map(
            lambda a: jax.lax.psum(a, "tensor"),
            in_specs=P(None, "tensor"),
            out_specs=P(),
            axis_names={"tensor"},
        )(r["a"])

    @wb.program(clients=CLIENTS)
    def program(x: Row) -> Any:
        found = wb.map_fn(lambda row: {name: fn(row) for name, fn in operations.items()}, (x,))
        return found, wb.reduce_sum(found)

    return program


@functools.cache
def _expected(names: tuple[str, ...]) -> Any:
    x = rows()

    def of_one(row: Row) -> Any:
        def value(name: str) -> Any:
            return row["a"][:, :8] + row["a"][:, 8:] if name == "shard_map halves" else OPERATIONS[name](row)

        return {name: value(name) for name in names}

    found = jax.jit(jax.vmap(of_one))(x)
    return found, jax.tree.map(lambda y: y.sum(0), found)


def check(names: list[str], kind: str) -> str:
    """Runs some operations in one program on one kind of mesh; empty if all agree with plain `vmap`, else why not."""
    import workbench as wb

    sizes, explicit, specs = MESHES[kind]
    mesh = _mesh(sizes, explicit)
    x = rows()
    plain = ["shard_map halves" if n == "shard_map" and "tensor" in sizes else n for n in names]
    expected = _expected(tuple(plain))
    with jax.set_mesh(mesh):
        given = {
            key: jax.device_put(np.asarray(value), NamedSharding(mesh, P("clients", *specs.get(key, ()))))
            for key, value in x.items()
        }
        got = jax.device_get(wb.jit(_program(names, mesh))(given))
        jax.effects_barrier()
    wrong = []
    for part, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        for name, twin in zip(names, plain, strict=True):
            pairs = zip(jax.tree.leaves(ours[name]), jax.tree.leaves(theirs[twin]), strict=True)
            if not all(_close(a, b) for a, b in pairs):
                wrong.append(f"{name}{' summed' if part else ''}")
    return f"differs: {', '.join(wrong)}" if wrong else ""


def _close(got: Any, expected: Any) -> bool:
    a, b = np.asarray(got), np.asarray(expected)
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    scale = float(np.max(np.abs(b))) if b.size else 0.0
    return bool(np.allclose(a, b, rtol=1e-4, atol=1e-4 * max(scale, 1.0)))


def answer(orders: Orders, *, say: Callable[[str], None] = lambda line: None) -> Answers:
    """What is wrong with each (kind of mesh, *operations), empty where nothing is.

    A process that ends in the middle is the answer to what it was doing; another one does what is left.

    Args:
        orders: Kinds of mesh, each with operations that make one program.
        say: Is given a line per order that was answered.
    """
    found: Answers = {}
    while orders:
        process = subprocess.Popen(
            [sys.executable, __file__, json.dumps(orders)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "JAX_PLATFORMS": "cpu", "NPROC": "64"},
        )
        doing: tuple[str, ...] = ()
        with process:
            for line in process.stdout or ():
                said = json.loads(line) if line.startswith("{") else {}
                if "begins" in said:
                    doing = (said["begins"][0], *said["begins"][1])
                elif "ends" in said:
                    found[doing] = said["wrong"]
                    say(f"{' '.join(doing)}: {said['wrong'] or 'equal'}")
        if doing and doing not in found:
            found[doing] = f"ended the process with exit code {process.returncode}"
            say(f"{' '.join(doing)}: {found[doing]}")
        left = [(kind, names) for kind, names in orders if (kind, *names) not in found]
        if len(left) == len(orders):
            message = f"No operation was begun; the process ended with exit code {process.returncode}."
            raise RuntimeError(message)
        orders = left
    return found


def main(order: Orders) -> None:
    """Answers an order: kinds of mesh, each with operations that make one program."""
    for kind, group in order:
        print(json.dumps({"begins": [kind, group]}), flush=True)
        try:
            wrong = check(group, kind)
        except Exception as error:
            wrong = f"{type(error).__name__}: {str(error)[:300]}"
        print(json.dumps({"ends": [kind, group], "wrong": wrong}), flush=True)


if __name__ == "__main__":
    # Read when the first device is used: the table is about what is compiled, not how fast it runs.
    os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    if jax.__version_info__ < (0, 11):  # a flag that XLA does not know ends the process
        os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    jax.config.update("jax_num_cpu_devices", 8)
    main(json.loads(sys.argv[1]))
