"""`export` and `load`: a program as StableHLO, to serve it or to run it on another machine."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.export
from jax.stages import Wrapped

from workbench import _jax_compat
from workbench._jax_compat.exported import without_folders
from workbench._types import Argument
from workbench.engines import pack, read_header, unpack_apart
from workbench.errors import InspectionError
from workbench.inspection import TracedCall, current_mesh
from workbench.plan import ChunkSize
from workbench.records import folders_pattern, write_whole


class ExportedProgram(bytes):
    """A program as bytes: StableHLO, and a trailing header with the program's origin, target and SHA-256.

    `jax.export.deserialize(bytearray(program))` also reads these bytes, without checking the header. The digest detects
    corruption, not tampering: load only files that you trust.
    """

    @property
    def header(self) -> dict[str, Any]:
        """Facts that are available without a run: name, JAX version, platforms, devices, inputs, outputs."""
        return read_header(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the bytes to a file."""
        write_whole(path, self)

    def __repr__(self) -> str:
        header = self.header
        return f"<exported program {header['name']}, {len(self)} bytes, for {', '.join(header['platforms'])}>"


def export_program(
    call: TracedCall, *, platforms: Sequence[str] | None, chunk_size: tuple[ChunkSize] | None, derivatives: int
) -> ExportedProgram:
    """Serializes a traced call as StableHLO; see `Traced.export`."""
    version = call.under(current_mesh() or call.mesh)
    jitted = version.jitted(call.chunk_size if chunk_size is None else chunk_size[0])
    return write(call.name, jitted, (call.args, call.kwargs), platforms, derivatives)


def write(
    name: str,
    jitted: Wrapped,
    call: tuple[Sequence[Argument], Mapping[str, Argument]],
    platforms: Sequence[str] | None,
    derivatives: int,
) -> ExportedProgram:
    """Serializes a result of `jax.jit` as StableHLO."""
    args, kwargs = call
    try:
        with without_folders(folders_pattern()):
            module = jax.export.export(jitted, platforms=platforms)(*args, **kwargs)
        return ExportedProgram(pack(module, name=name, vjp_order=derivatives))
    except (ValueError, NotImplementedError, TypeError) as error:
        message = (
            f"`export` could not write `{name}` for {platforms or 'this platform'}: {type(error).__name__}: "
            f"{str(error)[:500]}. An exported program contains no Python: remove callbacks (`jax.debug.print`, "
            "`pure_callback`), use platforms that JAX knows, and register pytree classes with "
            "`jax.export.register_pytree_node_serialization`."
        )
        raise InspectionError(message) from error


class LoadedProgram:
    """An exported program as a function; `header` describes it.

    The function is differentiable up to the order chosen for the export.
    """

    def __init__(self, header: dict[str, Any], module: jax.export.Exported) -> None:
        self.header: dict[str, Any] = header
        self.module: jax.export.Exported = module
        self.__name__: str = header["name"]

    def __call__(self, *args: object, **kwargs: Argument) -> Argument:
        """Runs the program.

        Raises:
            InspectionError: if the platform, the number of devices or the arguments differ from the export.
        """
        if refused := _jax_compat.waits_forever(f"The loaded program `{self.__name__}`"):
            raise InspectionError(refused)
        try:
            return self.module.call(*args, **kwargs)
        except ValueError as error:
            raise InspectionError(self._misfit(error)) from error

    def __repr__(self) -> str:
        inputs = ", ".join(self.header["inputs"])
        return f"<loaded program {self.__name__}({inputs}) for {', '.join(self.header['platforms'])}>"

    def _misfit(self, error: ValueError) -> str:
        header = self.header
        return (
            f"the loaded program `{self.__name__}` could not be called: {str(error)[:500]}. The program was exported "
            f"for the platforms {', '.join(header['platforms'])}, {header['devices']} device(s) and the inputs "
            f"{', '.join(header['inputs'])}: pass such arguments, sharded over as many devices as at export, or export "
            "the program again for your arguments and devices."
        )


def load(data: bytes | bytearray | str | os.PathLike[str]) -> LoadedProgram:
    """Loads a program written by `export`.

    A program from another process is first read in a child process; this takes about two seconds. A maliciously
    damaged module can abort the process that reads it.

    Args:
        data: The bytes, or the path of a file with the bytes.

    Returns:
        A function with the same arguments as the exported function.

    Raises:
        InspectionError: if the bytes are damaged, are not an exported program, need another JAX version, or call back
            into Python.
        OSError: if the file cannot be read.

    Example:
        See `export`.
    """
    return LoadedProgram(*unpack_apart(bytes(data) if isinstance(data, bytes | bytearray) else _read(data)))


def _read(path: object) -> bytes:
    """The content of a regular file; devices and pipes are rejected because they could be endless."""
    if isinstance(path, str | os.PathLike) and "\0" not in os.fspath(path):
        if not Path(path).exists() or Path(path).is_file():
            return Path(path).read_bytes()
        subject = f"{os.fspath(path)!r}, which is not a regular file"
    else:
        subject = f"{path!r:.100} ({type(path).__name__})"
    message = (
        f"`load` was given {subject}. An exported program is a `bytes` object, or a file that contains these bytes: "
        "pass the result of `export`, or the path that `save` wrote to."
    )
    raise InspectionError(message)
