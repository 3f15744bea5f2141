"""`export` and `load`: a program as StableHLO, for serving or for another machine."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export

from workbench._errors import InspectionError
from workbench.engines import pack, read_header, unpack
from workbench.plan import AtOnce, Jitted, call_staged


class ExportedProgram(bytes):
    """A program as bytes: StableHLO behind a header that says who made it, for what, and its SHA-256.

    The digest tells damage, not an attacker who makes a new one: load only what you trust.
    """

    @property
    def header(self) -> dict[str, Any]:
        """What is known without running it: name, JAX version, platforms, devices, inputs, outputs."""
        return read_header(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the bytes to a file."""
        Path(path).write_bytes(self)

    def __repr__(self) -> str:
        header = self.header
        return f"<exported program {header['name']}, {len(self)} bytes, for {', '.join(header['platforms'])}>"


def export(
    fn: Callable,
    *args: Any,
    platforms: Sequence[str] | None = None,
    clients_at_once: AtOnce = "auto",
    derivatives: int = 0,
    **kwargs: Any,
) -> ExportedProgram:
    """A program, its clients included, as StableHLO bytes that another process or machine can run.

    Compiles nothing. The shardings of `args` are kept, and with them the number of devices.

    Args:
        fn: A program, any function that calls programs, a derivative of one, or what `jit` returned.
        *args: Its arguments: arrays or `jax.ShapeDtypeStruct`s.
        platforms: Platforms it will run on, as ("cpu", "tpu"). Default: that of this process.
        clients_at_once: As for `jit`.
        derivatives: How many times the loaded program can be differentiated in reverse.
        **kwargs: Keyword arguments of `fn`.

    Returns:
        The bytes; `load` makes a callable of them.

    Raises:
        InspectionError: if `fn` is not a function, or holds something that StableHLO cannot: callbacks, own pytree
            classes that are not registered with `jax.export`.

    Example:
        >>> from workbench import map_fn, program, reduce_mean
        >>> @program(clients=8)
        ... def mean_square(x):
        ...     return reduce_mean(map_fn(lambda row: row**2, x))
        >>> float(load(export(mean_square, jax.numpy.ones(8)))(jax.numpy.arange(8.0)))
        17.5
    """
    if not callable(fn):
        message = (
            f"`export` was given a {type(fn).__name__}, which is not a function. It traces a program with its "
            "arguments: pass `export(fn, *args)`; arrays alone are saved with `numpy.save`."
        )
        raise InspectionError(message)
    if isinstance(fn, Jitted):
        fn, clients_at_once = fn.fn, fn.clients_at_once  # pyright: ignore[reportAssignmentType]
    name = getattr(fn, "__name__", type(fn).__name__)

    def staged(*args: Any, **kwargs: Any) -> Any:
        return call_staged(fn, args, kwargs, clients_at_once)

    staged.__name__ = name
    try:
        module = jax.export.export(jax.jit(staged), platforms=platforms)(*args, **kwargs)
        return ExportedProgram(pack(module, name=name, vjp_order=derivatives))
    except (ValueError, NotImplementedError, TypeError) as error:
        message = (
            f"`export` could not write `{name}` for {platforms or 'this platform'}: {type(error).__name__}: "
            f"{str(error)[:500]}. An exported program holds no Python: leave callbacks (`jax.debug.print`, "
            "`pure_callback`) out, use platforms that JAX knows, and register pytree classes with "
            "`jax.export.register_pytree_node_serialization`."
        )
        raise InspectionError(message) from error


class LoadedProgram:
    """An exported program as a function; `header` says what it is. Differentiable as often as it was exported for."""

    def __init__(self, header: dict[str, Any], module: jax.export.Exported) -> None:
        self.header, self.module = header, module
        self.__name__ = header["name"]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs it.

        Raises:
            InspectionError: for another platform, number of devices, or other arguments than it was exported for.
        """
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
            f"the loaded program `{self.__name__}` could not be called: {str(error)[:500]}. It was exported for the "
            f"platforms {', '.join(header['platforms'])}, {header['devices']} device(s) and the inputs "
            f"{', '.join(header['inputs'])}: give it such arguments, spread over that many devices as they were when "
            "it was exported, or export it again with yours."
        )


def load(data: bytes | bytearray | str | os.PathLike[str]) -> LoadedProgram:
    """A program that `export` wrote, ready to be called.

    Args:
        data: The bytes, or the path of a file that holds them.

    Returns:
        A function of the same arguments as the exported one.

    Raises:
        InspectionError: if the bytes are damaged, are something else, or are of versions that this JAX cannot run.

    Example:
        See `export`.
    """
    content = bytes(data) if isinstance(data, bytes | bytearray) else Path(data).read_bytes()
    return LoadedProgram(*unpack(content))
