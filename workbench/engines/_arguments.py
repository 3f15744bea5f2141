"""Checks engine arguments: the source of clients, batch sizes and folders."""

import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from workbench.engines._places import place
from workbench.engines._run_recorder import brief
from workbench.errors import ProgramError


def argument_of_source(engine: str, source: str, args: Sequence[Any]) -> int:
    """Finds the only argument given as shapes; `read_from` provides its values."""
    as_shapes = [i for i, x in enumerate(args) if _is_abstract(x)]
    if len(as_shapes) != 1:
        message = (
            f"`{engine}.run` was given {len(as_shapes)} arguments as shapes and a `read_from`. The {source} provides "
            "the clients for one argument. Pass a pytree of `jax.ShapeDtypeStruct((clients, ...), dtype)` for this "
            "argument, and arrays for all other arguments."
        )
        raise ProgramError(message)
    return as_shapes[0]


def _is_abstract(x: object) -> bool:
    leaves = jax.tree.leaves(x)
    return bool(leaves) and all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)


def check_batch_size(
    engine: str, batch: str, size: object, *, option: str = "clients_per_batch", auto: str = ""
) -> None:
    """Rejects an invalid number of clients per batch."""
    if (auto and size == "auto") or (isinstance(size, int) and not isinstance(size, bool) and size >= 1):
        return
    hint = f', or "auto" for {auto}.' if auto else "; 32 is fast for small clients."
    message = (
        f"`{engine}` was given {option}={size!r}. {option} is the number of clients in {batch}: pass a positive "
        f"int{hint}"
    )
    raise ProgramError(message)


def check_folder(engine: str, folder: str | Path | None) -> None:
    """Rejects a folder in which temporary row files cannot be written."""
    if folder is None:
        return
    try:
        probe = place(folder) / f".workbench-{secrets.token_hex(4)}"
        probe.write_bytes(b"")
        probe.unlink()
    except Exception as error:
        message = (
            f"`{engine}` was given folder={str(folder)!r}, but no file can be written there: {brief(error)}. The "
            "engine stores rows in this folder, and this process and all workers read them through the same path. "
            "Pass an existing "
            'folder that all of them can access, or an address such as "s3://bucket/tmp" (extra `storage`, and s3fs '
            "for s3)."
        )
        raise ProgramError(message) from error
