"""Records of a search for shardings, meshes and the smallest slices that a program fits on."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from workbench.errors import needs_library
from workbench.records._base import Record, renderer

if TYPE_CHECKING:
    import pandas as pd

Spec = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecGroupRecord(Record):
    """Arguments that share one spec: the same parameter of all layers, with what the optimizer keeps for it."""

    pattern: str  # "params['layers'][*]['up']"
    shape: tuple[int, ...]
    dtype: str
    leaves: tuple[str, ...]  # as one writes them in the program
    size_bytes: int  # of all of them, whole
    locked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingChoiceRecord(Record):
    """One choice of specs and what it costs one device in one call, predicted."""

    name: str  # "as given", "data parallel over data", "found 1"
    mesh: dict[str, int]  # axes of the mesh, in order
    specs: dict[str, Spec]  # by pattern; what is not named is replicated
    seconds: float | None
    peak_bytes: int | None
    argument_bytes: int | None
    sent_bytes: dict[str, float] = field(default_factory=dict)  # by mesh axes, joined by "+"
    fits: bool | None = None  # None: the memory of a device is not known
    how: Literal["planned", "rehearsed", "compiled"] = "planned"  # rehearsed: compiled for CPU devices, not the chip
    pareto: bool = False  # no other choice is both faster and smaller
    note: str = ""
    chunk_size: int | None = None  # clients that a device computes together; None: all, or a program without clients


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRecord(Record):
    """The smallest slice of one family on which a program fits, and what one call takes there."""

    chip: str
    target: str  # "v5e:4x4"; the largest that was tried where none fits
    fits: bool
    chips: int
    devices: int
    peak_bytes: int | None
    available_bytes: int | None
    seconds: float | None
    specs: dict[str, Spec] = field(default_factory=dict)
    mesh: dict[str, int] = field(default_factory=dict)
    chunk_size: int | None = None  # clients that a device computes together; None: all, or a program without clients
    tried: tuple[str, ...] = ()  # slices from the smallest: "v5e:2x2: a device needs 20 GiB of 15.8 GiB, compiled"
    how: Literal["planned", "rehearsed", "compiled"] = "planned"
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRecord(Record):
    """Result of a search: choices of shardings, meshes and chunk sizes, the fastest choice that fits first."""

    name: str
    chip: str
    target: str  # what the best choices were compiled for
    choices: tuple[ShardingChoiceRecord, ...]
    groups: tuple[SpecGroupRecord, ...]
    planned_count: int
    compiled_count: int
    seconds_spent: float
    ended: Literal["complete", "time", "stopped"]
    arguments: tuple[str, ...] = ()  # of the function, in order
    slices: tuple[SliceRecord, ...] = ()  # of a search for the smallest slice: one per chip, in the order given
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> ShardingChoiceRecord:
        """The fastest choice that fits."""
        return self.choices[0]

    @property
    def specs(self) -> Mapping[str, Spec]:
        """The specs of the best choice for every leaf, as `what_if` takes them."""
        found = self.best.specs
        return {leaf: found[group.pattern] for group in self.groups for leaf in group.leaves if group.pattern in found}

    def code(self, choice: int = 0, *, style: Literal["rules", "in_shardings", "nnx"] = "rules") -> str:
        """Python source that gives the program the specs of a choice.

        Args:
            choice: Position in `choices`.
            style: "rules" writes rules by path and places the arguments by them; "in_shardings" hands the rules to
                `jax.jit`, which needs no arrays; "nnx" writes one `nnx.with_partitioning` per parameter.

        Example:
            >>> mesh, shape = jax.sharding.AbstractMesh((8,), ("data",)), jax.ShapeDtypeStruct((512, 512), "float32")
            >>> search = wb.search(lambda w, batch: batch @ w, on=mesh, compiled=False)(shape, shape)
            >>> "batch" in search.code()
            True
        """
        write = renderer().sharding_code
        return write(self.choices[choice], style=style, arguments=self.arguments, function=self.name)

    def to_pandas(self) -> "pd.DataFrame":
        """One row per choice with predicted seconds and bytes per mesh axis; of a search for slices one row per slice.

        Raises:
            MissingDependencyError: without pandas.
        """
        with needs_library("pandas", needed_for="`to_pandas`"):
            import pandas as pd
        if self.slices:
            left_out = ("specs", "mesh", "tried")
            names = [each.name for each in dataclasses.fields(SliceRecord) if each.name not in left_out]
            return pd.DataFrame([{name: getattr(row, name) for name in names} for row in self.slices])
        axes = list(dict.fromkeys(axis for choice in self.choices for axis in choice.sent_bytes))
        rows = [
            {
                "choice": each.name,
                "mesh": "x".join(f"{name}={size}" for name, size in each.mesh.items()),
                "chunk_size": each.chunk_size,
                "seconds": each.seconds,
                "peak_bytes": each.peak_bytes,
                "argument_bytes": each.argument_bytes,
                **{f"sent_{axis}": each.sent_bytes.get(axis, 0.0) for axis in axes},
                "fits": each.fits,
                "how": each.how,
                "pareto": each.pareto,
            }
            for each in self.choices
        ]
        return pd.DataFrame(rows)
