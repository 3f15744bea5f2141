"""Shardy's decisions: on abstract meshes, with reasons, and the same as the compiler's own dump files tell."""

import collections
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec as P

from workbench import errors
from workbench._jax_compat import shardy as _jax_compat_shardy
from workbench.inspection.sharding import propagate_shardings
from workbench.records.program import SourceLine
from workbench.records.sharding import PlannedValueRecord, PropagationEdge, PropagationRecord
from workbench.render import explain_axis

AXES = ("clients", "model")
AUTO = (AxisType.Auto, AxisType.Auto)  # JAX 0.10 would take it for granted, 0.11 takes Explicit
ABSTRACT = AbstractMesh((4, 2), AXES, axis_types=AUTO)


def struct(mesh, shape, *spec):
    return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, P(*spec)))


def lower(fn, *args):
    return jax.jit(fn).trace(*args).lower(lowering_platforms=("cpu",))


def mlp(params, x):
    with jax.named_scope("wb:0:clients"):
        hidden = jax.nn.relu(x @ params["up"])
        out = hidden @ params["down"]
    with jax.named_scope("wb:1:reduce"):
        return out.mean(0)


def mlp_args(mesh):
    params = {"up": struct(mesh, (16, 32), None, "model"), "down": struct(mesh, (32, 16), "model", None)}
    return params, struct(mesh, (8, 16), "clients")


def of_operation(record, operation):
    return [value for value in record.values if value.operation == operation]


def test_tensor_parallel_layer_on_an_abstract_mesh():
    record = propagate_shardings(lower(mlp, *mlp_args(ABSTRACT)))
    up, down = of_operation(record, "dot_general")
    # [clients, in] @ [in, model]: both axes survive. Then model is contracted away.
    assert (up.spec, down.spec) == ((("clients",), ("model",)), (("clients",), ()))
    assert up.rule == "([i, k], [k, j])->([i, j]) {i=8, j=32, k=16} reduction={k}"
    assert up.origins == {"clients": "input: 2", "model": "input: 1"}  # dictionaries flatten by key: down, up, x
    assert (record.engine, record.notes) == ("in-process", ())


def elementwise_functions(x):
    """Each function that JAX may lower to an operation of CHLO."""
    lax, special = jax.lax, jax.scipy.special
    inverses = lax.asin(x), lax.acos(x), lax.atan(x), lax.asinh(x), lax.acosh(x), lax.atanh(x), lax.erf_inv(x)
    others = lax.square(x), lax.sinh(x), lax.cosh(x), lax.tan(x), lax.erf(x), lax.erfc(x), lax.nextafter(x, x + 1)
    integrals = lax.lgamma(x), lax.digamma(x), lax.bessel_i1e(x), special.zeta(x + 2, 1.5), special.polygamma(1, x)
    scalars = jnp.broadcast_to(lax.square(x.sum()), (8,))
    return [*inverses, *others, *integrals, scalars]


def test_elementwise_functions_keep_the_shardings_that_the_compiler_keeps():
    mesh = jax.make_mesh((4, 2), AXES, axis_types=AUTO)
    lowered = jax.jit(elementwise_functions).lower(struct(mesh, (8, 4), "clients", "model"))
    record = propagate_shardings(lowered)
    planned = [tuple(axes[0] if axes else None for axes in v.spec) for v in of_operation(record, "output")]
    compiled = [
        tuple(s.spec) + (None,) * (len(p) - len(s.spec))
        for s, p in zip(lowered.compile().output_shardings, planned, strict=True)
    ]
    assert planned == compiled
    assert planned.count(("clients", "model")) == 18  # all but `erf`


def test_elementwise_functions_of_arrays_with_many_dimensions_keep_their_sharding():
    mesh = jax.make_mesh((4, 2), AXES, axis_types=AUTO)
    x = struct(mesh, (2,) * 20, *[None] * 19, "model")  # as the state of 20 qubits; Shardy has 18 factors of one letter
    (output,) = of_operation(propagate_shardings(jax.jit(jnp.square).lower(x)), "output")
    assert output.spec == ((),) * 19 + (("model",),)


def test_planned_collectives_carry_axis_stage_line_and_bytes():
    record = propagate_shardings(lower(mlp, *mlp_args(ABSTRACT)))
    over_model, over_clients = record.collectives
    assert (over_model.kind, over_model.axes, over_model.stage) == ("all-reduce", ("model",), "0")
    assert (over_clients.kind, over_clients.axes, over_clients.stage) == ("all-reduce", ("clients",), "1")
    # [8, 16] float32 is 512 bytes, of which one of four clients devices holds 128; the mean is 16 * 4 bytes whole.
    assert (over_model.size_bytes, over_model.device_bytes) == (512, 128)
    assert (over_clients.size_bytes, over_clients.device_bytes) == (64, 64)
    assert over_model.source is not None
    assert over_model.source.file == __file__
    assert over_model.source.function == "mlp"


def test_functions_that_jax_calls_are_inlined_with_their_scope():
    (relu,) = of_operation(propagate_shardings(lower(mlp, *mlp_args(ABSTRACT))), "maximum")
    assert relu.op_name == "jit(mlp)/wb:0:clients/jit(relu)/max"
    assert (relu.stage, relu.spec) == ("0", (("clients",), ("model",)))
    assert relu.source is not None


def test_thousands_of_abstract_devices_need_one_present_device():
    mesh = AbstractMesh((1024, 8), AXES, axis_types=AUTO)
    params, _ = mlp_args(mesh)
    record = propagate_shardings(lower(mlp, params, struct(mesh, (4096, 16), "clients")))
    assert [planned.axes for planned in record.collectives] == [("model",), ("clients",)]
    assert record.collectives[0].device_bytes == 4 * 16 * 4  # 4096 / 1024 rows of 16 float32


def test_innermost_stage_wins():
    def nested(x):
        with jax.named_scope("wb:2:loop"), jax.named_scope("wb:2.0:clients"):
            return jnp.sin(x)

    (sine,) = of_operation(propagate_shardings(lower(nested, struct(ABSTRACT, (8,), "clients"))), "sine")
    assert sine.stage == "2.0"


def scanned(w, x):
    def step(carry, _):
        return jnp.tanh(carry @ w), None

    return jax.lax.scan(step, x, None, length=3)[0]


def test_loop_carries_take_the_sharding_of_their_result():
    record = propagate_shardings(lower(scanned, struct(ABSTRACT, (16, 16)), struct(ABSTRACT, (8, 16), "clients")))
    carries = [value for value in of_operation(record, "while carry") if value.shape == (8, 16)]
    assert len(carries) == 2  # as the condition and as the body see it
    assert {value.spec for value in carries} == {(("clients",), ())}


def test_explanation_leads_back_through_the_loop_to_the_input():
    record = propagate_shardings(lower(scanned, struct(ABSTRACT, (16, 16)), struct(ABSTRACT, (8, 16), "clients")))
    chain = explain_axis(record, "result", "clients")
    assert chain[0].startswith("output `result` (%result0, f32[8,16]) is sharded")
    assert "took the axis from while" in chain[1]
    assert "input `x`" in chain[-2]
    assert chain[-1] == "Given in the program."


def test_explanation_names_the_constraint():
    def constrained(x):
        return jnp.cos(jax.lax.with_sharding_constraint(jnp.sin(x), NamedSharding(ABSTRACT, P("model"))))

    record = propagate_shardings(lower(constrained, struct(ABSTRACT, (8,))))
    (cosine,) = of_operation(record, "cosine")
    assert cosine.origins == {"model": "constraint: 0"}
    assert explain_axis(record, cosine.name, "model")[-1].startswith("Constraint 0 ")


def test_explanation_follows_reasons_backwards_from_an_output():
    out = NamedSharding(ABSTRACT, P("model"))
    lowered = jax.jit(jnp.sin, out_shardings=out).trace(struct(ABSTRACT, (8,))).lower(lowering_platforms=("cpu",))
    record = propagate_shardings(lowered)
    (sine,) = of_operation(record, "sine")
    assert explain_axis(record, sine.name, "model")[-1] == "The sharding requested for output 0 introduced the axis."


def test_explanation_of_an_axis_that_is_not_there_says_what_is():
    record = propagate_shardings(lower(mlp, *mlp_args(ABSTRACT)))
    _, down = of_operation(record, "dot_general")
    (said,) = explain_axis(record, down.name, "model")
    assert said.endswith('is not sharded by "model" (dimension 0 by clients).')


def test_explanation_of_an_unknown_value_names_near_ones():
    record = propagate_shardings(lower(mlp, *mlp_args(ABSTRACT)))
    said = r"value `params\['upp'\]`.*it has `params\['up'\]`.*use a `name`"
    with pytest.raises(errors.InspectionError, match=said):
        explain_axis(record, "params['upp']", "model")


def test_every_edge_joins_known_values_and_shards_its_target():
    record = propagate_shardings(lower(jax.grad(lambda p, x: mlp(p, x).sum()), *mlp_args(ABSTRACT)))
    known = {value.name: value for value in record.values}
    assert record.edges
    for edge in record.edges:
        assert edge.from_value in known
        assert edge.axis in {axis for axes in known[edge.to_value].spec for axis in axes}


def manual(x):
    return jax.shard_map(
        lambda v: jax.lax.psum(v, "clients"), mesh=ABSTRACT, in_specs=P("clients", "model"), out_specs=P(None, "model")
    )(x)


def test_collectives_written_inside_shard_map_are_planned_ones_too():
    (planned,) = propagate_shardings(lower(manual, struct(ABSTRACT, (8, 4), "clients", "model"))).collectives
    assert (planned.kind, planned.axes) == ("all-reduce", ("clients",))
    assert planned.device_bytes == 2 * 2 * 4  # the shard of one device


def test_groups_of_devices_are_named_by_their_part_of_an_axis():
    def paired(v):
        return jax.lax.psum(v, "clients", axis_index_groups=[[0, 1], [2, 3]])

    def fn(x):
        return jax.shard_map(paired, mesh=ABSTRACT, in_specs=P("clients"), out_specs=P("clients"), check_vma=False)(x)

    (planned,) = propagate_shardings(lower(fn, struct(ABSTRACT, (8,), "clients"))).collectives
    assert planned.axes == ("clients[2 of 4]",)


def test_ring_of_devices_is_a_permutation_over_its_axis():
    def fn(x):
        ring = [(index, (index + 1) % 4) for index in range(4)]
        shift = jax.shard_map(
            lambda v: jax.lax.ppermute(v, "clients", ring), mesh=ABSTRACT, in_specs=P("clients"), out_specs=P("clients")
        )
        return shift(x)

    (planned,) = propagate_shardings(lower(fn, struct(ABSTRACT, (8,), "clients"))).collectives
    assert (planned.kind, planned.axes) == ("collective-permute", ("clients",))


def test_complex_constants_are_read():
    record = propagate_shardings(
        lower(lambda x: (x.astype(jnp.complex64) * jnp.complex64(1 + 2j)).real, struct(ABSTRACT, (8,), "clients"))
    )
    assert (record.engine, record.values[-1].spec) == ("in-process", (("clients",),))


BRANCHES = {
    "cond": lambda x: jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x),
    "switch": lambda x: jax.lax.switch(1, [jnp.sin, jnp.cos, jnp.tanh], x),
    "while": lambda x: jax.lax.while_loop(lambda c: c.sum() < 3, lambda c: c + 1, x),
    "barrier": lambda x: jax.lax.optimization_barrier(jnp.sin(x)),
    "checkpoint": jax.grad(lambda x: jax.checkpoint(lambda x: jnp.sin(jnp.sin(x)))(x).sum()),
}


@pytest.mark.parametrize("name", BRANCHES, ids=str)
def test_control_flow_keeps_the_sharding_and_its_reason(name):
    record = propagate_shardings(lower(BRANCHES[name], struct(ABSTRACT, (8,), "clients")))
    assert record.values[-1].spec == (("clients",),)
    assert any("input `x`" in sentence for sentence in explain_axis(record, "%result0", "clients"))


def test_axis_split_between_dimensions_is_written_as_its_part():
    def split(x):
        return x.reshape(2, 4)

    record = propagate_shardings(lower(split, struct(ABSTRACT, (8,), "clients")))
    (reshaped,) = of_operation(record, "reshape")
    assert reshaped.spec == (("clients[2 of 4]",), ("clients[2 of 4]",))


def test_program_without_shardings_says_so():
    record = propagate_shardings(jax.jit(jnp.sin).lower(jnp.ones(3)))
    assert "no value of this program is sharded" in record.notes[0]


def test_record_is_json():
    record = propagate_shardings(lower(mlp, *mlp_args(ABSTRACT)))
    assert len(json.loads(record.to_json())["values"]) == len(record.values)


@pytest.mark.parametrize("wrong", ["no module", "module {", "", 3, None], ids=repr)
def test_what_is_not_a_program_gives_a_record_that_says_so(wrong):
    record = propagate_shardings(wrong)
    assert (record.engine, record.values) == ("none", ())
    assert record.notes


def test_renamed_passes_give_a_record_that_says_so(monkeypatch):
    monkeypatch.setattr(_jax_compat_shardy, "WHY_PASSES", "sdy-pass-of-another-version")
    record = propagate_shardings(jax.jit(mlp).lower(*mlp_args(present())))
    assert (record.engine, record.values) == ("none", ())
    assert "failed in-process" in record.notes[0]


def test_collectives_that_cannot_be_planned_leave_the_rest(monkeypatch):
    monkeypatch.setattr(_jax_compat_shardy, "COLLECTIVE_PASSES", "sdy-pass-of-another-version")
    record = propagate_shardings(lower(mlp, *mlp_args(ABSTRACT)))
    assert (record.engine, record.collectives) == ("in-process", ())
    assert len(of_operation(record, "dot_general")) == 2
    assert "planned collectives are missing" in record.notes[0]


def present():
    return Mesh(np.array(jax.devices()).reshape(4, 2), AXES, axis_types=(AxisType.Auto, AxisType.Auto))


def attention(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


def local_sgd(params, data):
    def train(params, batch):
        def step(params, _):
            grads = jax.grad(lambda p: (jnp.tanh(batch @ p["up"]) @ p["down"]).sum())(params)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), None

        return jax.lax.scan(step, params, None, length=2)[0]

    return jax.tree.map(lambda x: x.mean(0), jax.vmap(train, in_axes=(None, 0))(params, data))


def programs(mesh):
    params, x = mlp_args(mesh)
    heads = struct(mesh, (8, 4, 2, 8), "clients", None, "model", None)
    return {
        "mlp": (mlp, params, x),
        "gradient": (jax.grad(lambda p, x: mlp(p, x).sum()), params, x),
        "attention": (attention, heads, heads, heads),
        "scan": (scanned, struct(mesh, (16, 16), None, "model"), struct(mesh, (8, 16), "clients")),
        "local-sgd": (local_sgd, params, struct(mesh, (8, 4, 16), "clients")),
    }


@pytest.mark.parametrize("name", ["mlp", "gradient", "attention", "scan", "local-sgd"])
def test_propagation_decides_as_the_compiler(name, tmp_path):
    lowered = jax.jit(programs(present())[name][0]).lower(*programs(present())[name][1:])
    ours = propagate_shardings(lowered)
    lowered.compile({"xla_dump_to": str(tmp_path), "xla_dump_hlo_pass_re": ".*shardy.*"})
    dump = min(tmp_path.rglob("*after_propagation*.mlir"))
    compilers = _jax_compat_shardy.run_shardy(dump.read_text(), "symbol-dce")
    ends = [
        [value.spec for value in record.values if value.operation in ("input", "output")]
        for record in (ours, compilers)
    ]
    assert ends[0] == ends[1]

    def by_kind(record):
        # The compiler canonicalises, so that only operations that both have can be compared; carries follow loops.
        kinds = collections.defaultdict(list)
        for value in record.values:
            if value.shape and "carry" not in value.operation:
                kinds[value.operation.replace("dot_general", "dot"), value.shape].append(value.spec)
        return {kind: sorted(specs) for kind, specs in kinds.items()}

    first, second = by_kind(ours), by_kind(compilers)
    same = [kind for kind in first if len(first[kind]) == len(second.get(kind, ()))]
    assert {kind: first[kind] for kind in same} == {kind: second[kind] for kind in same}
    assert sum(len(first[kind]) for kind in same) >= 5


def test_a_reason_names_a_cell_as_its_author_does():
    source = SourceLine(file="/tmp/ipykernel_7/921569917.py", line=12, function="step")
    entry, result = (
        PlannedValueRecord(
            name=name,
            operation="add",
            shape=(8,),
            dtype="f32",
            spec=(("data",),),
            origins={},
            op_name="",
            source=source,
        )
        for name in ("%0", "%1")
    )
    edge = PropagationEdge(step=1, axis="data", from_value="%0", to_value="%1")
    record = PropagationRecord(values=(entry, result), edges=(edge,))
    sentence = explain_axis(record, "%1", "data")[1]
    assert sentence == "Step 1: add %1 took the axis from add %0 (f32[8], notebook cell:12)."
