"""Access to JAX's internals for ahead-of-time compilation; only the worker process uses it.

Written against jaxlib 0.10: a compile-only client is reached through the devices of a topology, and accepts StableHLO,
a device list and compile options. libtpu and the CUDA plugin can abort the process from here, so no other module may
import this module.
"""

import importlib.metadata
from typing import Any

import numpy as np
from jax._src.interpreters import mlir as _mlir
from jax._src.lib import xla_client as _xla  # pyright: ignore[reportPrivateImportUsage]
from jax.experimental import mesh_utils, topologies
from jaxlib import _jax  # pyright: ignore[reportAttributeAccessIssue]
from jaxlib.mlir import ir

from workbench._open_types import Foreign


class NoSuchTopologyError(ValueError):
    """The compiler does not know the topology name."""


class OutOfMemoryError(RuntimeError):
    """The compiler gave up because the program does not fit in the device's memory."""


class CompilerError(RuntimeError):
    """The compiler rejected the program or an option."""


def jaxlib_version() -> str:
    """The version of jaxlib, which parses StableHLO and loads the plugins."""
    return importlib.metadata.version("jaxlib")


def absent_devices(platform: str, topology: str, arguments: dict[str, Any]) -> list[Any]:
    """The devices of a topology that is not attached, in the compiler's order; for "cpu", see `arguments`."""
    if platform == "cpu":  # a separate client with any number of devices, used only for compilation
        return list(_xla.make_cpu_client(num_devices=arguments["devices"]).devices())
    try:
        return list(topologies.get_topology_desc(topology, platform, **arguments).devices)
    except (_jax.JaxRuntimeError, NotImplementedError, RuntimeError) as error:
        raise NoSuchTopologyError(str(error)) from error


def order_devices(devices: list[Any], sizes: list[int], slices: int, order: str) -> tuple[list[Any], str, list[str]]:
    """The devices in row-major mesh order, the name of the device order that was used, and notes.

    `topology` places mesh neighbours next to each other on the torus; the first axis whose size is divisible by the
    number of slices crosses the data-centre network. `naive` reshapes the compiler's list.
    """
    if order == "naive":
        return devices, "naive", []
    try:
        if slices == 1:
            mesh = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
            return list(mesh.flat), "topology", []
        outer = next((axis for axis, size in enumerate(sizes) if size % slices == 0), None)
        if outer is None:
            note = f"naive device order: no axis of a mesh of {sizes} is divisible by {slices} slices"
            return devices, "naive", [note]
        across = [slices if axis == outer else 1 for axis in range(len(sizes))]
        within = [size // part for size, part in zip(sizes, across, strict=True)]
        mesh = mesh_utils.create_hybrid_device_mesh(within, across, devices, allow_split_physical_axes=True)
    except (NotImplementedError, AssertionError, ValueError) as error:
        return devices, "naive", [f"naive device order: a mesh of {sizes} does not fit on the torus: {error}"]
    return list(mesh.flat), "topology", []


def compile_for_devices(
    stablehlo: str, devices: list[Any], options: list[tuple[str, Any]]
) -> tuple[str, dict[str, int], dict[str, float]]:
    """Compiles one StableHLO module for devices that are not attached, in mesh order.

    Returns:
        The optimized HLO, the compiler's memory figures for one device, and its own cost analysis (empty if there is
        none).
    """
    try:
        with _mlir.make_ir_context():
            module = ir.Module.parse(stablehlo)
            client = devices[0].client
            # jaxlib 0.10 registers no compiler for "cpu", so only a client can compile for CPUs.
            make = client.compile_and_load if devices[0].platform == "cpu" else client.compile
            executable = make(module, _jax.DeviceList(tuple(devices)), _compile_options(devices, options))
    except (_jax.JaxRuntimeError, ir.MLIRError, RuntimeError, ValueError) as error:
        message = str(error)
        if "RESOURCE_EXHAUSTED" in message or "Ran out of memory" in message:
            raise OutOfMemoryError(message) from error
        raise CompilerError(message) from error
    text = "\n\n".join(module.to_string() for module in executable.hlo_modules())
    return text, _memory(executable), _cost(executable)


def _compile_options(devices: list[Any], options: list[tuple[str, Any]]) -> Foreign:
    count = len(devices)
    compile_options = _xla.CompileOptions()
    compile_options.num_partitions = count
    compile_options.num_replicas = 1
    build = compile_options.executable_build_options
    build.use_spmd_partitioning = True
    build.use_shardy_partitioner = True
    build.num_partitions = count
    ids = np.array([device.id for device in devices]).reshape(1, count)
    build.device_assignment = compile_options.device_assignment = _xla.DeviceAssignment.create(ids)
    compile_options.env_option_overrides = options
    return compile_options


def _memory(executable: Foreign) -> dict[str, int]:
    stats = executable.get_compiled_memory_stats()
    names = {
        "argument_bytes": "argument_size_in_bytes",
        "output_bytes": "output_size_in_bytes",
        "temporary_bytes": "temp_size_in_bytes",
        "alias_bytes": "alias_size_in_bytes",
        "code_bytes": "generated_code_size_in_bytes",
        "peak_bytes": "peak_memory_in_bytes",
    }
    return {field: int(getattr(stats, a)) for field, a in names.items() if hasattr(stats, a)}


def _cost(executable: Foreign) -> dict[str, float]:
    try:
        analysis = executable.cost_analysis()
    except _jax.JaxRuntimeError:  # the CUDA plugin does not have one
        return {}
    return {
        key: float(value) for key, value in analysis.items() if "{" not in key and not key.startswith("utilization")
    }
