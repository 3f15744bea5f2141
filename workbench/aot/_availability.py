"""Lists of targets and compilers: which chips exist, and what is installed."""

import importlib.metadata
from collections.abc import Mapping

from workbench.aot._axes import fit_axes
from workbench.aot._chips import FAMILIES
from workbench.aot._parse import parse_target
from workbench.errors import MeshError, MissingDependencyError
from workbench.records.compiled import TargetAvailability, TargetRecord

_DISTRIBUTIONS = {"tpu": ("libtpu",), "cuda": ("jax-cuda12-pjrt", "jax-cuda13-pjrt")}
_EXTRAS = {"tpu": "tpu-aot", "cuda": "gpu-aot"}
_TERMS = {
    "tpu": "libtpu is not open source: its licence is the agreement that governs your use of Google Cloud Platform",
    "cuda": "the JAX CUDA plugin is Apache-2.0; no NVIDIA library is needed to compile",
}


def list_targets() -> tuple[TargetAvailability, ...]:
    """Lists all chips for ahead-of-time compilation, and what is missing to use them here.

    Reads only the metadata of installed packages; loads no compiler and starts no process.

    Returns:
        One record per chip, with the tested topologies. `installed` states whether the compiler is installed; if it is
        not, `install` is the command to install it, and `terms` names the licence terms.

    Example:
        >>> [chip.chip for chip in list_targets() if chip.platform == "tpu"]
        ['v2', 'v3', 'v4', 'v5e', 'v5p', 'v6e', 'tpu7x']
    """
    compilers = {platform: installed_compiler(platform) for platform in _DISTRIBUTIONS}
    return tuple(
        TargetAvailability(
            chip=family.name,
            platform=family.platform,
            description=family.description,
            topologies=family.topologies,
            installed=bool(compilers[family.platform]),
            compiler=compilers[family.platform],
            install=""
            if compilers[family.platform]
            else f'pip install "mapreduce-workbench[{_EXTRAS[family.platform]}]"',
            terms=_TERMS[family.platform],
        )
        for family in FAMILIES.values()
    )


def targets_for(axes: Mapping[str, int]) -> tuple[tuple[TargetAvailability, tuple[str, ...]], ...]:
    """For every chip, the machines to which a mesh with these axes can grow or shrink.

    Example:
        >>> dict((chip.chip, names[:3]) for chip, names in targets_for({"clients": 4, "model": 8}))["v5e"]
        ('v5e:2x4', 'v5e:4x4', 'v5e:4x8')
    """
    rows = []
    for chip in list_targets():
        machines = [parse_target(f"{chip.chip}:{topology}") for topology in chip.topologies]
        rows.append((chip, tuple(machine.name for machine in machines if _fits(machine, axes))))
    return tuple(rows)


def _fits(machine: TargetRecord, axes: Mapping[str, int]) -> bool:
    try:
        return not axes or bool(fit_axes(machine, axes))
    except MeshError:
        return False


def installed_compiler(platform: str) -> str:
    """Name and version of the installed compiler of `tpu` or `cuda`, such as `libtpu 0.0.42.1`; "" if none."""
    for name in _DISTRIBUTIONS[platform]:
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return ""


def require_compiler(target: TargetRecord) -> str:
    """Name and version of the compiler for `target`."""
    if compiler := installed_compiler(target.platform):
        return compiler
    library = _DISTRIBUTIONS[target.platform][0]
    needed_for = (
        f"Compiling for {target.name!r} ({target.devices} devices that are not attached; {_TERMS[target.platform]})"
    )
    raise MissingDependencyError(library, extra=_EXTRAS[target.platform], needed_for=needed_for)
