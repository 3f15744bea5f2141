"""Runs a computation of the federated language from its bytes, one client after another."""

# pyright: reportMissingImports=false

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.typing import ArrayLike

from workbench._jax_compat.hlo import compile_hlo
from workbench._open_types import Foreign
from workbench.errors import ProgramError


class _Placed(NamedTuple):
    """A federated value, which is one value at the server or one value for each client."""

    values: list[Any]
    at_clients: bool


def evaluate(proto: bytes, arguments: Sequence[ArrayLike], clients: int) -> list[np.ndarray]:
    """Computes the results; client arguments have shape `[clients, ...]`."""
    from federated_language import CLIENTS, framework
    from federated_language.proto import computation_pb2

    tree: Foreign = framework.ComputationBuildingBlock.from_proto(computation_pb2.Computation.FromString(proto))
    kinds = [kind for _, kind in tree.parameter_type.items()]
    arrays = [np.asarray(x) for x in arguments]
    counts = {len(x) for x, kind in zip(arrays, kinds, strict=False) if kind.placement is CLIENTS and x.ndim}
    count = next(iter(counts), clients)
    rows = [[count] if kind.placement is CLIENTS else [] for kind in kinds]
    parameter_forms = [f"{k.member.dtype}{[*row, *k.member.shape]}" for row, k in zip(rows, kinds, strict=True)]
    argument_forms = [f"{x.dtype}{list(x.shape)}" for x in arrays]
    if argument_forms != parameter_forms or len(counts) > 1:
        message = (
            f"`FederatedComputation.run` was given {', '.join(argument_forms) or 'nothing'} for a computation of "
            f"{', '.join(parameter_forms) or 'nothing'}. `run` takes the leaves of the program's arguments, in "
            "order, with one row per client for leaves at clients: pass arrays of the types that the computation has."
        )
        raise ProgramError(message)
    placed = [
        _Placed(list(x), True) if kind.placement is CLIENTS else _Placed([x], False)
        for x, kind in zip(arrays, kinds, strict=True)
    ]
    results = _Evaluator(count).call(tree, {}, placed)
    return [
        np.stack(result.values) if result.at_clients else result.values[0]
        for result in ([results] if isinstance(results, _Placed) else results)
    ]


class _Evaluator:
    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.compiled: dict[bytes, Any] = {}

    def call(self, function: Any, names: dict[str, Any], argument: Any) -> Any:
        kind = type(function).__name__
        if kind == "Lambda":
            return self.value(function.result, {**names, function.parameter_name: argument})
        if kind == "Intrinsic":
            return self.intrinsic(function.uri, names, argument)
        assert kind == "CompiledComputation", kind
        return self.run(function.to_proto().xla, argument)

    def value(self, block: Any, names: dict[str, Any]) -> Any:
        match type(block).__name__:
            case "Reference":
                return names[block.name]
            case "Selection":
                return self.value(block.source, names)[block.index if block.index is not None else block.name]
            case "Struct":
                return [self.value(element, names) for element in block]
            case "Literal":
                return np.asarray(block.value, block.type_signature.dtype.type)
            case "Block":
                inner = dict(names)
                for name, local in block.locals:
                    inner[name] = self.value(local, inner)
                return self.value(block.result, inner)
            case "Call":
                argument = self.value(block.argument, names) if block.argument is not None else None
                return self.call(block.function, names, argument)
        return _Function(block, names)

    def intrinsic(self, uri: str, names: dict[str, Any], argument: Any) -> _Placed:
        apply = lambda f, x: self.call(f.block, f.names, x)  # noqa: E731
        match uri:
            case "federated_value_at_server":
                return _Placed([argument], False)
            case "federated_value_at_clients":
                return _Placed([argument] * self.clients, True)
            case "federated_eval_at_server":
                return _Placed([apply(argument, None)], False)
            case "federated_broadcast":
                return _Placed(argument.values * self.clients, True)
            case "federated_map" | "federated_map_all_equal" | "federated_apply":
                function, x = argument
                return _Placed([apply(function, value) for value in x.values], x.at_clients)
            case "federated_zip_at_clients" | "federated_zip_at_server":
                rows = [list(row) for row in zip(*(x.values for x in argument), strict=True)]
                return _Placed(rows, uri.endswith("clients"))
        reduce = {"federated_sum": np.sum, "federated_max": np.max, "federated_min": np.min, "federated_mean": np.mean}
        if uri not in reduce:
            message = (
                f"`FederatedComputation.run` reached the intrinsic {uri!r}. Only computations from "
                "`to_federated_language` can run here, and these do not use this intrinsic: run the computation with "
                "a runtime of the federated language."
            )
            raise ProgramError(message)
        stacked = np.stack(argument.values)
        return _Placed([reduce[uri](stacked, axis=0).astype(stacked.dtype)], False)

    def run(self, xla: Any, argument: Any) -> Any:
        data = xla.hlo_module.value
        if data not in self.compiled:
            self.compiled[data] = compile_hlo(data)
        flat = [] if argument is None else argument if isinstance(argument, list) else [argument]
        arrays = self.compiled[data]([np.asarray(x) for x in flat])
        return arrays if xla.result.HasField("struct") else arrays[0]


class _Function(NamedTuple):
    block: Any
    names: dict[str, Any]
