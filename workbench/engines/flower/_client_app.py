"""Client functions as Flower ClientApps, so that strategies and mods of Flower apply to them."""

# pyright: reportMissingImports=false

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from workbench._open_types import Foreign
from workbench._types import PyTree
from workbench.errors import EngineError, ProgramError, needs_library

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Context, Message, RecordDict
    from flwr.clientapp import ClientApp


Params = PyTree[Float[Array, "..."]]


def to_arrays(params: Params, *, keep_scalars: bool = False) -> "ArrayRecord":
    """Converts parameters to a Flower `ArrayRecord`, with one array per leaf.

    The name of an array is the path of its leaf. `{"conv": {"weight": w}}` becomes "conv.weight", as in a PyTorch
    `state_dict`. `[w, b]` becomes "0" and "1", as in `ArrayRecord([w, b])`.

    Args:
        params: Pytree of floating-point arrays of any shapes.
        keep_scalars: Send scalars with shape (). Default: scalars are sent with shape (1,), because Flower's mods and
            strategies for differential privacy neither clip scalars nor add noise to them (flwr 1.42).

    Returns:
        The arrays. Floats of fewer than 32 bits are sent as float32, which represents them exactly.

    Raises:
        MissingDependencyError: if flwr is not installed.
        ProgramError: if a leaf is not floating-point, or if two leaves have the same name.

    Example:
        >>> from flwr.app import ArrayRecord  # doctest: +SKIP
        >>> list(wb.engines.flower.to_arrays({"up": jnp.zeros((2, 3)), "bias": [jnp.zeros(3)]}))  # doctest: +SKIP
        ['bias.0', 'up']
    """
    with needs_library("flwr", extra="flower", needed_for="`workbench.engines.flower.to_arrays`"):
        from flwr.app import Array as FlowerArray, ArrayRecord

    leaves = zip(named_shapes("to_arrays", params).items(), jax.tree.leaves(params), strict=True)
    wide = {name: np.asarray(x).astype(np.promote_types(aval.dtype, np.float32)) for (name, aval), x in leaves}
    return ArrayRecord({name: FlowerArray(np.array(x, ndmin=int(not keep_scalars))) for name, x in wide.items()})


def from_arrays(arrays: "ArrayRecord", like: Params) -> Params:
    """Converts a Flower `ArrayRecord` to parameters; the inverse of `to_arrays`.

    Args:
        arrays: Arrays with the names that `to_arrays(like)` gives them, in any order, or with the names "0", "1", ...
            in the order of the leaves.
        like: Parameters of the same structure, as arrays or `jax.ShapeDtypeStruct`s.

    Returns:
        Parameters with the structure, shapes and dtypes of `like`.

    Raises:
        EngineError: if names or shapes differ from those of `like`.
        ProgramError: if `like` cannot be sent; see `to_arrays`.

    Example:
        >>> from flwr.app import ArrayRecord  # doctest: +SKIP
        >>> like = {"a": jnp.zeros(2), "b": jnp.zeros(1)}
        >>> wb.engines.flower.from_arrays(ArrayRecord([np.ones(2), np.zeros(1)]), like)  # doctest: +SKIP
        {'a': Array([1., 1.], dtype=float32), 'b': Array([0.], dtype=float32)}
    """
    shapes = named_shapes("from_arrays", like)
    values = [arrays[name].numpy() for name in names_in_order(arrays, shapes)]
    pairs = [
        (x.reshape(()) if x.shape == (1,) and aval.shape == () else x, (name, aval))
        for x, (name, aval) in zip(values, shapes.items(), strict=True)
    ]
    wrong = [f"{name} has {x.shape} instead of {aval.shape}" for x, (name, aval) in pairs if x.shape != aval.shape]
    if wrong:
        message = (
            "`from_arrays` received arrays whose shapes differ from those of the parameters: "
            f"{', '.join(wrong)}. Every array needs the shape of its leaf. {_START}"
        )
        raise EngineError(message)
    return jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(x, aval.dtype) for x, (_, aval) in pairs])


_START = (
    "Start the strategy with `initial_arrays=to_arrays(params)`, with the same parameters that `client_app` received."
)


def names_in_order(arrays: "ArrayRecord", shapes: Mapping[str, Any]) -> list[str]:
    """The names of a record's arrays in the order of the leaves."""
    if set(arrays) == set(shapes):
        return list(shapes)
    if list(arrays) == [str(i) for i in range(len(shapes))]:
        return list(arrays)
    missing, other = sorted(set(shapes) - set(arrays)), sorted(set(arrays) - set(shapes))
    message = (
        f"`from_arrays` received {len(arrays)} arrays for {len(shapes)} leaves; missing: "
        f"{', '.join(missing) or 'none'}; unknown: {', '.join(other) or 'none'}. Arrays are matched to leaves by "
        f"name, or by position if their names are 0, 1, 2. {_START}"
    )
    raise EngineError(message)


def named_shapes(function: str, params: Params) -> dict[str, jax.ShapeDtypeStruct]:
    """The shape and dtype of each leaf, keyed by the name of its array, in the order of the leaves."""
    paths = jax.tree_util.tree_flatten_with_path(jax.eval_shape(lambda x: x, params))[0]
    named = [(jax.tree_util.keystr(path, simple=True, separator=".") or "0", x) for path, x in paths]
    if other := [f"{name} ({x.dtype})" for name, x in named if not jnp.issubdtype(x.dtype, jnp.floating)]:
        message = (
            f"`{function}` received parameters that are not floating-point: {', '.join(other)}. Flower's strategies "
            "average every array, and these values cannot be averaged. Pass these values to the clients as data, or "
            "convert them to float32."
        )
        raise ProgramError(message)
    names = [name for name, _ in named]
    if double := sorted({name for name in names if names.count(name) > 1}):
        message = (
            f"`{function}` received several leaves with the same name: {', '.join(double)}. Each array is named by "
            "the path of its leaf, joined by dots, and these names must differ. Rename the keys that contain a dot."
        )
        raise ProgramError(message)
    return dict(named)


def only_arrays(content: "RecordDict", what: str) -> "tuple[str, ArrayRecord]":
    """The only `ArrayRecord` of a message, with its key."""
    if len(records := list(content.array_records.items())) != 1:
        message = (
            f"{what} has {len(records)} ArrayRecords: {', '.join(key for key, _ in records) or 'none'}. Parameters are "
            "sent as a single ArrayRecord, as Flower's strategies send them. Put all arrays into one record."
        )
        raise EngineError(message)
    return records[0]


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
