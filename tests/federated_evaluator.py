"""Runs a computation of the federated language from its bytes: the package's own tree, and jaxlib for local HLO."""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxlib import xla_client  # noqa: TID251 -- an oracle beside JAX


class Placed(NamedTuple):
    """A federated value: one at the server, or one for each client."""

    values: list[Any]
    at_clients: bool


def evaluate(proto: bytes, arguments: Sequence[Any], clients: int) -> Any:
    """The results for arguments in the order of the computation's parameter; a client's is `[clients, ...]`."""
    from federated_language import CLIENTS, framework
    from federated_language.proto import computation_pb2

    tree = framework.ComputationBuildingBlock.from_proto(computation_pb2.Computation.FromString(proto))
    kinds = [kind for _, kind in tree.parameter_type.items()]
    placed = [
        Placed(list(np.asarray(x)), True) if kind.placement is CLIENTS else Placed([np.asarray(x)], False)
        for x, kind in zip(arguments, kinds, strict=True)
    ]
    return _Evaluator(clients).call(tree, {}, placed)


class _Evaluator:
    def __init__(self, clients: int) -> None:
        self.clients = clients
        self.device = jax.devices("cpu")[0]
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

    def intrinsic(self, uri: str, names: dict[str, Any], argument: Any) -> Placed:
        apply = lambda f, x: self.call(f.block, f.names, x)  # noqa: E731
        match uri:
            case "federated_value_at_server":
                return Placed([argument], False)
            case "federated_value_at_clients":
                return Placed([argument] * self.clients, True)
            case "federated_eval_at_server":
                return Placed([apply(argument, None)], False)
            case "federated_broadcast":
                return Placed(argument.values * self.clients, True)
            case "federated_map" | "federated_map_all_equal" | "federated_apply":
                function, x = argument
                return Placed([apply(function, value) for value in x.values], x.at_clients)
            case "federated_zip_at_clients" | "federated_zip_at_server":
                rows = [list(row) for row in zip(*(x.values for x in argument), strict=True)]
                return Placed(rows, uri.endswith("clients"))
        reduce = {"federated_sum": np.sum, "federated_max": np.max, "federated_min": np.min, "federated_mean": np.mean}
        stacked = np.stack(argument.values)
        return Placed([reduce[uri](stacked, axis=0).astype(stacked.dtype)], False)

    def run(self, xla: Any, argument: Any) -> Any:
        data = xla.hlo_module.value
        if data not in self.compiled:
            module = xla_client._xla.mlir.xla_computation_to_mlir_module(xla_client.XlaComputation(data))
            devices = xla_client.DeviceList((self.device,))
            self.compiled[data] = self.device.client.compile_and_load(module, devices)
        flat = [] if argument is None else argument if isinstance(argument, list) else [argument]
        operands = [jax.device_put(np.asarray(x), self.device) for x in flat]
        results = self.compiled[data].execute_sharded(operands).disassemble_into_single_device_arrays()
        arrays = [np.asarray(x[0]) for x in results]
        return arrays if xla.result.HasField("struct") else arrays[0]


class _Function(NamedTuple):
    block: Any
    names: dict[str, Any]
