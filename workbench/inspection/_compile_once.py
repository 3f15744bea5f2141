"""Cache of the latest compilations; programs on which XLA may abort are first compiled in a worker process."""

import collections
import re
import threading

from jax.stages import Compiled, Lowered

from workbench import _jax_compat
from workbench.aot import compile_for_cpu
from workbench.errors import CompilerDiedError, EngineError, InspectionError

_MESH = re.compile(r"sdy\.mesh @(\S+) = <\[([^\]]*)\]")
_AXIS = re.compile(r'"([^"]+)"=(\d+)')
_MANUAL = re.compile(r"sdy\.manual_computation\(.*?@([\w$.-]+),.*? manual_axes=\{([^}]*)\}")
_GATHER = re.compile(r"stablehlo\.(gather|scatter)\b|\bchlo\.|stablehlo\.custom_call")
_PARTITIONS = re.compile(r"mhlo\.num_partitions = (\d+)")


def check_survivable(stablehlo: str, name: str) -> None:
    """Compiles a program for CPU devices in a worker process first, if XLA may abort on the program.

    XLA in jaxlib 0.10 to 0.12 is known to abort on a gather or scatter inside a `shard_map` that leaves two or more
    axes of its mesh to the compiler. For all other programs, the only cost is one search of the text.
    """
    axes = _partly_manual(stablehlo)
    if axes is None:
        return
    manual, auto_axes = axes
    devices = _PARTITIONS.search(stablehlo)
    try:
        compile_for_cpu(stablehlo, int(devices[1]) if devices else 1, task=f"Compiling {name}")
    except CompilerDiedError as died:
        message = (
            f"`{name}` was not compiled here, because XLA aborts on this program (tried in a child process). The "
            f"program enters a `shard_map` over {_listed(manual)} and leaves {_listed(auto_axes)} to the compiler, "
            "whose partitioner fails on gathers and scatters (indexing, sorting, cross-entropy) over two or more such "
            "axes. Compiling it with `jax.jit` would crash this kernel: make the `shard_map` manual over every axis "
            "of its mesh (omit `axis_names`), or spread the clients with `wb.map_fn`, which uses a different lowering "
            "in this case."
        )
        raise InspectionError(message) from died
    except EngineError:
        return  # XLA will also reject it here, or it is for another platform


def _partly_manual(stablehlo: str) -> tuple[list[str], list[str]] | None:
    """The manual and the automatic axes of a `shard_map` with two or more automatic axes, or None."""
    if _GATHER.search(stablehlo) is None:
        return None
    meshes = {name: {axis: int(size) for axis, size in _AXIS.findall(axes)} for name, axes in _MESH.findall(stablehlo)}
    for mesh, manual in _MANUAL.findall(stablehlo):
        inside = re.findall(r'"([^"]+)"', manual)
        auto_axes = [axis for axis, size in meshes.get(mesh, {}).items() if size > 1 and axis not in inside]
        if len(auto_axes) > 1:
            return inside, auto_axes
    return None


def _listed(axes: list[str]) -> str:
    return " and ".join(f"`{axis}`" for axis in axes)


_MOST_PROGRAMS = 8
_MOST_CHARACTERS = 16 << 20  # bytes of StableHLO for all programs together; executables are about as large

_LATEST: collections.OrderedDict[tuple[str, str], Compiled] = collections.OrderedDict()
_LOCK = threading.Lock()


def compile_once(lowered: Lowered, text: str, name: str) -> Compiled:
    """Compiles a lowered program, or returns the result cached in this process for an identical program.

    Every inspection traces the function again, because values captured by the function may have changed. Identical
    StableHLO compiles to the same program on identical devices. The key includes source lines, even the lines of the
    inspecting call. For a library function these are the only lines, and a cached program must not show the lines of
    another cell.

    Returns:
        The compiled program. Programs with callbacks are compiled every time, because their text does not identify the
        callback.
    """
    key = _jax_compat.compilation_key(lowered)
    if key is None or len(text) > _MOST_CHARACTERS:
        return compile_now(lowered, text, name)
    with _LOCK:
        program = _LATEST.get((text, key))
        if program is not None:
            _LATEST.move_to_end((text, key))
            return program
    compiled = compile_now(lowered, text, name)
    with _LOCK:
        _LATEST[text, key] = compiled
        while len(_LATEST) > _MOST_PROGRAMS or sum(len(text) for text, _ in _LATEST) > _MOST_CHARACTERS:
            _LATEST.popitem(last=False)
    return compiled


def compile_now(lowered: Lowered, text: str, name: str) -> Compiled:
    """Compiles a lowered program unless XLA aborts on it; see `compile_once` for arguments and errors."""
    if refused := _jax_compat.waits_forever(f"The compilation of `{name}`"):
        raise InspectionError(refused)
    check_survivable(text, name)
    return _jax_compat.compile_with_own_lines(lowered)
