"""Client functions as ordinary Flower ClientApps, for Flower's own strategies and mods."""

# pyright: reportMissingImports=false

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jaxtyping import Array

from workbench._open_types import Foreign
from workbench.engines.flower._arrays import Params, from_arrays, named_shapes, names_in_order, only_arrays, to_arrays
from workbench.errors import ProgramError, needs_library

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp


def client_app(
    train: Callable[[Params, Any], tuple[Params, Mapping[str, Array]]],
    evaluate: Callable[[Params, Any], Mapping[str, Array]] | None = None,
    *,
    params: Params,
    data: "Callable[[Message, Context], Any]",
    mods: Sequence[Callable[..., Any]] = (),
) -> "ClientApp":
    """Makes an ordinary Flower ClientApp from a client function, for use with Flower's own strategies.

    The app answers Flower's `train` and `evaluate` messages, so strategies, mods and authentication apply. The app can
    have further handlers. Each message contains all parameters. The app needs the workbench on every node. An app from
    `Flower.export` does not need it.

    Args:
        train: `train(params, data)` returns the new parameters, with the structure and shapes of `params`, and
            metrics: scalars or arrays `[n]` by name. Strategies need a metric "num-examples", the client's weight.
            A process compiles the function once for each shape of the data.
        evaluate: `evaluate(params, data)` returns metrics, including "num-examples". Default: the app does not answer
            `evaluate` messages, so the strategy needs `fraction_evaluate=0.0`.
        params: Parameters, or their `jax.ShapeDtypeStruct`s. Only floating-point leaves can be averaged.
        data: `data(message, context)` returns this node's data, a pytree of arrays and numbers. Message and context
            contain the strategy's settings, such as `message.content["config"]["server-round"]`, and
            `context.node_config["partition-id"]`.
        mods: Flower mods for `train` messages, in order. (Mods of a whole app also apply to `evaluate` messages; mods
            for differential privacy replace the replies to these messages with errors.)

    Returns:
        A `flwr.clientapp.ClientApp`.

    Raises:
        MissingDependencyError: if flwr is not installed.
        ProgramError: if a leaf of `params` is not floating-point; in the app, if `train` or `evaluate` returns values
            other than those described here.
        EngineError: in the app, if the arrays in a message do not match `params`.

    Example:
        >>> from flwr.clientapp import ClientApp  # doctest: +SKIP
        >>> def train(w, x):
        ...     return w - 0.1 * jax.grad(lambda w: jnp.mean((w - x) ** 2))(w), {"num-examples": x.shape[0]}
        >>> data = lambda message, context: jnp.ones(3)
        >>> isinstance(wb.engines.flower.client_app(train, params=0.0, data=data), ClientApp)  # doctest: +SKIP
        True

    References:
        McMahan et al., AISTATS 2017, Algorithm 1, `ClientUpdate`.
        https://flower.ai/docs/framework/how-to-use-strategies.html
    """
    with needs_library("flwr", extra="flower", needed_for="`workbench.engines.flower.client_app`"):
        from flwr.clientapp import ClientApp

    named_shapes("client_app", params)
    like = jax.eval_shape(lambda x: x, params)
    app = ClientApp()
    app.train(mods=list(mods))(_Handler("train", train, like, data))
    if evaluate is not None:
        app.evaluate()(_Handler("evaluate", evaluate, like, data))
    return app


class _Handler:
    """Answers one kind of message with a client function."""

    def __init__(self, kind: str, fn: Callable, like: Params, data: Callable) -> None:
        self.kind, self.fn, self.like, self.data = kind, fn, like, data
        self._pickled = b""

    def __reduce__(self) -> tuple[Callable, tuple[bytes]]:
        # Flower's simulation pickles the app for every message. Workers keep the function, and with it JAX's cache.
        if not self._pickled:
            from ray import cloudpickle

            self._pickled = cloudpickle.dumps((self.kind, self.fn, self.like, self.data))
        return _unpickled, (self._pickled,)

    def __call__(self, message: "Message", context: "Context") -> "Message":
        from flwr.app import ArrayRecord, Message, RecordDict

        key, received = only_arrays(message.content, f"a message of type {self.kind!r}")
        results = jax.jit(self.fn)(from_arrays(received, self.like), self.data(message, context))
        if self.kind == "evaluate":
            return Message(RecordDict({"metrics": self._metrics(results)}), reply_to=message)
        if not isinstance(results, tuple) or len(results) != 2:
            fact = f"returned an object of type {type(results).__name__}. Strategies average parameters and metrics"
            raise self._wrong(fact, "Return a tuple `(params, metrics)`")
        new, metrics = results
        shapes, new_shapes = named_shapes("client_app", self.like), named_shapes("client_app", new)
        if _text(new_shapes) != _text(shapes):
            fact = (
                f"returned parameters that differ from those that it received: {_text(new_shapes)} instead of "
                f"{_text(shapes)}. "
            )
            fact += "Strategies average the corresponding arrays of all clients"
            raise self._wrong(fact, "Return the new parameters")
        parameters = dict(zip(names_in_order(received, shapes), to_arrays(new).values(), strict=True))
        arrays = ArrayRecord({name: parameters[name] for name in received})  # mods compare the order of the names
        if key == "fitins.parameters":
            return Message(RecordDict(self._as_fit_result(arrays, self._metrics(metrics))), reply_to=message)
        return Message(RecordDict({key: arrays, "metrics": self._metrics(metrics)}), reply_to=message)

    def _as_fit_result(self, arrays: Foreign, metrics: Foreign) -> dict[str, Foreign]:
        """A reply for Flower's `client_fn` workflows, which Flower's secure aggregation uses."""
        from flwr.app import ConfigRecord, MetricRecord

        if "num-examples" not in metrics:
            fact = f"returned the metrics {', '.join(metrics) or 'none'}. Flower's workflows weight clients by examples"
            raise self._wrong(fact, 'Return a metric "num-examples"')
        return {
            "fitres.parameters": arrays,
            "fitres.num_examples": MetricRecord({"num_examples": int(metrics.pop("num-examples"))}),
            "fitres.metrics": ConfigRecord(dict(metrics)),
            "fitres.status": ConfigRecord({"code": 0, "message": ""}),
        }

    def _metrics(self, metrics: object) -> Foreign:
        from flwr.app import MetricRecord

        if not isinstance(metrics, Mapping):
            fact = f"returned metrics of type {type(metrics).__name__}. Flower's metrics have names"
            raise self._wrong(fact, 'Return a dictionary such as `{"loss": loss, "num-examples": n}`')
        values = {str(name): np.asarray(x) for name, x in metrics.items()}
        if large := [f"{name} {x.shape}" for name, x in values.items() if x.ndim > 1]:
            fact = f"returned the metrics {', '.join(large)}. A Flower metric is a number or a list of numbers"
            raise self._wrong(fact, "Reduce these metrics to scalars or to one dimension")
        return MetricRecord({name: (x.astype(int) if x.dtype == bool else x).tolist() for name, x in values.items()})

    def _wrong(self, fact: str, advice: str) -> ProgramError:
        name = getattr(self.fn, "__name__", type(self.fn).__name__)
        return ProgramError(f"`client_app` was given {self.kind}=`{name}`, which {fact}. {advice}.")


def _text(shapes: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {x.shape}" for name, x in shapes.items())


@functools.lru_cache(maxsize=64)
def _unpickled(pickled: bytes) -> _Handler:
    from ray import cloudpickle

    return _Handler(*cloudpickle.loads(pickled))
