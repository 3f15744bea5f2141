"""The same sweep with `experiments.sweep`, a loop over trials, FedJAX and Flower: ratios, interleaved.

`python -m benchmarks.sweep_peers [--trials 64] [--repeats 5]` needs an environment with FedJAX 0.0.17 or Flower 1.x;
both are optional, and missing libraries are listed. Every repetition runs all peers one after another on the same data,
in a different order each time. The peers run some of the trials, and their times are scaled to all trials. All of them
end with the same parameters.

* FedJAX: `fedjax.algorithms.fed_avg` is created for each trial, as in FedJAX's examples, and compiles a client's step
  for each trial. It reports no loss, so it computes slightly less.
* Flower's simulation needs Ray. Here Flower's own `ServerApp` strategy (`FedAvgM` without momentum) and `ClientApp`
  exchange messages in one process, through a `Grid` that calls the client immediately. This is less work than in
  ordinary use. Clients have one compiled function for all trials; its learning rate is an argument.
"""

# pyright: reportMissingImports=false

import argparse
import itertools
import json
import logging
import os
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import workbench as wb
from benchmarks.sweep import BATCH, CLIENTS, STEPS, loop, problem

Setting = dict[str, float]
Runs = Callable[[list[Setting]], list[Any]]  # parameters after all rounds, per trial


def of_fedjax(loss: Any, params: Any, batches: Any, rounds: int) -> Runs:
    # FedJAX 0.0.17 calls jax.tree_map, which JAX 0.10 does not have any more: it is jax.tree.map.
    if not hasattr(jax, "tree_map"):
        jax.tree_map = jax.tree.map  # pyright: ignore[reportAttributeAccessIssue]
    import fedjax

    hparams = fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_epochs=1, skip_shuffle=True)
    flat = {name: np.asarray(x).reshape(CLIENTS, STEPS * BATCH, *x.shape[3:]) for name, x in batches.items()}
    held = [fedjax.ClientDataset({name: x[i] for name, x in flat.items()}) for i in range(CLIENTS)]
    keys = jax.random.split(jax.random.PRNGKey(0), CLIENTS)
    clients = [(str(i).encode(), held[i], keys[i]) for i in range(CLIENTS)]
    slope = jax.grad(loss)

    def run(settings: list[Setting]) -> list[Any]:
        found = []
        for setting in settings:
            algorithm = fedjax.algorithms.fed_avg.federated_averaging(
                lambda params, batch, key: slope(params, batch),
                fedjax.optimizers.sgd(setting["lr"]),
                fedjax.optimizers.sgd(setting["server_lr"]),
                hparams,
            )
            state = algorithm.init(params)
            for _ in range(rounds):
                state, _ = algorithm.apply(state, clients)
            found.append(jax.block_until_ready(state.params))
        return found

    return run


def of_flower(loss: Any, params: Any, batches: Any, rounds: int) -> Runs:
    os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import FedAvgM
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 0, 0  # what its runtime sets before a strategy
    logging.getLogger("flwr").setLevel(logging.ERROR)
    structure = jax.tree.structure(params)
    rows = [jax.tree.map(lambda x, i=i: x[i], batches) for i in range(CLIENTS)]

    def record(tree: Any) -> ArrayRecord:
        return ArrayRecord({str(i): Array(np.asarray(x)) for i, x in enumerate(jax.tree.leaves(tree))})

    @jax.jit
    def train(params: Any, batches: Any, lr: Any) -> Any:
        def step(params: Any, batch: Any) -> Any:
            value, gradient = jax.value_and_grad(loss)(params, batch)
            return jax.tree.map(lambda w, g: w - lr * g, params, gradient), value

        params, losses = jax.lax.scan(step, params, batches)
        return params, losses.mean()

    client = ClientApp()

    @client.train()
    def one_client(message: Message, context: Context) -> Message:
        arrays = message.content["arrays"]
        params = structure.unflatten([arrays[str(i)].numpy() for i in range(len(arrays))])
        new, value = train(params, rows[context.node_id], jnp.float32(message.content["config"]["lr"]))
        metrics = MetricRecord({"num-examples": STEPS * BATCH, "loss": float(value)})
        return Message(RecordDict({"arrays": record(new), "metrics": metrics}), reply_to=message)

    class InProcess(Grid):
        """Calls the client app directly, where a simulation would use Ray."""

        def __init__(self) -> None:
            self.contexts = [
                Context(run_id=0, node_id=i, node_config={}, state=RecordDict(), run_config={}) for i in range(CLIENTS)
            ]

        run = property(lambda self: None)

        def set_run(self, run: Any) -> None: ...

        def create_message(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

        def get_node_ids(self) -> Any:
            return range(CLIENTS)

        def push_messages(self, messages: Any) -> Any:
            raise NotImplementedError

        def pull_messages(self, message_ids: Any) -> Any:
            raise NotImplementedError

        def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
            return [client(message, self.contexts[message.metadata.dst_node_id]) for message in messages]

    def run(settings: list[Setting]) -> list[Any]:
        found = []
        for setting in settings:
            strategy = FedAvgM(fraction_evaluate=0.0, server_learning_rate=setting["server_lr"], server_momentum=0.0)
            result = strategy.start(
                InProcess(), record(params), num_rounds=rounds, train_config=ConfigRecord({"lr": setting["lr"]})
            )
            found.append(structure.unflatten([result.arrays[str(i)].numpy() for i in range(len(result.arrays))]))
        return found

    return run


def measure(trials: int, rounds: int, width: int, some: int, repeats: int) -> dict[str, Any]:
    make, first, batches = problem(width)
    side = max(1, int(np.sqrt(trials)))
    space = {"lr": np.logspace(-2, 0, trials // side).tolist(), "server_lr": np.linspace(0.5, 1.5, side).tolist()}
    params = first(jax.random.fold_in(jax.random.key(0), 0))

    def loss(params: Any, batch: Any) -> Any:
        import optax

        logits = jax.nn.relu(batch["x"] @ params["in"]) @ params["out"]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

    missing, runs = {}, {}
    for name, of in (("FedJAX", of_fedjax), ("Flower", of_flower)):
        try:
            runs[name] = of(loss, params, batches, rounds)
        except ImportError as error:
            missing[name] = str(error)
    settings = [{"lr": lr, "server_lr": s} for lr, s in itertools.product(space["lr"], space["server_lr"])]
    chosen = settings[:: max(1, len(settings) // some)][:some]
    names, rows = ["sweep", "loop", *runs], []
    for repeat in range(repeats):
        row, found = {"load": os.getloadavg()[0]}, {}
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            began = time.perf_counter()
            if name == "sweep":
                result = wb.experiments.sweep(make, space, params=params, data=batches, rounds=rounds, progress=False)
                found[name] = [result.params(settings.index(s), 0) for s in chosen]
                row["sweep compiling"] = sum(group.compile_seconds for group in result.groups)
            elif name == "loop":
                loop(make, first, batches, chosen, rounds)
            else:
                found[name] = runs[name](chosen)
            row[name] = (time.perf_counter() - began) * (1 if name == "sweep" else len(settings) / len(chosen))
        for name in runs:
            for one, other in zip(found["sweep"], found[name], strict=True):
                jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-2, atol=2e-3), one, other)
        rows.append(row)
        print(json.dumps(row), flush=True)
    ratios = {name: sorted(row[name] / row["sweep"] for row in rows) for name in names[1:]}
    return {
        "trials": len(settings),
        "rounds": rounds,
        "width": width,
        "trials of the others": len(chosen),
        "repeats": repeats,
        "missing": missing,
        "relative to sweep: median, lowest, highest": {
            name: [float(np.median(values)), values[0], values[-1]] for name, values in ratios.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--some", type=int, default=4, help="number of trials to run of the loop and the peers")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print(json.dumps(measure(**vars(arguments)), indent=1))


if __name__ == "__main__":
    main()
