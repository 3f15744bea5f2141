"""Exercises of notebooks 04 to 07, 14, 15, 18, 19 and 20: shardings, compiled programs, cost, layouts, populations."""

from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from workbench.api import inspect
from workbench.cost import estimate_scaled
from workbench.course._grading import (
    called,
    collectives,
    compiled,
    exercise,
    expect_number,
    expect_values,
    payload_bytes,
    sent_bytes,
    several,
    specs,
    wrong,
)
from workbench.errors import WrongAnswerError
from workbench.mesh import make_mesh
from workbench.records.compiled import ProgramRecord
from workbench.records.live import TimelineRecord
from workbench.replicate import Replicator


@exercise("04.1", "shardings of three layers without an all-gather")
def three_layers(answer: object) -> str:
    answer = specs(answer, "w1", "w2", "w3")
    mesh = make_mesh(clients=4, model=2)
    shapes = {"w1": (32, 64), "w2": (64, 64), "w3": (64, 32)}

    def placed(shape: tuple[int, ...], spec: PartitionSpec) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))

    for name, spec in answer.items():
        shard = NamedSharding(mesh, spec).shard_shape(shapes[name])
        if np.prod(shard) > np.prod(shapes[name]) // 2:
            wrong(f"a device stores {shard} of `{name}` {shapes[name]}, which is more than half of the array.")

    def forward(w: dict, x: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.tanh(x @ w["w1"]) @ w["w2"]) @ w["w3"]

    weights = {name: placed(shapes[name], answer[name]) for name in shapes}
    records = collectives(compiled(forward, weights, placed((64, 32), PartitionSpec("clients")), mesh=mesh))
    kinds = sorted({record.kind for record in records})
    if kinds != ["all-reduce"]:
        wrong(f"the forward pass uses {', '.join(kinds) or 'no collective'}; alternate columns and rows.")
    limit = 64 // 4 * 64 * 4
    if (carried := payload_bytes(records)) > limit:
        wrong(f"nothing is gathered, but the all-reduces carry {carried:,.0f} bytes; {limit:,} bytes would be enough.")
    return f"one all-reduce of {carried:,.0f} bytes between the second layer and the third."


@exercise("04.2", "a spec with four different shards, each on two devices")
def four_shards_twice(answer: object) -> str:
    if not isinstance(answer, PartitionSpec):
        wrong(f"the answer should be a `PartitionSpec`; you gave a value of type `{type(answer).__name__}`.")
    mesh, shape = make_mesh(clients=4, model=2), (16, 6, 8)
    try:
        shard = NamedSharding(mesh, answer).shard_shape(shape)
    except Exception as error:  # JAX raises several classes
        wrong(f"the mesh (clients=4, model=2) rejects {answer} for the shape {shape}: {error}")
    if shard[-1] != shape[-1]:
        wrong(f"a device stores {shard}: the last dimension must stay whole.")
    if np.prod(shard) != 192:
        wrong(f"a device stores {shard}, {np.prod(shard)} values; 192 are required.")
    return f"a device stores {shard}; the axis `model` is not used, so each shard is stored twice."


@exercise("05.1", "the kinds of collectives over `model` with the other sharding")
def new_collectives(answer: Iterable[str]) -> str:
    if {str(kind).replace("_", "-") for kind in answer} != {"all-reduce", "all-gather"}:
        wrong("look at each collective over `model` whose source line contains the first product: there are two kinds.")
    return "partial products are summed, and the gradient with respect to the hidden units is gathered."


@exercise("05.2", "the all-reduces over `clients` for two reductions")
def combined(answer: object) -> str:
    expect_number(answer, 1, "XLA combines reductions over the same devices; count instructions, not stages.")
    return "one instruction reduces the values of both stages."


@exercise("06.1", "rows per step that make the training compute-bound")
def rows_to_ridge(answer: object) -> str:
    hint = "A step computes rows / 2 FLOPs per byte of float32; this intensity must reach the ridge."
    expect_number(answer, 2 * 197e12 / 819e9, hint, rtol=0.02)
    return "about 480 rows are needed if only the matrices are read."


@exercise("06.2", "bytes that one device sends on 4 × 2 and on 8 × 1 devices")
def two_meshes(answer: object) -> str:
    grid, flat = several(answer, 2, "bytes on 4 × 2, bytes on 8 × 1")
    model, activations = 2 * 128 * 512 * 4, 16 * 32 * 128 * 4
    expect_number(
        flat, 2 * model * 7 / 8, "One all-reduce of the whole model over 8 devices.", what="the flat mesh", rtol=0.01
    )
    expect_number(
        grid,
        2 * (model / 2) * 3 / 4 + 4 * 2 * activations / 2,
        "On 4 × 2 every step also sums activations over `model`; include the executions of these all-reduces.",
        what="the 4 × 2 mesh",
        rtol=0.01,
    )
    return "without the `model` axis nothing is sent inside a step."


@exercise("07.1", "the smallest power-of-two model size that does not fit")
def too_large(answer: object, record: ProgramRecord) -> str:
    sizes = [2.0**k for k in range(1, 10)]
    fits = [estimate_scaled(record, model=size, devices=16).memory for size in sizes]
    first = next(size for size, memory in zip(sizes, fits, strict=True) if memory is not None and not memory.fits)
    expect_number(answer, first, "Try 2, 4, 8, … with `estimate_scaled(record, model=size, devices=16).memory.fits`.")
    return f"the first model that does not fit is {first:g} times as large."


@exercise("07.2", "the speed at which client 11 is no longer the straggler")
def fast_enough(answer: object, record: ProgramRecord, late: TimelineRecord) -> str:
    needed = {outcome.client: outcome.needed_seconds or 0.0 for outcome in late.outcomes}
    slowest = max(needed, key=lambda client: needed[client])
    if record.cost is None or slowest != 11:
        wrong(
            "pass the record and the simulated round from the cells above to `check`; in this round client 11 "
            "finishes last."
        )
    flops = record.cost.clients[11].flops
    elsewhere = needed[11] - flops / 5e10
    speed = flops / (max(seconds for client, seconds in needed.items() if client != 11) - elsewhere)
    hint = (
        "At that speed, client 11's compute time is the total time of the next slowest client, minus client 11's time "
        "for sending and receiving."
    )
    expect_number(answer, speed, hint, rtol=0.02)
    return (
        "a sixth of the speed of a normal device is enough: then the slow uplink of client 23 determines the round's "
        "duration."
    )


@exercise("14.1", "values per device that a reduce-scatter would save")
def reduce_scatter_saves(answer: object) -> str:
    n, c, q = 512, 4, 4
    hint = "An all-reduce sends 2 (c − 1) n² / (c q²) values, a reduce-scatter half as many."
    expect_number(answer, (c - 1) * n**2 / (c * q**2), hint)
    return "a reduce-scatter sends half of the bytes that an all-reduce over the layers sends."


@exercise("14.2", "the operation that a `reduce_sum` over layers becomes in the gradient")
def transposed_sum(answer: object) -> str:
    if str(answer).strip(" `").lower().removeprefix("wb.") != "broadcast":
        wrong("trace the gradient and look for the stage over `layers` that the forward pass does not have.")
    return "the transpose of a sum is a broadcast."


@exercise("14.3", "the number of layers that sends the fewest bytes on 2¹⁵ chips")
def layers_that_send_least(answer: object) -> str:
    expect_number(answer, 32, "Compare 2 (q − 1) / p + 2 (c − 1) / p for the possible c = p / q².")
    return "the best grid is a cube, with as many layers as rows and columns."


@exercise("14.4", "SUMMA panel by panel, without gathering a row")
def summa_by_panels(answer: Callable) -> str:
    mesh = jax.make_mesh(
        (2, 2), ("rows", "cols"), axis_types=(jax.sharding.AxisType.Auto,) * 2, devices=jax.devices()[:4]
    )
    spec = PartitionSpec("rows", "cols")
    values = np.random.default_rng(5).normal(size=(2, 32, 32)).astype("float32")
    a, b = (jax.device_put(jnp.asarray(value), NamedSharding(mesh, spec)) for value in values)
    mapped = jax.shard_map(answer, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    product = called(jax.jit(mapped), a, b)
    expect_values(
        product, values[0] @ values[1], "Device (i, j) returns the sum over k of A[i, k] @ B[k, j].", atol=1e-3
    )
    used = collectives(compiled(mapped, a, b, mesh=mesh))
    if any(record.kind == "all-gather" for record in used):
        wrong("the program gathers a whole row or column of blocks: send one panel at a time.")
    if (traffic := sent_bytes(used)) > 4096:
        wrong(f"the product is right, but a device sends {traffic:,.0f} bytes; 4,096 bytes would be enough.")
    return f"a device sends {traffic:,.0f} bytes, and stores one panel of each matrix at a time."


@exercise("15.1", "normalise with the moments of all replicas")
def synchronous_norm(answer: Callable) -> str:
    noise = np.random.default_rng(0).normal(size=(8, 16, 3))
    hint = (
        "The mean of the variances ignores the differences between the replicas' means. The mean of x² minus the "
        "squared mean loses digits where the mean is large. Use the mean of (x - mean)², with both means over all "
        "replicas. Add 1e-5 to this variance, inside the root."
    )
    sizes: list[int] = []

    def mean_over_replicas(value: jax.Array) -> jax.Array:
        sizes.append(int(np.size(value)))
        return jax.lax.pmean(value, "replicas")

    for x in (1e-3 * noise, noise + np.arange(1000, 1008)[:, None, None]):  # 1e-5 counts, and a large mean
        sizes.clear()
        x = x.astype("float32")
        result = called(jax.vmap(lambda rows: answer(mean_over_replicas, rows), axis_name="replicas"), jnp.asarray(x))
        data = x.reshape(-1, 3).astype("float64")
        expect_values(result, (x - data.mean(0)) / np.sqrt(data.var(0) + 1e-5), hint, atol=1e-3)
    if sum(sizes) > 6:
        wrong(f"the values are right, but a replica sends {sum(sizes)} values for 3 features; 6 would be enough.")
    return "two values per feature are enough for the moments of the whole batch."


@exercise("15.2", "a collective that all replicas reach")
def reached_by_all(answer: Callable) -> str:
    replicator = Replicator(make_mesh(replicas=8))
    x, y = np.arange(16, dtype="float32").reshape(8, 2, 1), np.array([[0, 1], [2, 0]] * 4)
    step, states = replicator.step(answer), replicator.replicate({"w": jnp.zeros(1)})
    try:
        record = inspect(step, on=make_mesh(replicas=8))((x, y), states)
    except TypeError as error:
        raise WrongAnswerError(str(error)) from error
    _, result = called(step, (x, y), states)
    sums = x.sum((1, 2))
    hint = "A replica whose first label is 0 gets the sum over all replicas, and the other replicas get their own sum."
    expect_values(np.ravel(result), np.where(y[:, 0] == 0, sums.sum(), sums), hint)
    carried = payload_bytes(collectives(record, "all-reduce"))
    if carried != 4 or len(collectives(record)) != 1:
        wrong(
            f"the values are right, but {len(collectives(record))} collectives carry {carried:,.0f} bytes; 4 bytes "
            "would be enough."
        )
    return "all replicas reach the all-reduce, and each replica chooses its result afterwards."


@exercise("18.1", "a mean over clients, computed from the partial results of tasks")
def partial_results(answer: object) -> str:
    partial, combine = several(answer, 2, "the functions `partial` and `combine`")
    random = np.random.default_rng(7)
    w, x, y = (jnp.asarray(random.normal(size=size), jnp.float32) for size in (20, (7, 5, 20), (7, 5)))

    def train(w: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        if x.shape != (5, 20):
            wrong(f"`function` was called with images of shape {x.shape}: it expects the images of *one* client.")
        error = x @ w - y
        return -0.1 * x.T @ error, jnp.mean(error**2)

    clients = list(zip(x, y, strict=True))
    expected = [np.mean(column, axis=0) for column in zip(*(train(w, *client) for client in clients), strict=True)]
    for size in (3, 7, 1):
        tasks = [clients[first : first + size] for first in range(0, 7, size)]
        partials = [called(partial, train, w, task) for task in tasks]
        reply_bytes = max(sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(reply)) for reply in partials)
        if reply_bytes > w.nbytes + 16:
            wrong(
                f"a task of {size} clients replies with {reply_bytes} bytes: return only the sum over its clients "
                "and their number."
            )
        result = several(called(combine, partials), 2, "the mean update, the mean loss")
        hint = f"The tasks have {', '.join(str(len(task)) for task in tasks)} clients: weight all clients equally."
        for number, value in zip(result, expected, strict=True):
            expect_values(number, value, hint)
    return "each task returns one partial result, of the same size for seven clients as for one."


@exercise("18.2", "the client that has corrupted data")
def broken_client(answer: object) -> str:
    expect_number(
        answer, 5, "Run with `Sequential(check_nan=True)`; the error's attribute `client` then names the client."
    )
    return "the error names the client, although the mean would have hidden it."


@exercise("18.3", "the bytes that a client discloses in a round")
def disclosed_in_a_round(answer: object) -> str:
    expect_number(answer, 4 * (64 * 10 + 1), "Look at `plan.disclosed` of `one_round`: an update and a loss.")
    return "a client discloses 640 values for the update and one for the loss, but no image."


@exercise("19.1", "a roll by two rows that sends two rows")
def small_roll(answer: object) -> str:
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    values = jnp.arange(64.0 * 4).reshape(64, 4)
    x = jax.device_put(values, NamedSharding(mesh, PartitionSpec("data")))
    expect_values(called(answer, x), np.roll(values, 2, axis=0), "Roll by two along axis 0.")
    records = collectives(compiled(answer, x, mesh=mesh))
    if any(record.kind != "collective-permute" for record in records):
        kinds = ", ".join(sorted({record.kind for record in records}))
        wrong(f"the program uses {kinds}; only neighbours need to communicate.")
    if (traffic := sent_bytes(records)) > 2 * 4 * 4:
        wrong(f"the values are right, but a device sends {traffic:,.0f} bytes; two rows take 32 bytes.")
    return f"a device sends {traffic:,.0f} bytes to its neighbour."


def _on_eight(values: np.ndarray) -> tuple[Any, Any]:
    """Creates a mesh of eight devices and rows that are sharded over its "data" axis."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    return jax.device_put(values, NamedSharding(mesh, PartitionSpec("data"))), mesh


@exercise("19.2", "power spectra of rows without communication")
def local_spectra(answer: object) -> str:
    values = np.random.default_rng(0).normal(size=(16, 64)).astype("float32")
    x, mesh = _on_eight(values)
    expected = np.abs(np.fft.fft(values)) ** 2
    expect_values(called(answer, x), expected, "The square of the absolute value of each row's FFT.", atol=1e-2)
    if records := collectives(compiled(answer, x, mesh=mesh)):
        kinds = ", ".join(sorted({record.kind for record in records}))
        wrong(
            f"the values are right, but the program uses {kinds} with {payload_bytes(records):,.0f} bytes. Each row "
            "can be computed without the other rows."
        )
    return "each device transforms its own rows, and nothing is sent."


@exercise("19.3", "standardise with one all-reduce of eight bytes")
def one_all_reduce(answer: object) -> str:
    values = np.random.default_rng(1).normal(3, 2, size=(64, 4)).astype("float32")
    x, mesh = _on_eight(values)
    expected = (values - values.mean()) / values.std()
    expect_values(
        called(answer, x),
        expected,
        "Subtract the mean of all values, and divide by their standard deviation.",
        atol=1e-3,
    )
    records = collectives(compiled(answer, x, mesh=mesh))
    if len(records) != 1:
        wrong(
            f"the values are right, but {len(records)} collectives follow one another. Which two sums, computed "
            "independently of each other, give both the mean and the deviation?"
        )
    if (size := payload_bytes(records)) > 8:
        wrong(f"the one collective carries {size:,.0f} bytes; two float32 sums take 8 bytes.")
    return "one message of eight bytes carries both sums."


@exercise("20.1", "the server's step with a buffer of stale updates")
def stale_mean(answer: object) -> str:
    random = np.random.default_rng(0)
    updates, staleness = random.normal(size=(12, 5)).astype("float32"), random.integers(0, 6, size=12).astype("float32")
    expected = (updates / np.sqrt(1 + staleness)[:, None]).sum(0) / 12
    result = called(answer, jnp.asarray(updates), jnp.asarray(staleness))
    expect_values(result, expected, "Scale each update by its own factor, then divide by the number of updates.")
    return "an update that started five steps ago has the weight 0.41; the sum is divided by the buffer's size."


@exercise("20.2", "bytes that over-selection wastes in a round")
def wasted_bytes(answer: object) -> str:
    expect_number(answer, 300 * 40e6, "A stopped client has received the model, but sends nothing.")
    return "300 phones received 40 MB each; that is the cost of not waiting for them."


@exercise("20.3", "masks that the server expands after dropouts")
def expanded_masks(answer: object) -> str:
    hint = "Each survivor has one private mask, and one shared mask with each phone that dropped out."
    expect_number(answer, 970 + 30 * 970, hint)
    return "the server expands 970 masks of survivors, and 30 × 970 masks shared with dropouts."
