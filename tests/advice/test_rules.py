"""Each rule on a program with the mistake, and on the same program without it."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec as P

import workbench as wb
from tests.public_programs.programs import PROGRAMS
from workbench.advice import advise_record
from workbench.advice._sharding import best_spec
from workbench.inspection import order_of_jax
from workbench.records.hardware import DeviceRecord
from workbench.records.sharding import LeafShardingRecord
from workbench.render.units import bytes_text


def rules(advice):
    return [finding.rule for finding in advice.findings]


@pytest.fixture
def mesh():
    mesh = wb.make_mesh(data=4, model=2)
    with jax.set_mesh(mesh):
        yield mesh


def placed(mesh, value, *spec):
    return jax.device_put(value, NamedSharding(mesh, P(*spec)))


def sgd(params, batch):
    def loss(w):
        return jnp.mean((jnp.tanh(batch @ w["up"]) @ w["down"] - batch) ** 2)

    return jax.tree.map(lambda w, g: w - 0.1 * g, params, jax.grad(loss)(params))


def params(mesh, **specs):
    return {
        "up": placed(mesh, jnp.ones((256, 512)), *specs.get("up", ())),
        "down": placed(mesh, jnp.ones((512, 256)), *specs.get("down", ())),
    }


SHARDED = {"up": (None, "model"), "down": ("model", None)}


def test_missing_donation_is_found_and_its_gain_compiled(mesh):
    average = jax.jit(lambda old, new: jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, old, new))
    advice = wb.advise(average)(params(mesh, **SHARDED), params(mesh, **SHARDED))
    found = next(f for f in advice.findings if f.rule == "missing donation")
    assert found.gain is not None
    assert found.gain.verified
    assert found.gain.after < found.gain.before
    assert found.size_bytes == 2 * 256 * 512 * 4 / 2  # two weights, each in two shards
    assert found.weight == found.size_bytes / advice_peak(average, mesh)


def advice_peak(fn, mesh):
    return wb.inspect(fn)(params(mesh, **SHARDED), params(mesh, **SHARDED)).module.memory.peak_bytes


def test_donated_arguments_are_no_finding(mesh):
    args = params(mesh, **SHARDED), placed(mesh, jnp.ones((16, 256)), "data")
    assert "missing donation" not in rules(wb.advise(jax.jit(sgd, donate_argnums=0), verify=False)(*args))


def test_donation_that_the_compiler_cannot_use_is_left_out_once_it_was_compiled(mesh):
    args = params(mesh, **SHARDED), placed(mesh, jnp.ones((16, 256)), "data")  # XLA's CPU copies the old weights
    assert "missing donation" in rules(wb.advise(jax.jit(sgd), verify=False)(*args))
    gains = [f.gain for f in wb.advise(jax.jit(sgd))(*args).findings if f.rule == "missing donation"]
    assert all(gain.verified and gain.after < gain.before for gain in gains)


def test_large_replicated_parameters_are_named_with_a_spec_to_paste(mesh):
    args = params(mesh), placed(mesh, jnp.ones((16, 256)), "data")
    advice = wb.advise(jax.jit(sgd, donate_argnums=0), verify=False)(*args)
    found = [f for f in advice.findings if f.rule == "large replicated array"]
    assert {"up", "down"} <= {name for f in found for name in ("up", "down") if name in f.change}
    assert all("P(" in f.change for f in found)


def test_replicated_parameters_that_cost_more_traffic_than_memory_are_a_trade(mesh):
    def steps(w, x):
        return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=6)[0]

    args = placed(mesh, jnp.ones((256, 256))), placed(mesh, jnp.ones((1024, 256)), "data")
    [found] = [f for f in wb.advise(jax.jit(steps), verify=False)(*args).findings if f.leaves == ("w",)]
    freed = 256 * 256 * 4 * 3 // 4
    assert f"A trade: one device stores {bytes_text(freed)} less, but sends" in found.change
    assert "planned: one device sends 0 B per call now, and" in found.evidence[-1]
    assert found.gain.how == "counted from the shapes and specs; not verified, because verify=False"
    assert found.gain.before - found.gain.after == freed


def test_advice_that_compiles_nothing_says_so(mesh):
    args = params(mesh, **SHARDED), params(mesh, **SHARDED)
    average = jax.jit(lambda old, new: jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, old, new))
    [found] = [f for f in wb.advise(average, verify=False)(*args).findings if f.rule == "missing donation"]
    assert found.gain.how == "not verified, because verify=False"
    record = wb.inspect(average)(*args)
    [found] = [f for f in advise_record(record).findings if f.rule == "missing donation"]
    assert found.gain.how == "not verified, because a record cannot be compiled again"


def test_spec_of_a_replicated_parameter_shards_a_dimension_that_the_devices_divide(mesh):
    w = placed(mesh, jnp.ones((1023, 256)))
    advice = wb.advise(jax.jit(lambda w, x: x @ w), verify=False)(w, placed(mesh, jnp.ones((16, 1023)), "data"))
    [found] = [f for f in advice.findings if f.rule == "large replicated array"]
    assert "P(None, 'data')" in found.change


def test_parameter_and_its_optimizer_state_are_one_finding_whose_code_places_both(mesh):
    def momentum(state, batch):
        gradient = jax.grad(lambda w: jnp.mean((batch @ w) ** 2))(state["params"]["w"])
        trace = {"w": 0.9 * state["trace"]["w"] + gradient}
        return {"params": {"w": state["params"]["w"] - 0.1 * trace["w"]}, "trace": trace}

    state = {name: {"w": placed(mesh, jnp.ones((256, 512)))} for name in ("params", "trace")}
    batch = placed(mesh, jnp.ones((16, 256)), "data")
    advice = wb.advise(jax.jit(momentum, donate_argnums=0), verify=False)(state, batch)
    [found] = [f for f in advice.findings if f.rule == "large replicated array"]
    assert len(found.leaves) == 2
    names = {"state": state}
    exec(found.code, names)
    assert {each["w"].sharding.spec for each in names["state"].values()} == {P(None, "data")}


def test_parameter_that_another_axis_could_shard_for_nothing_is_found_and_verified(mesh):
    def decay(w, factor):
        return w * factor

    given = placed(mesh, jnp.ones((256, 512)), "model"), jnp.float32(0.9)
    fn = jax.jit(decay, donate_argnums=0)
    [found] = [f for f in wb.advise(fn)(*given).findings if f.rule == "partly sharded array"]
    assert list(found.specs.values()) == [(("model",), ("data",))]
    assert found.is_verified
    assert found.gain.after < 0.5 * found.gain.before


def test_sharded_parameters_are_no_finding(mesh):
    args = params(mesh, up=("data", "model"), down=("model", "data")), placed(mesh, jnp.ones((16, 256)), "data")
    found = rules(wb.advise(jax.jit(sgd, donate_argnums=0), verify=False)(*args))
    assert not {"large replicated array", "partly sharded array"}.intersection(found)


def test_axis_that_nothing_uses_is_found(mesh):
    advice = wb.advise(jax.jit(lambda x: (x**2).sum()))(placed(mesh, jnp.ones((16, 8)), "data"))
    [found] = [f for f in advice.findings if f.rule == "unused mesh axis"]
    assert "model" in found.what
    assert found.is_verified


def test_used_axes_are_no_finding(mesh):
    x = placed(mesh, jnp.ones((16, 8)), "data", "model")
    assert "unused mesh axis" not in rules(wb.advise(jax.jit(lambda x: (x**2).sum()), verify=False)(x))


def iterate(w, x, steps=6):
    return jax.lax.scan(lambda x, _: (jnp.tanh(x @ w), None), x, None, length=steps)[0]


def test_gather_of_a_value_that_the_loop_never_changes_is_found(mesh):
    def gathers(w, x):
        def step(x, _):
            whole = jax.lax.with_sharding_constraint(w, NamedSharding(mesh, P()))
            return jnp.tanh(x @ whole), None

        return jax.lax.scan(step, x, None, length=6)[0]

    w, x = placed(mesh, jnp.ones((64, 64)), "model", None), placed(mesh, jnp.ones((16, 64)), "data")
    kept = {"xla_disable_hlo_passes": "while-loop-invariant-code-motion"}  # XLA's CPU would move the gather out itself
    assert "loop-invariant collective" in rules(wb.advise(jax.jit(gathers, compiler_options=kept), verify=False)(w, x))
    assert "loop-invariant collective" not in rules(wb.advise(jax.jit(gathers), verify=False)(w, x))


def test_gather_of_the_carried_value_is_no_finding(mesh):
    w, x = placed(mesh, jnp.ones((64, 64)), None, "model"), placed(mesh, jnp.ones((16, 64)), "data")
    assert "loop-invariant collective" not in rules(wb.advise(jax.jit(iterate), verify=False)(w, x))


def test_callback_in_a_loop_is_found():
    def talks(x):
        def step(x, _):
            jax.debug.callback(lambda value: None, x)
            return x + 1, None

        return jax.lax.scan(step, x, None, length=5)[0]

    assert rules(wb.advise(jax.jit(talks), verify=False)(jnp.float32(0))) == ["host inside a loop"]


def test_callback_outside_of_loops_is_no_finding():
    def talks(x):
        jax.debug.callback(lambda value: None, x)
        return jax.lax.scan(lambda x, _: (x + 1, None), x, None, length=5)[0]

    assert "host inside a loop" not in rules(wb.advise(jax.jit(talks), verify=False)(jnp.float32(0)))


def test_checkpointed_layers_are_reported_as_recomputation():
    def loss(ws, x):
        for w in ws:
            x = jax.checkpoint(lambda x, w: jnp.tanh(jnp.tanh(x @ w) @ w))(x, w)
        return x.sum()

    ws, x = [jnp.ones((64, 64))] * 4, jnp.ones((32, 64))
    found = [f for f in wb.advise(jax.jit(jax.grad(loss)), verify=False)(ws, x).findings if f.rule == "recomputation"]
    assert len(found) == 1
    assert found[0].gain.before > found[0].gain.after


def two_products(x, w):
    return jnp.tanh(jnp.tanh(x @ w) @ w)


def test_checkpoint_that_keeps_products_is_compiled_and_saves_flops():
    def loss(ws, x):
        return jax.lax.scan(lambda x, w: (jax.checkpoint(two_products)(x, w), None), x, ws)[0].sum()

    advice = wb.advise(jax.jit(jax.grad(loss)))(jnp.ones((4, 64, 64)), jnp.ones((32, 64)))
    found = next(f for f in advice.findings if f.rule == "recomputation")
    assert found.is_verified
    assert "dots_saveable" in found.change
    products = 4 * (2 + 4)  # forward and backward of each layer
    assert found.gain.after == products * 2 * 32 * 64 * 64
    assert {row.quantity for row in found.compared} >= {"peak bytes", "FLOPs"}


def test_checkpoint_that_the_compiler_undoes_is_no_finding():
    def loss(ws, x):  # XLA for CPUs computes equal products of layers that are written out once
        for w in ws:
            x = jax.checkpoint(two_products)(x, w)
        return x.sum()

    advice = wb.advise(jax.jit(jax.grad(loss)))([jnp.ones((64, 64))] * 2, jnp.ones((32, 64)))
    assert "recomputation" not in rules(advice)


def test_clean_program_gives_nothing_found_and_what_was_checked():
    advice = wb.advise(jax.jit(lambda x: jnp.tanh(x).sum()), verify=False)(jnp.ones(8))
    assert advice.findings == ()
    assert len(advice.checked) > 8
    assert "nothing found" in str(advice)


def test_padding_of_clients_is_reported_with_its_share():
    @wb.program(clients=4)
    def total(x):
        return wb.reduce_sum(wb.map_fn(lambda row: (row @ row.T).sum(), x))

    advice = wb.advise(total, verify=False, examples_per_client=([1, 1, 1, 16], 16))(jnp.ones((4, 16, 8)))
    assert "unbalanced clients" in rules(advice)
    assert "70 % of the clients' work is padding" in advice.findings[0].what


def test_a_planned_record_is_refused():
    record = wb.inspect(jax.jit(jnp.tanh), on=jax.sharding.AbstractMesh((4,), ("data",)))(jnp.ones(8))
    with pytest.raises(wb.errors.InspectionError, match="only planned, not compiled"):
        wb.advice.advise_record(record)


def test_donation_of_a_module_is_written_and_verified_as_nnx_does_it():
    nnx = pytest.importorskip("flax.nnx")

    class Model(nnx.Module):
        def __init__(self):
            self.weights = nnx.Param(jnp.ones((64, 64)))

    @nnx.jit
    def decay(model, factor):
        model.weights[...] = model.weights[...] * factor

    found = next(f for f in wb.advise(decay)(Model(), jnp.float32(0.5)).findings if f.rule == "missing donation")
    assert found.code == "decay = nnx.jit(decay, donate_argnums=0)"
    assert found.gain.verified
    assert found.gain.after < found.gain.before


def scanned(x, unroll=1):
    return jax.lax.scan(lambda x, _: (x + 0.5 * jnp.sin(x), None), x, None, length=500, unroll=unroll)[0]


def test_loop_of_many_tiny_iterations_is_found_at_its_line():
    found = wb.advise(jax.jit(scanned, donate_argnums=0), verify=False)(jnp.ones(4)).findings
    assert [each.rule for each in found] == ["small loop body"]
    assert "500 iterations" in found[0].what
    assert found[0].sources[0].function.endswith("scanned")
    assert 0 < found[0].weight <= 0.5


def test_loop_whose_iterations_do_much_is_no_finding():
    assert "small loop body" not in rules(wb.advise(jax.jit(scanned), verify=False)(jnp.ones((256, 256))))


def test_loop_around_another_loop_is_no_finding():
    def nested(x):
        return jax.lax.scan(lambda x, _: (scanned(x @ x), None), x, None, length=100)[0]

    found = wb.advise(jax.jit(nested, donate_argnums=0), verify=False)(jnp.ones((8, 8))).findings
    assert ["500 iterations" in each.what for each in found if each.rule == "small loop body"] == [True]


def layers(ws, x):
    for w in ws:
        x = jnp.tanh(x @ w)
    return x


def test_equal_layers_of_a_python_loop_are_found():
    ws, x = [jax.ShapeDtypeStruct((64, 64), "float32")] * 12, jax.ShapeDtypeStruct((8, 64), "float32")
    found = [f for f in wb.advise(jax.jit(layers), verify=False)(ws, x).findings if f.rule == "layers written out"]
    assert ["12 times" in each.what for each in found] == [True]


@pytest.mark.parametrize("transform", [lambda fn: fn, jax.grad], ids=["forward", "gradient"])
def test_projections_of_two_attention_layers_are_no_copies_of_one(transform):
    nnx = pytest.importorskip("flax.nnx")
    heads = [nnx.split(nnx.MultiHeadAttention(4, 32, decode=False, rngs=nnx.Rngs(i))) for i in range(2)]

    def loss(params, x):
        for (graph, _), own in zip(heads, params, strict=True):
            x = x + nnx.merge(graph, own)(x)
        return x.sum()

    found = wb.advise(jax.jit(transform(loss)), verify=False)([own for _, own in heads], jnp.ones((2, 8, 32)))
    assert "layers written out" not in rules(found)


def test_scanned_layers_are_no_finding():
    def scan(ws, x):
        return jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)[0]

    ws, x = jax.ShapeDtypeStruct((12, 64, 64), "float32"), jax.ShapeDtypeStruct((8, 64), "float32")
    assert "layers written out" not in rules(wb.advise(jax.jit(scan), verify=False)(ws, x))


def test_hundreds_of_small_arrays_are_found_and_a_stacked_one_is_not():
    fn = jax.jit(lambda tree: jax.tree.map(lambda w: w * 0.9, tree))
    small = [jax.ShapeDtypeStruct((8, n + 1), "float32") for n in range(520)]
    assert "many small instructions" in rules(wb.advise(fn, verify=False)(small))
    assert "many small instructions" not in rules(
        wb.advise(fn, verify=False)(jax.ShapeDtypeStruct((520, 8, 64), "float32"))
    )


@pytest.mark.parametrize(
    ("axes", "fact"),
    [
        ({"clients": 8}, "9 `clients` on 8 devices leave 7 of 16 slots empty."),
        ({"clients": 4, "model": 2}, "9 `clients` on 4 groups of devices leave 3 of 12 slots empty."),
    ],
)
def test_clients_that_do_not_divide_leave_empty_slots(axes, fact):
    @wb.program(clients=9)
    def total(x):
        return wb.reduce_sum(wb.map_fn(lambda row: row @ row.T, x))

    with jax.set_mesh(wb.make_mesh(**axes)):
        found = wb.advise(total, verify=False)(jnp.ones((9, 16, 8))).findings
    assert [each.what for each in found if each.rule == "uneven clients"] == [fact]


def test_clients_that_divide_leave_none():
    @wb.program(clients=16)
    def total(x):
        return wb.reduce_sum(wb.map_fn(lambda row: row @ row.T, x))

    with jax.set_mesh(wb.make_mesh(clients=8)):
        assert "uneven clients" not in rules(wb.advise(total, verify=False)(jnp.ones((16, 16, 8))))


def test_function_that_was_compiled_again_and_again_is_found():
    fn = jax.jit(lambda x: jnp.tanh(x).sum())
    fn(jnp.ones(1))
    assert "retraces" not in rules(wb.advise(fn, verify=False)(jnp.ones(1)))
    for length in range(2, 7):
        fn(jnp.ones(length))
    assert "retraces" in rules(wb.advise(fn, verify=False)(jnp.ones(1)))


@pytest.fixture
def summed(mesh):
    """A program that sums over both axes, and more over `model`."""

    def sums(x):
        wide = jax.lax.psum(x, "model")
        return jax.lax.psum(wide.sum(axis=0), "data")

    shard = jax.shard_map(sums, mesh=mesh, in_specs=P("data", "model"), out_specs=P())
    return wb.inspect(jax.jit(shard))(jax.ShapeDtypeStruct((64, 128), "float32"))


def chunked(chunk_size):
    """Local training on 32 clients whose hidden layers are larger than their data."""

    @wb.program(clients=32)
    def train(w, x):
        def loss(w, x):
            return jnp.mean(jnp.tanh(jnp.tanh(x @ w) @ w.T) ** 2)

        return wb.reduce_mean(wb.map_fn(jax.grad(loss), (wb.broadcast(w), x)))

    return wb.jit(train, chunk_size=chunk_size)


CLIENT_ARGS = jnp.ones((64, 4096)), jnp.ones((32, 64, 64))


def test_clients_that_are_computed_together_for_nothing_are_found_and_another_chunk_is_compiled():
    advice = wb.advise(chunked(32))(*CLIENT_ARGS)
    found = next(each for each in advice.findings if each.rule == "chunk size")
    assert found.is_verified
    assert found.gain.after < 0.5 * found.gain.before
    assert "chunk_size=1)" in found.code


def test_chunk_size_that_is_left_to_the_workbench_is_no_finding():
    assert "chunk size" not in rules(wb.advise(chunked("auto"))(*CLIENT_ARGS))


V5E = [DeviceRecord(id=i, position=(), platform="tpu", kind="TPU v5 lite", host=0, coords=(i % 4, i // 4, 0),
                    core_on_chip=0) for i in range(8)]  # fmt: skip


def on_torus(record, numbers):
    """The record on the chips of a v5e:2x4, in the given order."""
    positions = [device.position for device in record.mesh.devices]
    devices = tuple(V5E[i].replace(position=position) for i, position in zip(numbers, positions, strict=True))
    return record.replace(mesh=record.mesh.replace(devices=devices))


def test_order_of_devices_whose_groups_lie_apart_is_found(summed):
    advice = wb.advice.advise_record(on_torus(summed, [0, 7, 1, 6, 2, 5, 3, 4]))  # `model` pairs up far corners
    found = next(each for each in advice.findings if each.rule == "order of devices")
    assert found.axes == ("model",)
    assert "links apart" in found.what
    assert found.code == 'mesh = jax.make_mesh((4, 2), ("data", "model"))'


def ordered_finding(summed, recompile):
    record = on_torus(summed, [0, 7, 1, 6, 2, 5, 3, 4])
    findings = wb.advice.advise_record(record, recompile=recompile).findings
    return next(each for each in findings if each.rule == "order of devices")


def test_order_of_devices_is_verified_by_the_links_of_the_program_compiled_for_the_other_order(summed):
    def recompile(*, ordered=False, **_):
        return on_torus(summed, range(8)) if ordered else summed

    found = ordered_finding(summed, recompile)
    assert found.is_verified
    assert found.gain.quantity == "bytes sent x links"
    assert found.gain.after < found.gain.before


def test_order_of_devices_that_cannot_be_compiled_says_so(summed):
    def recompile(**_):
        message = "the mesh has no devices to order"
        raise TypeError(message)

    found = ordered_finding(summed, recompile)
    assert not found.is_verified
    assert "could not be verified: TypeError: the mesh has no devices" in found.gain.how


def test_order_of_jax_itself_is_no_finding(summed):
    of_jax = order_of_jax(on_torus(summed, range(8)).mesh)
    for numbers in (range(8), [device.id for device in of_jax.devices]):
        assert "order of devices" not in rules(wb.advice.advise_record(on_torus(summed, numbers)))


def test_devices_without_places_have_no_order_to_advise_on(summed):
    assert "order of devices" not in rules(wb.advice.advise_record(summed))


def across(record, axis):
    """The record of a machine in which one axis crosses slices."""
    crossed = tuple(each.replace(across_slices=axis in each.axes) for each in record.module.collectives)
    return record.replace(module=record.module.replace(collectives=crossed))


def test_busy_axis_between_slices_is_found_and_a_quiet_one_is_not(summed):
    busy = wb.advice.advise_record(across(summed, "model"))
    assert [each.axes for each in busy.findings if each.rule == "mesh axis on the slow network"] == [("model", "data")]
    assert "mesh axis on the slow network" not in rules(wb.advice.advise_record(across(summed, "data")))


def test_batch_of_a_data_parallel_step_is_not_sharded_over_its_features(mesh):
    args = params(mesh), placed(mesh, jnp.ones((16, 256)), "data")
    found = wb.advise(jax.jit(sgd, donate_argnums=0), verify=False)(*args).findings
    assert [f.what for f in found if f.rule == "spec on another dimension" and "batch" in f.what] == []


def test_change_that_makes_another_program_is_not_called_verified():
    nnx = pytest.importorskip("flax.nnx")
    optax = pytest.importorskip("optax")

    def step(model, optimizer, x):
        loss, gradient = nnx.value_and_grad(lambda m: (m(x) ** 2).mean())(model)
        optimizer.update(model, gradient)
        return loss

    model = nnx.Linear(64, 64, rngs=nnx.Rngs(0))
    advice = wb.advise(step)(model, nnx.Optimizer(model, optax.sgd(0.1), wrt=nnx.Param), jnp.ones((32, 64)))
    found = next(f for f in advice.findings if f.rule == "missing donation")
    assert not found.gain.verified
    assert "could not be verified" in found.gain.how


def test_data_parallel_step_of_a_module_is_advised_to_donate_and_nothing_else(mesh):
    nnx = pytest.importorskip("flax.nnx")

    @nnx.jit
    def step(model, x):
        gradient = nnx.grad(lambda m: (jnp.tanh(m.up(x)) ** 2).mean())(model)
        nnx.update(model, jax.tree.map(lambda w, g: w - 0.1 * g, nnx.state(model), gradient))

    class Model(nnx.Module):
        def __init__(self):
            self.up = nnx.Linear(256, 512, rngs=nnx.Rngs(0))

    x = placed(mesh, jnp.ones((16, 256)), ("data", "model"))
    found = wb.advise(step, verify=False)(Model(), x).findings
    assert {f.rule for f in found} <= {"missing donation", "large replicated array"}


def test_spec_for_a_parameter_of_a_module_is_verified(mesh):
    nnx = pytest.importorskip("flax.nnx")
    model, x = nnx.Linear(256, 512, rngs=nnx.Rngs(0)), placed(mesh, jnp.ones((16, 256)), "data")
    findings = wb.advise(nnx.jit(lambda model, x: model(x)))(model, x).findings
    assert next(f for f in findings if f.rule == "large replicated array").is_verified


def shard_mapped(fn, mesh, in_specs, out_specs):
    return jax.jit(jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs))


def own_part(x, axis, parts, dimension=0):
    """The part of a whole array that belongs to this device."""
    size = x.shape[dimension] // parts
    return jax.lax.dynamic_slice_in_dim(x, jax.lax.axis_index(axis) * size, size, dimension)


def test_sum_of_which_each_device_keeps_a_slice_is_found(mesh):
    fn = shard_mapped(lambda x: own_part(jax.lax.psum(x, "data"), "data", 4), mesh, P("data"), P("data"))
    record = wb.inspect(fn)(jnp.ones((256, 64)))
    assert "all-reduce and slice" not in rules(advise_record(record))  # no CPU has a reduce-scatter
    on_tpu = record.replace(module=record.module.replace(platform="tpu"))
    found = next(f for f in advise_record(on_tpu).findings if f.rule == "all-reduce and slice")
    assert found.axes == ("data",)
    assert found.gain.after == 0.5 * found.gain.before


def test_sum_that_every_device_reads_whole_is_no_finding(mesh):
    fn = shard_mapped(lambda x: jnp.tanh(jax.lax.psum(x, "data")), mesh, P("data"), P())
    assert "all-reduce and slice" not in rules(wb.advise(fn, verify=False)(jnp.ones((256, 64))))


def test_gather_of_which_each_device_keeps_another_slice_is_found(mesh):
    def moved(x):
        return own_part(jax.lax.all_gather(x, "data", tiled=True), "data", 4, dimension=1)

    fn = shard_mapped(moved, mesh, P("data"), P(None, "data"))
    found = next(
        f for f in wb.advise(fn, verify=False)(jnp.ones((64, 64))).findings if f.rule == "all-gather and slice"
    )
    assert found.axes == ("data",)


def test_a_spec_that_changes_the_sharding_of_a_result_says_so(mesh):
    x = jax.ShapeDtypeStruct((64, 256), "float32", sharding=NamedSharding(mesh, P(None, "data")))
    w = jax.ShapeDtypeStruct((256, 256), "float32", sharding=NamedSharding(mesh, P("data")))
    advice = wb.advise(lambda x, w: jnp.tanh(x @ w))(x, w)
    (found,) = [each for each in advice.findings if each.specs == {"w": ((), ("data",))}]
    assert "results with another sharding: result P() -> P(None, 'data')" in found.evidence


def test_operation_with_several_results_is_tried_in_a_shard_map(mesh):
    scores = jax.ShapeDtypeStruct((64, 32), "float32", sharding=NamedSharding(mesh, P("data")))
    advice = wb.advise(lambda x: jax.lax.top_k(x, 2))(scores)
    (found,) = [each for each in advice.findings if each.rule == "operation that is not split"]
    assert found.is_verified, found.gain.how
    assert found.gain.after == 0


@pytest.mark.skipif(jax.__version_info__ >= (0, 11), reason="the partitioner of this JAX splits it")
def test_transform_that_every_device_computes_whole_is_found_and_one_in_a_shard_map_is_not(mesh):
    """https://github.com/jax-ml/jax/issues/20683"""
    signals = jax.ShapeDtypeStruct((16, 1024), "complex64", sharding=NamedSharding(mesh, P("data")))
    of_rows = jax.shard_map(jnp.fft.fft, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    found = wb.advise(jax.vmap(jnp.fft.fft))(signals).findings[0]
    assert found.rule == "operation that is not split"
    assert "shard_map" in found.change
    assert "operation that is not split" not in rules(wb.advise(of_rows)(signals))


def test_exchange_by_all_to_all_is_no_finding(mesh):
    fn = shard_mapped(lambda x: jax.lax.all_to_all(x, "data", 1, 0, tiled=True), mesh, P("data"), P(None, "data"))
    assert "all-gather and slice" not in rules(wb.advise(fn, verify=False)(jnp.ones((64, 64))))


def test_weight_that_is_gathered_for_one_product_is_found_and_verified(mesh):
    w, x = placed(mesh, jnp.ones((256, 512)), "data"), placed(mesh, jnp.ones((1024, 256)), "data")
    advice = wb.advise(jax.jit(lambda w, x: x @ w))(w, x)
    found = next(f for f in advice.findings if f.rule == "argument gathered for one use")
    assert found.leaves == ("w",)
    assert found.is_verified
    assert found.gain.after == 0
    assert "along different dimensions" in found.why  # x is sharded over its rows, w over the summed dimension


@pytest.mark.parametrize(
    ("shape", "spec", "expected"),
    [
        ((16, 8), (), ("data", (("data",), ()))),
        ((10, 8), (), ("data", ((), ("data",)))),  # 4 does not divide 10
        ((16, 8), (("model",),), ("data", (("model",), ("data",)))),  # the first dimension is already sharded
        ((16, 8), (("data",),), ("model", (("data",), ("model",)))),
        ((5, 3), (), None),
    ],
)
def test_best_spec_is_the_largest_free_axis_on_the_largest_free_dimension_that_it_divides(shape, spec, expected):
    numbers = dict.fromkeys(("size_bytes", "bytes_per_device", "replication"), 1)
    leaf = LeafShardingRecord(path="w", shape=shape, dtype="float32", spec=spec, shard_shape=shape, **numbers)
    assert best_spec(leaf, {"data": 4, "model": 2}) == expected


def test_weight_that_is_used_in_its_shards_is_no_finding(mesh):
    w, x = placed(mesh, jnp.ones((256, 512)), None, "model"), placed(mesh, jnp.ones((1024, 256)), "data")
    advice = wb.advise(jax.jit(lambda w, x: x @ w), verify=False)(w, x)
    assert "argument gathered for one use" not in rules(advice)


def test_state_that_a_training_step_gathers_is_no_finding(mesh):
    args = params(mesh, up=("data",), down=("data",)), placed(mesh, jnp.ones((16, 256)), "data")
    assert "argument gathered for one use" not in rules(wb.advise(jax.jit(sgd, donate_argnums=0), verify=False)(*args))


def test_constraint_that_the_next_one_undoes_is_found_although_no_exchange_is_planned(mesh):
    def fn(x):
        rows = jax.lax.with_sharding_constraint(jnp.tanh(x), NamedSharding(mesh, P(None, "data")))
        return jax.lax.with_sharding_constraint(rows, NamedSharding(mesh, P("data")))

    found = wb.advise(jax.jit(fn))(placed(mesh, jnp.ones((64, 256)), "data")).findings[0]
    assert (found.rule, found.is_verified) == ("costly constraint", True)
    assert found.gain.before > found.gain.after == 0


def sharded_rows(mesh):
    return jax.jit(lambda x: jnp.tanh(jax.lax.with_sharding_constraint(x * 2, NamedSharding(mesh, P("data")))))


def test_dimension_that_the_devices_do_not_divide_is_found_at_its_line(mesh):
    found = next(
        f for f in wb.advise(sharded_rows(mesh), verify=False)(jnp.ones((5, 1024))).findings if "uneven" in f.rule
    )
    assert found.axes == ("data",)
    assert "8 or 4" in found.change
    assert found.sources


def test_dimension_that_the_devices_divide_is_no_finding(mesh):
    assert "uneven shards" not in rules(wb.advise(sharded_rows(mesh), verify=False)(jnp.ones((8, 1024))))


def test_the_small_halves_of_a_scan_are_no_uneven_shards(mesh):
    """An associative scan over 64 rows has values of 31, 15 and 7 rows, which nobody can choose."""
    x = jax.ShapeDtypeStruct((64, 1024), "float32", sharding=NamedSharding(mesh, P("data")))
    with jax.set_mesh(mesh):
        advice = wb.advise(lambda x: jax.lax.associative_scan(jnp.multiply, x), verify=False)(x)
    assert "uneven shards" not in rules(advice)


def test_program_without_checkpoints_has_no_recomputation():
    gradient = jax.jit(jax.grad(lambda w, x: jnp.tanh(jnp.tanh(x @ w) @ w).sum()))
    assert "recomputation" not in rules(wb.advise(gradient, verify=False)(jnp.ones((64, 64)), jnp.ones((32, 64))))


@pytest.mark.parametrize(("counts", "is_found"), [([1, 2, 2, 2, 64, 64, 64, 64], True), ([64] * 8, False)])
def test_clients_that_wait_for_larger_ones_of_their_chunk_are_found(counts, is_found):
    @wb.program(clients=8)
    def total(x):
        return wb.reduce_sum(wb.map_fn(lambda row: (row @ row.T).sum(), x))

    advice = wb.advise(wb.jit(total, chunk_size=8), verify=False, examples_per_client=(counts, 64))(
        jnp.ones((8, 64, 8))
    )
    assert ("unbalanced clients" in rules(advice)) == is_found
    assert ("from 1 to 64 examples, median 64" in str(advice.to_json())) == is_found


@pytest.mark.parametrize(("chunk_size", "is_found"), [(1, True), (64, False)])
def test_small_clients_in_chunks_of_one_are_found_and_a_larger_chunk_is_compiled(chunk_size, is_found):
    @wb.program(clients=64)
    def total(x):
        return wb.reduce_sum(wb.map_fn(lambda row: jnp.tanh(row @ row).sum(), x))

    found = [
        f
        for f in wb.advise(wb.jit(total, chunk_size=chunk_size))(jnp.ones((64, 16))).findings
        if "small chunks" == f.rule
    ]
    assert [f.is_verified for f in found] == [True] * is_found


def test_wide_exchange_that_was_wide_before_is_no_finding(mesh):
    fn = shard_mapped(lambda x: jax.lax.psum(x, "data"), mesh, P("data"), P())
    assert "float32 collective of 16-bit values" not in rules(wb.advise(fn, verify=False)(jnp.ones((64, 4096))))


def test_narrow_exchange_is_no_finding_although_the_cpu_widens_it(mesh):
    fn = shard_mapped(lambda x: jax.lax.psum(x, "data"), mesh, P("data"), P())
    found = rules(wb.advise(fn, verify=False)(jnp.ones((64, 4096), "bfloat16")))
    assert "float32 collective of 16-bit values" not in found


def test_product_that_is_summed_wide_and_kept_narrow_is_found_and_verified(mesh):
    def product(x, w):
        return jnp.einsum("ab,bc->ac", x, w, preferred_element_type="float32").astype("bfloat16")

    x, w = jax.ShapeDtypeStruct((64, 4096), "bfloat16"), jax.ShapeDtypeStruct((4096, 512), "bfloat16")
    rows = jax.ShapeDtypeStruct(w.shape, w.dtype, sharding=jax.NamedSharding(mesh, P("model")))
    found = next(f for f in wb.advise(jax.jit(product))(x, rows).findings if f.rule.startswith("float32"))
    assert found.is_verified
    assert found.gain.after == found.gain.before / 2


def test_function_that_was_compiled_once_is_no_finding():
    fn = jax.jit(lambda x: x * 2)
    fn(jnp.ones(3))
    assert "retraces" not in rules(wb.advise(fn, verify=False)(jnp.ones(3)))


def test_activations_that_lost_the_batch_are_found_and_the_constraint_is_compiled():
    mesh = wb.make_mesh(data=8)
    put = lambda shape, *spec, dtype="float32": jax.device_put(  # noqa: E731
        jnp.ones(shape, dtype), NamedSharding(mesh, P(*spec))
    )

    def loss(w, tokens, kept):
        hidden = w["embedding"][tokens]
        if kept:
            hidden = jax.lax.with_sharding_constraint(hidden, P("data"))
        for _ in range(2):
            hidden = hidden + jnp.tanh(hidden @ w["up"]) @ w["down"]
        return (hidden**2).mean()

    step = lambda kept: jax.jit(jax.grad(lambda w, tokens: loss(w, tokens, kept)))  # noqa: E731
    w = {"embedding": put((256, 64), None, "data"), "up": put((64, 128), "data"), "down": put((128, 64), None, "data")}
    tokens = put((64, 64), "data", dtype="int32")
    with jax.set_mesh(mesh):
        advice = wb.advise(step(False))(w, tokens)
        fixed = wb.advise(step(True))(w, tokens)
        before, after = (
            sum(each.wire_bytes * each.executions for each in wb.inspect(step(kept))(w, tokens).module.collectives)
            for kept in (False, True)
        )
    first = advice.findings[0]
    assert first.rule == "activations without the batch axis"
    assert first.is_verified
    assert first.code == "hidden = jax.lax.with_sharding_constraint(hidden, P('data'))"
    assert first.gain.before == before
    assert abs(first.gain.after - after) < 0.1 * before  # by hand, cotangents are constrained as well
    assert "activations without the batch axis" not in {each.rule for each in fixed.findings}


def test_a_keyword_on_one_device_does_not_stop_verification():
    mesh = wb.make_mesh(data=8)
    w = jax.device_put(jnp.ones((1024, 1024)), NamedSharding(mesh, P()))
    x = jax.device_put(jnp.ones((64, 1024)), NamedSharding(mesh, P("data")))

    def step(w, x, *, key):
        return jax.grad(lambda w: jnp.mean((x @ w + jax.random.normal(key, (1, 1024))) ** 2))(w)

    findings = wb.advise(jax.jit(step))(w, x, key=jax.random.key(0)).findings
    replicated = next(each for each in findings if each.rule == "large replicated array")
    assert replicated.is_verified
    assert {"peak bytes", "bytes sent", "FLOPs"} <= {each.quantity for each in replicated.compared}


def test_random_keys_that_a_step_returns_do_not_crash_the_planner():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        mesh, step, arguments = PROGRAMS["nnx_vae"]()
        with jax.set_mesh(mesh):
            assert rules(wb.advise(step, verify=False)(*arguments))


def attention(q, k, v):
    return jax.nn.softmax(q @ k.T) @ v


def cached(cache, row):
    return jax.lax.dynamic_update_slice(cache, row, (3, 0))


def momentum(w, m, g):
    return w - 0.1 * m, 0.9 * m + g


@pytest.mark.parametrize(("fn", "count", "is_state"), [(attention, 3, False), (cached, 2, True), (momentum, 3, True)])
def test_only_arguments_that_results_update_are_to_be_donated(fn, count, is_state):
    args = [jnp.ones((1, 1024) if fn is cached and i else (1024, 1024)) for i in range(count)]
    findings = wb.advise(jax.jit(fn))(*args).findings
    assert ("missing donation" in {each.rule for each in findings}) is is_state


def test_advice_for_pmap_names_no_shardings_of_jit_alone():
    update = lambda w, x: w - jax.lax.pmean(jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w), "i")  # noqa: E731
    step = jax.pmap(update, axis_name="i", in_axes=(None, 0), out_axes=None)
    findings = wb.advise(step)(jnp.ones((512, 512)), jnp.ones((8, 4, 512))).findings
    for each in findings:
        assert "jax.jit(" not in each.code
        assert not each.specs or "`jax.pmap` keeps such an argument unsharded" in each.change


def test_equal_layers_are_one_finding():
    mesh = wb.make_mesh(data=8)
    weights = [jax.device_put(jnp.ones((512, 512)), NamedSharding(mesh, P("data"))) for _ in range(3)]
    x = jax.device_put(jnp.ones((64, 512)), NamedSharding(mesh, P("data")))

    def step(weights, x):
        for w in weights:
            x = jnp.tanh(x @ w)
        return x

    found = [each for each in wb.advise(jax.jit(step))(weights, x).findings if each.specs]
    assert len({each.rule for each in found}) == len(found)
    assert max(len(each.leaves) for each in found) == 3
    for each in found:  # by the names of the user: `weights[1]` is a name, and `[1]` in it is none
        assert set(each.specs) == {"weights[0]", "weights[1]", "weights[2]"}
        assert each.is_verified


def test_conversions_that_the_cpu_compiler_inserts_are_no_findings():
    """CPUs compute 16-bit products in float32, so they also gather float32; the program has no cast to move."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def put(shape, *spec):
        return jax.ShapeDtypeStruct(shape, "bfloat16", sharding=NamedSharding(mesh, P(*spec)))

    plain = lambda w, x: jnp.tanh(x @ w["a"]) @ w["b"]  # noqa: E731
    w = {"a": put((256, 1024), "data"), "b": put((1024, 256), None, "data")}
    with jax.set_mesh(mesh):
        lines = wb.inspect(plain)(w, put((256, 256), "data")).module.text.splitlines()
        assert any("f32[" in line for line in lines if " all-gather(" in line)
        rules = {each.rule for each in wb.advise(plain)(w, put((256, 256), "data")).findings}
    assert "float32 collective of 16-bit values" not in rules


def test_batch_that_is_lost_under_vmap_is_constrained_with_the_name_of_the_mapped_axis():
    """The line sees a value without the batch dimension, so a constraint with the batch's axis could not be written."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def put(shape, *spec, dtype="float32"):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P(*spec)))

    def one(w, tokens, kept):
        hidden = w["embedding"][tokens]
        if kept:
            hidden = jax.lax.with_sharding_constraint(hidden, P())
        for _ in range(2):
            hidden = hidden + jnp.tanh(hidden @ w["up"]) @ w["down"]
        return (hidden**2).mean()

    def step(kept):
        def loss(w, tokens):
            return jax.vmap(lambda t: one(w, t, kept), spmd_axis_name="data" if kept else None)(tokens).mean()

        return jax.jit(jax.grad(loss))

    w = {"embedding": put((256, 64), None, "data"), "up": put((64, 128), "data"), "down": put((128, 64), None, "data")}
    tokens = put((64, 64), "data", dtype="int32")
    sent = lambda fn: sum(c.wire_bytes * c.executions for c in wb.inspect(fn)(w, tokens).module.collectives)  # noqa: E731
    with jax.set_mesh(mesh):
        first = wb.advise(step(False))(w, tokens).findings[0]
        before, after = sent(step(False)), sent(step(True))
    assert first.rule == "activations without the batch axis"
    assert first.code == ("jax.vmap(fn, spmd_axis_name='data')\njax.lax.with_sharding_constraint(value, P())")
    assert "constrain the value f32[64,64] of the line" in first.change
    assert first.gain.before == before
    assert abs(first.gain.after - after) < 0.1 * before


def test_recomputation_in_an_equinox_module_with_numbers_is_compiled_again():
    """`eqx.filter_jit` keeps the numbers of a module static; a plain `jax.jit` would trace them."""
    eqx = pytest.importorskip("equinox")

    class Stack(eqx.Module):
        weight: jax.Array
        layers: int

        def __call__(self, x, key):
            for k in jax.random.split(key, self.layers):  # a number, so it must not be traced
                x = jax.checkpoint(lambda x, k: jnp.tanh(jnp.tanh(x @ self.weight) @ self.weight))(x, k)
            return x

    @eqx.filter_jit
    def step(model, x, key):
        return eqx.filter_grad(lambda m: (m(x, key) ** 2).mean())(model)

    advice = wb.advise(step)(Stack(jnp.ones((64, 64)), 3), jnp.ones((32, 64)), jax.random.key(0))
    assert not [f for f in advice.findings if f.gain is not None and "could not be verified" in f.gain.how]


def test_an_argument_that_a_shard_map_splits_is_sharded_as_the_shard_map_splits_it():
    mesh = wb.make_mesh(stage=4, data=2)
    layer = jax.shard_map(
        lambda w, x: jax.lax.psum(jnp.tanh(x @ w[0]), "stage"),
        mesh=mesh,
        in_specs=(jax.P("stage"), jax.P("data")),
        out_specs=jax.P("data"),
    )
    x = jax.ShapeDtypeStruct((64, 64), "float32", sharding=jax.NamedSharding(mesh, jax.P("data")))
    w = jax.ShapeDtypeStruct((4, 64, 64), "float32", sharding=jax.NamedSharding(mesh, jax.P()))
    advice = wb.advise(layer)(w, x)
    (finding,) = [f for f in advice.findings if f.rule == "large replicated array"]
    assert finding.specs == {"w": (("stage",), (), ())}
    assert finding.is_verified
    assert "shard_map" in finding.why
