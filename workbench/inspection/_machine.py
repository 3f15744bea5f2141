"""The option `on=`: a mesh, a compilation target, or a chip whose rates determine the predicted times."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from jax.sharding import AbstractMesh, Mesh

from workbench.aot import is_target, known_chip
from workbench.errors import MeshError

On: TypeAlias = Mesh | AbstractMesh | str | Sequence[Mesh | AbstractMesh | str | None] | None
"""A mesh; a target such as "v5e:16x16"; a chip such as "v5e"; a sequence of these; None for the present devices."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine that a question refers to, read from `on=`.

    Attributes:
        mesh: Mesh of the program; None means the mesh set by `jax.set_mesh`.
        target: Target to compile for, such as "v5e:16x16"; None means the devices of the mesh.
        chip: Chip whose rates determine the predicted times, such as "v5e"; None means the chip of the target.
    """

    mesh: Mesh | AbstractMesh | None = None
    target: str | None = None
    chip: str | None = None

    @property
    def priced(self) -> str | None:
        """The chip whose rates determine the predicted times."""
        return self.chip or (None if self.target is None else self.target.partition(":")[0])


def machine_of(on: On, question: str, *, reads: Sequence[str] = ("mesh", "target", "chip")) -> Machine:
    """Reads the option `on=` that a question received.

    Args:
        on: A mesh; a compilation target with its topology ("v5e:16x16", "v5e-16"); a chip whose rates determine the
            predicted times ("v5e", "here", or a calibration file); or a sequence of at most one mesh, one target and
            one chip. The network between hosts follows "@", as in "h100:4x8@8x400G".
        question: Name of the function that the user called, used in errors.
        reads: Parts that the question uses; any other part raises an error.

    Returns:
        The machine.

    Raises:
        MeshError: for an unknown chip, for two meshes, two targets or two chips, and for values of other types.

    Example:
        >>> machine_of((AbstractMesh((4,), ("data",)), "v5e"), "inspect").chip
        'v5e'
        >>> machine_of("v5e:4x4", "inspect").priced
        'v5e'
        >>> machine_of("h100:4x8@8x400G", "inspect").priced
        'h100@8x400G'
    """
    machine = Machine()
    for part in parts_of(on):
        if isinstance(part, Mesh | AbstractMesh):
            field = "mesh"
        elif isinstance(part, str):
            name, stated, network = part.partition("@")
            field = "target" if is_target(name) else "chip"
            if stated and field == "target":  # the network is part of the rates
                machine = dataclasses.replace(machine, chip=f"{name.partition(':')[0]}@{network}")
                part = name
        else:
            message = (
                f"`{question}` was given on={part!r:.120}, an object of type {type(part).__name__}. A machine is a "
                'mesh, a target such as "v5e:16x16" or a chip such as "v5e": pass one of these, or a tuple of several.'
            )
            raise MeshError(message)
        if field not in reads:
            message = (
                f"`{question}` was given the {field} {part!r}. `{question}` reads only "
                f"{' and '.join(f'a {name}' for name in reads)}: omit the {field}, or pass the {field} to `inspect`."
            )
            raise MeshError(message)
        if getattr(machine, field) is not None:
            message = (
                f"`{question}` was given two {'meshes' if field == 'mesh' else field + 's'}: {getattr(machine, field)} "
                f"and {part}. Pass at most one mesh, one target and one kind of chip, and call `{question}` again for "
                "the others."
            )
            raise MeshError(message)
        machine = dataclasses.replace(machine, **{field: part})
    if machine.chip is not None:
        known_chip(machine.chip)  # raises an error for unknown chips that lists the names in the table
    return machine


def parts_of(on: On) -> tuple[Mesh | AbstractMesh | str, ...]:
    """The machines that `on=` names, in order."""
    if on is None:
        return ()
    return tuple(part for part in on if part is not None) if isinstance(on, list | tuple) else (on,)  # pyright: ignore[reportReturnType]
