"""Reads programs from text, bytes or files: HLO, HLO protos, StableHLO, exported programs and dump directories."""

import re
import textwrap
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np
from jax.sharding import AbstractMesh

from workbench import _jax_compat
from workbench._types import Argument
from workbench.aot import compile_for_cpu
from workbench.cost import estimate_cost, known_chip, largest_dtype
from workbench.errors import EngineError, InspectionError
from workbench.inspection._call import LoweredCall, call_of_traced
from workbench.inspection._program import inspect_call, inspect_lowered, planned_target
from workbench.inspection.hlo import inspect_module
from workbench.inspection.sharding import inspect_mesh, propagate_shardings
from workbench.records import Record
from workbench.records.compiled import ModuleRecord, ProgramRecord
from workbench.records.hardware import MeshRecord
from workbench.records.program import PlanRecord

_MESH = re.compile(r"sdy\.mesh @[\w.]+ = <\[(?P<axes>[^\]]*)\]")
_AXIS = re.compile(r'"(?P<name>[^"]+)"=(?P<size>\d+)')
_HLO = re.compile(r"^[>\s]*HloModule ", re.MULTILINE)
_STABLEHLO = re.compile(r"^\s*(?:#loc|module\b.*\{|builtin\.module|(?:func\.)?func .*@)", re.MULTILINE)
_PARTITIONS = re.compile(r"mhlo\.num_partitions = (\d+)")
_FROM_TEXT = (
    "read from the text of a compiled module, which does not contain the function's stages, the mesh, or the "
    "propagation of shardings"
)
_FROM_STABLEHLO = "read from StableHLO, which does not contain the function's stages; pass the function to see them"


def inspect_given(x: object, **options: object) -> Record | None:
    """Inspects a program given as text, bytes, a path or a stage of `jax.jit`; returns None for other values.

    Raises:
        InspectionError: for a text, file or directory that contains no program or only a part of a program.
    """
    if isinstance(x, str | bytes | bytearray | Path) and not isinstance(x, np.bytes_ | np.str_):
        return inspect_source(x, **options)
    return inspect_stage(x, **options)


def inspect_stage(x: object, **options: object) -> ProgramRecord | None:
    """Inspects a traced, lowered, compiled or exported function; returns None for other values."""
    if isinstance(x, jax.stages.Traced):
        return inspect_call(call_of_traced(x), **_options(options))
    if isinstance(x, jax.stages.Lowered | jax.stages.Compiled):
        return _inspect_lowered(x, options)
    inner = getattr(x, "lowered", None) or getattr(x, "compiled", None) or getattr(x, "traced", None)
    if isinstance(inner, jax.stages.Lowered | jax.stages.Compiled | jax.stages.Traced):  # stages of nnx and equinox
        return inspect_stage(inner, **options)
    if isinstance(x, jax.export.Exported):
        return _inspect_exported(x, options)
    return None


def _options(options: dict[str, Any]) -> dict[str, Any]:
    waiting = {name: options.pop(name) for name in ("progress", "cancel", "timeout_seconds") if name in options}
    sized = {"chunk_size": (options.pop("chunk_size"),)} if "chunk_size" in options else {}
    return {**options, **sized, "waiting": waiting}


def _inspect_lowered(x: jax.stages.Lowered | jax.stages.Compiled, options: dict[str, Any]) -> ProgramRecord:
    name = "compiled program"
    if isinstance(x, jax.stages.Lowered):
        match = re.search(r"module @([\w.]+)", x.as_text()[:2000])
        name = match[1].removeprefix("jit_") if match else "lowered program"
    inspect_options = {key: value for key, value in options.items() if key in ("chip", "target")}
    record = inspect_lowered(LoweredCall(name, x), options.get("mesh"), **inspect_options)
    if record.name == "compiled program" and record.module is not None:
        record = record.replace(name=record.module.name.removeprefix("jit_"))
    return record


def _inspect_exported(x: jax.export.Exported, options: dict[str, Any]) -> ProgramRecord:
    args, kwargs = jax.tree.unflatten(x.in_tree, [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in x.in_avals])

    def program(*args: Argument, **kwargs: Argument) -> Argument:
        return x.call(*args, **kwargs)

    program.__name__ = x.fun_name
    note = f"exported for {', '.join(x.platforms)}: the function's own stages and lines are only in its StableHLO"
    text = x.mlir_module()
    if x.nr_devices > 1 or jax.default_backend() not in x.platforms:
        return _inspect_stablehlo(text, options, name=x.fun_name, devices=x.nr_devices, notes=(note,))
    call = call_of_traced(jax.jit(program).trace(*args, **kwargs))
    record = inspect_call(call, **_options(options))
    return record.replace(name=x.fun_name, notes=(*record.notes, note))


def inspect_source(x: str | bytes | bytearray | Path, **options: object) -> Record:
    """Creates the record of a program given as text, bytes, a file or a directory of dumps."""
    if isinstance(x, str) and _is_path(x):
        x = Path(x)
    if isinstance(x, Path):
        return _inspect_path(x, options)
    if isinstance(x, bytes | bytearray):
        return _inspect_bytes(bytes(x), "bytes", options)
    return _inspect_text(x, "text", options)


def _is_path(text: str) -> bool:
    return "\n" not in text and len(text) < 4096 and not _HLO.match(text) and not text.lstrip().startswith("{")


def _inspect_path(path: Path, options: dict[str, Any]) -> Record:
    if path.is_dir():
        return _inspect_directory(path, options)
    if not path.is_file():
        message = (
            f"`inspect` received {str(path)!r}, and no file or directory of this name exists (looked in {Path.cwd()}). "
            "Text of one line is read as a path: pass the path of an HLO, StableHLO or record file, or the text of a "
            "whole module."
        )
        raise InspectionError(message)
    return _inspect_bytes(path.read_bytes(), str(path), options)


def _inspect_directory(path: Path, options: dict[str, Any]) -> Record:
    files = [file for file in path.rglob("*after_optimizations.txt") if file.is_file()]
    files = files or [file for file in path.rglob("*") if file.suffix in (".hlo", ".pb", ".mlir", ".stablehlo")]
    if not files:
        message = (
            f"`inspect` received the directory {str(path)!r}, which contains no compiled module. A compiled "
            "module is a file named `module_….after_optimizations.txt`, which XLA writes while it compiles: set "
            "`XLA_FLAGS=--xla_dump_to=DIRECTORY` (or the compiler option `xla_dump_to`), compile, and pass the "
            "directory."
        )
        raise InspectionError(message)
    largest = max(files, key=lambda file: (file.stat().st_size, str(file)))
    record = _inspect_bytes(largest.read_bytes(), str(largest), options)
    if len(files) > 1 and isinstance(record, ProgramRecord):
        note = (
            f"{path} contains {len(files)} modules; this is the largest, {largest.name}. Pass a file to inspect "
            "another module"
        )
        record = record.replace(notes=(*record.notes, note))
    return record


def _inspect_bytes(data: bytes, source: str, options: dict[str, Any]) -> Record:
    try:
        return _inspect_text(data.decode(), source, options)
    except UnicodeDecodeError:
        pass
    text = _jax_compat.hlo_of_proto(data)
    if text is not None:
        return _inspect_hlo(text, options)
    text = _jax_compat.stablehlo_of_bytecode(data)
    if text is not None:
        return _inspect_stablehlo(text, options)
    try:
        return _inspect_exported(jax.export.deserialize(bytearray(data)), options)
    except Exception:  # flatbuffers raise various errors for bytes in another format
        pass
    message = (
        f"`inspect` received {source} of {len(data)} bytes, starting with {data[:12]!r}, which are not text, an HLO "
        f"proto, StableHLO bytecode or an exported program that JAX {jax.__version__} can read. `inspect` reads only "
        "these formats: write the module as text (`compiled.as_text()`), or write it with the version of JAX that "
        "is installed here."
    )
    raise InspectionError(message)


def _inspect_text(text: str, source: str, options: dict[str, Any]) -> Record:
    if hlo := _HLO.search(text):
        return _inspect_hlo(_clean(text, hlo.start()), options)
    if _STABLEHLO.search(text) and ("stablehlo." in text or "func.func" in text or "mhlo." in text):
        return _inspect_stablehlo(textwrap.dedent(text), options)
    if text.lstrip().startswith("{"):
        return _read_record(text, source)
    start = " ".join(text[:80].split())
    message = (
        f"`inspect` received {source} of {len(text)} characters, starting with {start!r}, which is neither HLO (no "
        "line starts with `HloModule`) nor StableHLO (no `module` with a `func.func`) nor the JSON of a record. Pass "
        "the whole text of `compiled.as_text()`, `lowered.as_text()` or `record.to_json()`."
    )
    raise InspectionError(message)


def _clean(text: str, start: int) -> str:
    """Removes e-mail quotation marks, common indentation and a code fence from a pasted module."""
    lines = text[start:].splitlines()
    if lines[0].lstrip().startswith(">"):
        lines = [line.lstrip().removeprefix(">") for line in lines]
    body = "\n".join(lines).split("\n```")[0]
    indent = len(body) - len(body.lstrip(" \t"))
    if not indent:
        return body
    # Lines inside a computation have two more spaces, so only the first line shows the common indentation.
    pad = body[:indent]
    return "\n".join(line.removeprefix(pad) for line in body.splitlines())


def _inspect_hlo(text: str, options: dict[str, Any]) -> ProgramRecord:
    mesh = _given_mesh(options)
    return _of_module(inspect_module(text, mesh=mesh), mesh, options, notes=(_FROM_TEXT,))


def _given_mesh(options: dict[str, Any]) -> MeshRecord | None:
    mesh = options.get("mesh")
    return None if mesh is None else inspect_mesh(mesh)


def _of_module(
    module: ModuleRecord, mesh: MeshRecord | None, options: dict[str, Any], *, notes: tuple[str, ...]
) -> ProgramRecord:
    name = module.name.removeprefix("jit_")
    plan = PlanRecord(name=name, placements=(), stages=())
    chip = known_chip(options["chip"]) if options.get("chip") else None
    return ProgramRecord(
        name=name,
        target=f"compiled: {module.platform} x {module.devices}",
        plan=plan,
        mesh=mesh,
        module=module,
        cost=estimate_cost(module, plan, chip=chip, mesh=mesh, dtype=largest_dtype(plan, chip)),
        notes=notes,
    )


def _inspect_stablehlo(
    text: str, options: dict[str, Any], *, name: str = "", devices: int = 0, notes: tuple[str, ...] = ()
) -> ProgramRecord:
    match = _PARTITIONS.search(text)
    devices = devices or (int(match[1]) if match else 1)
    mesh = _given_mesh(options) or _mesh_of_text(text)
    propagation = propagate_shardings(text)
    named = re.search(r"module @([\w.]+)", text)
    name = name or (named[1].removeprefix("jit_") if named else "program")
    all_notes = [*notes, _FROM_STABLEHLO]
    try:
        hlo, memory = compile_for_cpu(text, devices, task=f"Compiling {name}")
    except EngineError as error:
        if propagation.engine == "none":
            raise InspectionError(_unreadable_stablehlo(text, propagation.notes, error)) from error
        plan = PlanRecord(name=name, placements=(), stages=())
        all_notes.append(f"nothing is compiled: {error}")
        return ProgramRecord(
            name=name,
            target=planned_target(devices),
            plan=plan,
            mesh=mesh,
            propagation=propagation,
            stablehlo=text,
            notes=tuple(all_notes),
        )
    module = inspect_module(hlo, mesh=mesh, platform="cpu", peak_bytes=memory.peak_bytes)
    sizes = {
        field: getattr(memory, field)
        for field in ("argument_bytes", "output_bytes", "temporary_bytes", "alias_bytes", "peak_bytes")
        if getattr(memory, field) is not None
    }
    module = module.replace(memory=module.memory.replace(**sizes), devices=devices)
    record = _of_module(module, mesh, options, notes=tuple(all_notes))
    return record.replace(name=name, propagation=propagation, stablehlo=text)


def _unreadable_stablehlo(text: str, facts: tuple[str, ...], error: Exception) -> str:
    reason = "; ".join(facts) or str(error)
    return (
        f"`inspect` received StableHLO text of {len(text)} characters, which jaxlib {_jax_compat.jaxlib_version()} "
        f"cannot parse: {reason[:400]}. A module must be complete and of a version that this jaxlib reads: pass the "
        "full output of `lowered.as_text()`, written by the JAX that is installed here, or portable bytecode of "
        "`jax.export`."
    )


def _mesh_of_text(text: str) -> MeshRecord | None:
    """The mesh that the module itself defines."""
    for match in _MESH.finditer(text):
        axes = [(axis["name"], int(axis["size"])) for axis in _AXIS.finditer(match["axes"])]
        if axes:
            names, sizes = zip(*axes, strict=True)
            return inspect_mesh(AbstractMesh(sizes, names))
    return None


def _read_record(text: str, source: str) -> Record:
    try:
        return Record.from_json(text)
    except ValueError as error:
        message = (
            f"`inspect` received {source} of {len(text)} characters that starts like JSON but is not a record of this "
            f"version of the workbench: {error} Pass the output of `record.to_json()`."
        )
        raise InspectionError(message) from error
