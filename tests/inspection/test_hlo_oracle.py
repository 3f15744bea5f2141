"""The reader against jaxlib's own parser: names, opcodes, operands and shapes of every instruction."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import oracles.xla as xla
import pytest
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P

import workbench as wb
from workbench.inspection.hlo._text import parse_hlo

HERE = Path(__file__).parent
TEXTS = sorted([*(HERE / "hlo_samples").glob("*.hlo.txt"), *(HERE.parent / "recorded").glob("tpu_*.hlo.txt")])


def assert_agrees(text):
    ours, theirs = parse_hlo(text), xla.parsed(text)
    assert set(ours.computations) == set(theirs)
    for name, instructions in theirs.items():
        mine = {i.name: i for i in ours.computations[name].instructions}
        assert len(ours.computations[name].instructions) == len(instructions)
        assert set(mine) == {seen.name for seen in instructions}
        for seen in instructions:
            assert mine[seen.name].operands == seen.operands, seen
            assert f" {mine[seen.name].opcode}(" in f" {seen.printed}", seen
            found = [(leaf.dtype, leaf.dimensions) for leaf in mine[seen.name].shape.leaves]
            assert found == list(seen.arrays), seen


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name.removesuffix(".hlo.txt"))
def test_instructions_agree_with_jaxlib(path):
    assert_agrees(path.read_text())


def _round(w, x):
    @wb.program(clients=8)
    def one(w, x):
        gradient = jax.grad(lambda w, x: jnp.tanh(x @ w).sum())
        return w - wb.reduce_mean(wb.map_fn(gradient, (wb.broadcast(w), x)))

    return lax.scan(lambda w, _: (one(w, x), None), w, length=3)[0]


def _round_on_a_mesh():
    with jax.set_mesh(wb.make_mesh(clients=8)):
        return wb.jit(_round).lower(np.ones((4, 4), np.float32), np.ones((8, 2, 4), np.float32))


def _on_eight(per_device):
    mesh = jax.make_mesh((8,), ("d",), devices=jax.devices()[:8], axis_types=(AxisType.Auto,))
    return jax.shard_map(per_device, mesh=mesh, in_specs=P("d"), out_specs=P("d"))


COMPILED = {
    "rounds of clients": lambda: wb.jit(_round).lower(np.ones((4, 4), np.float32), np.ones((8, 2, 4), np.float32)),
    "rounds of clients on a mesh": _round_on_a_mesh,
    "collectives": lambda: jax.jit(
        _on_eight(lambda x: lax.psum(x, "d") + lax.all_gather(x, "d").sum(0) + lax.ppermute(x, "d", [(0, 1), (1, 0)]))
    ).lower(np.ones((8, 4), np.float32)),
    "scatter and gather": lambda: jax.jit(lambda x, i: x.at[i].add(1.0)[i].sum()).lower(np.ones(9), np.arange(3)),
    "loops and branches": lambda: jax.jit(
        lambda x: lax.while_loop(lambda v: v.sum() < 9, lambda v: lax.cond(v[0] > 1, jnp.sin, jnp.cos, v) + 1, x)
    ).lower(np.ones(4)),
    "sort, fft and convolution": lambda: jax.jit(
        lambda x, k: (lax.sort((x[0, 0], x[0, 0])), jnp.fft.rfft(x), lax.conv(x, k, (1, 1), "SAME"))
    ).lower(np.ones((1, 1, 8, 8), np.float32), np.ones((1, 1, 3, 3), np.float32)),
    "small and complex dtypes": lambda: jax.jit(
        lambda x: (x.astype(jnp.bfloat16) * 2, x.astype(jnp.float8_e4m3fn), x.astype(jnp.int4), lax.complex(x, x) @ x)
    ).lower(np.ones((4, 4), np.float32)),
    "random numbers": lambda: jax.jit(lambda seed: jax.random.normal(jax.random.key(seed), (5, 2))).lower(3),
}


@pytest.mark.parametrize("name", COMPILED)
def test_instructions_of_a_program_compiled_here_agree_with_jaxlib(name):
    with jax.numpy_dtype_promotion("standard"):
        assert_agrees(COMPILED[name]().compile().as_text())


SMALL = """HloModule m

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%ge (c: f32[], d: f32[]) -> pred[] {
  %c = f32[] parameter(0)
  %d = f32[] parameter(1)
  ROOT %greater = pred[] compare(%c, %d), direction=GE
}

ENTRY %main (x: f32[8,4], y: f32[4,2]) -> f32[8,4] {
  %x = f32[8,4]{1,0} parameter(0)
  %y = f32[4,2]{1,0} parameter(1)
  %zero = f32[] constant(0)
  %all = f32[8,4]{1,0} all-reduce(%x), replica_groups={}, to_apply=%add
  ROOT %out = f32[8,4]{1,0} select-and-scatter(%all, %y, %zero), window={size=2x2 stride=2x2}, select=%ge, scatter=%add
}
"""

WRITINGS = {
    "as printed": lambda text: text,
    "indented": lambda text: "\n".join("    " + line for line in text.splitlines()),
    "without percent": lambda text: text.replace("%", ""),
    "typed operands": lambda text: text.replace("(%a, %b)", "(f32[] %a, f32[] %b)"),
    "typed without percent": lambda text: text.replace("%", "").replace("(x), replica", "(f32[8,4]{1,0} x), replica"),
    "numbered operands": lambda text: text.replace("%", "").replace("(a, b)", "(a, /*index=1*/b)"),
    "attribute on the next line": lambda text: text.replace(", to_apply", ",\n      to_apply"),
    "attribute over lines": lambda text: text.replace(
        "to_apply=%add\n", 'to_apply=%add, frontend_attributes={meta={\n"k":"{\\"a\\": 1}"\n}}\n'
    ),
    "wrapped header": lambda text: text.replace("(x: f32[8,4], y", "(x: f32[8,4],\n   y"),
    "short headers": lambda text: text.replace("%add (a: f32[], b: f32[]) -> f32[] {", "%add {"),
    "comments": lambda text: "// a comment {\n" + text.replace("add(%a, %b)", "add(%a, %b)  // sum ("),
}


@pytest.mark.parametrize("writing", WRITINGS)
def test_other_writings_agree_with_jaxlib(writing):
    text = WRITINGS[writing](SMALL)
    assert writing == "as printed" or text != SMALL
    assert_agrees(text)
    assert parse_hlo(text).entry.root.calls("select", "scatter") == ("ge", "add")
