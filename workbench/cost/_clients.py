"""Predicts each client's cost from its number of examples, and the waste due to padding and waiting."""

import math
import re
from collections.abc import Sequence

import numpy as np

from workbench._open_types import Examples
from workbench.errors import InspectionError
from workbench.records.compiled import ClientCostRecord
from workbench.records.hardware import MeshRecord
from workbench.records.program import PlanRecord, StageRecord

Waste = float | None
MOST_CLIENTS = 100_000  # maximum number of clients with individual records


def client_costs(
    plan: PlanRecord | None, mesh: MeshRecord | None, examples: Examples | None
) -> tuple[tuple[ClientCostRecord, ...], Waste, Waste, Waste]:
    """Predicts the work of every client in a plan's outermost placement.

    A client stage costs `flops_per_client` for the padded number of examples per client. A client with fewer examples
    needs only a proportional share of this work. A device's clients run together, `plan.chunk_size` at a time, and each
    chunk takes as long as its largest client. All devices wait for the slowest device before they reduce.

    Args:
        plan: The plan, or None.
        mesh: Mesh that determines each device's clients.
        examples: The true number of examples per client, optionally with the padded number in the arrays,
            `(counts, held)`; None if all clients have the same number.

    Returns: One record per client (no records above `MOST_CLIENTS` clients), followed by three numbers. The first
        number is the share of the computed work that is padding (padded examples and empty slots). The second number is
        the time of the clients in a chunk relative to their true work, minus 1. The third number is the time of the
        slowest device relative to the mean over all devices, minus 1. The last two numbers are None without `examples`.

    Raises:
        InspectionError: if `examples` does not match the number of clients, contains a negative number or no positive
            number, or exceeds the padded number; or if neither `examples` nor a mask declares the padded number.
    """
    examples, largest = _declared(examples)
    placement = _placement(plan)
    if plan is None or placement is None:
        if examples is not None:
            _refuse(f"`examples_per_client` for {len(examples)} clients, but no stage of the program has clients", 0)
        return (), None, None, None
    name, count = placement
    if examples is not None and len(examples) != count:
        _refuse(f"`examples_per_client` for {len(examples)} clients, but placement {name!r} has {count} clients", count)
    if examples is not None and (min(examples) < 0 or max(examples) == 0):
        _refuse(f"`examples_per_client` between {min(examples)} and {max(examples)}", count)
    flops, accessed = _work(plan.stages, name, "flops_per_client"), _work(plan.stages, name, "bytes_per_client")
    if flops is None or accessed is None:
        return (), None, None, None
    elementwise = _work(plan.stages, name, "elementwise_flops_per_client") or 0.0
    device_of = {client: device for device, part in _parts(mesh, name, min(count, MOST_CLIENTS)) for client in part}
    if examples is not None:
        largest = largest or _masked(plan, count)
        _check_capacity(examples, largest)
    shares = np.ones(count) if largest is None else np.asarray(examples) / largest
    numbers = range(count) if count <= MOST_CLIENTS else ()
    clients = tuple(
        ClientCostRecord(
            client=client,
            device_id=device_of.get(client),
            flops=flops * float(shares[client]),
            accessed_bytes=accessed * float(shares[client]),
            examples=None if examples is None else examples[client],
            padded_examples=largest,
            elementwise_flops=elementwise * float(shares[client]),
        )
        for client in numbers
    )
    padding = 1 - float(shares.sum()) / _slots(mesh, name, count)
    if examples is None:
        return clients, padding, None, None
    return clients, padding, *_waiting(examples, _parts(mesh, name, count), plan.chunk_size)


def _declared(examples: Examples | None) -> tuple[Sequence[int] | None, int | None]:
    """The true numbers of examples, and the padded number in the arrays if declared."""
    if examples is not None and len(examples) == 2 and isinstance(examples[0], Sequence | np.ndarray):
        return examples[0], int(examples[1])  # pyright: ignore[reportReturnType, reportArgumentType]
    return examples, None  # pyright: ignore[reportReturnType]


def _masked(plan: PlanRecord, count: int) -> int | None:
    """The padded number of examples per client, from the mask of `pad_clients`; None if there is no mask."""
    masks = {
        math.prod(value.shape[1:])
        for value in plan.inputs
        if value.dtype == "bool" and value.shape[:1] == (count,) and re.search(r"\bmask\W*$", value.name)
    }
    return masks.pop() if len(masks) == 1 else None


def _check_capacity(examples: Sequence[int], capacity: int | None) -> None:
    if capacity is None:
        message = (
            "`examples_per_client` has the true number of examples of every client, but the padded number of examples "
            "in the arrays is not declared: a dimension may be examples, steps or features. Pass both numbers, as in "
            f"`examples_per_client=(counts, {max(examples)})`, or the mask of `pad_clients` as an argument `mask`."
        )
        raise InspectionError(message)
    if max(examples) > capacity:
        client = max(range(len(examples)), key=lambda index: examples[index])
        message = (
            f"`examples_per_client` has {examples[client]:,} examples for client {client}, but the arrays have "
            f"{capacity:,} for each client. A client cannot have more examples than its arrays have rows: pass the "
            "counts that belong to these arrays."
        )
        raise InspectionError(message)


def _refuse(fact: str, count: int) -> None:
    numbers = f"pass {count} numbers, or " if count else ""
    message = (
        f"`estimate_cost` was given {fact}. `examples_per_client` needs one non-negative number per client, and at "
        f"least one of them must be positive: {numbers}omit `examples_per_client` to count all clients equally."
    )
    raise InspectionError(message)


def _placement(plan: PlanRecord | None) -> tuple[str, int] | None:
    """The placement whose clients are counted: the placement of the first client stage."""
    stage = _first_clients(plan.stages) if plan is not None else None
    return None if stage is None or stage.placement is None else (stage.placement, stage.clients)


def _first_clients(stages: Sequence[StageRecord]) -> StageRecord | None:
    for stage in stages:
        inner = stage if stage.kind == "clients" else _first_clients(stage.body)
        if inner is not None:
            return inner
    return None


def _work(stages: Sequence[StageRecord], placement: str, field: str) -> float | None:
    """One client's work in all its stages; None if a part is unknown."""
    total = 0.0
    for stage in stages:
        if stage.kind == "clients" and stage.placement == placement:
            amount = getattr(stage, field)
            amount = None if amount is None else amount * stage.computations
        elif stage.kind == "loop":
            amount = _work(stage.body, placement, field)
            if amount:
                amount = None if stage.trip_count is None else amount * stage.trip_count
        elif stage.kind == "branch":
            amount = _dearest_branch(stage, placement, field)
        else:
            continue
        if amount is None:
            return None
        total += amount
    return total


def _parts(mesh: MeshRecord | None, placement: str, count: int) -> list[tuple[int | None, range]]:
    """The clients on each device; a client on several devices (a model axis) is counted on the first one."""
    parts: list[tuple[int | None, range]] = []
    seen: set[tuple[int, int]] = set()
    for part in mesh.clients if mesh is not None else ():
        clients = range(part.start, min(part.stop, count))
        if part.placement == placement and len(clients) and (part.start, part.stop) not in seen:
            seen.add((part.start, part.stop))
            parts.append((part.device_id, clients))
    return parts


def _dearest_branch(stage: StageRecord, placement: str, field: str) -> float | None:
    amounts = [_work(body, placement, field) for body in stage.branches]
    numbers = [amount for amount in amounts if amount is not None]
    return max(numbers, default=0.0) if len(numbers) == len(amounts) else None


def _slots(mesh: MeshRecord | None, placement: str, count: int) -> int:
    """Counts clients and empty slots, each once even if several devices have copies."""
    parts = [part for part in mesh.clients if part.placement == placement] if mesh is not None else []
    copies = sum(part.start == 0 and part.stop > 0 for part in parts)
    return sum(part.stop - part.start + part.padding for part in parts) // copies if copies else count


def _waiting(
    examples: Sequence[int], parts: Sequence[tuple[int | None, range]], chunk_size: int | None
) -> tuple[Waste, Waste]:
    """The cost of waiting for the largest client in a chunk, and for the slowest device."""
    counts = np.asarray(examples)
    shares = [counts[part.start : part.stop] for _, part in parts]
    remainder = counts[max((part.stop for _, part in parts), default=0) :]  # on an unknown device
    shares += [remainder] if len(remainder) else []
    waited = [_waited(share, chunk_size or len(share)) for share in shares]
    true = int(counts.sum())
    if not true:
        return None, None
    return sum(waited) / true - 1, max(waited) * len(waited) / sum(waited) - 1


def _waited(examples: np.ndarray, chunk_size: int) -> int:
    """Number of examples that a device computes if each chunk of clients takes as long as its largest client."""
    starts = np.arange(0, len(examples), chunk_size)
    sizes = np.diff(starts, append=len(examples))
    return int((np.maximum.reduceat(examples, starts) * sizes).sum())
