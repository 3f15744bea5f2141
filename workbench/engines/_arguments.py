"""Checks of what the engines of other systems are given: where the source of clients belongs, how many go together."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from workbench.errors import ProgramError


def argument_of_source(engine: str, source: str, args: Sequence[Any]) -> int:
    """The position of the argument that `read_from` provides: the one that is given as shapes.

    Args:
        engine: The name of the engine, for the message.
        source: What it reads, such as "table".
        args: The program's arguments.

    Raises:
        ProgramError: unless exactly one argument is given as shapes.
    """
    as_shapes = [i for i, x in enumerate(args) if _is_abstract(x)]
    if len(as_shapes) != 1:
        message = (
            f"`{engine}.run` was given {len(as_shapes)} arguments as shapes and a `read_from`. The {source} provides "
            "the clients of one argument: pass a pytree of `jax.ShapeDtypeStruct((clients, ...), dtype)` in its place, "
            "and arrays for the others."
        )
        raise ProgramError(message)
    return as_shapes[0]


def _is_abstract(x: object) -> bool:
    leaves = jax.tree.leaves(x)
    return bool(leaves) and all(isinstance(leaf, jax.ShapeDtypeStruct) for leaf in leaves)


def check_batch_size(
    engine: str, batch: str, size: object, *, option: str = "clients_per_batch", auto: str = ""
) -> None:
    """Refuses a wrong number of clients per batch.

    Args:
        engine: The name of the engine, for the message.
        batch: What holds the clients, such as "one row of the DataFrame".
        size: The value of the option.
        option: The name of the option.
        auto: The meaning of "auto"; "" where the option does not take "auto".

    Raises:
        ProgramError: unless `size` is a positive int, or "auto" where that has a meaning.
    """
    if (auto and size == "auto") or (isinstance(size, int) and not isinstance(size, bool) and size >= 1):
        return
    rest = f', or "auto" for {auto}.' if auto else "; 32 is fast for small clients."
    message = (
        f"`{engine}` was given {option}={size!r}. It is the number of clients in {batch}: pass a positive int{rest}"
    )
    raise ProgramError(message)


def check_folder(engine: str, folder: str | Path | None) -> None:
    """Refuses a folder in which rows cannot wait.

    Args:
        engine: The name of the engine, for the message.
        folder: What the user gave.

    Raises:
        ProgramError: for an address such as "s3a://bucket/tmp", and for a folder that does not exist.
    """
    if folder is None or (not re.match(r"\w+:/", str(folder)) and Path(folder).is_dir()):
        return
    message = (
        f"`{engine}` was given folder={str(folder)!r}, which is not a folder of this machine's file system. Rows wait "
        "in files that this process and all workers read by the same path. Pass an existing folder; for workers on "
        "other machines, a folder of a mounted file system."
    )
    raise ProgramError(message)
