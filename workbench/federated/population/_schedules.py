"""Schedules of server steps: synchronous with a cohort, or asynchronous with a buffer."""

import dataclasses
import math

from workbench.errors import ProgramError


@dataclasses.dataclass(frozen=True, slots=True)
class Synchronous:
    """Synchronous rounds that ask extra clients and stop when a cohort has answered.

    Args (of the constructor):
        cohort: Number of results that a round waits for.
        over_selection: Ratio of asked clients to the cohort size.
        deadline_seconds: Maximum duration of a round; None waits for the last working client.
        minimum_share: Minimum share of the cohort that must answer; with fewer results, a round is lost.

    Raises:
        ProgramError: if a number is out of range.

    References:
        Bonawitz et al., "Towards Federated Learning at Scale: System Design", MLSys 2019: 130 % of the required clients
        are asked, and 6 to 10 % drop out.
    """

    cohort: int
    over_selection: float = 1.3
    deadline_seconds: float | None = 600.0
    minimum_share: float = 0.8

    def __post_init__(self) -> None:
        deadline = math.inf if self.deadline_seconds is None else self.deadline_seconds
        if self.cohort < 1 or self.over_selection < 1 or deadline <= 0 or not 0 < self.minimum_share <= 1:
            message = (
                f"`Synchronous` received {self}. A round waits for results from the clients that it selected: pass "
                "`cohort` and `over_selection` of at least 1, a positive `deadline_seconds` or None, and 0 < "
                "`minimum_share` <= 1."
            )
            raise ProgramError(message)


@dataclasses.dataclass(frozen=True, slots=True)
class Buffered:
    """Asynchronous steps: the server takes a step after every `buffer` results.

    Args (of the constructor):
        concurrency: Number of clients that work at the same time; a client that finishes is replaced immediately.
        buffer: Number of results in one server step.
        timeout_seconds: Time after which the server gives up on a client; None for no limit.

    Raises:
        ProgramError: if a number is out of range.

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
                f"`Buffered` received {self}. At least one client must work, and a step needs a result: pass "
                "`concurrency` and `buffer` of at least 1, and a positive `timeout_seconds` or None."
            )
            raise ProgramError(message)
