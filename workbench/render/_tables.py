"""Records as pandas tables: one row per item; columns are named like fields, with units."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from workbench.errors import needs_library
from workbench.records import Record
from workbench.records.advice import ComparisonRecord
from workbench.records.compiled import CostRecord, MemoryRecord, ModuleRecord, ProgramRecord
from workbench.records.hardware import MeshRecord
from workbench.records.program import PlanRecord, SourceLine, StageRecord
from workbench.records.run import RunOverlayRecord, RunRecord
from workbench.records.sharding import LeafShardingRecord, PlannedValueRecord, PropagationRecord, ShardingRecord
from workbench.render.units import shape_text, spec_text

if TYPE_CHECKING:
    import pandas as pd


@functools.singledispatch
def to_pandas(record: object) -> "pd.DataFrame":
    """A record's main table.

    Plan or program: stages. Module: instructions. Sharding: arrays. Mesh: devices. Propagation: values. Cost: stages
    with predicted cost. Memory: largest buffers. Comparison: compared quantities. Run: measured stages. Any other
    record: one row with its fields.

    Args:
        record: A record, or a sequence of records of one kind.

    Returns:
        One row per item; numbers stay numbers, in the unit that the column name states.

    Raises:
        TypeError: if `record` is neither a record nor a sequence of records.

    Example:
        >>> to_pandas(PlanRecord(name="f", placements=(), stages=())).shape[0]
        0
    """
    if isinstance(record, Record):
        return _frame([_fields(record)], [field.name for field in dataclasses.fields(record)])
    if isinstance(record, Sequence) and not isinstance(record, str) and all(isinstance(r, Record) for r in record):
        columns = [field.name for field in dataclasses.fields(record[0])] if record else []
        return _frame(map(_fields, record), columns)
    message = (
        f"`to_pandas` was given an object of type {type(record).__name__}, which is not a record. Tables are created "
        "from the records that inspectors, costs and engines return, or from a sequence of such records: inspect the "
        "program first."
    )
    raise TypeError(message)


@to_pandas.register(PlanRecord)
def stages_table(plan: PlanRecord) -> "pd.DataFrame":
    """Every stage of a plan; inner stages follow their outer stage."""
    return _frame((_stage_row(stage) for stage in plan.walk()), _STAGE_COLUMNS)


@to_pandas.register(ProgramRecord)
def program_table(record: ProgramRecord) -> "pd.DataFrame":
    """The stages of a program, with their predicted cost per device if it is known."""
    table = stages_table(record.plan)
    if record.cost is None:
        return table
    predicted = cost_table(record.cost).drop(columns=["kind", "name"]).add_prefix("predicted_")
    return table.merge(predicted, how="left", left_on="stage", right_on="predicted_stage").drop(
        columns="predicted_stage"
    )


@to_pandas.register(ModuleRecord)
def instructions_table(module: ModuleRecord) -> "pd.DataFrame":
    """Every compiled instruction; costs are per device and execution, and a column counts executions per call."""
    columns = "name opcode computation shape size_bytes executions flops elementwise_flops accessed_bytes stage source"
    return _frame(map(_fields, module.instructions), [*columns.split(), "op_name", "inferred"])


@to_pandas.register(ShardingRecord)
def shardings_table(record: ShardingRecord) -> "pd.DataFrame":
    """Every array of a tree with its sharding."""
    columns = (
        "path shape dtype spec shard_shape size_bytes bytes_per_device replication padding_bytes kind memory_kind notes"
    )
    return _frame(map(_leaf_row, record.leaves), columns.split())


@to_pandas.register(LeafShardingRecord)
def shards_table(leaf: LeafShardingRecord) -> "pd.DataFrame":
    """Every slice of one array and the device that holds it."""
    return _frame(map(_fields, leaf.shards), ["device_id", "start", "stop", "replica"])


@to_pandas.register(MeshRecord)
def devices_table(mesh: MeshRecord) -> "pd.DataFrame":
    """Every device with its position along the mesh axes and the clients (start, stop, padding) that it holds."""
    clients_of: dict[int, dict[str, Any]] = {}
    for range_ in mesh.clients:
        row = clients_of.setdefault(range_.device_id, {})
        row[f"{range_.placement}_start"], row[f"{range_.placement}_stop"] = range_.start, range_.stop
        row[f"{range_.placement}_padding"] = range_.padding
    rows = [
        {
            **{field: getattr(device, field) for field in ("id", "platform", "kind", "host", "coords", "slice_index")},
            **{f"axis_{axis.name}": at for axis, at in zip(mesh.axes, device.position, strict=True)},
            **clients_of.get(device.id, {}),
        }
        for device in mesh.devices
    ]
    columns = [key for row in rows for key in row]
    return _frame(rows, columns or ["id", "platform", "kind", "host", "coords", "slice_index"])


@to_pandas.register(PropagationRecord)
def propagation_table(record: PropagationRecord) -> "pd.DataFrame":
    """Every value of the program with its propagated sharding and where this sharding comes from."""
    columns = "name operation type spec origins rule stage source op_name"
    return _frame(
        ({**_leaf_row(value), "type": shape_text(value.dtype, value.shape)} for value in record.values), columns.split()
    )


@to_pandas.register(CostRecord)
def cost_table(cost: CostRecord) -> "pd.DataFrame":
    """Every stage with its predicted cost on one device; each group of mesh axes has a column `sent_bytes_<axes>`."""
    rows = [
        {
            **{key: value for key, value in _fields(stage).items() if key != "collective_bytes"},
            "seconds": stage.seconds,
            **{f"sent_bytes_{axes}": amount for axes, amount in stage.collective_bytes.items()},
        }
        for stage in cost.stages
    ]
    columns = "stage kind name flops elementwise_flops accessed_bytes compute_seconds memory_seconds"
    times = ["collective_seconds", "seconds", "bound"]
    return _frame(
        rows, [*columns.split(), *times, *(key for row in rows for key in row if key.startswith("sent_bytes_"))]
    )


@to_pandas.register(MemoryRecord)
def memory_table(memory: MemoryRecord) -> "pd.DataFrame":
    """The largest buffers alive at the peak."""
    return _frame(map(_fields, memory.largest), "name size_bytes shape op_name source".split())


@to_pandas.register(ComparisonRecord)
def comparison_table(comparison: ComparisonRecord) -> "pd.DataFrame":
    """Every compared quantity, one column per program (numbered if names and targets repeat)."""
    names: list[str] = []
    for name, target in zip(comparison.names, comparison.targets, strict=True):
        label = f"{name} ({target})"
        names.append(label if label not in names else f"{label} #{len(names) + 1}")
    rows = [
        {
            "group": r.group,
            "name": r.name,
            **dict(zip(names, r.values, strict=True)),
            "unit": r.unit,
            "status": r.status,
        }
        for r in comparison.rows
    ]
    return _frame(rows, ["group", "name", *names, "unit", "status"])


@to_pandas.register(RunOverlayRecord)
def overlay_table(overlay: RunOverlayRecord) -> "pd.DataFrame":
    """One row per result, metric and round: the mean over seeds with its interval."""
    rows = [
        {"result": result.name, "metric": curve.metric, "round": number, "mean": mean, "low": low, "high": high}
        for result in overlay.results
        for curve in result.metrics
        for number, mean, low, high in zip(curve.rounds, curve.mean, curve.low, curve.high, strict=True)
    ]
    return _frame(rows, ["result", "metric", "round", "mean", "low", "high"])


@to_pandas.register(RunRecord)
def run_table(run: RunRecord) -> "pd.DataFrame":
    """The measured times of every stage at every place, in seconds per call."""
    columns = (
        "stage where compute_seconds collective_seconds copy_seconds wait_seconds calls flops_per_second "
        "elementwise_flops_per_second bytes_per_second"
    )
    return _frame(map(_fields, run.stages), columns.split())


_STAGE_COLUMNS = [
    *("stage", "kind", "name", "placement", "clients", "inputs", "outputs", "moved_bytes", "flops_per_client"),
    *("elementwise_flops_per_client", "bytes_per_client", "trip_count", "flops", "elementwise_flops", "source"),
]


def _stage_row(stage: StageRecord) -> dict[str, Any]:
    types = {
        key: ", ".join(shape_text(value.dtype, value.shape) for value in getattr(stage, key))
        for key in ("inputs", "outputs")
    }
    return {
        **_fields(stage),
        **types,
        "stage": stage.path,
        "flops": stage.flops,
        "elementwise_flops": stage.elementwise_flops,
    }


def _leaf_row(leaf: LeafShardingRecord | PlannedValueRecord) -> dict[str, Any]:
    return {**_fields(leaf, leave_out="shards"), "spec": spec_text(leaf.spec)}


def _fields(record: Record, *, leave_out: str = "") -> dict[str, Any]:
    """The fields of a record, formatted for table cells."""
    names = (field.name for field in dataclasses.fields(record) if field.name != leave_out)
    return {name: _cell(getattr(record, name)) for name in names}


def _cell(value: object) -> object:
    if isinstance(value, Record):
        return str(value) if isinstance(value, SourceLine) else type(value).__name__
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_cell(item)}" for key, item in value.items())
    if isinstance(value, tuple) and any(isinstance(item, str | Record) for item in value):
        return ", ".join(str(_cell(item)) for item in value)
    return value


def _frame(rows: Iterable[Mapping[str, Any]], columns: Iterable[str]) -> "pd.DataFrame":
    """A table with exactly these columns; missing values become empty cells."""
    with needs_library("pandas", needed_for="`to_pandas`"):
        import pandas as pd

    return pd.DataFrame([dict(row) for row in rows], columns=list(dict.fromkeys(columns)))
