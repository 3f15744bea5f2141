"""What the compiler made of steps with collectives in loss, gradient and update: those written, no more."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType

import workbench as wb
from workbench.replicate import Replicator, sync_batch_norm

HIDDEN, NOISE, POINT, BATCH, REPLICAS = 8, 4, 2, 6, 4
FLOAT = 4  # bytes


def networks():
    sizes = {"generator": [(NOISE, HIDDEN), (HIDDEN, POINT)], "discriminator": [(POINT, HIDDEN), (HIDDEN, 1)]}
    return {name: [0.1 * jnp.ones(size) for size in layers] for name, layers in sizes.items()}


def forward(layers, x, norm=lambda h: h):
    return jnp.tanh(norm(x @ layers[0])) @ layers[1]


def gan_step(optimizer):
    """One turn of both networks; the generator is normalised over all replicas, as BigGAN's is."""

    def losses(nets, ctx, real, noise):
        fake = forward(nets["generator"], noise, lambda h: sync_batch_norm(ctx, h))
        judged = {name: forward(nets["discriminator"], x) for name, x in (("real", real), ("fake", fake))}
        found_out = jax.nn.softplus(-judged["real"]).mean() + jax.nn.softplus(judged["fake"]).mean()
        return {"discriminator": found_out, "generator": jax.nn.softplus(-judged["fake"]).mean()}

    def step(ctx, batch, state):
        nets, moments = state
        reported = {}
        real, *noises = batch
        for name, noise in zip(("discriminator", "generator"), noises, strict=True):

            def loss_of(net, name=name, nets=nets, noise=noise):
                return losses({**nets, name: net}, ctx, real, noise)[name]

            reported[name], gradient = jax.value_and_grad(loss_of)(nets[name])
            change, new = optimizer.update(gradient, moments[name], nets[name])
            nets = {**nets, name: optax.apply_updates(nets[name], change)}
            moments = {**moments, name: new}
        return (nets, moments), ctx.all_reduce(reported, "mean")

    return step


def compiled_collectives(mesh, step_of):
    replicator = Replicator(mesh)
    optimizer = replicator.wrap_optimizer(optax.sgd(0.1))
    nets = networks()
    state = nets, {name: optimizer.init(net) for name, net in nets.items()}
    random = np.random.default_rng(0)
    batch = tuple(random.normal(size=(REPLICAS, BATCH, size)).astype(np.float32) for size in (POINT, NOISE, NOISE))
    with jax.set_mesh(mesh):
        record = wb.inspect(replicator.step(step_of(optimizer)), on=mesh)(batch, replicator.replicate(state))
    assert record.module is not None
    return record.module.collectives


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_a_gan_with_synchronous_batch_norm_compiles_to_the_collectives_that_are_written(kind):
    found = compiled_collectives(wb.make_mesh(replicas=REPLICAS, axis_types=getattr(AxisType, kind)), gan_step)
    # Each normalised layer gathers three numbers per feature and replica: once for the discriminator, which does not
    # change the generator, and once for the generator, whose derivative scatters them back.
    moments = 3 * HIDDEN
    gradients = POINT * HIDDEN + HIDDEN * 1 + NOISE * HIDDEN + HIDDEN * POINT
    reported = 2
    assert {(each.kind, each.axes, each.reduction, each.executions) for each in found} == {
        ("all-reduce", ("replicas",), "add", 1.0),
        ("all-gather", ("replicas",), None, 1.0),
        ("reduce-scatter", ("replicas",), "add", 1.0),
    }
    payload = {kind: sum(each.payload_bytes for each in found if each.kind == kind) for kind in {c.kind for c in found}}
    assert payload["all-reduce"] == FLOAT * (gradients + reported)
    assert payload["all-gather"] == 2 * FLOAT * moments
    assert payload["reduce-scatter"] == REPLICAS * FLOAT * moments


def test_one_normalised_layer_costs_one_all_gather_forwards_and_one_reduce_scatter_backwards():
    def step_of(optimizer):
        del optimizer

        def step(ctx, batch, state):
            nets, _ = state

            def loss_of(layers):
                return jnp.mean(forward(layers, batch[1], lambda h: sync_batch_norm(ctx, h)) ** 2)

            return state, jax.grad(loss_of)(nets["generator"])  # of this replica alone: no collective of its own

        return step

    found = compiled_collectives(wb.make_mesh(replicas=REPLICAS), step_of)
    moments = 3 * HIDDEN * FLOAT  # a gather's payload is the part of one device, a scatter's is the whole
    expected = [("all-gather", moments), ("reduce-scatter", REPLICAS * moments)]
    assert [(each.kind, each.payload_bytes) for each in found] == expected


def test_gradients_of_the_parts_of_a_batch_are_sent_once_per_update():
    mesh = wb.make_mesh(replicas=REPLICAS)
    replicator = Replicator(mesh)
    optimizer = replicator.wrap_optimizer(optax.sgd(0.1))

    def step(ctx, batch, state):
        w, moments = state
        slope = jax.grad(lambda w, x: jnp.mean(jnp.tanh(x @ w) ** 2))
        total, _ = jax.lax.scan(lambda total, part: (total + slope(w, part), None), jnp.zeros_like(w), batch)
        change, moments = optimizer.update(total / len(batch), moments, w)
        return (optax.apply_updates(w, change), moments), ()

    w = jnp.ones((POINT, HIDDEN))
    batch = np.ones((REPLICAS, 4, BATCH, POINT), np.float32)
    with jax.set_mesh(mesh):
        record = wb.inspect(replicator.step(step), on=mesh)(batch, replicator.replicate((w, optimizer.init(w))))
    assert record.module is not None
    (sent,) = record.module.collectives
    assert (sent.kind, sent.executions, sent.payload_bytes) == ("all-reduce", 1.0, FLOAT * POINT * HIDDEN)
