"""Simulates rounds on a virtual clock, with finished, late and dropped clients."""

from collections.abc import Sequence
from typing import Literal, cast

import numpy as np
from numpy.typing import ArrayLike

from workbench.errors import MeasureError
from workbench.measurement._client_profiles import ClientProfiles
from workbench.records.live import ClientOutcomeRecord, SpanRecord, TimelineRecord

_PHASES: tuple[Literal["download", "compute", "upload"], ...] = ("download", "compute", "upload")
_Status = Literal["finished", "late", "dropped", "surplus"]


def simulate_round(
    profiles: ClientProfiles,
    flops_per_client: ArrayLike,
    down_bytes: ArrayLike,
    up_bytes: ArrayLike,
    *,
    deadline_seconds: float | None = None,
    wanted: int | None = None,
    selected: Sequence[int] | None = None,
    seed: int = 0,
    start_seconds: float = 0.0,
) -> TimelineRecord:
    """Simulates one round in which clients download, compute and upload at their own speeds.

    The round ends when `wanted` clients have finished, at the deadline, or when no client can finish any more,
    whichever comes first. Each client drops out with its own probability, at a time drawn uniformly from the duration
    of its work; the server notices at once. The server's computation and contention for its link are not modelled.

    Args:
        profiles: The clients.
        flops_per_client: Work per client: one number, or one per client `[clients]`.
        down_bytes: Bytes from the server to a client: one number, or one per client `[clients]`.
        up_bytes: Bytes from a client to the server: one number, or one per client `[clients]`.
        deadline_seconds: Deadline of the round; clients that finish later are late. None means no deadline.
        wanted: Number of clients that must finish; None means all clients that do not drop out.
        selected: The clients that take part; None means all.
        seed: Seed for the dropouts.
        start_seconds: Start of the round on a clock shared by several rounds; spans are relative to this start.

    Returns:
        Bars of the Gantt chart, truncated at the end of the round, and the outcome of every client.

    Raises:
        MeasureError: if sizes do not match the number of clients, or if a deadline, number or client is invalid.

    Example:
        >>> profiles = ClientProfiles(
        ...     flops_per_second=[1e9, 5e8], down_bytes_per_second=1e6, up_bytes_per_second=1e6
        ... )
        >>> simulate_round(profiles, 1e9, 1e6, 1e6).seconds  # one second down, two of computing, one up
        4.0
    """
    chosen = _chosen(profiles, selected)
    _check(deadline_seconds, wanted, len(chosen))
    durations = _durations(profiles, flops_per_client, down_bytes, up_bytes)[chosen]
    finish = durations.sum(axis=1)
    share = _dropouts(profiles, seed)[chosen]
    # Infinite for clients that stay, even if a client needs no time.
    leave = np.where(np.isinf(share), np.inf, np.where(np.isinf(share), 0.0, share) * finish)
    over, finished = _end_of_round(finish, leave, deadline_seconds, wanted)
    spans, outcomes = [], []
    for row, client in enumerate(chosen.tolist()):
        until = min(over, leave[row])
        if row in finished:
            status: _Status = "finished"
        elif leave[row] <= over:
            status = "dropped"
        else:
            status = "late" if deadline_seconds is not None and over == deadline_seconds else "surplus"
        spans += _spans(client, durations[row], until)
        end = {"finished": finish[row], "dropped": leave[row]}.get(status)
        outcomes.append(
            ClientOutcomeRecord(
                client=client,
                status=status,
                end_seconds=None if end is None else float(end),
                needed_seconds=float(finish[row]),
            )
        )
    notes = []
    if wanted is not None and len(finished) < wanted:
        notes.append(f"Only {len(finished)} clients finished; `wanted` is {wanted}.")
    return TimelineRecord(
        name="round",
        seconds=over,
        spans=tuple(spans),
        outcomes=tuple(outcomes),
        deadline_seconds=deadline_seconds,
        wanted=wanted,
        start_seconds=start_seconds,
        notes=tuple(notes),
    )


def _chosen(profiles: ClientProfiles, selected: Sequence[int] | None) -> np.ndarray:
    if selected is None:
        return np.arange(len(profiles))
    chosen = np.asarray(selected, np.int64)
    unknown = [client for client in chosen.tolist() if not 0 <= client < len(profiles)]
    if unknown or len(set(chosen.tolist())) < len(chosen) or not len(chosen):
        msg = (
            f"`simulate_round` was given selected={list(selected)[:20]} for {len(profiles)} clients"
            + (f", with unknown clients {unknown[:20]}" if unknown else "")
            + f". Every selected client takes part once: pass different numbers from 0 to {len(profiles) - 1}."
        )
        raise MeasureError(msg)
    return chosen


def _check(deadline_seconds: float | None, count: int | None, clients: int) -> None:
    if (deadline_seconds is not None and deadline_seconds <= 0) or (count is not None and not 1 <= count <= clients):
        msg = (
            f"`simulate_round` was given deadline_seconds={deadline_seconds} and wanted={count} for {clients} "
            "clients. A round takes time and needs at least one client: pass a positive deadline and a `wanted` "
            f"between 1 and {clients}, or None."
        )
        raise MeasureError(msg)


def _durations(profiles: ClientProfiles, flops: ArrayLike, down: ArrayLike, up: ArrayLike) -> np.ndarray:
    """Time that every client spends in every phase in seconds, `[clients, 3]`."""
    rates = (profiles.down_bytes_per_second, profiles.flops_per_second, profiles.up_bytes_per_second)
    columns = []
    for name, amount, rate in zip(
        ("down_bytes", "flops_per_client", "up_bytes"), (down, flops, up), rates, strict=True
    ):
        values = np.asarray(amount, np.float64)
        if values.shape not in ((), (len(profiles),)) or not (values >= 0).all() or not np.isfinite(values).all():
            msg = (
                f"`simulate_round` was given `{name}` of shape {values.shape} for {len(profiles)} clients"
                + ("" if values.size and (values >= 0).all() else ", with values below zero or not finite")
                + ". Work and sizes must be finite and not negative, one value for all clients or one for each "
                f"client: pass a number or an array of shape ({len(profiles)},)."
            )
            raise MeasureError(msg)
        columns.append(np.broadcast_to(values, (len(profiles),)) / cast(np.ndarray, rate))
    return np.stack(columns, axis=1)


def _dropouts(profiles: ClientProfiles, seed: int) -> np.ndarray:
    """For each client, the share of its work after which it drops out; infinite for clients that stay.

    Draws one number per client, whether the client is selected or not.
    """
    draws = np.random.default_rng(seed).random((2, len(profiles)))
    return np.where(draws[0] < cast(np.ndarray, profiles.dropout_probability), draws[1], np.inf)


def _end_of_round(
    finish: np.ndarray, leave: np.ndarray, deadline: float | None, count: int | None
) -> tuple[float, frozenset[int]]:
    stays = np.flatnonzero(np.isinf(leave))
    order = stays[np.argsort(finish[stays], kind="stable")]
    enough = order if count is None else order[:count]
    if count is not None and len(enough) == count:
        over = float(finish[enough[-1]])
    else:
        over = float(np.minimum(finish, leave).max())  # until the last client has finished or left
    if deadline is not None and over > deadline:
        over = float(deadline)
    return over, frozenset(row for row in enough.tolist() if finish[row] <= over)


def _spans(client: int, durations: np.ndarray, until: float) -> list[SpanRecord]:
    spans, start = [], 0.0
    for kind, seconds in zip(_PHASES, durations.tolist(), strict=True):
        if start >= until:
            break
        end = start + seconds
        spans.append(
            SpanRecord(
                client=client,
                kind=kind,
                start_seconds=start,
                seconds=min(end, until) - start,
                complete=end <= until * (1 + 1e-12),  # the sum of the phases may differ from `until` in the last bit
            )
        )
        start = end
    return spans
