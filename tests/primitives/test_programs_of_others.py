"""Defects that programs written by others showed, each in a process of its own: some of them ended it."""

import os
import subprocess
import sys
import textwrap

import pytest

HEAD = """
import warnings; warnings.simplefilter("ignore")
import workbench as wb
wb.simulate_devices(8)
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
x = jnp.ones((16, 4))
"""
PROGRAMS = {
    "gather_on_three_axes": """
        @wb.program(clients=2)
        def p(e, t): return wb.reduce_mean(wb.map_fn(lambda e, t: e[t].sum(), (e, t)))
        mesh = wb.make_mesh(clients=2, fsdp=2, tensor=2)
        with jax.set_mesh(mesh):
            e = jax.device_put(jnp.ones((2, 128, 64)), NamedSharding(mesh, P("clients", "tensor", "fsdp")))
            t = jax.device_put(jnp.zeros((2, 4, 32), jnp.int32), NamedSharding(mesh, P("clients", "fsdp")))
            assert float(wb.jit(p)(e, t)) == 8192.0
            assert wb.inspect(p)(e, t).module.collectives""",
    "linear_solve_under_a_mesh": """
        import jax.scipy.sparse.linalg
        f = lambda r: jax.scipy.sparse.linalg.cg(lambda v: 3 * v, r)[0]
        p = wb.program(clients=16)(lambda x: wb.reduce_mean(wb.map_fn(f, x)))
        with jax.set_mesh(wb.make_mesh(clients=8)):
            assert np.allclose(wb.jit(p)(x), 1 / 3)""",
    "pallas_under_a_mesh": """
        from jax.experimental import pallas as pl
        def k(a, o): o[...] = a[...] * 2
        f = lambda r: pl.pallas_call(k, out_shape=jax.ShapeDtypeStruct((4,), jnp.float32), interpret=True)(r)
        p = wb.program(clients=16)(lambda x: wb.reduce_mean(wb.map_fn(f, x)))
        with jax.set_mesh(wb.make_mesh(clients=8)):
            assert np.allclose(wb.jit(p)(x), 2)""",
    "shard_map_inside_a_client": """
        f = lambda r: jax.shard_map(lambda a: jax.lax.psum(a, "tensor"), in_specs=P("tensor"), out_specs=P())(r)
        p = wb.program(clients=16)(lambda x: wb.reduce_mean(wb.map_fn(f, x)))
        with jax.set_mesh(wb.make_mesh(clients=4, tensor=2)):
            assert np.allclose(wb.jit(p)(x), 2)""",
    "constant_as_scan_input_on_explicit_axes": """
        f = lambda r: jax.lax.scan(lambda v, c: (v * c, None), r, np.float32([1, 2, 3]))[0]
        p = wb.program(clients=16)(lambda x: wb.map_fn(f, x))
        with jax.set_mesh(wb.make_mesh(clients=8, axis_types=AxisType.Explicit)):
            assert np.allclose(p(x), 6)""",
    "mutable_array_in_a_client": """
        def f(r):
            ref = jax.new_ref(r); ref[...] = ref[...] * 2; return ref[...]
        p = wb.program(clients=16)(lambda x: wb.map_fn(f, x))
        assert np.allclose(jax.jit(p)(x), 2)
        with jax.set_mesh(wb.make_mesh(clients=8)):
            assert np.allclose(wb.jit(p)(x), 2)""",
    "padding_clients_call_back": """
        import collections
        heard = collections.Counter()
        def f(i): jax.debug.callback(lambda j: heard.update([int(j)]), i); return i * 1.0
        p = wb.program(clients=13)(lambda i: wb.reduce_mean(wb.map_fn(f, i)))
        wb.jit(p, chunk_size=3)(jnp.arange(13)); jax.effects_barrier()
        assert max(heard.values()) == 1""",
    "error_names_no_map_fn_where_there_is_none": """
        try: wb.inspect(lambda y: y if y.sum() > 0 else -y)(x)
        except Exception as e: assert "map_fn" not in str(e)
        else: raise AssertionError""",
    "diloco_on_three_axes": """
        @wb.program(clients=2)
        def round(params, tokens):
            def client(params, tokens):
                def step(p, t):
                    def loss(p):
                        h = jax.nn.gelu(p["e"][t] @ p["w"]) @ p["v"]
                        return -jnp.take_along_axis(jax.nn.log_softmax(h @ p["e"].T), t[..., None], -1).mean()
                    value, slope = jax.value_and_grad(loss)(p)
                    return jax.tree.map(lambda a, b: a - 0.1 * b, p, slope), value
                return jax.lax.scan(step, params, tokens)
            new, losses = wb.map_fn(client, (wb.broadcast(params), tokens))
            return wb.reduce_mean(new), wb.reduce_mean(losses)
        k = jax.random.key(0)
        params = {"e": jax.random.normal(k, (64, 16)), "w": jax.random.normal(k, (16, 32)), "v": jnp.ones((32, 16))}
        tokens = jax.random.randint(k, (2, 3, 4, 8), 0, 64)
        expected = jax.jit(round)(params, tokens)
        mesh = wb.make_mesh(clients=2, fsdp=2, tensor=2)
        specs = {"e": P("tensor", "fsdp"), "w": P("fsdp", "tensor"), "v": P("tensor", "fsdp")}
        with jax.set_mesh(mesh):
            placed = {n: jax.device_put(np.asarray(v), NamedSharding(mesh, specs[n])) for n, v in params.items()}
            spread = jax.device_put(np.asarray(tokens), NamedSharding(mesh, P("clients", None, "fsdp")))
            got = wb.jit(round)(placed, spread)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(jax.device_get(a), b, rtol=2e-4, atol=2e-5), got, expected)
        """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_program_of_others_runs(name: str) -> None:
    code = HEAD + textwrap.dedent(PROGRAMS[name])
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "NPROC": "64"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-1500:]
