"""Access to jaxlib's HLO printer, used for modules in protobuf form from profiles and dumps.

Written against jaxlib 0.10 to 0.12, whose `_hlo` extension is not public.
"""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from workbench._open_types import Foreign

_MOST_BYTES = 64 * 2**20  # printing takes about 30 times as much memory


def hlo_text_of_proto(serialized: bytes) -> str | None:
    """The text of a serialized `HloModuleProto`, or of the `HloProto` that contains one.

    Returns:
        The text; None if this jaxlib lacks the function, or if the message is damaged or larger than 64 MiB.
    """
    if not serialized or len(serialized) > _MOST_BYTES:
        return None
    try:
        from jaxlib import _hlo  # pyright: ignore[reportAttributeAccessIssue] -- compiled, without stubs
    except ImportError:
        return None
    module_type: Foreign = getattr(_hlo, "HloModule", None)
    if not hasattr(module_type, "from_serialized_hlo_module_proto"):
        return None
    try:
        module = module_type.from_serialized_hlo_module_proto(_module_of(serialized))
        return module.to_string()
    except (RuntimeError, ValueError, IndexError):
        return None


def buffer_assignment_of(compiled: Foreign, stats: Foreign) -> tuple[bytes, bytes] | None:
    """The compiler's memory plan.

    Returns:
        A serialized `BufferAssignmentProto` and the `HloModuleProto` that names its instructions; None if this backend
        or jaxlib does not provide them, or if the module is larger than 64 MiB.
    """
    try:
        assignment = stats.serialized_buffer_assignment_proto
        modules = compiled.runtime_executable().hlo_modules()
        module = modules[0].as_serialized_hlo_module_proto() if assignment and len(modules) == 1 else b""
    except (AttributeError, NotImplementedError, RuntimeError, ValueError):
        return None
    return (bytes(assignment), module) if module and len(module) <= _MOST_BYTES else None


def compile_hlo(serialized: bytes) -> Callable[[Sequence[np.ndarray]], list[np.ndarray]]:
    """Compiles a serialized `HloModuleProto` for a CPU device of this process.

    Args:
        serialized: The protobuf message of a module, which must come from this process or from another trusted process.

    Returns:
        A function from operands to results.
    """
    from jaxlib import xla_client

    client: Foreign = xla_client
    device: Foreign = jax.devices("cpu")[0]
    module = client._xla.mlir.xla_computation_to_mlir_module(client.XlaComputation(serialized))
    compiled = device.client.compile_and_load(module, client.DeviceList((device,)))

    def run(operands: Sequence[np.ndarray]) -> list[np.ndarray]:
        outputs = compiled.execute_sharded([jax.device_put(x, device) for x in operands])
        return [np.asarray(x[0]) for x in outputs.disassemble_into_single_device_arrays()]

    return run


def _module_of(serialized: bytes) -> bytes:
    """Returns the `HloModuleProto` in an `HloProto`; returns bytes that do not start like an `HloProto` unchanged."""
    if serialized[0] != 0x0A:
        return serialized
    length, shift, index = 0, 0, 1
    while True:
        byte = serialized[index]
        length |= (byte & 0x7F) << shift
        index, shift = index + 1, shift + 7
        if byte < 0x80 or shift > 63:
            break
    return serialized[index : index + length] if serialized[index : index + 1] == b"\n" else serialized
