"""Which stage an op_name names, and programs that went through a plan: every cost has its stage and line."""

import inspect
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from workbench.cost import estimate_cost
from workbench.inspection import inspect_mesh, inspect_module
from workbench.inspection.hlo._attribution import stages_of
from workbench.plan import jit as plan_jit
from workbench.primitives import broadcast, map_fn, program, reduce_mean

CLIENTS, STEPS, BATCH, WIDTH, HIDDEN = 8, 3, 16, 64, 128
FLOAT = 4
WEIGHTS = 2 * WIDTH * HIDDEN // 2 * FLOAT  # a device's half of both matrices
# two clients on a device, half of the hidden layer; five products per step: forward, and both gradients but the input's
CLIENT_FLOPS = 2 * STEPS * 5 * 2 * BATCH * WIDTH * HIDDEN // 2


@pytest.mark.parametrize(
    ("op_name", "paths"),
    [
        pytest.param("jit(f)/wb:1:clients/jvp()/dot_general", ["1"], id="plain"),
        pytest.param("jit(f)/wb:2:loop/while/body/wb:2.0:clients/mul", ["2.0"], id="inside a loop"),
        pytest.param("jit(f)/wb:3:clients/while/body/wb:4:clients/mul", ["4"], id="the innermost"),
        pytest.param("jit(f)/transpose(jvp(wb:1:clients))/mul", ["1"], id="inside transformations"),
        pytest.param("jit(f)/vmap(wb:10.2:reduce)/psum", ["10.2"], id="long path"),
        pytest.param("jit(f)/(wb:2:reduce/psum:wb:2:reduce/psum:wb:3:reduce/psum)", ["2", "3"], id="combined on CPU"),
        pytest.param("jit(f)/wb:2:reduce/(a:b)", ["2"], id="combined below one stage"),
        pytest.param("jit(f)/wb:1:clients/mul;wb:2:reduce/add;add", ["1", "2"], id="combined on TPU"),
        pytest.param("jit(f)/wb:2:branch/cond/branch_1_fun/wb:2[1].0:clients/mul", ["2[1].0"], id="in a branch"),
        pytest.param("jit(f)/add", [], id="no stage"),
        pytest.param("p['w1']", [], id="parameter"),
        pytest.param("", [], id="empty"),
        pytest.param("jit(f)/wb.map_fn[clients]/vmap()/mul", ["map_fn[clients]"], id="primitive without a plan"),
        pytest.param("jit(f)/wb:2:reduce/wb.reduce_sum[clients]/psum", ["2"], id="primitive inside a stage"),
        pytest.param("jit(f)/new_wb:2:reduce/add", [], id="a user's scope that ends alike"),
    ],
)
def test_stage_of_an_op_name(op_name, paths):
    assert [stage.path for stage in stages_of(op_name)] == paths


def loss(weights, x):
    return ((jax.nn.relu(x @ weights[0]) @ weights[1] - x) ** 2).mean()


def train(weights, batches):
    def step(now, x):
        value, gradient = jax.value_and_grad(loss)(now, x)
        return jax.tree.map(lambda w, g: w - 0.1 * g, now, gradient), value

    after, losses = jax.lax.scan(step, weights, batches)
    return jax.tree.map(lambda a, b: a - b, after, weights), losses.mean()


def one_round(weights, data):
    delta, losses = map_fn(train, (broadcast(weights), data))
    mean = reduce_mean(delta)
    return jax.tree.map(lambda w, d: w + d, weights, mean), reduce_mean(losses)


@program(clients=CLIENTS)
def local_sgd(weights, data):
    return one_round(weights, data)


@program(clients=CLIENTS)
def five_rounds(weights, data):
    return jax.lax.scan(lambda w, _: one_round(w, data), weights, None, length=5)


def gradient(weights, data):
    return jax.grad(lambda w: local_sgd(w, data)[1])(weights)


def module_of(fn, *, jit=plan_jit):
    mesh = jax.make_mesh((4, 2), ("clients", "model"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh):
        weights = (
            jax.device_put(jnp.ones((WIDTH, HIDDEN)), NamedSharding(mesh, P(None, "model"))),
            jax.device_put(jnp.ones((HIDDEN, WIDTH)), NamedSharding(mesh, P("model", None))),
        )
        data = jax.device_put(jnp.ones((CLIENTS, STEPS, BATCH, WIDTH)), NamedSharding(mesh, P("clients")))
        return inspect_module(jit(fn).lower(weights, data).compile(), mesh=inspect_mesh(mesh))


def line_of(fn, fragment):
    source, first = inspect.getsourcelines(fn.__wrapped__ if hasattr(fn, "__wrapped__") else fn)
    (offset,) = [i for i, line in enumerate(source) if fragment in line]
    return f"{Path(__file__)}:{first + offset}"


def flops_by_kind(module):
    found = {}
    for i in module.instructions:
        if i.flops:
            found[i.kind] = found.get(i.kind, 0.0) + i.flops * i.executions
    return found


@pytest.fixture(scope="module")
def planned_round():
    return module_of(local_sgd)


@pytest.mark.parametrize("fn", [local_sgd, five_rounds, gradient], ids=["round", "five rounds", "gradient"])
def test_planned_programs_are_attributed_whole(fn):
    module = module_of(fn)
    assert module.attributed_instructions >= 0.9
    assert module.attributed_flops >= 0.99
    assert module.attributed_bytes >= 0.99


def test_flops_of_a_planned_round_are_the_clients(planned_round):
    assert flops_by_kind(planned_round)["clients"] == CLIENT_FLOPS  # JAX 0.11 sums by a product, with FLOPs of its own


def test_five_rounds_cost_five_times_as_much():
    assert flops_by_kind(module_of(five_rounds))["clients"] == 5 * CLIENT_FLOPS


def test_average_of_a_planned_round_is_one_collective_of_two_reduce_stages(planned_round):
    (average,) = [c for c in planned_round.collectives if c.axes == ("clients",)]
    kinds = {i.stage: i.kind for i in planned_round.instructions if i.stage}
    assert [kinds[stage] for stage in average.stages] == ["reduce", "reduce"]
    assert average.payload_bytes == WEIGHTS + FLOAT
    assert {str(s) for s in average.sources} == {
        line_of(one_round, "reduce_mean(delta)"),
        line_of(one_round, "reduce_mean(losses)"),
    }


def test_activations_of_a_planned_round_belong_to_the_clients_line(planned_round):
    (activation,) = [c for c in planned_round.collectives if c.axes == ("model",)]
    assert [str(s) for s in activation.sources] == [line_of(loss, "@ weights[1] - x")]
    kinds = {i.stage: i.kind for i in planned_round.instructions if i.stage}
    assert [kinds[stage] for stage in activation.stages] == ["clients"]
    # STEPS times, for one client at a time or for both of a device together
    assert activation.executions * activation.payload_bytes == 2 * STEPS * BATCH * WIDTH * FLOAT


def test_gradient_sends_the_cotangent_of_the_broadcast_over_clients():
    over_clients = [c for c in module_of(gradient).collectives if c.axes == ("clients",)]
    assert {stage_kind(c) for c in over_clients} == {"reduce"}
    assert sum(c.payload_bytes for c in over_clients) == WEIGHTS


def stage_kind(collective):
    (stages,) = {stages_of(name) for name in collective.op_names}
    return stages[0].kind


def test_program_without_a_plan_is_attributed_to_its_primitives():
    module = module_of(local_sgd, jit=jax.jit)
    assert {i.stage for i in module.instructions if i.flops and i.kind == "clients"} == {"map_fn[clients]"}
    assert module.attributed_bytes == 1.0
    assert "server" in {i.stage for i in module.instructions}


def test_ordinary_program_has_no_stages():
    module = inspect_module(jax.jit(jnp.dot).lower(jnp.ones((4, 4)), jnp.ones((4, 4))).compile())
    assert {i.stage for i in module.instructions} == {None}
    assert module.attributed_flops == 0.0


SUMMED_WHERE_IT_IS_MADE = """HloModule jit_f

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

fused {
  x = f32[4,2] parameter(0)
  y = f32[2,8] parameter(1)
  zero = f32[] constant(0)
  made = f32[4,8] dot(x, y), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/wb:1:clients/d"}
  ROOT sum = f32[8] reduce(made, zero), dimensions={0}, to_apply=add, metadata={op_name="jit(f)/wb:2:reduce/s"}
}

ENTRY main {
  p = f32[4,2] parameter(0)
  q = f32[2,8] parameter(1)
  ROOT out = f32[8] fusion(p, q), kind=kCustom, calls=fused, metadata={op_name="jit(f)/wb:2:reduce/s"}
}
"""  # noqa: E501


def test_fusion_of_several_stages_is_divided_over_them():
    module = inspect_module(SUMMED_WHERE_IT_IS_MADE)
    clients, reduction = sorted(estimate_cost(module).stages, key=lambda stage: stage.stage)
    assert (clients.flops, clients.elementwise_flops, clients.accessed_bytes) == (2 * 4 * 2 * 8, 0, (8 + 16) * FLOAT)
    assert (reduction.flops, reduction.elementwise_flops, reduction.accessed_bytes) == (0, 4 * 8, 8 * FLOAT)


@pytest.mark.parametrize(
    ("op_name", "stage"),
    [('op_name="jit(f)/wb:1:clients/d"', "1"), ('op_name="jit(f)/d"', "2")],
    ids=["of the product", "of the only named part"],
)
def test_fusion_without_a_name_has_the_stage_of_its_parts(op_name, stage):
    head, entry = SUMMED_WHERE_IT_IS_MADE.split("ENTRY")
    text = head.replace('op_name="jit(f)/wb:1:clients/d"', op_name) + "ENTRY" + entry.split(", metadata")[0] + "\n}\n"
    assert {i.name: i.stage for i in inspect_module(text).instructions}["out"] == stage
