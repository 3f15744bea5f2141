"""One array has one name, as the user writes it, in every answer."""

import re

import jax
import jax.numpy as jnp
import optax
import pytest
import workbench_widgets
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import workbench as wb

nnx = pytest.importorskip("flax.nnx")
LAYERS = 3
KERNEL = re.compile(r"model\.blocks\[(\d|\*)\]\.(up|down)\.kernel")
FOREIGN = re.compile(r"\d+/\w+|states\[\d|\[\d\]\.blocks|args\[\d")  # parts of a library's own structure


class Block(nnx.Module):
    def __init__(self, rngs):
        init = nnx.initializers.lecun_normal()
        column, row = nnx.with_partitioning(init, (None, "model")), nnx.with_partitioning(init, ("model", None))
        self.up = nnx.Linear(128, 512, kernel_init=column, rngs=rngs)
        self.down = nnx.Linear(512, 128, kernel_init=row, rngs=rngs)

    def __call__(self, x):
        return x + self.down(nnx.relu(self.up(x)))


class Model(nnx.Module):
    def __init__(self, rngs):
        self.blocks = nnx.List([Block(rngs) for _ in range(LAYERS)])

    def __call__(self, x):
        for block in self.blocks:
            x = block(x)
        return x


@nnx.jit
def step(model, optimizer, x):
    loss, gradient = nnx.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
    optimizer.update(model, gradient)
    return loss


@pytest.fixture(scope="module")
def case():
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    with jax.set_mesh(mesh), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        model = Model(nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
        x = jax.device_put(jnp.ones((64, 128)), NamedSharding(mesh, P("data")))
        yield mesh, (model, optimizer, x), wb.inspect(step)(model, optimizer, x)


def named(text):
    assert not FOREIGN.findall(text)
    return KERNEL.findall(text)


def test_records_of_inputs_memory_and_plan_name_arrays_alike(case):
    program = case[2]
    kernels = [leaf.path for leaf in program.inputs.leaves if "kernel" in leaf.path and leaf.path.startswith("model")]
    assert kernels == [f"model.blocks[{n}].{part}.kernel" for n in range(LAYERS) for part in ("down", "up")]
    assert {each.name for each in program.plan.inputs} == {leaf.path for leaf in program.inputs.leaves}
    assert set(kernels) < {leaf.path for leaf in program.outputs.leaves}  # `nnx.jit` updates its modules
    assert [leaf.path for leaf in program.outputs.leaves if "." not in leaf.path] == ["result"]
    parameters = {each.op_name for each in program.module.instructions if each.opcode == "parameter" and each.op_name}
    assert set(kernels) <= parameters


def test_sharding_text_has_one_line_for_equal_layers(case):
    text = str(case[2])
    assert not FOREIGN.findall(text)
    assert f"{LAYERS} × model.blocks[*]: 4 arrays" in text


def test_why_names_arrays_as_the_user_does(case):
    arguments = case[1]
    assert named(str(wb.why(step)(*arguments)))
    assert not FOREIGN.findall(wb.render.text(wb.why(step)(*arguments), details=True))


def test_advice_names_arrays_as_the_user_does_and_equal_layers_once(case):
    _, arguments, program = case
    advice = wb.advise(step)(*arguments)
    kernels = {leaf.path for leaf in program.inputs.leaves}
    for finding in advice.findings:
        assert set(finding.leaves) <= kernels
    assert not FOREIGN.findall(str(advice))
    assert len({(each.rule, each.change) for each in advice.findings}) == len(advice.findings)
    donation = next(each for each in advice.findings if each.rule == "missing donation")
    assert "donate_argnums=(0, 1)" in donation.change


def test_search_names_arrays_as_the_user_does(case):
    mesh, arguments, program = case
    record = wb.search(step, on=(mesh, "v5e"), compiled=False, seconds=5)(*arguments)
    paths = [leaf.path for leaf in program.inputs.leaves]
    assert sorted(leaf for group in record.groups for leaf in group.leaves) == sorted(paths)
    assert not FOREIGN.findall(str(record))


def test_specs_that_are_tried_have_the_names_of_the_record(case):
    _, arguments, program = case
    name = "model.blocks[1].up.kernel"
    before = {leaf.path: leaf.bytes_per_device for leaf in program.inputs.leaves}
    tried = wb.trace(step)(*arguments).what_if({name: P()})
    after = {leaf.path: leaf.bytes_per_device for leaf in tried.after.inputs.leaves}
    assert before.keys() == after.keys()
    assert after[name] == 2 * before[name]
    assert str(tried)


def test_state_of_the_sharding_view_has_these_names(case):
    program = case[2]
    state = str(workbench_widgets.ShardingView(program.inputs).get_state())
    assert "model.blocks[0].up.kernel" in state
    assert not FOREIGN.findall(state)


@pytest.mark.parametrize(
    ("call", "inputs", "outputs"),
    [
        (
            lambda: wb.inspect(lambda params, x, scale=1.0: {"y": x @ params["layers"][1] * scale})(
                {"layers": [jnp.ones((4, 4))] * 2}, jnp.ones((4, 4)), scale=jnp.ones(())
            ),
            ["params['layers'][0]", "params['layers'][1]", "x", "scale"],
            ["result['y']"],
        ),
        (
            lambda: wb.inspect(jax.jit(lambda n, *xs: xs[0] * n, static_argnums=0))(3, jnp.ones(4), jnp.ones(4)),
            ["xs[0]", "xs[1]"],
            ["result"],
        ),
    ],
    ids=["list of layers and an argument by name", "static argument and variable arguments"],
)
def test_plain_functions_name_arguments_by_parameter(call, inputs, outputs):
    record = call()
    assert [leaf.path for leaf in record.inputs.leaves] == inputs
    assert [leaf.path for leaf in record.outputs.leaves] == outputs


def test_results_that_update_an_argument_have_its_names(case):
    record = case[2]
    names = [value.op_name for value in record.propagation.values if value.operation == "output"]
    assert sum(bool(re.fullmatch(r"model\.blocks\[\d\]\.up\.kernel", name)) for name in names) == LAYERS
    assert names[-1] == "result"
    named(" ".join(names))
