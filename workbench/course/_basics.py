"""Exercises of notebooks 00 to 03: required JAX knowledge, placements and primitives, derivatives."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from workbench.course._grading import (
    called,
    collectives,
    compiled,
    exercise,
    expect_disclosed,
    expect_number,
    expect_values,
    payload_bytes,
    plan_of,
    primitives_of,
    several,
    stages,
    wrong,
    yes_or_no,
)
from workbench.mesh import make_mesh
from workbench.primitives import broadcast, map_fn, program, reduce_mean


@exercise("00.1", "the squared length of a pytree")
def squared_length(answer: object) -> str:
    tree = {"w": jnp.arange(6.0).reshape(2, 3), "rest": [jnp.ones(4), {"b": jnp.float32(3)}]}
    hint = "Sum the squares in every leaf, then add the sums with `jax.tree.leaves` or `jax.tree.reduce`."
    expect_values(called(answer, tree), 55 + 4 + 9, hint)
    return "every leaf counts, however deep the tree is."


@exercise("00.2", "a running mean with `jax.lax.scan`")
def running_mean(answer: Callable) -> str:
    x = jnp.array([4.0, 0.0, 2.0, 10.0])
    hint = "Carry the sum and the count; let `scan` stack the mean so far."
    expect_values(called(answer, x), np.cumsum(np.asarray(x)) / np.arange(1, 5), hint)
    if "scan" not in primitives_of(jax.make_jaxpr(answer)(x).jaxpr):
        wrong("the values are right, but the program has no `scan`. Use `jax.lax.scan`, which compiles its body once.")
    return "the body is compiled once and runs four times."


@exercise("00.3", "one gradient per example")
def gradient_per_example(answer: object) -> str:
    w, x, y = jnp.array([1.0, -1.0]), jnp.array([[1.0, 2.0], [3.0, 0.0], [0.0, 1.0]]), jnp.array([0.0, 1.0, -1.0])
    expected = 2 * (np.asarray(x) @ np.asarray(w) - np.asarray(y))[:, None] * np.asarray(x)
    hint = "`jax.vmap(jax.grad(loss), in_axes=(None, 0, 0))`: the weights are shared, examples and targets are not."
    expect_values(called(answer, w, x, y), expected, hint)
    return "`vmap` of `grad` gives one row per example."


@exercise("00.4", "the shard of an array on one device")
def shard_shape(answer: object) -> str:
    hint = "Divide dimension 0 by the size of `clients` (4) and dimension 1 by that of `model` (2)."
    expect_values(several(answer, 3, "the shape of one shard"), (8, 12, 5), hint)
    return "each dimension is divided by the size of its named axis."


@exercise("01.1", "do other weights change the plan, or the collectives?")
def equal_weights(answer: object) -> str:
    questions = "the answer about the plan", "the answer about the collectives"
    answers = several(answer, 2, ", ".join(questions))
    if any(yes_or_no(reply, question) for reply, question in zip(answers, questions, strict=True)):
        wrong("weights are values, not structure. Compare the operations of both plans, and the kinds of collectives.")
    return "weights are values; the same stages and the same all-reduce run."


@exercise("01.2", "the bytes of the all-reduce for 640 clients")
def bytes_of_640(answer: object) -> str:
    parameters = 64 * 32 + 32 + 32 * 10 + 10
    hint = "Each device first adds up its own clients: count the parameters once, plus the loss and the sum of weights."
    expect_number(answer, 4 * (parameters + 2), hint, rtol=1e-4)
    return f"{parameters:,} parameters, the loss and the sum of weights, however many clients there are."


@exercise("01.3", "a training round of a linear model, with at most 4 KiB sent")
def small_round(answer: object) -> str:
    random = np.random.default_rng(0)
    w, x = random.normal(size=256).astype("float32"), random.normal(size=(64, 20, 256)).astype("float32")
    y = random.normal(size=(64, 20)).astype("float32")
    error = np.einsum("cnd,d->cn", x, w) - y
    expected = w - 0.1 * 2 * np.einsum("cnd,cn->cd", x, error).mean(0) / 20
    hint = "Each client takes one step `w - 0.1 * gradient` on its mean squared error; the server averages the results."
    arguments = jnp.asarray(w), jnp.asarray(x), jnp.asarray(y)
    expect_values(called(answer, *arguments), expected, hint, atol=1e-3)
    disclosed = expect_disclosed(plan_of(answer, *arguments, clients=64), 4096)
    carried = payload_bytes(collectives(compiled(answer, *arguments, mesh=make_mesh(clients=4))))
    if carried > 4096:
        wrong(f"the values are right, but the collectives carry {carried:,.0f} bytes; the limit is 4,096.")
    return f"a client discloses {disclosed:,} bytes, and the all-reduce carries {carried:,.0f}."


@exercise("02.1", "the variance over clients with two reductions")
def variance(answer: object) -> str:
    for x in ([0.0, 1.0, 2.0, 3.0], [5.0, -1.0, 4.0, 0.5]):
        expect_values(called(answer, jnp.array(x)), np.var(x), "The variance is E[x²] − (E[x])².")
    plan = plan_of(answer, jnp.arange(4.0), clients=4)
    count = len(stages(plan, "reduce"))
    if count > 2:
        wrong(f"the values are right, but the plan has {count} reductions; two would be enough.")
    size = expect_disclosed(plan, 12)  # a weighted mean sends a weight too
    return f"{count} reduction{'s' * (count > 1)}, and every client discloses {size} bytes."


@exercise("02.2", "the fraction of clients above a threshold, with 4 bytes per client")
def share_above(answer: object) -> str:
    x = jnp.array([0.1, 0.9, 0.7, 0.4])
    hint = "Compare at the client, and average the zeros and ones. A value equal to the threshold is not above it."
    for threshold, expected in ((0.5, 0.5), (0.8, 0.25), (2.0, 0.0), (0.4, 0.5)):
        expect_values(called(answer, x, jnp.float32(threshold)), expected, hint)
    expect_disclosed(plan_of(answer, x, jnp.float32(0.5), clients=4), 4)
    return "each client discloses only one number, which is not its value."


@exercise("02.3", "a mean over present clients, with 8 bytes per pod")
def mean_of_present(answer: object) -> str:
    x = jnp.arange(12.0).reshape(4, 3)
    present = jnp.array([[1.0, 1.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
    expected = (np.asarray(x) * np.asarray(present)).sum() / 6
    hint = (
        "Pods with few clients count less: add values and counts inside each pod, then over the pods, and divide once."
    )
    expect_values(called(answer, x, present), expected, hint)
    size = expect_disclosed(plan_of(answer, x, present, clients=4), 8)
    return f"a pod sends {size} bytes, however many clients it has."


@exercise("02.4", "a program, repaired with the help of its error message")
def largest_share(answer: object) -> str:
    hint = "Each client divides its own square by the sum of all four; the server returns the largest quotient."
    for x in ([1.0, 2.0, 3.0, 4.0], [2.0, 0.0, -1.0, 1.0]):
        expect_values(called(answer, jnp.array(x)), np.square(x).max() / np.square(x).sum(), hint)
    plan = plan_of(answer, jnp.arange(4.0), clients=4)
    if not stages(plan, "broadcast"):
        wrong(
            "the values are right, but the server divides. Send the sum to the clients, so that each client divides "
            "its own square by the sum."
        )
    expect_disclosed(plan, 8)
    return "a value at the server reaches the clients through a broadcast."


@exercise("03.1", "the gradient of the largest square of four clients")
def worst_off(answer: Callable) -> str:
    x = jnp.array([1.0, 2.0, 3.0, -4.0])
    expect_values(called(answer, x), 16.0, "The result is the largest square of any client.")
    expect_values(jax.grad(answer)(x), [0, 0, 0, -8.0], "Use `wb.reduce_max`: its gradient goes only to the maximum.")
    expect_disclosed(plan_of(answer, x, clients=4), 4)
    return "only the worst-off client receives a gradient."


@exercise("03.2", "a Hessian-vector product that sends only the bytes of a gradient")
def hessian_times_vector(answer: object) -> str:
    rows = jnp.asarray(np.random.default_rng(3).normal(size=(4, 6)), jnp.float32)

    @program(clients=4)
    def loss(w: jax.Array) -> jax.Array:
        return reduce_mean(map_fn(lambda w, row: jnp.log1p(jnp.exp(row @ w)), (broadcast(w), rows)))

    w, v = jnp.linspace(-1.0, 1.0, 6), jnp.arange(6.0)
    expect_values(called(answer, loss, w, v), jax.jit(jax.hessian(loss))(w) @ v, "Differentiate the gradient along v.")
    size = expect_disclosed(plan_of(lambda w, v: called(answer, loss, w, v), w, v, clients=4), 24)
    return f"a client sends {size} bytes, as many as for a gradient; the Hessian would take {4 * 36}."


@exercise("03.3", "the gradient of a mean loss, written by hand")
def gradient_by_hand(answer: object) -> str:
    w, x = jnp.array([1.0, -2.0]), jnp.array([[1.0, 0.0], [2.0, 1.0], [0.0, 1.0], [1.0, 1.0]])
    expected = (2 * np.asarray(x) * (np.asarray(x) @ np.asarray(w))[:, None]).mean(0)
    hint = "Each client's loss is (x·w)², with the gradient 2 x (x·w); average these gradients."
    expect_values(called(answer, w, x), expected, hint)
    plan = plan_of(answer, w, x, clients=4)
    counts = len(stages(plan, "broadcast")), len(stages(plan, "reduce"))
    if counts != (1, 1):
        wrong(f"the values are right, but there are {counts} broadcasts and reductions: one pair is enough.")
    expect_disclosed(plan, 8)
    return "the program has one broadcast and one reduction, like the result of `jax.grad`."
