"""Parameters as Flower's `ArrayRecord`."""

# pyright: reportMissingImports=false

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from workbench._types import PyTree
from workbench.errors import EngineError, ProgramError, needs_library

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, RecordDict

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
