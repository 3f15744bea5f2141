"""Collectives of programs compiled here: axes, bytes, times, stages and lines."""

import inspect
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

from workbench.inspection import inspect_mesh, inspect_module
from workbench.inspection.hlo._collectives import wire_bytes

SHAPES = {"clients": 2, "model": 2, "stage": 2}
CLIENTS, STEPS, BATCH, WIDTH = 8, 3, 16, 64
FLOAT = 4


def mesh_of(order):
    devices = np.array([jax.devices()[i] for i in order]).reshape(tuple(SHAPES.values()))
    return Mesh(devices, tuple(SHAPES), axis_types=(AxisType.Auto,) * 3)


ORDERS = {
    "in order": range(8),
    "reversed": range(7, -1, -1),
    "shuffled": (3, 6, 0, 5, 1, 7, 4, 2),
}
SENDS = {
    "psum": (lambda x, a: jax.lax.psum(x, a), "all-reduce"),
    "pmax": (lambda x, a: jax.lax.pmax(x, a), "all-reduce"),
    "all_gather": (lambda x, a: jax.lax.all_gather(x, a), "all-gather"),
    "psum_scatter": (lambda x, a: jax.lax.psum_scatter(x, a, tiled=True), "reduce-scatter"),
    "all_to_all": (lambda x, a: jax.lax.all_to_all(x, a, 0, 0, tiled=True), "all-to-all"),
    "ppermute": (lambda x, a: jax.lax.ppermute(x, a, [(0, 1), (1, 0)]), "collective-permute"),
}
AXES = [("clients",), ("model",), ("stage",), ("clients", "stage"), ("clients", "model", "stage")]


@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("send", SENDS)
def test_every_collective_is_named_by_its_axes_on_every_order_of_devices(send, order):
    mesh = mesh_of(order)
    operation, kind = SENDS[send]
    all_axes = [axes for axes in AXES if send != "ppermute" or len(axes) == 1]

    def body(x):
        return [operation(x * (i + 1), axes if len(axes) > 1 else axes[0]) for i, axes in enumerate(all_axes)]

    fn = jax.shard_map(body, mesh=mesh, in_specs=P(tuple(SHAPES)), out_specs=P(tuple(SHAPES)), check_vma=False)
    compiled = jax.jit(fn).lower(jnp.ones((64, 16))).compile()
    collectives = [c for c in inspect_module(compiled, mesh=inspect_mesh(mesh)).collectives if c.kind == kind]
    assert {c.axes for c in collectives} == set(all_axes)
    assert all(c.group_size == 2 ** len(c.axes) for c in collectives)


# ---- a round of local SGD of a tensor-parallel perceptron, scoped as a plan scopes it


def local_sgd(mesh):
    def put(x, *spec):
        return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P(*spec)))

    def loss(weights, x):
        return ((jax.nn.relu(x @ weights[0]) @ weights[1] - x) ** 2).mean()

    def client(weights, batches):
        def step(now, x):
            value, gradient = jax.value_and_grad(loss)(now, x)
            return jax.tree.map(lambda w, g: w - 0.1 * g, now, gradient), value

        after, losses = jax.lax.scan(step, weights, batches)
        return jax.tree.map(lambda a, b: a - b, after, weights), losses.mean()

    def one_round(up, down, data):
        with jax.named_scope("wb:0:broadcast"):
            weights = (
                put(jnp.broadcast_to(up, (CLIENTS, *up.shape)), "clients", None, "model"),
                put(jnp.broadcast_to(down, (CLIENTS, *down.shape)), "clients", "model", None),
            )
        with jax.named_scope("wb:1:clients"):
            deltas, losses = jax.vmap(client)(weights, data)
        with jax.named_scope("wb:2:reduce"):
            delta = jax.tree.map(lambda d: d.mean(0), deltas)
        with jax.named_scope("wb:3:reduce"):
            value = losses.mean(0)
        with jax.named_scope("wb:4:server"):
            return up + delta[0], down + delta[1], value

    return one_round, put


def line_of(fragment):
    """The line of `local_sgd` that holds a fragment."""
    source, first = inspect.getsourcelines(local_sgd)
    (offset,) = [i for i, line in enumerate(source) if fragment in line]
    return f"{Path(__file__)}:{first + offset}"


@pytest.fixture(scope="module")
def round_module():
    mesh = jax.make_mesh((4, 2), ("clients", "model"), axis_types=(AxisType.Auto,) * 2)
    fn, _ = local_sgd(mesh)
    up = jax.device_put(jnp.ones((WIDTH, 2 * WIDTH)), NamedSharding(mesh, P(None, "model")))
    down = jax.device_put(jnp.ones((2 * WIDTH, WIDTH)), NamedSharding(mesh, P("model", None)))
    data = jax.device_put(jnp.ones((CLIENTS, STEPS, BATCH, WIDTH)), NamedSharding(mesh, P("clients")))
    return inspect_module(jax.jit(fn).lower(up, down, data).compile(), mesh=inspect_mesh(mesh))


def test_activations_of_the_round_are_summed_over_model_once_per_step(round_module):
    (activation,) = [c for c in round_module.collectives if c.axes == ("model",)]
    assert activation.executions == STEPS
    # two of the eight clients live on a device
    assert activation.payload_bytes == 2 * BATCH * WIDTH * FLOAT
    assert activation.stages == ("1",)
    assert [str(s) for s in activation.sources] == [line_of("@ weights[1] - x")]


def test_deltas_of_the_round_are_summed_over_clients_once(round_module):
    over_clients = [c for c in round_module.collectives if c.axes == ("clients",)]
    assert sum(c.payload_bytes for c in over_clients) == 2 * WIDTH * WIDTH * FLOAT + FLOAT
    assert {c.executions for c in over_clients} == {1.0}
    assert {stage for c in over_clients for stage in c.stages} == {"2", "3"}
    assert {str(s) for c in over_clients for s in c.sources} == {line_of("d.mean(0)"), line_of("losses.mean(0)")}


def test_combined_collective_is_shared_by_the_size_of_its_parts(round_module):
    (combined,) = [c for c in round_module.collectives if len(c.stages) > 1]
    weights = 2 * WIDTH * WIDTH * FLOAT
    assert combined.stage_shares == {"2": weights / (weights + FLOAT), "3": FLOAT / (weights + FLOAT)}


@pytest.mark.parametrize(
    ("names", "shares"),
    [
        pytest.param("wb:2:reduce/psum:wb:3:reduce/psum", {"2": 0.75, "3": 0.25}, id="two stages"),
        pytest.param("wb:2:reduce/psum:wb:2:reduce/psum", {}, id="one stage"),
        pytest.param("wb:2:reduce/psum:add", {}, id="a part outside all stages"),
    ],
)
def test_names_of_a_combined_collective_share_its_bytes_in_order(names, shares):
    text = f"""HloModule combined, is_scheduled=true, num_partitions=8

    add {{
      a = f32[] parameter(0)
      b = f32[] parameter(1)
      ROOT c = f32[] add(a, b)
    }}

    ENTRY main {{
      large = f32[48] parameter(0)
      small = f32[16] parameter(1)
      ROOT sums = (f32[48], f32[16]) all-reduce(large, small), channel_id=1, replica_groups={{}}, to_apply=add, \
metadata={{op_name="jit(f)/({names})"}}
    }}
    """
    (combined,) = inspect_module(text).collectives
    assert combined.stage_shares == shares


def test_the_line_with_most_bytes_of_a_combined_collective_comes_first():
    def step(weights, x):
        def loss(weights):
            hidden = x @ weights
            return hidden.mean()

        return jax.value_and_grad(loss)(weights)

    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    x = jax.device_put(jnp.ones((16, WIDTH)), NamedSharding(mesh, P("data")))
    compiled = jax.jit(step).lower(jnp.ones((WIDTH, WIDTH)), x).compile()
    (combined,) = inspect_module(compiled, mesh=inspect_mesh(mesh)).collectives
    assert combined.payload_bytes == (WIDTH * WIDTH + 1) * FLOAT
    code, first = inspect.getsourcelines(test_the_line_with_most_bytes_of_a_combined_collective_comes_first)
    lines = [code[source.line - first].strip() for source in combined.sources]
    assert lines == ["hidden = x @ weights", "return hidden.mean()"]


def test_flops_of_the_round_are_those_of_two_clients_and_half_the_hidden_layer(round_module):
    products = 2 + 3  # forward; the gradients of both weights and of the hidden layer
    assert round_module.flops == 2 * STEPS * products * 2 * BATCH * WIDTH * WIDTH


def test_everything_in_the_round_has_a_stage(round_module):
    assert round_module.attributed_flops == 1.0
    assert round_module.attributed_bytes >= 0.99
    assert round_module.attributed_instructions >= 0.9


def test_flops_of_the_round_all_belong_to_the_clients(round_module):
    assert {i.stage for i in round_module.instructions if i.flops} == {"1"}


def test_reductions_are_named():
    mesh = mesh_of(range(8))
    fn = jax.shard_map(lambda x: jax.lax.pmax(x, "model"), mesh=mesh, in_specs=P("model"), out_specs=P())
    (largest,) = inspect_module(jax.jit(fn).lower(jnp.ones((8, 4))).compile(), mesh=inspect_mesh(mesh)).collectives
    assert largest.reduction == "maximum"


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        pytest.param("all-reduce", 1500.0, id="all-reduce: there and back"),
        pytest.param("all-gather", 3000.0, id="all-gather: everybody else's copy of mine"),
        pytest.param("reduce-scatter", 750.0, id="reduce-scatter"),
        pytest.param("all-to-all", 750.0, id="all-to-all"),
        pytest.param("collective-permute", 1000.0, id="permute"),
        pytest.param("recv", 0.0, id="receiving sends nothing"),
    ],
)
def test_wire_bytes_of_1000_bytes_in_a_ring_of_4(kind, sent):
    assert wire_bytes(kind, 1000, 4) == sent


TEXT = """HloModule hand, is_scheduled=true, num_partitions=8

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}

%fused_scatter (p: f32[64,128]) -> f32[16,128] {
  %p = f32[64,128]{1,0} parameter(0)
  %all = f32[64,128]{1,0} all-reduce(%p), channel_id=1, replica_groups=[2,4]<=[8], to_apply=%sum
  %zero = s32[] constant(0)
  ROOT %part = f32[16,128]{1,0} dynamic-slice(%all, %zero, %zero), dynamic_slice_sizes={16,128}
}

%gathering (q: f32[8,128]) -> f32[16,128] {
  %q = f32[8,128]{1,0} parameter(0)
  ROOT %gather = f32[16,128]{1,0} all-gather(%q), channel_id=2, replica_groups=[4,2]<=[2,4]T(1,0), dimensions={0}
}

ENTRY %main (x: f32[64,128], y: f32[8,128]) -> (f32[16,128], f32[16,128], f32[8,128]) {
  %x = f32[64,128]{1,0} parameter(0)
  %y = f32[8,128]{1,0} parameter(1)
  %scattered = f32[16,128]{1,0} fusion(%x), kind=kCustom, calls=%fused_scatter
  %start = ((f32[8,128]), f32[16,128], s32[]) async-start(%y), calls=%gathering
  %done = f32[16,128]{1,0} async-done(%start)
  %pstart = (f32[8,128], f32[8,128]) collective-permute-start(%y), channel_id=3, source_target_pairs={{0,4},{4,0}}
  %pdone = f32[8,128]{1,0} collective-permute-done(%pstart)
  ROOT %out = (f32[16,128], f32[16,128], f32[8,128]) tuple(%scattered, %done, %pdone)
}
"""


@pytest.fixture(scope="module")
def by_hand():
    mesh = jax.make_mesh((2, 4), ("clients", "model"), axis_types=(AxisType.Auto,) * 2)
    return {c.name: c for c in inspect_module(TEXT, mesh=inspect_mesh(mesh)).collectives}


def test_fused_all_reduce_that_keeps_one_part_is_a_reduce_scatter(by_hand):
    assert (by_hand["all"].kind, by_hand["all"].axes) == ("reduce-scatter", ("model",))
    assert by_hand["all"].wire_bytes == 64 * 128 * FLOAT * 3 / 4


def test_collective_in_an_asynchronous_computation_is_found(by_hand):
    gather = by_hand["gather"]
    assert (gather.kind, gather.axes, gather.asynchronous) == ("all-gather", ("clients",), True)
    assert gather.payload_bytes == 8 * 128 * FLOAT


def test_started_permutation_is_asynchronous_and_moves_along_one_axis(by_hand):
    permute = by_hand["pstart"]
    assert (permute.kind, permute.axes, permute.asynchronous) == ("collective-permute", ("clients",), True)


def test_groups_in_an_unknown_syntax_leave_the_bytes_on_the_wire_unknown():
    text = TEXT.replace("replica_groups=[2,4]<=[8]", "replica_groups=<new syntax>")
    (unread,) = [c for c in inspect_module(text).collectives if c.name == "all"]
    assert (unread.axes, unread.wire_bytes) == ((), None)
    assert unread.payload_bytes == 64 * 128 * FLOAT
    assert unread.notes == ("the participants are written in an unknown syntax",)


def test_module_without_mesh_says_that_axes_cannot_be_named():
    notes = {note for c in inspect_module(TEXT).collectives for note in c.notes}
    assert "no mesh was given, so the groups cannot be named by axes" in notes
