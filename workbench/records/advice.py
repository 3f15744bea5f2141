"""Records of findings, searches and comparisons of programs."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from workbench.errors import needs_library
from workbench.records._base import Record, renderer
from workbench.records.call_tree import CallTreeRecord
from workbench.records.program import SourceLine

if TYPE_CHECKING:
    import pandas as pd

Spec = tuple[tuple[str, ...], ...]
Quantity = Literal[
    "bytes sent",
    "bytes sent x links",
    "peak bytes",
    "argument bytes",
    "seconds",
    "measured seconds",
    "FLOPs",
    "elementwise FLOPs",
    "instructions started",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class GainRecord(Record):
    """Savings from a change, per device and call; `verified` means that the changed program was compiled."""

    quantity: Quantity
    before: float
    after: float
    verified: bool
    how: str = ""  # how it was verified, or why it could not be verified
    saved_interval: tuple[float, float] | None = None  # 95 % interval of the saved share, for measured seconds

    @property
    def saved_share(self) -> float:
        """The share of `before` that is saved, 0..1; 0 if `before` is 0."""
        return 0.0 if not self.before else 1 - self.after / self.before


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRecord(Record):
    """One finding: observation, cause, suggested change, and its saving."""

    rule: str
    what: str  # one sentence: the title
    why: str
    change: str  # suggested change as text, with the user's names
    evidence: tuple[str, ...]
    weight: float  # share of the program's total that the finding affects, 0..1; findings are ranked by this share
    code: str = ""  # code for the change, to paste; empty if the rule cannot write it
    instructions: tuple[str, ...] = ()  # of the compiled module
    nodes: tuple[int, ...] = ()  # of the call tree: `CallNodeRecord.id`
    leaves: tuple[str, ...] = ()  # arguments, by their path in `inspect().inputs`
    axes: tuple[str, ...] = ()  # of the mesh
    size_bytes: float | None = None  # affected bytes, sent or in memory, per device and call
    seconds: float | None = None  # predicted seconds of the instructions; None without a chip
    sources: tuple[SourceLine, ...] = ()
    gain: GainRecord | None = None
    specs: dict[str, Spec] = field(default_factory=dict)  # advised specs by path, as for `what_if`
    compared: tuple[GainRecord, ...] = ()  # other totals of the program before and after the change, once compiled

    @property
    def is_verified(self) -> bool:
        """True if the changed program was compiled."""
        return self.gain is not None and self.gain.verified

    @property
    def costs(self) -> tuple[GainRecord, ...]:
        """Totals that the compiled change increases by over 5 %, excluding elementwise FLOPs and measured time."""
        apart = ("elementwise FLOPs", "measured seconds")
        return tuple(g for g in self.compared if g.quantity not in apart and g.after > 1.05 * g.before)

    @property
    def run_gain(self) -> GainRecord | None:
        """Measured time in seconds before and after the change; None if the programs were not run."""
        return next((row for row in self.compared if row.quantity == "measured seconds"), None)

    @property
    def saved_seconds(self) -> float | None:
        """Share of the time that the compiled change saves, measured or otherwise predicted; None if unknown."""
        shares = {row.quantity: row.saved_share for row in self.compared}
        return shares.get("measured seconds", shares.get("seconds"))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceRecord(Record):
    """Findings about one program, most important first, and the rules that were checked."""

    name: str
    target: str
    findings: tuple[FindingRecord, ...]
    checked: tuple[str, ...]
    notes: tuple[str, ...] = ()
    error_bar: str = ""  # error in the predicted seconds, with its points, or "error unknown"; "" without a chip


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecGroupRecord(Record):
    """Arguments that share one spec, such as a parameter in all layers together with its optimizer state."""

    pattern: str  # "params['layers'][*]['up']"
    shape: tuple[int, ...]
    dtype: str
    leaves: tuple[str, ...]  # as written in the program
    size_bytes: int  # bytes of all arguments together, unsharded
    locked: bool = False
    is_reference: bool = False  # a `jax.Ref`, which is updated in place


@dataclass(frozen=True, slots=True, kw_only=True)
class JitRecord(Record):
    """The jit of a searched function, and the results that replace arguments."""

    wrapper: str = "jax.jit"  # or "nnx.jit", "eqx.filter_jit"
    results: str = "None"  # as a template of the replaced arguments: "(%s, %s, None)"; for `nnx.jit`, its arguments
    updated: tuple[str, ...] = ()  # arguments for the template: "params", "opt_state"
    options: str = ""  # donated and static arguments: "donate_argnums=(0, 1)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingChoiceRecord(Record):
    """One choice of specs, with its predicted cost per device and call, and its measured cost if it was run."""

    name: str  # "as given", "data parallel over data", "found 1"
    mesh: dict[str, int]  # axes of the mesh, in order
    specs: dict[str, Spec]  # by pattern; all other arguments are replicated
    seconds: float | None
    peak_bytes: int | None
    argument_bytes: int | None
    sent_bytes: dict[str, float] = field(default_factory=dict)  # by mesh axes, joined by "+"
    fits: bool | None = None  # None if the device memory is unknown
    how: Literal["planned", "rehearsed", "compiled"] = "planned"  # rehearsed: compiled for CPU devices instead
    pareto: bool = False  # no other choice is both faster and smaller
    note: str = ""
    chunk_size: int | None = None  # clients that a device processes together; None: all, or a program without clients
    # specs that the compiler gives to these results only on request, by position among the arrays in the results
    results: dict[str, Spec] = field(default_factory=dict)
    measured_seconds: float | None = None  # median wall time of a call; None: not run
    measured_interval: tuple[float, float] | None = None  # 95 % interval of this median


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceRecord(Record):
    """The smallest slice of a chip family on which a program fits, and the time of a call on it."""

    chip: str
    target: str  # "v5e:4x4"; the largest tried slice if none fits
    fits: bool
    chips: int
    devices: int
    peak_bytes: int | None
    available_bytes: int | None
    seconds: float | None
    specs: dict[str, Spec] = field(default_factory=dict)
    mesh: dict[str, int] = field(default_factory=dict)
    chunk_size: int | None = None  # clients that a device processes together; None: all, or a program without clients
    tried: tuple[str, ...] = ()  # slices, smallest first: "v5e:2x2: a device needs 20 GiB, but has 15.8 GiB (compiled)"
    how: Literal["planned", "rehearsed", "compiled"] = "planned"
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRecord(Record):
    """Result of a search: choices of shardings, meshes and chunk sizes, fastest fitting choice first."""

    name: str
    chip: str
    target: str  # compile target of the best choices
    choices: tuple[ShardingChoiceRecord, ...]
    groups: tuple[SpecGroupRecord, ...]
    planned_count: int
    compiled_count: int
    seconds_spent: float
    ended: Literal["complete", "time", "stopped"]
    error_bar: str = ""  # error in the predicted seconds, with its points, or "error unknown"
    arguments: tuple[str, ...] = ()  # arguments of the function, in order
    jit: JitRecord = field(default_factory=JitRecord)
    slices: tuple[SliceRecord, ...] = ()  # for a search for the smallest slice: one entry per chip, in the given order
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> ShardingChoiceRecord:
        """The fastest choice that fits."""
        return self.choices[0]

    @property
    def specs(self) -> Mapping[str, Spec]:
        """The specs of the best choice for every leaf, in the form that `what_if` accepts."""
        specs = self.best.specs
        return {leaf: specs[group.pattern] for group in self.groups for leaf in group.leaves if group.pattern in specs}

    def code(self, choice: int = 0, *, style: Literal["rules", "in_shardings", "nnx"] = "rules") -> str:
        """Writes Python source that applies the specs of a choice.

        Args:
            choice: Position in `choices`.
            style: "rules" writes rules by path and places the arguments with them; "in_shardings" passes the rules to
                `jax.jit` and needs no arrays; "nnx" writes one `nnx.with_partitioning` per parameter.

        Raises:
            InspectionError: for "in_shardings", if an argument contains a `jax.Ref`.

        Example:
            >>> mesh, shape = jax.sharding.AbstractMesh((8,), ("data",)), jax.ShapeDtypeStruct((512, 512), "float32")
            >>> search = wb.search(lambda w, batch: batch @ w, on=mesh, compiled=False)(shape, shape)
            >>> "batch" in search.code()
            True
        """
        write = renderer().sharding_code
        references = any(group.is_reference for group in self.groups)
        return write(
            self.choices[choice],
            style=style,
            arguments=self.arguments,
            function=self.name,
            references=references,
            groups=self.groups,
            jit=self.jit,
        )

    def to_pandas(self) -> "pd.DataFrame":
        """One row per choice, with the predicted time and the bytes per mesh axis; or one row per slice.

        Raises:
            MissingDependencyError: without pandas.
        """
        with needs_library("pandas", needed_for="`to_pandas`"):
            import pandas as pd
        if self.slices:
            exclusions = ("specs", "mesh", "tried")
            names = [column.name for column in dataclasses.fields(SliceRecord) if column.name not in exclusions]
            return pd.DataFrame([{name: getattr(row, name) for name in names} for row in self.slices])
        axes = list(dict.fromkeys(axis for choice in self.choices for axis in choice.sent_bytes))
        rows = [
            {
                "choice": choice.name,
                "mesh": "x".join(f"{name}={size}" for name, size in choice.mesh.items()),
                "chunk_size": choice.chunk_size,
                "seconds": choice.seconds,
                "measured_seconds": choice.measured_seconds,
                "peak_bytes": choice.peak_bytes,
                "argument_bytes": choice.argument_bytes,
                **{f"sent_{axis}": choice.sent_bytes.get(axis, 0.0) for axis in axes},
                "fits": choice.fits,
                "how": choice.how,
                "pareto": choice.pareto,
            }
            for choice in self.choices
        ]
        return pd.DataFrame(rows)


Unit = Literal["", "count", "bytes", "flops", "seconds"]
Group = Literal[
    "program",
    "stages",
    "collectives",
    "bytes sent per collective",
    "collective strategy",
    "planned collectives",
    "per device",
    "profile",
    "seconds per category",
    "seconds per call path",
    "seconds per program",
    "measured",
    "seconds per stage",
    "seconds per line",
    "FLOPs per line",
    "memory traffic per line",
    "bytes sent per line",
    "peak memory per line",
    "predicted seconds per line",
]
Status = Literal["same", "changed", "added", "removed", "unknown"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRecord(Record):
    """One quantity in each compared program; None if it is missing or unknown."""

    group: Group
    name: str
    values: tuple[float | str | None, ...]
    unit: Unit = ""
    # status of the last program compared with the first; "unknown": known only in some programs
    status: Status = "same"
    lines: tuple[SourceLine, ...] = ()  # lines that a collective comes from, in the last program that has it

    @property
    def ratio(self) -> float | None:
        """The last value divided by the first; None if undefined."""
        first, last = self.values[0], self.values[-1]
        if isinstance(first, str) or isinstance(last, str) or first is None or last is None or first == 0:
            return None
        return last / first


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRecord(Record):
    """Several programs compared, in the given order."""

    names: tuple[str, ...]
    targets: tuple[str, ...]
    rows: tuple[ComparedRecord, ...]
    notes: tuple[str, ...] = ()
    trees: tuple[CallTreeRecord, ...] = ()  # the programs' call trees, if all programs have one

    @property
    def differences(self) -> tuple[ComparedRecord, ...]:
        """The rows that differ between programs."""
        return tuple(row for row in self.rows if row.status != "same")
