"""A Flower ClientApp as the client function of a program."""

# pyright: reportMissingImports=false

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import io_callback
from jaxtyping import Array, Int

from workbench._open_types import Foreign
from workbench.engines.flower._client_app import Params, from_arrays, named_shapes, only_arrays, to_arrays
from workbench.errors import EngineError, ProgramError, needs_library

if TYPE_CHECKING:
    from flwr.clientapp import ClientApp


def from_flower(
    app: "ClientApp",
    *,
    clients: int,
    metrics: Sequence[str] = ("num-examples",),
    message_type: str = "train",
    config: Mapping[str, Any] | None = None,
    run_config: Mapping[str, Any] | None = None,
) -> Callable:
    """Makes a client function from a Flower ClientApp, which may use any library.

    A program maps the function over clients. Each call sends one Flower message to `app` in this process through a host
    callback. Clients are called one at a time. Each client has a separate `Context`, whose `state` remains until the
    returned function is deleted.

    The plan shows the client as one opaque function, without a derivative, FLOPs or compiled code. The function
    cannot be sent to other processes. The client runs with `wb.jit`, `MeshEngine`, `Sequential`, and an `Executor` that
    uses threads.

    Args:
        app: The app, with handlers for `message_type` or with a `client_fn`.
        clients: Number of clients, which is "num-partitions" in the `node_config` of each client.
        metrics: Names of the metrics to return; each is a number in the app's replies.
        message_type: "train" or "evaluate", with an action if the handler has one, such as "train.personal".
        config: Constants of every message's `ConfigRecord`.
        run_config: The project's run configuration.

    Returns:
        `client(params, index, config={})`, where `params` is a pytree of floating-point arrays of any shapes, `index`
        is an integer below `clients`, and `config` is a dictionary of numbers that is added to the constants. It
        returns `(params, metrics)` for "train" and `metrics` for "evaluate"; `metrics` is a dictionary of float32
        scalars.

    Raises:
        MissingDependencyError: if flwr is not installed.
        ProgramError: if `app` is not a ClientApp, or if the client is differentiated.
        EngineError: in a run, if the app raises, if its reply lacks a metric, or if the arrays in the reply do not
            match those in the message.

    Example:
        >>> from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict  # doctest: +SKIP
        >>> from flwr.clientapp import ClientApp  # doctest: +SKIP
        >>> app = ClientApp()  # doctest: +SKIP
        >>> @app.train()  # doctest: +SKIP
        ... def add(message, context):
        ...     w = message.content["arrays"].to_numpy_ndarrays()[0] + context.node_config["partition-id"]
        ...     content = {"arrays": ArrayRecord([w]), "metrics": MetricRecord({"num-examples": 1})}
        ...     return Message(RecordDict(content), reply_to=message)
        >>> client = wb.engines.from_flower(app, clients=3)  # doctest: +SKIP
        >>> with wb.program(clients=3):  # doctest: +SKIP
        ...     trained, metrics = map_fn(client, (broadcast(jnp.zeros(2)), jnp.arange(3)))
        ...     reduce_weighted_mean(trained, metrics["num-examples"])
        Array([1., 1.], dtype=float32)

    References:
        https://flower.ai/docs/framework/ref-api/flwr.clientapp.ClientApp.html
    """
    with needs_library("flwr", extra="flower", needed_for="`workbench.engines.from_flower`"):
        from flwr.clientapp import ClientApp

    if not isinstance(app, ClientApp):
        message = (
            f"`from_flower` was given {app!r} (type {type(app).__name__}). `from_flower` sends messages to a "
            "`flwr.clientapp.ClientApp`. Pass the app of your project's client module, such as "
            "`from my_app.client_app import app`."
        )
        raise ProgramError(message)
    return _FlowerClient(app, clients, tuple(metrics), message_type, dict(config or {}), dict(run_config or {}))


@dataclasses.dataclass(eq=False, repr=False)
class _FlowerClient:
    """A client function that sends messages to a ClientApp, and the contexts of all clients."""

    app: "ClientApp"
    clients: int
    metrics: tuple[str, ...]
    message_type: str
    config: dict[str, Any]
    run_config: dict[str, Any]

    def __post_init__(self) -> None:
        self.__name__ = "flower_client"  # of its stage in the plan
        self._contexts: dict[int, Foreign] = {}
        # Devices of a mesh call back from several threads, and few libraries allow this.
        self._lock = threading.Lock()
        self._call = jax.custom_jvp(self._send)
        self._call.defjvp(self._differentiate)

    def __call__(self, params: Params, index: Int[Array, ""], config: Mapping[str, Array] | None = None) -> Any:
        named_shapes("from_flower", params)
        return self._call(params, jnp.asarray(index), dict(config or {}))

    def _send(self, params: Params, index: Array, config: dict[str, Array]) -> Any:
        metrics = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in self.metrics}
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), params)
        results = (shapes, metrics) if self.message_type.startswith("train") else metrics
        return io_callback(self.ask_flower, results, params, index, config)

    def _differentiate(self, *_: object) -> NoReturn:
        message = (
            "a client from `from_flower` was differentiated. A Flower ClientApp runs outside JAX, so its results "
            "have no derivative with respect to its parameters. Put `jax.lax.stop_gradient` around the arguments of "
            "the client, or write the client as a JAX function."
        )
        raise ProgramError(message)

    def ask_flower(self, params: Params, index: np.ndarray, config: dict[str, np.ndarray]) -> Any:
        from flwr.app import DEFAULT_TTL, ConfigRecord, Context, Message, Metadata, RecordDict

        i, params = int(index), jax.tree.map(np.asarray, params)
        if not 0 <= i < self.clients:
            message = (
                f"a client from `from_flower` was called with index {i} for {self.clients} clients. The index is the "
                f'"partition-id" of a client, from 0 to {self.clients - 1}. Map the client over '
                f"`jnp.arange({self.clients})`, or increase `clients`."
            )
            raise EngineError(message, client=i)
        legacy = getattr(self.app, "_call", None) is not None  # made with a `client_fn`, whose records have prefixes
        prefix = ("fitins." if self.message_type == "train" else "evaluateins.") if legacy else ""
        settings = ConfigRecord({**self.config, **{name: x.item() for name, x in config.items()}})
        arrays = f"{prefix}{'parameters' if legacy else 'arrays'}"
        content = RecordDict({arrays: to_arrays(params, keep_scalars=True), f"{prefix}config": settings})
        metadata = Metadata(1, f"{time.time_ns()}", 1, i + 2, "", "", time.time(), DEFAULT_TTL, self.message_type)
        with self._lock:
            if i not in self._contexts:
                node: dict[str, Any] = {"partition-id": i, "num-partitions": self.clients}
                self._contexts[i] = Context(1, i + 2, node, RecordDict(), dict(self.run_config))
            try:
                reply = self.app(Message(content, metadata=metadata), self._contexts[i])
                if reply.has_error():
                    raise RuntimeError(reply.error.reason)
            except Exception as error:
                message = (
                    f"the app of client {i} of `from_flower` raised {type(error).__name__}: {error}. A round needs the "
                    f"replies of all its clients. Correct the app's handler of `{self.message_type}` messages."
                )
                raise EngineError(message, client=i) from error
        return self._read(reply, params, i)

    def _read(self, reply: Foreign, params: Params, i: int) -> Any:
        place = f"the reply of client {i} of `from_flower`"
        values: dict[str, Any] = {}
        for record in (*reply.content.metric_records.values(), *reply.content.config_records.values()):
            values.update({"num-examples" if name == "num_examples" else name: x for name, x in record.items()})
        if missing := [name for name in self.metrics if not isinstance(values.get(name), int | float)]:
            message = (
                f"{place} lacks the metrics {', '.join(missing)}; it has {', '.join(values) or 'none'}. Every client "
                "must return the same metrics, and each metric must be a number. Pass `metrics=` with names that the "
                "app returns."
            )
            raise EngineError(message, client=i)
        metrics = {name: np.float32(values[name]) for name in self.metrics}
        if not self.message_type.startswith("train"):
            return metrics
        _, arrays = only_arrays(reply.content, place)
        return jax.tree.map(np.asarray, from_arrays(arrays, params)), metrics
