"""Schedules of server steps: synchronous rounds of a cohort, or a buffer of results."""

import dataclasses
import math

from workbench.errors import ProgramError


@dataclasses.dataclass(frozen=True, slots=True)
class Synchronous:
    """Rounds: ask a cohort and more, wait for as many results as the cohort has, stop the others.

    Args (of the constructor):
        cohort: Results that a round waits for.
        over_selection: How many times the cohort is asked.
        deadline_seconds: When a round ends at the latest; None waits for the last client that still works.
        minimum_share: Part of the cohort without which a round is lost.

    Raises:
        ProgramError: if a number is out of its range.

    References:
        Bonawitz et al., "Towards Federated Learning at Scale: System Design", MLSys 2019: 130 % of the clients are
        asked, 6 to 10 % drop out.
    """

    cohort: int
    over_selection: float = 1.3
    deadline_seconds: float | None = 600.0
    minimum_share: float = 0.8

    def __post_init__(self) -> None:
        deadline = math.inf if self.deadline_seconds is None else self.deadline_seconds
        if self.cohort < 1 or self.over_selection < 1 or deadline <= 0 or not 0 < self.minimum_share <= 1:
            message = (
                f"`Synchronous` received {self}. A round waits for results of clients that it asked: pass a cohort and "
                "an over_selection of at least 1, a positive deadline or None, and 0 < minimum_share <= 1."
            )
            raise ProgramError(message)


@dataclasses.dataclass(frozen=True, slots=True)
class Buffered:
    """No rounds: a fixed number of clients works at any time, and the server steps after every `buffer` results.

    Args (of the constructor):
        concurrency: Clients that work at the same time; whoever ends is replaced at once.
        buffer: Results in one step of the server.
        timeout_seconds: When the server gives up one client; None never.

    Raises:
        ProgramError: if a number is out of its range.

    References:
        Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation", AISTATS 2022 (arXiv 2106.06639).
    """

    concurrency: int
    buffer: int
    timeout_seconds: float | None = None

    def __post_init__(self) -> None:
        timeout = math.inf if self.timeout_seconds is None else self.timeout_seconds
        if self.concurrency < 1 or self.buffer < 1 or timeout <= 0:
            message = (
                f"`Buffered` received {self}. Some client has to work, and a step needs a result: pass a concurrency "
                "and a buffer of at least 1, and a positive timeout or None."
            )
            raise ProgramError(message)
