"""Checks for client data; all faulty clients and fields are reported together."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from workbench.errors import DataError

_SHOWN = 5


def show_ids(clients: Iterable[str]) -> str:
    """Lists the first ids, quoted, and the number of remaining ids."""
    clients = list(clients)
    shown = ", ".join(repr(client) for client in clients[:_SHOWN])
    return f"{shown} and {len(clients) - _SHOWN} more" if len(clients) > _SHOWN else shown


def raise_all(source: str, problems: Iterable[str], remedy: str = "") -> None:
    """Raises one `DataError` with the source and every problem; does nothing if there are none."""
    problem_list = list(problems)
    if not problem_list:
        return
    more = f" (and {len(problem_list) - _SHOWN} more)" if len(problem_list) > _SHOWN else ""
    message = (
        f"{source} cannot be used: {'; '.join(problem_list[:_SHOWN])}{more}. All clients need the same fields, each "
        "with one dtype and one shape per example. All fields of a client need the same number of examples. "
        f"{remedy or 'Repair or remove these clients and try again.'}"
    )
    raise DataError(message)


def problems_between_clients(arrays: Mapping[str, Mapping[str, np.ndarray]]) -> Iterator[str]:
    """Yields problems: missing fields, ragged clients, and dtypes or shapes that differ from the first client's."""
    if not arrays or not next(iter(arrays.values())):
        yield "there are no clients" if not arrays else f"client {next(iter(arrays))!r} has no fields"
        return
    first = next(iter(arrays))
    model = arrays[first]
    for client, fields in arrays.items():
        yield from _problems_of_fields(client, fields, model, first)
        lengths = {field: fields[field].shape[0] for field in fields if fields[field].ndim}
        scalars = [field for field in fields if not fields[field].ndim]
        if scalars:
            yield f"client {client!r}, field {scalars[0]!r}: a single value instead of one per example"
        if len(set(lengths.values())) > 1:
            shown = ", ".join(f"{field!r} has {length}" for field, length in lengths.items())
            yield f"client {client!r} has fields of different lengths: field {shown} examples"


def _problems_of_fields(
    client: str, fields: Mapping[str, np.ndarray], model: Mapping[str, np.ndarray], first: str
) -> Iterator[str]:
    for field in model:
        if field not in fields:
            yield f"client {client!r} lacks field {field!r}, which client {first!r} has"
    for field, value in fields.items():
        if value.dtype == object:
            yield f"client {client!r}, field {field!r}: rows of different lengths or kinds (dtype object)"
        elif field not in model:
            yield f"client {client!r} has a field {field!r}, which client {first!r} lacks"
        elif not _same_dtype(value.dtype, model[field].dtype):
            yield f"client {client!r}, field {field!r}: dtype {value.dtype}, but {model[field].dtype} for {first!r}"
        elif value.shape[1:] != model[field].shape[1:]:
            yield (
                f"client {client!r}, field {field!r}: examples of shape {value.shape[1:]}, but "
                f"{model[field].shape[1:]} for {first!r}"
            )


def _same_dtype(a: np.dtype, b: np.dtype) -> bool:
    # Text dtypes with different maximum lengths are compatible.
    return a == b or (a.kind == b.kind and a.kind in "US")


def problems_inside(
    arrays: Mapping[str, Mapping[str, np.ndarray]], *, allow_empty: bool, allow_nan: bool
) -> Iterator[str]:
    """Yields problems: clients without examples, and fields with NaN or infinity."""
    for client, fields in arrays.items():
        if not allow_empty and any(value.ndim and not len(value) for value in fields.values()):
            yield f"client {client!r} is empty: no examples"
        if allow_nan:
            continue
        for field, value in fields.items():
            if not np.issubdtype(value.dtype, np.inexact):
                continue
            if bad := int(np.isnan(value).sum()):
                yield f"client {client!r}, field {field!r}: {bad} of {value.size} values are NaN"
            if bad := int(np.isinf(value).sum()):
                yield f"client {client!r}, field {field!r}: {bad} of {value.size} values are infinite"
