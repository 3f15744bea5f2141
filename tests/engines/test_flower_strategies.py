"""Client functions under Flower's own strategies, and Flower ClientApps as clients of programs."""

import concurrent.futures
import copy
import doctest
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flower_tests import flower_warnings, have_an_identity, needs_flower

import workbench as wb
from workbench.engines import flower, from_flower
from workbench.errors import EngineError, MissingDependencyError, ProgramError

pytestmark = flower_warnings
CLIENTS = 6
PAGE = Path(__file__).parents[2] / "docs" / "federated-systems.md"


def init() -> dict[str, Any]:
    return {"w": jnp.full(3, 0.1), "b": jnp.zeros(())}


def loss(params: Any, batch: Any) -> Any:
    """Mean squared error of the examples that are not padding."""
    error = jnp.where(batch["mask"], (batch["x"] @ params["w"] + params["b"] - batch["y"]) ** 2, 0)
    return error.sum() / jnp.maximum(batch["mask"].sum(dtype=jnp.float32), 1.0)


def load(client: int) -> dict[str, np.ndarray]:
    """Batches [4 steps, 8 examples, ...] of a client, which has 8 + 4 `client` examples."""
    random = np.random.default_rng(client)
    x = random.normal(size=(4, 8, 3)).astype(np.float32)
    return {"x": x, "y": x.sum(-1) + np.float32(client), "mask": np.arange(32).reshape(4, 8) < 8 + 4 * client}


def data(message: Any, context: Any) -> Any:
    return load(context.node_config["partition-id"])


def train(params: Any, batches: Any) -> Any:
    trained = wb.algorithms.train_locally(loss, optax.sgd(0.05), params, batches)
    metrics = {"train_loss": trained.loss, "num-examples": batches["mask"].sum()}
    return jax.tree.map(jnp.add, params, trained.update), metrics


def evaluate(params: Any, batches: Any) -> Any:
    losses = jax.vmap(lambda batch: loss(params, batch))(batches)
    return {"losses": losses, "good": losses.mean() < 1e9, "num-examples": batches["mask"].sum()}


def on_the_mesh(rounds: int, algorithm: Any) -> Any:
    """The same rounds with an algorithm of the workbench on the mesh engine."""
    batches: dict[str, Any] = jax.tree.map(lambda *rows: np.stack(rows), *map(load, range(CLIENTS)))
    batches["weight"] = batches["mask"].sum((1, 2)).astype(np.float32)
    state = algorithm.init(init())
    for _ in range(rounds):
        state, _ = wb.engines.MeshEngine().run(algorithm.round, state, batches).results
    return state.params


def fedavg(**options: Any) -> Any:
    return wb.algorithms.fedavg(loss, clients=CLIENTS, client_optimizer=optax.sgd(0.05), **options)


@pytest.fixture
def grid(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes Flower grids whose nodes are in this process; strategies, messages and apps are Flower's."""
    have_an_identity(monkeypatch)
    from flwr.app import Context, RecordDict
    from flwr.serverapp import Grid

    class Here(Grid):
        run: Any = SimpleNamespace(run_id=1)
        set_run = push_messages = pull_messages = create_message = None  # pyright: ignore

        def __init__(self, app: Any, nodes: int = CLIENTS) -> None:
            self.app, self.replies = app, []
            configs = [{"partition-id": i, "num-partitions": nodes} for i in range(nodes)]
            self.contexts = {i: Context(1, i, config, RecordDict(), {}) for i, config in enumerate(configs, 10)}

        def get_node_ids(self) -> list[int]:
            return list(self.contexts)

        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> list[Any]:
            sent = [copy.deepcopy(message) for message in messages]
            self.replies += (new := [self.app(x, self.contexts[x.metadata.dst_node_id]) for x in sent])
            return copy.deepcopy(new)

    return Here


def params_of(result: Any) -> Any:
    return flower.from_arrays(result.arrays, init())


def assert_close(ours: Any, theirs: Any, **tolerance: Any) -> None:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, **{"rtol": 1e-5, "atol": 1e-6, **tolerance}), ours, theirs
    )


@needs_flower
def test_stock_fedavg_equals_the_mesh(grid: Any):
    from flwr.serverapp.strategy import FedAvg

    app = flower.client_app(train, evaluate, params=init(), data=data)
    result = FedAvg().start(grid=grid(app), initial_arrays=flower.to_arrays(init()), num_rounds=3)
    assert_close(params_of(result), on_the_mesh(3, fedavg()))
    assert set(result.evaluate_metrics_clientapp[3]) == {"losses", "good"}
    assert len(result.evaluate_metrics_clientapp[3]["losses"]) == 4
    assert result.evaluate_metrics_clientapp[3]["good"] == pytest.approx(1)


@needs_flower
def test_stock_fedadagrad_equals_optax_on_the_mesh(grid: Any):
    """Adagrad is the adaptive method for which Flower and Optax have the same formula, but for one constant."""
    from flwr.serverapp.strategy import FedAdagrad

    def scale(tau: float) -> Any:
        def update(gradient: Any, state: Any, params: Any = None) -> Any:
            state = jax.tree.map(lambda s, g: s + g**2, state, gradient)
            return jax.tree.map(lambda g, s: -0.1 * g / (jnp.sqrt(s) + tau), gradient, state), state

        return optax.GradientTransformation(lambda params: jax.tree.map(jnp.zeros_like, params), update)

    app = flower.client_app(train, params=init(), data=data)
    strategy = FedAdagrad(eta=0.1, tau=1e-3, fraction_evaluate=0.0)
    result = strategy.start(grid=grid(app), initial_arrays=flower.to_arrays(init()), num_rounds=3)
    assert_close(params_of(result), on_the_mesh(3, fedavg(server_optimizer=scale(1e-3))))


@needs_flower
@pytest.mark.parametrize("name", ["FedAdam", "FedYogi", "FedAvgM", "FedMedian", "FedTrimmedAvg", "Krum", "FedProx"])
def test_stock_strategies_run_the_app(grid: Any, name: str):
    from flwr.serverapp import strategy

    options = {"Krum": {"num_malicious_nodes": 1}, "FedProx": {"proximal_mu": 0.1}}.get(name, {})
    app = flower.client_app(train, evaluate, params=init(), data=data)
    result = getattr(strategy, name)(**options).start(
        grid=grid(app), initial_arrays=flower.to_arrays(init()), num_rounds=3
    )
    losses = [np.mean(metrics["losses"]) for metrics in result.evaluate_metrics_clientapp.values()]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0]


@needs_flower
def test_mod_clips_the_update_of_every_leaf(grid: Any):
    """Flower's mod would skip the scalar `b`, which is why scalars are sent with shape [1]."""
    from flwr.clientapp.mod import LocalDpMod
    from flwr.serverapp.strategy import FedAvg

    mod = LocalDpMod(clipping_norm=1e-3, sensitivity=0.0, epsilon=1.0, delta=1e-5)
    app = flower.client_app(train, evaluate, params=init(), data=data, mods=[mod])
    result = FedAvg().start(grid=grid(app), initial_arrays=flower.to_arrays(init()), num_rounds=1)
    moved = jax.tree.map(jnp.subtract, params_of(result), init())
    assert 1e-4 < optax.global_norm(moved) <= 1e-3 + 1e-6
    assert abs(moved["b"]) > 1e-5
    assert result.evaluate_metrics_clientapp[1]  # the mod does not apply to `evaluate`


@needs_flower
def test_mod_and_strategy_for_central_privacy_agree(grid: Any):
    from flwr.clientapp.mod import fixedclipping_mod
    from flwr.serverapp import strategy

    options = {"noise_multiplier": 0.0, "clipping_norm": 1e-3, "num_sampled_clients": CLIENTS}
    found = []
    for name, mods in (("ClientSide", [fixedclipping_mod]), ("ServerSide", [])):
        app = flower.client_app(train, params=init(), data=data, mods=mods)
        wrapped = getattr(strategy, f"DifferentialPrivacy{name}FixedClipping")(
            strategy.FedAvg(fraction_evaluate=0.0), **options
        )
        found.append(params_of(wrapped.start(grid=grid(app), initial_arrays=flower.to_arrays(init()), num_rounds=2)))
    assert_close(*found)
    assert optax.global_norm(jax.tree.map(jnp.subtract, found[0], init())) <= 2e-3 + 1e-6


@needs_flower
def test_secure_aggregation_of_flower_makes_its_keys_at_the_nodes(grid: Any):
    from flwr.app import Context, RecordDict
    from flwr.client.mod import secaggplus_mod
    from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.server import LegacyContext, ServerConfig, strategy
    from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow

    class Recorded(strategy.FedAvg):
        def aggregate_fit(self, *args: Any) -> Any:
            found.append(super().aggregate_fit(*args))
            return found[-1]

    found: list[Any] = []
    nodes = grid(flower.client_app(train, params=init(), data=data, mods=[secaggplus_mod]))
    begin = ndarrays_to_parameters(flower.to_arrays(init()).to_numpy_ndarrays())
    options: Any = {"min_fit_clients": CLIENTS, "min_available_clients": CLIENTS, "initial_parameters": begin}
    recorded = Recorded(fraction_evaluate=0.0, **options)
    context = LegacyContext(Context(1, 0, {}, RecordDict(), {}), config=ServerConfig(num_rounds=2), strategy=recorded)
    DefaultWorkflow(fit_workflow=SecAggPlusWorkflow(num_shares=5, reconstruction_threshold=3))(nodes, context)
    b, w = parameters_to_ndarrays(found[-1][0])
    assert_close({"w": w, "b": b[0]}, on_the_mesh(2, fedavg()), atol=1e-3)  # 22 bits for numbers up to 8
    keys = [context.state["secaggplus_state"]["sk1"] for context in nodes.contexts.values()]
    assert len(set(keys)) == CLIENTS
    sent = [record for reply in nodes.replies for record in reply.content.array_records.values()]
    assert sent
    assert all(len(record) == 0 for record in sent)  # masked vectors leave a node, and parameters do not
    configs = [record for reply in nodes.replies for record in reply.content.config_records.values()]
    values = [x for record in configs for y in record.values() for x in (y if isinstance(y, list) else [y])]
    bytes_sent = b"".join(x for x in values if isinstance(x, bytes))
    assert not [key for key in keys if key in bytes_sent]
    publics = [context.state["secaggplus_state"]["pk1"] for context in nodes.contexts.values()]
    assert all(key in bytes_sent for key in publics)


@needs_flower
def test_workers_keep_the_compiled_function_between_messages():
    """Flower's simulation pickles the app for each message; the function below is pickled by value."""
    from ray import cloudpickle

    space: dict[str, Any] = {"traced": []}
    exec("def train(w, x):\n    traced.append(0)\n    return w + x, {'num-examples': 1}", space)
    handler: Any = flower.client_app(space["train"], params=0.0, data=data)._registered_funcs["train.default"]
    copies = [pickle.loads(cloudpickle.dumps(handler)) for _ in range(3)]
    results = [jax.jit(worker.fn)(1.0, 2.0)[0] for worker in copies]
    assert results == [3.0, 3.0, 3.0]
    assert copies[0].fn is not space["train"]
    assert len(copies[0].fn.__globals__["traced"]) == 1


@needs_flower
@pytest.mark.slow
def test_stock_fedavg_on_the_simulation_equals_the_mesh(tmp_path: Path):
    """A project as a user writes it, in a process of its own, with Ray started as the engine starts it."""
    here = [str(Path(__file__).parent), str(Path(__file__).parents[1]), str(Path(__file__).parents[2])]
    env = {
        **os.environ,
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_HOME": str(tmp_path),
        "RAY_raylet_start_wait_time_s": "40",
    }
    env["PYTHONPATH"] = os.pathsep.join([*here, env.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", _SIMULATION, str(tmp_path)], env=env, capture_output=True, text=True, timeout=1500
    )
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(tmp_path / "result.npz") as found:
        assert_close(dict(found), on_the_mesh(3, fedavg()))


_SIMULATION = """
import sys
import numpy as np
import test_flower_strategies as project
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from workbench.engines import flower
from workbench.engines.flower._simulation import start_ray

if __name__ == "__main__":
    options = {"num_cpus": 2, "include_dashboard": False, "object_store_memory": 256 << 20}
    start_ray(options, 600)
    from flwr.simulation import run_simulation
    server = ServerApp()

    @server.main()
    def main(grid, context):
        strategy = FedAvg(min_available_nodes=6, min_train_nodes=6, fraction_evaluate=0.0)
        result = strategy.start(grid=grid, initial_arrays=flower.to_arrays(project.init()), num_rounds=3)
        np.savez(sys.argv[1] + "/result.npz", **flower.from_arrays(result.arrays, project.init()))

    app = flower.client_app(project.train, project.evaluate, params=project.init(), data=project.data)
    backend = {"init_args": options, "client_resources": {"num_cpus": 1, "num_gpus": 0}}
    run_simulation(server, app, 6, backend_config=backend)
"""


@needs_flower
def test_arrays_have_the_names_of_the_leaves_and_come_back():
    tree = {
        "conv": {"weight": jnp.arange(6.0, dtype=jnp.bfloat16).reshape(2, 3), "scale": jnp.float32(2)},
        "list": [jnp.ones(2, jnp.float16), jnp.zeros((1, 1))],
    }
    arrays = flower.to_arrays(tree)
    assert {name: (x.dtype, x.shape) for name, x in arrays.items()} == {
        "conv.scale": ("float32", (1,)),
        "conv.weight": ("float32", (2, 3)),
        "list.0": ("float32", (2,)),
        "list.1": ("float32", (1, 1)),
    }
    assert flower.to_arrays(tree, keep_scalars=True)["conv.scale"].shape == ()
    from flwr.app import ArrayRecord

    positions = ArrayRecord([x.numpy() for x in arrays.values()])
    for record in (arrays, ArrayRecord(dict(reversed(arrays.items()))), positions):
        back = flower.from_arrays(record, tree)
        assert jax.tree.map(lambda x: (x.dtype, x.shape), back) == jax.tree.map(lambda x: (x.dtype, x.shape), tree)
        assert_close(back, tree)
    assert list(flower.to_arrays(jnp.ones(2))) == ["0"]


@needs_flower
@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"w": jnp.ones(2), "step": jnp.int32(1)}, r"not floating-point: step \(int32\).*average every array.*float32"),
        ({"key": jax.random.key(0)}, r"not floating-point: key \(key<fry>\)"),
        ({"a.b": jnp.ones(2), "a": {"b": jnp.ones(2)}}, r"leaves with the same name: a\.b.*Rename the keys"),
    ],
    ids=["integers", "keys", "names"],
)
def test_parameters_that_cannot_be_averaged_are_refused(params: Any, expected: str):
    with pytest.raises(ProgramError, match=f"`to_arrays` received .*{expected}"):
        flower.to_arrays(params)
    with pytest.raises(ProgramError, match=f"`client_app` received .*{expected}"):
        flower.client_app(train, params=params, data=data)


@needs_flower
@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ({"w": np.ones(3)}, r"1 arrays for 2 leaves; missing: b; unknown: none.*initial_arrays=to_arrays\(params\)"),
        ({"w": np.ones(3), "c": np.ones(1)}, r"2 arrays for 2 leaves; missing: b; unknown: c"),
        ({"w": np.ones(4), "b": np.ones(1)}, r"w has \(4,\) instead of \(3,\).*needs the shape of its leaf"),
    ],
    ids=["missing", "unknown", "shape"],
)
def test_arrays_of_other_parameters_are_refused(sent: Any, expected: str):
    from flwr.app import Array, ArrayRecord

    with pytest.raises(EngineError, match=expected):
        flower.from_arrays(ArrayRecord({name: Array(x) for name, x in sent.items()}), init())


@needs_flower
@pytest.mark.parametrize(
    ("trains", "expected"),
    [
        (
            lambda w, x: w,
            r"train=`<lambda>`, which returned .* of type dict.*Return a tuple `\(params, metrics\)`",
        ),
        (lambda w, x: (w, 3.0), r"returned metrics of type .*Array.*names.*Return a dictionary"),
        (lambda w, x: (w, {"m": jnp.ones((2, 2))}), r"returned the metrics m \(2, 2\).*Reduce these metrics"),
        (lambda w, x: ({"w": w["w"]}, {}), r"that it received: w \(3,\) instead of b \(\), w \(3,\)"),
        (lambda w, x: ({**w, "b": w["w"]}, {}), r"b \(3,\), w \(3,\) instead of b \(\), w \(3,\)"),
    ],
    ids=["no tuple", "no names", "matrix", "structure", "shape"],
)
def test_wrong_results_of_a_client_function_are_named(grid: Any, trains: Any, expected: str):
    from flwr.serverapp.strategy import FedAvg

    nodes = grid(flower.client_app(trains, params=init(), data=data))
    with pytest.raises(ProgramError, match=expected):
        FedAvg(fraction_evaluate=0.0).start(grid=nodes, initial_arrays=flower.to_arrays(init()), num_rounds=1)


@needs_flower
def test_settings_of_a_round_reach_the_client_function_without_compiling_again(grid: Any):
    from flwr.app import ConfigRecord
    from flwr.serverapp.strategy import FedAvg

    def settings(message: Any, context: Any) -> Any:
        config = message.content["config"]
        return {"round": config["server-round"], "rate": config["rate"]}

    def add(params: Any, given: Any) -> Any:
        traces.append(0)
        new = jax.tree.map(lambda x: x + given["rate"] * given["round"], params)
        return new, {"num-examples": 1}

    traces: list[int] = []
    nodes = grid(flower.client_app(add, params=init(), data=settings))
    result = FedAvg(fraction_evaluate=0.0).start(
        grid=nodes,
        initial_arrays=flower.to_arrays(init()),
        num_rounds=3,
        train_config=ConfigRecord({"rate": 0.5}),
    )
    assert_close(params_of(result), jax.tree.map(lambda x: x + 3.0, init()))
    assert len(traces) == 1


@needs_flower
def test_message_with_two_array_records_is_refused(grid: Any):
    from flwr.app import ArrayRecord, Message, RecordDict

    nodes = grid(flower.client_app(train, params=init(), data=data))
    content = RecordDict({"first": ArrayRecord(), "second": ArrayRecord()})
    with pytest.raises(
        EngineError, match=r"a message of type 'train' has 2 ArrayRecords: first, second.*single ArrayRecord"
    ):
        nodes.send_and_receive([Message(content, dst_node_id=10, message_type="train")])


@needs_flower
def test_workflows_with_secure_aggregation_need_the_number_of_examples(grid: Any):
    from flwr.app import ConfigRecord, Message, RecordDict

    nodes = grid(flower.client_app(lambda w, x: (w, {"loss": 1.0}), params=init(), data=data))
    content = RecordDict({"fitins.parameters": flower.to_arrays(init()), "fitins.config": ConfigRecord()})
    with pytest.raises(ProgramError, match=r"returned the metrics loss\..*weight clients.*Return a metric"):
        nodes.send_and_receive([Message(content, dst_node_id=10, message_type="train")])


# Flower ClientApps as clients of programs


def numpy_app() -> Any:
    """A hand-written app: one gradient step of linear regression; counts its calls in the client's state."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def one_step(message: Any, context: Any) -> Any:
        arrays, config = message.content["arrays"], message.content["config"]
        if "calls" not in context.state:
            context.state["calls"] = ConfigRecord({"count": 0})
        context.state["calls"]["count"] += 1
        assert config["name"] == "sgd"
        assert context.run_config["seed"] == 7
        new = by_hand({"w": arrays["w"].numpy(), "b": arrays["b"].numpy()}, context.node_config, config["rate"])
        record = ArrayRecord({name: Array(np.asarray(x)) for name, x in reversed(new.items())})
        examples = 5 + context.node_config["partition-id"]
        metrics = MetricRecord({"num-examples": examples, "calls": context.state["calls"]["count"]})
        return Message(RecordDict({"arrays": record, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def norm(message: Any, context: Any) -> Any:
        value = float(np.sum(message.content["arrays"]["w"].numpy())) + context.node_config["partition-id"]
        return Message(RecordDict({"metrics": MetricRecord({"total": value})}), reply_to=message)

    return app


def by_hand(params: Any, node: Any, rate: float) -> Any:
    i = node["partition-id"]
    assert node["num-partitions"] == CLIENTS
    x = np.random.default_rng(i).normal(size=(5 + i, 3)).astype(np.float32)
    error = x @ params["w"] + params["b"] - x.sum(1) - i
    return {"w": params["w"] - rate * x.T @ error, "b": params["b"] - rate * error.sum()}


def rounds_by_hand(rounds: int) -> Any:
    params = jax.tree.map(np.asarray, init())
    for turn in range(rounds):
        nodes = [{"partition-id": i, "num-partitions": CLIENTS} for i in range(CLIENTS)]
        new = [by_hand(params, node, 0.01 * (turn + 1)) for node in nodes]
        params = jax.tree.map(lambda *x: np.average(x, axis=0, weights=np.arange(CLIENTS) + 5), *new)
    return params


@pytest.fixture
def opaque() -> Any:
    """A program of opaque clients, for a number of rounds."""
    options: Any = {"config": {"name": "sgd"}, "run_config": {"seed": 7}}
    client = from_flower(numpy_app(), clients=CLIENTS, metrics=("num-examples", "calls"), **options)

    @wb.program(clients=CLIENTS)
    def one(params: Any, turn: Any) -> Any:
        config = {"rate": 0.01 * (turn + 1)}
        new, metrics = wb.map_fn(client, (wb.broadcast(params), jnp.arange(CLIENTS), wb.broadcast(config)))
        return wb.reduce_weighted_mean(new, metrics["num-examples"]), wb.reduce_max(metrics["calls"])

    return lambda params, rounds=2: jax.lax.scan(one, params, jnp.arange(rounds, dtype=jnp.float32))


@needs_flower
@pytest.mark.parametrize("system", ["jit", "mesh", "sequential", "threads"])
def test_opaque_client_equals_the_same_function_by_hand(opaque: Any, system: str):
    if system == "jit":
        params, calls = wb.jit(opaque)(init())
    elif system == "mesh":
        with jax.set_mesh(wb.make_mesh(clients=2)):
            params, calls = wb.jit(opaque)(init())
    elif system == "sequential":
        params, calls = wb.engines.Sequential().run(opaque, init()).results
    else:
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            params, calls = wb.engines.Executor(pool).run(opaque, init()).results
    assert_close(params, rounds_by_hand(2))
    assert list(calls) == [1, 2]  # once per round, and the state of a client remains


@needs_flower
def test_opaque_client_evaluates():
    client = from_flower(numpy_app(), clients=3, message_type="evaluate", metrics=("total",))
    program = wb.program(clients=3)(lambda p: wb.map_fn(client, (wb.broadcast(p), jnp.arange(3)))["total"])
    np.testing.assert_allclose(wb.jit(program)(init()), [0.3, 1.3, 2.3], rtol=1e-6)


@needs_flower
def test_client_fn_is_an_opaque_client():
    from flwr.client import NumPyClient
    from flwr.clientapp import ClientApp

    class Client(NumPyClient):
        def __init__(self, partition: int) -> None:
            self.partition = partition

        def fit(self, parameters: Any, config: Any) -> Any:
            b, w = parameters
            return [b + config["rate"], w * 2], 3 + self.partition, {"loss": 0.5}

        def evaluate(self, parameters: Any, config: Any) -> Any:
            return 1.5, 4, {"accuracy": 0.25}

    app = ClientApp(client_fn=lambda context: Client(int(context.node_config["partition-id"])).to_client())
    client = from_flower(app, clients=2, metrics=("num-examples", "loss"), config={"rate": 1.0})
    program = wb.program(clients=2)(lambda p: wb.map_fn(client, (wb.broadcast(p), jnp.arange(2))))
    params, metrics = wb.jit(program)(init())
    np.testing.assert_allclose(params["b"], [1, 1])
    np.testing.assert_allclose(params["w"], np.full((2, 3), 0.2), rtol=1e-6)
    np.testing.assert_allclose(metrics["num-examples"], [3, 4])
    np.testing.assert_allclose(metrics["loss"], [0.5, 0.5])
    evaluates = from_flower(app, clients=2, message_type="evaluate", metrics=("loss", "num-examples", "accuracy"))
    rows = wb.jit(wb.program(clients=2)(lambda p: wb.map_fn(evaluates, (wb.broadcast(p), jnp.arange(2)))))(init())
    assert {name: float(x[1]) for name, x in rows.items()} == {"loss": 1.5, "num-examples": 4.0, "accuracy": 0.25}


@needs_flower
def test_opaque_client_has_no_derivative(opaque: Any):
    cost = lambda params: opaque(params)[0]["w"].sum()  # noqa: E731
    with pytest.raises(ProgramError, match=r"differentiated\. .* runs outside JAX.*Put `jax.lax.stop_gradient`"):
        jax.grad(cost)(init())
    stopped = jax.grad(lambda params: cost(jax.lax.stop_gradient(params)) + params["b"])(init())
    assert stopped["b"] == 1


@needs_flower
def test_opaque_client_stays_in_this_process(opaque: Any, tmp_path: Path):
    with pytest.raises(ProgramError, match=r"could not write stage .* \(`flower_client`\).*contains no Python"):
        flower.Flower.export(opaque, tmp_path / "app", init())


@needs_flower
@pytest.mark.parametrize(
    ("options", "clients", "expected"),
    [
        ({"metrics": ("accuracy",)}, 3, r"lacks the metrics accuracy; it has num-examples, calls.*Pass `metrics=`"),
        ({}, 4, r"called with index 3 for 3 clients.*from 0 to 2.*jnp\.arange\(3\)"),
        (
            {"message_type": "train.other"},
            3,
            r"client 0 of `from_flower` raised ValueError: No train function .*Correct",
        ),
    ],
    ids=["metric", "index", "handler"],
)
def test_faults_of_an_opaque_client_name_it(options: Any, clients: int, expected: str, monkeypatch: Any):
    monkeypatch.setitem(globals(), "by_hand", lambda params, node, rate: params)
    config: Any = {"config": {"name": "sgd", "rate": 0.1}, "run_config": {"seed": 7}}
    client = from_flower(numpy_app(), clients=3, **config, **options)
    indices = jnp.arange(clients)
    program = wb.program(clients=clients)(lambda p: wb.map_fn(client, (wb.broadcast(p), indices))[0])
    with pytest.raises(EngineError, match=expected):
        wb.engines.Sequential().run(program, init())


@needs_flower
def test_only_client_apps_are_opaque_clients():
    with pytest.raises(ProgramError, match=r"`from_flower` was given 3 \(type int\).*Pass the app"):
        from_flower(3, clients=2)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", ["to_arrays", "client_app", "from_flower"])
def test_without_flower_the_calls_say_what_to_install(monkeypatch: pytest.MonkeyPatch, name: str):
    for module in [module for module in sys.modules if module.split(".")[0] == "flwr"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "flwr", None)
    calls: Any = {
        "to_arrays": lambda: flower.to_arrays(init()),
        "client_app": lambda: flower.client_app(train, params=init(), data=data),
        "from_flower": lambda: from_flower(SimpleNamespace(), clients=1),  # pyright: ignore[reportArgumentType]
    }
    with pytest.raises(MissingDependencyError, match=rf"{name}` needs the library `flwr`.*\[flower\]"):
        calls[name]()


@needs_flower
@pytest.mark.parametrize("name", ["to_arrays", "from_arrays", "client_app", "from_flower"])
def test_examples_of_docstrings_run(name: str):
    text = (getattr(flower, name).__doc__ or "").replace("  # doctest: +SKIP", "")
    names = {"jax": jax, "jnp": jnp, "np": np, "wb": wb, **{x: getattr(wb, x) for x in wb.__all__ if x[0] in "bmr"}}
    example = doctest.DocTestParser().get_doctest(text, names, name, None, 0)
    assert len(example.examples) >= 2
    assert doctest.DocTestRunner().run(example).failed == 0


@needs_flower
def test_project_of_the_page_prints_what_the_page_says(grid: Any, tmp_path: Path, monkeypatch: Any, capsys: Any):
    """The page's files make a project; its ServerApp runs with nodes of this process."""
    section = PAGE.read_text().split("### Flower's own strategies")[1].split("\n## ")[0]
    blocks = re.findall(r"```(?:python|text)\n(.*?)```", section, flags=re.DOTALL)
    client, server, printed, opaque, result = blocks[:5]
    (tmp_path / "my_app").mkdir()
    (tmp_path / "my_app" / "client_app.py").write_text(client)
    (tmp_path / "my_app" / "server_app.py").write_text(server)
    monkeypatch.syspath_prepend(str(tmp_path))
    from my_app import client_app, server_app  # pyright: ignore[reportMissingImports]

    server_app.main(grid(client_app.app, 4), None)
    assert capsys.readouterr().out.strip() == printed.strip()
    exec(opaque, {"jax": jax, "jnp": jnp, "np": np, "wb": wb})
    assert capsys.readouterr().out.strip() == result.strip()
