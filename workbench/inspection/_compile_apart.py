"""Programs that may end XLA's compiler, and the process with it, are compiled in a process of their own first."""

import re

from workbench.aot import compile_for_cpu
from workbench.errors import CompilerDiedError, EngineError, InspectionError

_MESH = re.compile(r"sdy\.mesh @(\S+) = <\[([^\]]*)\]")
_AXIS = re.compile(r'"([^"]+)"=(\d+)')
_MANUAL = re.compile(r"sdy\.manual_computation\(.*?@([\w$.-]+),.*? manual_axes=\{([^}]*)\}")
_GATHER = re.compile(r"stablehlo\.(gather|scatter)\b|\bchlo\.|stablehlo\.custom_call")
_PARTITIONS = re.compile(r"mhlo\.num_partitions = (\d+)")


def check_survivable(stablehlo: str, name: str) -> None:
    """Compiles a program for CPU devices in a worker process first, if it is one that XLA may not survive.

    Known to end XLA, in jaxlib 0.10 to 0.12: a gather or a scatter inside a `shard_map` that leaves two or more axes of
    its mesh to the compiler. Everything else costs a search of the text.

    Args:
        stablehlo: The program, lowered for any platform: the partitioner is the same one.
        name: What its user calls it, for the error.

    Raises:
        InspectionError: if the compiler died over it.
    """
    found = _partly_manual(stablehlo)
    if found is None:
        return
    manual, others = found
    devices = _PARTITIONS.search(stablehlo)
    try:
        compile_for_cpu(stablehlo, int(devices[1]) if devices else 1, what=f"Compiling {name}")
    except CompilerDiedError as died:
        message = (
            f"`{name}` was not compiled here, because XLA ends its process over it (tried in a child process). It "
            f"enters a `shard_map` over {_listed(manual)} and leaves {_listed(others)} to the compiler, whose "
            "partitioner fails on gathers and scatters (indexing, sorting, cross-entropy) over "
            "two or more such axes. `jax.jit` of it would end this kernel: make the `shard_map` manual over every axis "
            "of its mesh (leave out `axis_names`), or let `wb.map_fn` spread the clients, which takes another lowering "
            "there."
        )
        raise InspectionError(message) from died
    except EngineError:
        return  # refused there, as it will be here, or made for another platform


def _partly_manual(stablehlo: str) -> tuple[list[str], list[str]] | None:
    """The axes of a `shard_map` that leaves two or more axes to the compiler, and those; None without such a one."""
    if _GATHER.search(stablehlo) is None:
        return None
    meshes = {name: {axis: int(size) for axis, size in _AXIS.findall(axes)} for name, axes in _MESH.findall(stablehlo)}
    for mesh, manual in _MANUAL.findall(stablehlo):
        inside = re.findall(r'"([^"]+)"', manual)
        others = [axis for axis, size in meshes.get(mesh, {}).items() if size > 1 and axis not in inside]
        if len(others) > 1:
            return inside, others
    return None


def _listed(axes: list[str]) -> str:
    return " and ".join(f"`{axis}`" for axis in axes)
