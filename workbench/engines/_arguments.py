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


def check_clients_per_batch(engine: str, batch: str, clients_per_batch: object) -> None:
    """Refuses what is no number of clients.

    Args:
        engine: The name of the engine, for the message.
        batch: What holds the clients, such as "one row of the DataFrame".
        clients_per_batch: What the user gave.

    Raises:
        ProgramError: unless it is a positive int.
    """
    if not isinstance(clients_per_batch, int) or isinstance(clients_per_batch, bool) or clients_per_batch < 1:
        message = (
            f"`{engine}` was given clients_per_batch={clients_per_batch!r}. It is the number of clients in {batch}: "
            "pass a positive int; 32 is fast for small clients."
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
        f"`{engine}` was given folder={str(folder)!r}, which is no folder of this machine's file system. Rows wait in "
        "files that this process and all workers read by the same path. Pass an existing folder; for workers on other "
        "machines, a folder of a mounted file system."
    )
    raise ProgramError(message)
