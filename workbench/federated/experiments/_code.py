"""Generates the notebook cell that reproduces an experiment."""

from workbench.federated.experiments._experiment import BATCH, DELTA, HIDDEN
from workbench.federated.experiments._settings import Settings

_CELL = """\
import jax, jax.numpy as jnp, numpy as np, optax
import workbench as wb
from workbench.federated import algorithms, data

# {clients} clients with real handwritten digits; alpha is the concentration of the Dirichlet partition.
train, test = data.digits({clients}, alpha={alpha}, seed={seed})
held = list(train.arrays.values())
padded = jax.tree.map(jnp.asarray, data.pad_clients(train).tree)
everything = {{name: padded[name] for name in ("x", "y", "mask")}}

def predict(params, x):                                 # a network with one hidden layer
    return jax.nn.relu(x @ params["in"] + params["b"][None]) @ params["out"]

def loss(params, batch):
    losses = optax.softmax_cross_entropy_with_integer_labels(predict(params, batch["x"]), batch["y"])
    mask = batch.get("mask", jnp.ones(losses.shape, bool))
    return jnp.where(mask, losses, 0.0).sum() / jnp.maximum(mask.sum(), 1).astype(losses.dtype)

def batches(round):                                     # of all clients; weight 0: does not answer
    random = np.random.default_rng([{seed}, round])
    rows = [random.integers(count, size=({local_steps}, {batch})) for count in train.counts]
    asked = random.random({clients}) < {participation}
    stayed = random.random({clients}) >= {dropout}
    return {{"x": np.stack([each["x"][row] for each, row in zip(held, rows)]),
            "y": np.stack([each["y"][row] for each, row in zip(held, rows)]),
            "weight": (train.counts * (asked & stayed)).astype(np.float32)}}

first, second = jax.random.split(jax.random.key({seed}))
draw = jax.nn.initializers.he_normal()
params = {{"in": draw(first, (64, {hidden})), "b": jnp.zeros({hidden}), "out": draw(second, ({hidden}, 10))}}

algorithm = {algorithm}
step = wb.jit(algorithm.round)

@wb.jit
@wb.program(clients={clients})
def loss_of_clients(params, rows):
    return wb.map_fn(loss, (wb.broadcast(params), rows))

def one_round(state, batches):
    state, metrics = step(state, batches)
    params = algorithm.params_of(state)
    guesses = np.asarray(predict(params, jnp.asarray(test.x))).argmax(axis=1)
    return state, {{"test accuracy": float((guesses == test.y).mean()), "loss": metrics["loss"],
                   "client loss": loss_of_clients(params, everything), "clients": int((batches["weight"] > 0).sum())}}

run = wb.run_rounds(one_round, algorithm.init(params), {rounds}, data=batches)
print(wb.trace(algorithm.round)(run.state, batches(0)).plan)  # the communication of one round
{privacy}accuracy = run.history.to_pandas().query("metric == 'test accuracy'")
accuracy.plot(x="round", y="value", ylabel="test accuracy", legend=False);
"""

_PRIVACY = """\
print("epsilon", algorithms.epsilon({noise}, rounds={rounds}, participation={participation}, delta={delta}))
"""


def write_code(settings: Settings) -> str:
    """Writes an experiment as one self-contained notebook cell.

    Args:
        settings: Settings of the experiment.

    Returns:
        Python code. The cell needs only the workbench. The code computes the history of `Experiment(settings).run`
        without `sent up (MiB)`, and prints the plan, which contains the bytes of one round.

    Example:
        >>> "algorithms.scaffold(loss, clients=64, learning_rate=0.2" in write_code(Settings(algorithm="SCAFFOLD"))
        True
    """
    alpha = 'float("inf")' if settings.alpha == float("inf") else f"{settings.alpha:g}"
    return _CELL.format(
        clients=settings.clients,
        alpha=alpha,
        seed=settings.seed,
        local_steps=settings.local_steps,
        batch=BATCH,
        hidden=HIDDEN,
        participation=settings.participation,
        dropout=settings.dropout,
        rounds=settings.rounds,
        algorithm=_algorithm(settings),
        privacy=_privacy(settings),
    )


def _privacy(settings: Settings) -> str:
    if not settings.noise:
        return ""
    return _PRIVACY.format(
        noise=settings.noise, rounds=settings.rounds, participation=settings.participation, delta=DELTA
    )


def _algorithm(settings: Settings) -> str:
    rate, server, how = settings.learning_rate, settings.server_learning_rate, _aggregator(settings)
    clients, suffix = f"loss, clients={settings.clients}", f", aggregator={how}" if how else ""
    if settings.algorithm == "SCAFFOLD":
        return f"algorithms.scaffold({clients}, learning_rate={rate}, server_learning_rate={server})"
    if settings.algorithm == "Mime-lite":
        optimizer = f"optimizer=optax.sgd({rate}, momentum=0.9), server_learning_rate={server}"
        return f"algorithms.mime_lite({clients}, {optimizer}{suffix})"
    if settings.algorithm == "DiLoCo":
        outer = f"outer_optimizer=optax.sgd({server}, momentum=0.9, nesterov=True)"
        return f"algorithms.diloco({clients}, inner_optimizer=optax.sgd({rate}), {outer}{suffix})"
    client = f"client_optimizer=optax.sgd({rate})"
    if settings.algorithm == "FedAdam":
        return f"algorithms.fedopt({clients}, {client}, server_optimizer=optax.adam({server}, eps=1e-3){suffix})"
    name, pull = ("fedprox", "proximal=0.1, ") if settings.algorithm == "FedProx" else ("fedavg", "")
    return f"algorithms.{name}({clients}, {client}, {pull}server_optimizer=optax.sgd({server}){suffix})"


def _aggregator(settings: Settings) -> str:
    code = ""
    if settings.compression.startswith("top"):
        share = float(settings.compression.split()[1]) / 100
        code = f"algorithms.top_k_mean({share}{', memory=False' if settings.noise else ''})"
    elif settings.compression.endswith("bits"):
        code = f"algorithms.quantized_mean({settings.compression.split()[0]}, seed={settings.seed})"
    if not settings.noise:
        return code
    expected = settings.clients * settings.participation
    inside = f", of={code}" if code else ""
    numbers = f"{settings.clip}, {settings.noise}, expected={expected}, seed={settings.seed}"
    return f"algorithms.gaussian_mean({numbers}{inside})"
