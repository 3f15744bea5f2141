"""A program whose cost on a chip can be determined for any argument shardings, by planning or by compiling."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import jax
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from workbench._jax_compat import shardy, shardy_trials
from workbench._open_types import AS_GIVEN, AsGiven
from workbench._processes import UNUSED_DONATIONS_ARE_FINE
from workbench._types import ArrayLikeType
from workbench.advice._search._groups import ArgumentLeaf, Spec, SpecGroup, fits, group_leaves
from workbench.advice._search._results import read_jit
from workbench.advice._search._stand_in import as_accelerator
from workbench.aot import compile_for_cpu, compile_for_target, list_targets, parse_target
from workbench.cost import (
    CHIPS,
    collective_seconds,
    estimate_cost,
    family_of,
    known_chip,
    largest_dtype,
    predict_operation,
    product_peak,
)
from workbench.errors import InspectionError, WorkbenchError
from workbench.inspection import TracedCall, inspect_mesh, inspect_module, on_mesh, plan_call
from workbench.plan import ChunkSize, choose_chunk_size, main_product
from workbench.records.advice import JitRecord
from workbench.records.compiled import CostRecord, MemoryRecord, ModuleRecord, TargetRecord
from workbench.records.hardware import ChipRecord

Assignment = tuple[Spec | None, ...]  # one spec per group; None leaves the group to propagation


@dataclass(frozen=True)
class Priced:
    """Cost of one assignment, per call and device."""

    specs: tuple[Spec, ...]
    seconds: float | None
    peak_bytes: float | None
    argument_bytes: float | None
    sent: dict[str, float] = field(default_factory=dict)
    fits: bool | None = None
    how: Literal["planned", "rehearsed", "compiled"] = "planned"
    note: str = ""
    flops: float | None = None  # bytes on one device; None if compiled
    traffic_seconds: float | None = None  # seconds of memory traffic; None if compiled
    counts_plan: bool = False  # uses the plan's memory traffic, because the CPU compiler's traffic is larger


class SearchProgram:
    """A traced call on one mesh, whose cost can be predicted for any specs of its arguments.

    Args:
        call: The traced call.
        mesh: The mesh; its axes are treated as Auto, so that the compiler may reshard.
        chip: The chip for which execution times are predicted.
        compiler: "auto" compiles for the chip if its compiler is installed, otherwise for CPU devices.
        memory_bytes: Memory that one device may use; by default the memory of the chip.
        target: The machine; by default a machine of the chip with as many devices as the mesh.
        chunk_size: Clients that a device processes together; by default the call's own setting. "auto" chooses for the
            chip, not for the devices of this process.
    """

    def __init__(
        self,
        call: TracedCall,
        mesh: Mesh | AbstractMesh,
        chip: str,
        *,
        compiler: Literal["auto", "cpu"] = "auto",
        memory_bytes: int | None = None,
        target: TargetRecord | None = None,
        chunk_size: ChunkSize | AsGiven = AS_GIVEN,
    ) -> None:
        self.call: TracedCall = call.without_references().with_shapes()
        self.axes: dict[str, int] = dict(mesh.shape)
        self.mesh: AbstractMesh = AbstractMesh(
            tuple(self.axes.values()), tuple(self.axes), axis_types=(AxisType.Auto,) * len(self.axes)
        )
        self.chip: ChipRecord = _chip(chip)
        self._chip_name = chip
        self.target: TargetRecord | None = None
        if compiler == "auto":
            self.target = target_of(chip, mesh.size) if target is None else target if _is_installed(target) else None
        self.memory_bytes: int = memory_bytes or (
            (self.target or target).available_bytes  # pyright: ignore[reportOptionalMemberAccess]
            if self.target or target
            else self.chip.hbm_bytes // self.chip.devices_per_chip
        )
        self._mesh_record = inspect_mesh(self.mesh)
        self._options: dict[str, Any] = {"compiler": compiler, "memory_bytes": memory_bytes, "target": target}
        self.call.chunk_size = self.chunk_rule(call.chunk_size if chunk_size is AS_GIVEN else chunk_size)
        with self._explained():
            described = plan_call(self.call, self.mesh)
        self.chunk_size: int | None = described.chunk_size
        main = main_product(self.call.closed)
        is_known = main is not None and product_peak(main, self.chip) is not None
        self.dtype: str = main if main is not None and is_known else largest_dtype(described, self.chip)
        self.clients: dict[str, int] = {p.name: p.size for p in described.placements}
        self._given, results, text = self._lowered()
        outputs = [
            (self.call.result_name(jax.tree_util.keystr(path)), tuple(info.shape), str(info.dtype))
            for path, info in jax.tree_util.tree_flatten_with_path(results)[0]
        ]
        self.leaves: list[ArgumentLeaf] = [
            ArgumentLeaf(name, tuple(aval.shape), str(aval.dtype), _item_bytes(aval))
            for name, aval in zip(self.call.names, self.call.closed.in_avals, strict=True)  # a leaf may be a number
        ]
        replaced = self.call.references
        self.groups: list[SpecGroup] = group_leaves(self.leaves, outputs[: len(outputs) - len(replaced)])
        for group in self.groups:
            group.is_reference = group.leaves[0] in replaced
            last = [len(outputs) - len(replaced) + at for at, leaf in enumerate(replaced) if leaf in group.leaves]
            group.outputs.extend(last)
        names = [
            [self.leaves[i].name for g in self.groups if at in g.outputs for i in g.leaves]
            for at in range(len(outputs))
        ]
        self.jit: JitRecord
        self.jit, pinned = read_jit(call, results[0] if replaced else results, names)
        self._pinned: frozenset[int] = pinned.union(range(len(outputs) - len(replaced), len(outputs)))
        try:
            self._trials = shardy_trials.ShardyTrials(text)
        except shardy.ShardyError as error:
            raise InspectionError(_refused(self.call.name, error)) from error
        self._planned: dict[tuple[Assignment, tuple[int, ...]], Priced] = {}
        self.planned_count: int = 0
        self.compiled_count: int = 0
        self.counts_once: bool = False  # whether a compiled program has a loop of unknown length

    def with_chunk_size(self, chunk_size: int) -> "SearchProgram":
        """The same program and mesh with another chunk size; locked specs stay locked."""
        program = SearchProgram(self.call, self.mesh, self._chip_name, chunk_size=chunk_size, **self._options)
        for group, its in zip(self.groups, program.groups, strict=True):
            its.locked = group.locked
        return program

    def chunk_rule(self, chunk_size: ChunkSize) -> ChunkSize:
        """Chunk size that `workbench.jit` would use on the chip: "auto" follows the chip's rule."""
        if chunk_size != "auto":
            return chunk_size
        platform = {"TPU": "tpu", "CPU": "cpu"}.get(family_of(self.chip), "cuda")
        return functools.partial(choose_chunk_size, platform=platform, memory_bytes=self.memory_bytes)

    @property
    def where(self) -> str:
        """Target of the compilation."""
        return self.target.name if self.target else f"cpu x {self.mesh.size}"

    @property
    def given(self) -> Assignment | None:
        """The specs given for the arguments; None if no argument was sharded."""
        specs = []
        for group in self.groups:
            spec = self._given[group.leaves[0]]
            specs.append(spec if spec is not None and fits(spec, group.shape, self.axes) else ((),) * len(group.shape))
        return tuple(specs) if any(any(spec) for spec in specs) else None

    def plan(self, assignment: Assignment, *, without: tuple[int, ...] = ()) -> Priced:
        """Cost from propagation and the cost model, without a compiler.

        Args:
            assignment: The specs.
            without: Positions of the program's sharding constraints to omit.

        Raises:
            InspectionError: if jaxlib's Shardy rejects the program.
        """
        entry = self._planned.get((assignment, without))
        if entry is not None:
            return entry
        try:
            trial = self._trials.plan(*self._attributes(assignment), without=without)
        except shardy.ShardyError as error:
            raise InspectionError(_refused(self.call.name, error)) from error
        self.planned_count += 1
        resolved = tuple(
            spec if spec is not None else _common([trial.inputs[i] for i in group.leaves], group, self.axes)
            for spec, group in zip(assignment, self.groups, strict=True)
        )
        compute = predict_operation(trial.flops, 0.0, self.dtype, self.chip, kind="matrix product").seconds
        memory = predict_operation(0.0, trial.traffic_bytes, self.dtype, self.chip).seconds
        traffic: dict[str, float] = {}
        seconds: float | None = max(compute, memory)
        for collective in trial.collectives:
            once = collective_seconds(collective.kind, collective.payload_bytes, collective.group_size, self.chip)
            seconds = None if once is None or seconds is None else seconds + once * collective.executions
            axis = "+".join(collective.axes)
            share = {"all-gather": collective.group_size - 1.0, "all-reduce": 2 * (1 - 1 / collective.group_size)}
            factor = share.get(collective.kind, 1 - 1 / collective.group_size)
            traffic[axis] = traffic.get(axis, 0.0) + collective.payload_bytes * factor * collective.executions
        priced = Priced(
            specs=resolved,
            seconds=seconds,
            peak_bytes=trial.peak_bytes,
            argument_bytes=trial.argument_bytes,
            sent=traffic,
            flops=trial.flops,
            traffic_seconds=memory,
            fits=trial.peak_bytes <= self.memory_bytes,
        )
        self._planned[assignment, without] = priced
        return priced

    def requested_results(self, specs: Sequence[Spec]) -> dict[int, Spec]:
        """The specs to request for results that replace arguments; empty if propagation chooses them anyway."""
        inputs, outputs = self._attributes(tuple(specs))
        return outputs if outputs and self._trials.plan(inputs, {}) != self._trials.plan(inputs, outputs) else {}

    def allows(self, spec: Spec, shape: Sequence[int]) -> bool:
        """Returns whether a spec shards a shape evenly over the mesh axes."""
        return fits(spec, shape, self.axes)

    def compile(
        self,
        specs: Sequence[Spec],
        *,
        progress: Callable[[str, float], None] | None = None,
        cancel: threading.Event | None = None,
        timeout_seconds: float | None = None,
    ) -> Priced:
        """Cost on the chip, after compiling for the target or, without a target, for CPU devices.

        Raises:
            EngineError: if the compiler dies or takes too long, or `cancel` is set.
        """
        if self.target is None:
            return self.rehearse(specs, progress=progress, cancel=cancel, timeout_seconds=timeout_seconds)
        text = self._trials.text(*self._attributes(tuple(specs)))
        compilation = compile_for_target(
            text, self.target, mesh_axes=self.axes, progress=progress, cancel=cancel, timeout_seconds=timeout_seconds
        )
        hlo, memory = compilation.hlo, compilation.memory
        self.compiled_count += 1
        peak = memory.peak_bytes
        room = peak is not None and peak <= self.memory_bytes and memory.fits is not False
        if not hlo or memory.fits is False:
            note = _first_line(compilation.error)
            return Priced(tuple(specs), None, peak, memory.argument_bytes, {}, False, "compiled", note)
        module = self._counted(inspect_module(hlo, mesh=self._mesh_record, platform=self.target.platform))
        cost = estimate_cost(module, None, chip=self.chip, mesh=self._mesh_record, dtype=self.dtype)
        return Priced(tuple(specs), cost.seconds, peak, _arguments(memory), _sent(cost), room, "compiled")

    def rehearse(
        self,
        specs: Sequence[Spec],
        *,
        progress: Callable[[str, float], None] | None = None,
        cancel: threading.Event | None = None,
        timeout_seconds: float | None = None,
    ) -> Priced:
        """Cost on the chip, after compiling for CPU devices.

        Compiling for CPU devices takes about a second; the chip's own compiler takes about a minute. FLOPs and
        collectives come from the compiled program. Memory traffic is the smaller figure of the plan and the compiled
        program. The CPU compiler keeps 16-bit operands as float32 and fuses less than compilers for accelerators.

        Raises:
            EngineError: if the compiler dies, fails or takes too long, or `cancel` is set.
        """
        text = self._trials.text(*self._attributes(tuple(specs)))
        hlo, memory = compile_for_cpu(
            text, self.mesh.size, progress=progress, cancel=cancel, timeout_seconds=timeout_seconds
        )
        planned = self.plan(tuple(specs))
        is_final = self.target is None
        self.compiled_count += is_final
        peak = memory.peak_bytes
        if not is_final and peak is not None and planned.peak_bytes is not None:
            peak = min(peak, planned.peak_bytes)
        module = self._counted(as_accelerator(inspect_module(hlo, mesh=self._mesh_record, platform="cpu")))
        cost = estimate_cost(module, None, chip=self.chip, mesh=self._mesh_record, dtype=self.dtype)
        seconds = _seconds(cost, planned.traffic_seconds)
        return Priced(
            specs=tuple(specs),
            seconds=seconds,
            peak_bytes=peak,
            argument_bytes=_arguments(memory),
            sent=_sent(cost),
            fits=peak is not None and peak <= self.memory_bytes,
            how="compiled" if is_final else "rehearsed",
            counts_plan=seconds != cost.seconds,
        )

    def _attributes(self, assignment: Assignment) -> tuple[dict[int, Spec | None], dict[int, Spec]]:
        """Specs for the arguments and for the results that replace them."""
        inputs: dict[int, Spec | None] = {}
        outputs: dict[int, Spec] = {}
        for group, spec in zip(self.groups, assignment, strict=True):
            for leaf in group.leaves:
                if not self.leaves[leaf].dtype.startswith("key<"):
                    inputs[leaf] = spec
            if spec is not None:
                outputs |= dict.fromkeys(self._pinned.intersection(group.outputs), spec)
        return inputs, outputs

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Explains an error that JAX raised about the mesh of the search."""
        try:
            yield
        except WorkbenchError:
            raise
        except ValueError as error:
            raise InspectionError(_not_lowered(self.call, error)) from error

    def _counted(self, module: ModuleRecord) -> ModuleRecord:
        """The module with one iteration for each loop of unknown length, as in the plan."""
        listed = (*module.instructions, *module.collectives)
        if all(entry.executions is not None for entry in listed):
            return module
        self.counts_once = True
        return module.replace(
            instructions=tuple(
                i if i.executions is not None else i.replace(executions=1.0) for i in module.instructions
            ),
            collectives=tuple(c if c.executions is not None else c.replace(executions=1.0) for c in module.collectives),
        )

    def _lowered(self) -> tuple[list[Spec | None], Any, str]:
        """The given specs, the shapes of the results, and the StableHLO, in which every argument is kept."""
        call = self.call
        specs = [_spec_of(leaf) for leaf in call.leaves]
        everywhere = NamedSharding(self.mesh, PartitionSpec())
        args, kwargs = jax.tree.map(
            lambda x: (
                jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=everywhere, weak_type=getattr(x, "weak_type", False))
                if hasattr(x, "shape")
                else x
            ),
            (call.args, call.kwargs),
        )
        platform = self.target.platform if self.target else "cpu"
        with on_mesh(self.mesh), UNUSED_DONATIONS_ARE_FINE:  # which donations are usable depends on the tried specs
            jitted = call.under(self.mesh).jitted(call.chunk_size, shardings=False, keep_unused=True)
            with self._explained():
                lowered = jitted.trace(*args, **kwargs).lower(lowering_platforms=(platform,))
        return specs, lowered.out_info, lowered.as_text()


def _is_installed(target: TargetRecord) -> bool:
    return any(family.chip == target.chip and family.installed for family in list_targets())


def _chip(name: str) -> ChipRecord:
    chip = known_chip(name)
    if chip is None:
        message = (
            f"The search was given chip={name!r}, whose peak FLOP/s are unknown. Seconds are predicted from published "
            f"peaks: use one of {', '.join(CHIPS)}."
        )
        raise InspectionError(message)
    return chip


def target_of(chip: str, devices: int) -> TargetRecord | None:
    """The machine of this chip and size whose torus is closest to a cube, if its compiler is installed."""
    for family in list_targets():
        if family.chip == chip and family.installed:
            machines = [parse_target(f"{chip}:{topology}") for topology in family.topologies]
            matches = [machine for machine in machines if machine.devices == devices]
            return min(matches, key=lambda machine: max(map(int, machine.topology.split("x"))), default=None)
    return None


def _common(specs: Sequence[Spec], group: SpecGroup, axes: Mapping[str, int]) -> Spec:
    """The most frequent spec in a group; replicated if it does not divide the shape."""
    spec = max(specs, key=specs.count)
    return spec if fits(spec, group.shape, axes) else ((),) * len(group.shape)


def _spec_of(leaf: ArrayLikeType) -> Spec | None:
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return None
    entries = [() if e is None else (e,) if isinstance(e, str) else tuple(e) for e in sharding.spec]
    return (*entries, *[()] * (len(leaf.shape) - len(entries)))


def _item_bytes(leaf: ArrayLikeType) -> int:
    try:
        return int(jax.numpy.dtype(leaf.dtype).itemsize)
    except TypeError:  # keys of random numbers
        return 8


def _sent(cost: CostRecord) -> dict[str, float]:
    """Bytes that one device sends, by mesh axes."""
    traffic: dict[str, float] = {}
    for stage in cost.stages:
        for axis, amount in stage.collective_bytes.items():
            traffic[axis] = traffic.get(axis, 0.0) + amount
    return traffic


def _seconds(cost: CostRecord, traffic_seconds: float | None) -> float | None:
    """Time of a compiled program in seconds, with its memory traffic limited to `traffic_seconds`."""
    traffic = sum(stage.memory_seconds or 0.0 for stage in cost.stages)
    if traffic_seconds is None or traffic <= traffic_seconds:
        return cost.seconds
    share = traffic_seconds / traffic
    less = [(stage, (stage.memory_seconds or 0.0) * share) for stage in cost.stages]
    seconds = [stage.replace(memory_seconds=memory, operation_seconds=None).seconds for stage, memory in less]
    return None if None in seconds else sum(value or 0.0 for value in seconds)


def _arguments(memory: MemoryRecord) -> float | None:
    return None if memory.argument_bytes is None else float(memory.argument_bytes)


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:300] if text.strip() else ""


def _not_lowered(call: TracedCall, error: Exception) -> str:
    if any(kind is AxisType.Explicit for kind in getattr(call.mesh, "axis_types", ())):
        return (
            f"`search` was given `{call.name}`, which was traced on explicit axes and is not valid on Auto axes: "
            f"{_first_line(str(error))} Candidates are sharded by propagation over Auto axes. Remove the code that "
            "depends on explicit axes, or try your own specs with `what_if`."
        )
    if any(words in str(error) for words in ("require devices", "different from the lowering platform")):
        return (
            f"`search` was given `{call.name}`, which calls back to the host. Candidates are lowered without devices, "
            "but callbacks can only be lowered with devices: remove `jax.debug.print` and other callbacks for the "
            "search."
        )
    return f"`search` was given `{call.name}`, which JAX does not lower for this mesh: {_first_line(str(error))}"


def _refused(name: str, error: Exception) -> str:
    return (
        f"The search for shardings was given `{name}`, which Shardy does not propagate in this process: {error}. "
        "The search prices candidates from propagated shardings. To compile your own specs, use `what_if`."
    )
