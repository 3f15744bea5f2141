"""Records of compiled modules: instructions, collectives, memory, cost, targets, shardings."""

from dataclasses import dataclass, field
from typing import Literal

from workbench.records._base import Record
from workbench.records.call_tree import CallTreeRecord
from workbench.records.hardware import ChipRecord, MeshRecord
from workbench.records.program import PlanRecord, SourceLine, StageKind
from workbench.records.sharding import CollectiveKind, PlannedCollectiveKind, PropagationRecord, ShardingRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePartRecord(Record):
    """One stage's share of an instruction's costs; a fusion has one part per stage."""

    stage: str | None  # path of the stage; None outside all stages
    kind: StageKind | Literal[""] = ""
    flops: float = 0.0
    elementwise_flops: float = 0.0
    accessed_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutineRecord(Record):
    """Work of a library routine that HLO does not state; the instruction's and module's FLOPs exclude this work.

    `work` is the work of one call: textbook FLOPs for factorisations and eigenvalues, comparisons for sorts and top-k.
    A batch of matrices or rows is a batch of calls.
    """

    kind: Literal["factorisation", "eigenvalues", "sort", "top-k"]
    work: float
    calls: float
    length: int = 0  # elements of one row that is sorted
    key_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionRecord(Record):
    """One HLO instruction; `executions` is the number of runs per call (None: unknown).

    `executions` is the product of the enclosing loops' trip counts. Costs are per device and per execution; multiply
    them by `executions`. `flops` counts dot products and convolutions, `elementwise_flops` counts one FLOP per element
    of an arithmetic operation or reduction, and `accessed_bytes` counts bytes of main memory. A fusion has the costs of
    all instructions fused into it, and `fused` instructions have no costs, so that sums over all instructions are the
    module's costs.
    """

    name: str
    opcode: str
    computation: str
    shape: str  # HLO text, with layout
    size_bytes: int
    executions: float | None
    flops: float = 0.0
    # FLOPs by kind of product: JAX's dtype of the operands, "float32:highest" at a stated precision,
    # "bfloat16*3" if an algorithm multiplies three times
    products: dict[str, float] = field(default_factory=dict)
    elementwise_flops: float = 0.0
    accessed_bytes: int = 0
    op_name: str = ""
    stage: str | None = None  # path of the stage: "3", "2.0"
    source: SourceLine | None = None
    operands: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()  # computations that it calls
    routine: RoutineRecord | None = None  # of a library, for a custom call or a sort
    memory_space: int = 0
    inferred: bool = False  # stage taken from neighbours, not from its own op_name
    fused: bool = False  # inside a fusion (or the region of a reduction), so its value never reaches memory
    kind: StageKind | Literal[""] = ""  # of the stage
    stage_parts: tuple[StagePartRecord, ...] = ()  # for a fusion with operations of several stages

    def by_stage(self) -> tuple[StagePartRecord, ...]:
        """The costs by stage: one part, or several parts for a fusion of several stages."""
        return self.stage_parts or (
            StagePartRecord(
                stage=self.stage,
                kind=self.kind,
                flops=self.flops,
                elementwise_flops=self.elementwise_flops,
                accessed_bytes=self.accessed_bytes,
            ),
        )

    def time_by_stage(self) -> tuple[tuple[StagePartRecord, float], ...]:
        """The parts of `by_stage`, each with its share of the time.

        Shares are proportional to matrix products if there are any, otherwise to bytes. The call tree divides the time
        of a fusion in the same way.
        """
        parts = self.by_stage()
        weights = [part.flops for part in parts] if self.flops else [float(part.accessed_bytes) for part in parts]
        total = sum(weights)
        shares = [weight / total if total else 1 / len(parts) for weight in weights]
        return tuple(zip(parts, shares, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRecord(Record):
    """One collective; per run, a device has an operand of `payload_bytes` and sends `wire_bytes` (ring algorithm)."""

    name: str
    kind: CollectiveKind
    # the user's mesh axes; ("clients[4 of 8]",) for a part of an axis; () if the groups are not a product of axes
    axes: tuple[str, ...]
    group_size: int
    groups: int
    payload_bytes: int
    wire_bytes: float | None  # None: the participants are written in an unknown syntax
    executions: float | None
    stages: tuple[str, ...] = ()  # more than one if the compiler combined several
    stage_shares: dict[str, float] = field(default_factory=dict)  # stage -> its share of the payload, if combined
    sources: tuple[SourceLine, ...] = ()
    op_names: tuple[str, ...] = ()
    algorithm: str | None = None
    asynchronous: bool = False
    reduction: str | None = None  # add, maximum, ...
    channel: int | None = None
    across_slices: bool = False  # a group spans several TPU slices
    hosts: int | None = None  # number of GPU hosts that a group spans; None: unknown, or no GPUs
    # chips along each torus dimension of a group, and whether the ends are wired together;
    # () if coordinates are unknown, or the group is not a box
    torus: tuple[tuple[int, bool], ...] = ()
    # sender and receiver of each message of a permute, as positions in the mesh;
    # () for other kinds, an unknown mesh, or more than 256 messages
    pairs: tuple[tuple[int, int], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def sent_bytes(self) -> float:
        """Bytes that one device sends per call; unknown bytes count as the operand's, and unknown executions as one."""
        once = self.payload_bytes if self.wire_bytes is None else self.wire_bytes
        return once * (1.0 if self.executions is None else self.executions)

    def by_stage(self) -> dict[str | None, float]:
        """Each stage's share; equal shares if the shares of the combined parts are unknown."""
        if self.stage_shares:
            return {**self.stage_shares}
        stages = self.stages or (None,)
        return dict.fromkeys(stages, 1 / len(stages))


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferRecord(Record):
    """A buffer that is live at the memory peak."""

    name: str
    size_bytes: int
    shape: str = ""
    op_name: str = ""
    source: SourceLine | None = None
    padding_bytes: int = 0  # part of `size_bytes` that is tile padding of the layout


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecord(Record):
    """Memory per device as planned by the compiler; None if this backend does not report it."""

    argument_bytes: int | None = None
    output_bytes: int | None = None
    temporary_bytes: int | None = None
    alias_bytes: int | None = None
    code_bytes: int | None = None
    peak_bytes: int | None = None
    available_bytes: int | None = None
    fits: bool | None = None
    largest: tuple[BufferRecord, ...] = ()  # alive at the peak, largest first
    padding_bytes: int | None = None  # tile padding of all buffers in `largest`
    timeline: tuple[tuple[str, int], ...] = ()  # (instruction, live bytes) in schedule order, if known
    notes: tuple[str, ...] = ()  # sources of the numbers, and missing numbers

    def within(self, chip: ChipRecord | None) -> "MemoryRecord":
        """Returns the memory with the available bytes of the chip's devices, unless the target's are known.

        Example:
            >>> from workbench.aot import known_chip
            >>> MemoryRecord(peak_bytes=2**34 + 1).within(known_chip("v5e")).fits
            False
        """
        if self.available_bytes is not None or self.peak_bytes is None or chip is None:
            return self
        available = chip.hbm_bytes // chip.devices_per_chip
        return self.replace(available_bytes=available, fits=self.peak_bytes <= available)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRecord(Record):
    """A compiled HLO module; `flops` and `accessed_bytes` are per device and call, including all loop iterations.

    `flops` and `accessed_bytes` are None if a loop of unknown length contributes to them; `notes` names the loop.
    """

    name: str
    platform: str
    devices: int
    instructions: tuple[InstructionRecord, ...]
    collectives: tuple[CollectiveRecord, ...]
    flops: float | None
    accessed_bytes: float | None
    memory: MemoryRecord
    attributed_instructions: float  # share with a stage, 0..1
    attributed_flops: float
    attributed_bytes: float
    call_tree: CallTreeRecord | None = None
    text: str = ""
    notes: tuple[str, ...] = ()  # missing values of a partial record, with reasons

    @property
    def elementwise_flops(self) -> float | None:
        """Elementwise and reduction FLOPs per device and call; None if a loop of unknown length contributes to them."""
        members = [instruction for instruction in self.instructions if instruction.elementwise_flops]
        if self.flops is None or any(instruction.executions is None for instruction in members):
            return None
        return sum(instruction.elementwise_flops * (instruction.executions or 0.0) for instruction in members)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCostRecord(Record):
    """Predicted cost of one stage per device and call; times are None if no chip is known."""

    stage: str
    kind: StageKind | Literal[""]
    name: str
    flops: float | None
    accessed_bytes: float | None
    collective_bytes: dict[str, float]  # mesh axis (joined by "+") -> bytes that one device sends
    compute_seconds: float | None = None
    memory_seconds: float | None = None
    collective_seconds: float | None = None
    collective_seconds_by_axis: dict[str, float] = field(default_factory=dict)  # keys as in `collective_bytes`
    operation_seconds: float | None = None  # seconds of all operations except collectives, one after another
    hidden_seconds: float = 0.0  # part of the collectives that overlaps with operations
    bound: Literal["compute", "memory", "collective", "unknown"] = "unknown"
    elementwise_flops: float | None = 0.0  # FLOPs of elementwise operations and reductions, which `flops` excludes
    unknown_because: tuple[str, ...] = ()  # reason for None values

    @property
    def seconds(self) -> float | None:
        """Time of operations and of the visible part of collectives, in seconds; None if a part is unknown.

        Without a compiled module, the time of operations is the larger of their compute and memory times.
        """
        if self.compute_seconds is None or self.memory_seconds is None or self.collective_seconds is None:
            return None
        operations = self.operation_seconds
        if operations is None:
            operations = max(self.compute_seconds, self.memory_seconds)
        return operations + max(0.0, self.collective_seconds - self.hidden_seconds)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientCostRecord(Record):
    """Predicted work of one client per call; `padded_examples` counts computed examples, including padding."""

    client: int
    device_id: int | None
    flops: float
    accessed_bytes: float
    examples: int | None = None
    padded_examples: int | None = None
    elementwise_flops: float = 0.0  # FLOPs of elementwise operations and reductions, which `flops` excludes


@dataclass(frozen=True, slots=True, kw_only=True)
class CostRecord(Record):
    """A cost prediction with its assumptions; never contains measured numbers.

    `clients` is empty if there are more than 100,000 clients; the stages and the waste figures still include the
    clients' work.
    """

    stages: tuple[StageCostRecord, ...]
    clients: tuple[ClientCostRecord, ...] = ()
    chip: ChipRecord | None = None
    seconds: float | None = None
    padding_waste: float | None = None  # share of client work spent on padding, 0..1
    lockstep_waste: float | None = None  # time of chunks divided by their clients' true work, minus 1
    imbalance_waste: float | None = None  # max/mean - 1 of the work of devices
    assumptions: tuple[str, ...] = ()
    error_bar: str = (
        "error unknown"  # error in `seconds`, with its points: "median error ±21 % over 3 …", or "error unknown"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramRecord(Record):
    """All information about a program that is available without a run."""

    name: str
    target: str  # "cpu x 8", "v5e:16x16"
    plan: PlanRecord
    mesh: MeshRecord | None = None
    inputs: ShardingRecord | None = None
    outputs: ShardingRecord | None = None
    propagation: PropagationRecord | None = None
    module: ModuleRecord | None = None
    cost: CostRecord | None = None
    traced_call_tree: CallTreeRecord | None = None  # the call tree of the jaxpr, if nothing was compiled
    stablehlo: str = ""
    notes: tuple[str, ...] = ()

    @property
    def call_tree(self) -> CallTreeRecord | None:
        """Costs by the user's functions, modules and lines, from the module or otherwise from the jaxpr."""
        compiled = None if self.module is None else self.module.call_tree
        return self.traced_call_tree if compiled is None else compiled


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRecord(Record):
    """A target machine, such as `v5e:16x16*4`; counts are totals over all slices.

    `topology` is `16x16` (chips along the axes of one slice's torus) or `4x8` (hosts x GPUs of one slice).
    """

    name: str  # canonical: "v5e:16x16*4", "h100:1x8"
    chip: str  # "v5e", "h100"
    platform: Literal["tpu", "cuda"]
    topology: str
    slices: int
    hosts: int
    chips: int
    devices: int  # JAX devices: two per chip on v2, v3 and tpu7x
    available_bytes: int  # HBM of one device that is available to a program
    seen: bool = True  # this version of the workbench was tested with this topology
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetAvailability(Record):
    """One kind of chip, and whether its compiler is installed (or the command that installs it)."""

    chip: str
    platform: Literal["tpu", "cuda"]
    description: str
    topologies: tuple[str, ...]  # tested topologies, smallest first
    installed: bool
    compiler: str  # "libtpu 0.0.42.1"; "" if it is not installed
    install: str  # "" if it is installed
    terms: str  # licence terms of the compiler


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetCompilation(Record):
    """Ahead-of-time compilation for absent hardware; contains no measurements of that hardware.

    For a program that does not fit, `memory.fits` is False and `error` is the compiler's message. `hlo` is then from
    the last completed phase: scheduled and with buffers assigned, before code generation.
    """

    target: TargetRecord
    hlo: str
    memory: MemoryRecord
    mesh: MeshRecord
    order: Literal["topology", "naive"]
    seconds: float  # compile time on this machine, possibly in an earlier run
    cached: bool
    cost_analysis: dict[str, float] = field(default_factory=dict)  # XLA's count: loop bodies count once; -1: unknown
    needed_bytes: int | None = None  # per device, if it does not fit
    error: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledCostRecord(Record):
    """Estimated cost with different numbers of clients, parameters and devices, without compiling.

    `cost.assumptions` lists the assumptions of the estimate.
    """

    cost: CostRecord
    memory: MemoryRecord | None  # only totals; None if the compiler's totals are unknown
    clients: int  # the size of `placement`
    clients_per_device: int  # number of clients on the fullest device
    chunk_size: int
    devices: int
    idle_devices: int  # number of devices without clients
    model: float  # times the parameters
    placement: str = "clients"  # name of the placement that the estimate changes
    chunks: str = ""  # chunk size of the estimate and who chose it
    error: str = ""  # measured differences between estimates and recompiled programs


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficRecord(Record):
    """The collectives with the same kind, mesh axes and stage in two versions of a program.

    Runs and bytes are per call of the program, including all loop iterations; without such collectives, they are zero.
    Bytes are sums over the operands of one device. Runs and bytes are None if a loop of unknown length
    contains some of the collectives.
    """

    kind: PlannedCollectiveKind
    axes: tuple[str, ...]
    stage: str | None
    stage_name: str = ""
    runs_before: float | None = 0.0
    runs_after: float | None = 0.0
    before_bytes: float | None = 0.0
    after_bytes: float | None = 0.0
    sources: tuple[SourceLine, ...] = ()  # lines of the changed program, or of the former one; most bytes first

    @property
    def change(self) -> Literal["added", "removed", "more", "less", "same"]:
        """The change in runs and bytes."""
        if self.runs_before == 0 and self.runs_after != 0:
            return "added"
        if self.runs_after == 0 and self.runs_before != 0:
            return "removed"
        before, after = self.before_bytes or 0.0, self.after_bytes or 0.0
        return "same" if before == after else "more" if after > before else "less"


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIfRecord(Record):
    """A program compared with a version that has different argument shardings; neither was run.

    `planned` compares the collectives that Shardy requests; a collective in a loop counts once.
    `compiled` holds the comparison of the compiled modules' collectives (None if not compiled). The two are never
    mixed.
    """

    specs: dict[str, tuple[tuple[str, ...], ...]]  # requested shardings: leaf -> mesh axes per dimension
    before: ProgramRecord
    after: ProgramRecord
    planned: tuple[TrafficRecord, ...] = ()
    compiled: tuple[TrafficRecord, ...] | None = None
    notes: tuple[str, ...] = ()

    @property
    def traffic(self) -> tuple[TrafficRecord, ...]:
        """The comparison of compiled collectives if available, otherwise of the collectives that Shardy requests."""
        return self.planned if self.compiled is None else self.compiled
