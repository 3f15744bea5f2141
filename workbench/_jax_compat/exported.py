"""Access to the external calls in an exported module.

Written against JAX 0.10 to 0.12: the list of targets is private, and the checks that use it run only during export.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager

import jax.export
from jax._src import config as _config
from jax._src.export import _export
from jax._src.interpreters import mlir as _mlir
from jaxlib.mlir import ir as _ir

_NEVER = frozenset({"xla_ffi_python_cpu_callback", "xla_ffi_python_gpu_callback", "xla_python_cpu_callback"})


def unknown_custom_calls(module: jax.export.Exported) -> list[str]:
    """The custom calls in a module and its derivatives that lack JAX's stability guarantee, sorted by name.

    Returns:
        Target names of custom calls, including host callbacks, whose addresses are valid only in the exporting process.
    """
    names: set[str] = set()
    while True:
        with _mlir.make_ir_context():
            parsed = _ir.Module.parse(module.mlir_module())
            names.update(_targets(parsed.operation))
        if not module.has_vjp():
            break
        module = module.vjp()
    return sorted(names - (frozenset(_export._CUSTOM_CALL_TARGETS_GUARANTEED_STABLE) - _NEVER))


def _targets(operation: _ir.Operation) -> Iterator[str]:
    waiting = [operation]
    while waiting:
        now = waiting.pop()
        if now.name.endswith(".custom_call"):
            yield _ir.StringAttr(now.attributes["call_target_name"]).value
        waiting.extend(op.operation for region in now.regions for block in region.blocks for op in block.operations)


def without_folders(pattern: str) -> AbstractContextManager[None]:
    """Removes matches of `pattern` from source file names in programs that are lowered inside the block."""
    return _config.hlo_source_file_canonicalization_regex(pattern)
