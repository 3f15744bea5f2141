"""A runnable experiment, with data, algorithm, rounds and costs."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from workbench._types import PyTree
from workbench.errors import ProgramError
from workbench.federated import algorithms, data
from workbench.federated.experiments._drift import Drift, drift_of, local_only, same_clients_as_fedavg
from workbench.federated.experiments._settings import Settings
from workbench.inspection import plan_call, trace_call
from workbench.measurement import Run
from workbench.plan import jit
from workbench.primitives import broadcast, map_fn, program
from workbench.records.program import PlanRecord

BATCH, HIDDEN = 16, 32
DELTA = 1e-5

Params = dict[str, jax.Array]


def predict(params: Params, x: jax.Array) -> jax.Array:
    """Computes logits `[examples, 10]` of a network with one hidden layer."""
    return jax.nn.relu(x @ params["in"] + params["b"][None]) @ params["out"]


def loss(params: Params, batch: dict[str, jax.Array]) -> jax.Array:
    """Computes the mean cross entropy of the examples; `mask` excludes padding."""
    losses = optax.softmax_cross_entropy_with_integer_labels(predict(params, batch["x"]), batch["y"])
    mask = batch.get("mask", jnp.ones(losses.shape, bool))
    return jnp.where(mask, losses, 0.0).sum() / jnp.maximum(mask.sum(), 1).astype(losses.dtype)


def first_params(seed: int) -> Params:
    """Initializes random weights and zero biases."""
    first, second = jax.random.split(jax.random.key(seed))
    draw = jax.nn.initializers.he_normal()
    return {"in": draw(first, (64, HIDDEN)), "b": jnp.zeros(HIDDEN), "out": draw(second, (HIDDEN, 10))}


def aggregator_of(settings: Settings) -> algorithms.Aggregator | None:
    """Returns an experiment's aggregator; None for the plain mean."""
    aggregator = None
    if settings.compression.startswith("top"):
        share = float(settings.compression.split()[1]) / 100
        aggregator = algorithms.top_k_mean(share, memory=not settings.noise)
    elif settings.compression.endswith("bits"):
        aggregator = algorithms.quantized_mean(int(settings.compression.split()[0]), seed=settings.seed)
    if settings.noise:
        expected = settings.clients * settings.participation
        return algorithms.gaussian_mean(
            settings.clip, settings.noise, expected=expected, seed=settings.seed, of=aggregator
        )
    return aggregator


def algorithm_of(settings: Settings) -> algorithms.Algorithm:
    """Builds the algorithm that the settings describe."""
    clients, rate, server = settings.clients, settings.learning_rate, settings.server_learning_rate
    sgd, how = optax.sgd(rate), aggregator_of(settings)
    if settings.algorithm == "SCAFFOLD":
        return algorithms.scaffold(loss, clients=clients, learning_rate=rate, server_learning_rate=server)
    if settings.algorithm == "Mime-lite":
        momentum = optax.sgd(rate, momentum=0.9)
        return algorithms.mime_lite(
            loss, clients=clients, optimizer=momentum, server_learning_rate=server, aggregator=how
        )
    if settings.algorithm == "DiLoCo":
        outer = optax.sgd(server, momentum=0.9, nesterov=True)
        return algorithms.diloco(loss, clients=clients, inner_optimizer=sgd, outer_optimizer=outer, aggregator=how)
    if settings.algorithm == "FedAdam":
        adam = optax.adam(server, eps=1e-3)
        return algorithms.fedopt(loss, clients=clients, client_optimizer=sgd, server_optimizer=adam, aggregator=how)
    return algorithms.fedavg(
        loss,
        clients=clients,
        client_optimizer=sgd,
        server_optimizer=optax.sgd(server),
        proximal=0.1 if settings.algorithm == "FedProx" else 0.0,
        aggregator=how,
    )


def count_labels(settings: Settings) -> np.ndarray:
    """Counts the examples of each digit for every client of an experiment, `[clients, 10]`.

    Example:
        >>> counts = count_labels(Settings(clients=4, alpha=0.1))
        >>> counts.shape, int(counts.sum())
        ((4, 10), 1438)
    """
    train, _ = data.digits(settings.clients, alpha=settings.alpha, seed=settings.seed)
    return np.stack([np.bincount(fields["y"], minlength=10) for fields in train.arrays.values()])


class Experiment:
    """An experiment that is ready to run.

    Args:
        settings: Settings of the experiment.

    Attributes:
        run: The rounds; start them with `run.start()`. Metrics: `test accuracy`; `loss`, the clients' training loss;
            `client loss`, the server model's loss on each client's examples, `[clients]`; `clients`, the number of
            clients that answered; `sent up (MiB)`, the total for all clients in all rounds so far. Values that the
            algorithm emits are also metrics, such as `client drift` (the distance that each client moved, `[clients]`).
        plan: The stages of one round.
        sent_down_bytes: Bytes that one client receives in a round.
        sent_up_bytes: Bytes that one client sends in a round.

    Example:
        >>> experiment = Experiment(Settings(clients=4, rounds=2))
        >>> run = experiment.run.start()
        >>> run.status, sorted(run.history[-1].metrics)[:3]
        ('finished', ['client drift', 'client loss', 'clients'])
    """

    def __init__(self, settings: Settings) -> None:
        self.settings: Settings = settings
        self.train: data.ClientData
        self.test: data.Examples
        self.train, self.test = data.digits(settings.clients, alpha=settings.alpha, seed=settings.seed)
        self.algorithm: algorithms.Algorithm = algorithm_of(settings)
        arrays = jax.tree.map(jnp.asarray, data.pad_clients(self.train).tree)
        self._arrays = {name: arrays[name] for name in ("x", "y", "mask")}
        self._step = jit(self.algorithm.round)
        self._losses = jit(
            program(clients=settings.clients)(lambda params, rows: map_fn(loss, (broadcast(params), rows)))
        )
        state = self.algorithm.init(first_params(settings.seed))
        self.plan: PlanRecord = plan_call(trace_call(self.algorithm.round, (state, self.batches(0)), {}))
        self.sent_down_bytes: int
        self.sent_up_bytes: int
        self.sent_down_bytes, self.sent_up_bytes = _per_client(self.plan, settings.clients)
        self._sent_up = 0.0
        self._before: dict[int, Any] = {}  # the state before some rounds
        self._begun = 0
        self.run: Run = Run(self._round, state, settings.rounds, data=self.batches, progress=False, emitted=True)

    def batches(self, round: int) -> dict[str, np.ndarray]:
        """Draws each client's batches for a round, with replacement; the weight is 0 if the client does not answer."""
        settings, counts = self.settings, self.train.counts
        random = np.random.default_rng([settings.seed, round])
        rows = [random.integers(count, size=(settings.local_steps, BATCH)) for count in counts]
        participants = random.random(settings.clients) < settings.participation
        stayed = random.random(settings.clients) >= settings.dropout
        clients = list(self.train.arrays.values())
        return {
            "x": np.stack([client["x"][row] for client, row in zip(clients, rows, strict=True)]),
            "y": np.stack([client["y"][row] for client, row in zip(clients, rows, strict=True)]),
            "weight": (counts * (participants & stayed)).astype(np.float32),
        }

    def epsilon(self) -> float | None:
        """Computes an upper bound on ε after all rounds at δ = 1e-5; None without noise."""
        if not self.settings.noise:
            return None
        settings = self.settings
        return algorithms.epsilon(
            settings.noise, rounds=settings.rounds, participation=settings.participation, delta=DELTA
        )

    @property
    def drift_rounds(self) -> tuple[int, ...]:
        """Indices (from 0) of the rounds that `drift` accepts: the first, second, fourth, eighth and so on."""
        return tuple(self._before)

    def drift(self, round: int = 0) -> Drift:
        """Recomputes the clients' paths in a finished round from the state before it.

        Args:
            round: One of `drift_rounds`.

        Raises:
            ProgramError: for any other round, or a round in which no client answered.

        Example:
            >>> experiment = Experiment(Settings(clients=4, participation=1.0, local_steps=2, rounds=1))
            >>> run = experiment.run.start()
            >>> experiment.drift().paths.shape
            (4, 3, 2)
        """
        if round not in self._before:
            rounds = ", ".join(map(str, self.drift_rounds)) or "none, since nothing has run"
            message = (
                f"`drift` received round {round}. Only the states before these rounds are kept: {rounds}. Pass one of "
                "these rounds."
            )
            raise ProgramError(message)
        state, algorithm = self._before[round], algorithm_of(local_only(self.settings))
        if same_clients_as_fedavg(self.settings):
            state = algorithm.init(self.algorithm.params_of(state))
        return drift_of(algorithm, state, self.batches(round), round)

    def _round(self, state: PyTree[Array], batches: dict[str, np.ndarray]) -> tuple[Any, dict[str, Any]]:
        self._begun += 1
        if self._begun.bit_count() == 1:  # the first, second, fourth, eighth, …
            self._before[self._begun - 1] = state
        state, metrics = self._step(state, batches)
        params = self.algorithm.params_of(state)
        guesses = np.asarray(predict(params, jnp.asarray(self.test.x))).argmax(axis=1)
        answered = int((batches["weight"] > 0).sum())
        self._sent_up += answered * self.sent_up_bytes / 2**20
        return state, {
            "test accuracy": float((guesses == self.test.y).mean()),
            "loss": metrics["loss"],
            "client loss": self._losses(params, self._arrays),
            "clients": answered,
            "sent up (MiB)": self._sent_up,
        }


def _per_client(plan: PlanRecord, clients: int) -> tuple[int, int]:
    down = sum(stage.moved_bytes for stage in plan.stages if stage.kind == "broadcast")
    up = sum(stage.moved_bytes for stage in plan.stages if stage.kind == "reduce")
    return down // clients, up // clients
