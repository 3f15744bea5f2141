"""The servers' work in a round, with or without tiers: sending the model and adding results."""

import dataclasses
import itertools
import math

from workbench.errors import ProgramError


@dataclasses.dataclass(frozen=True, slots=True)
class Servers:
    """Servers that send models and add results: a single server, or a server above tiers of aggregators.

    Args (of the constructor):
        bytes_per_second: Bandwidth of each server in each direction.
        tiers: Number of aggregators in each tier, from the clients upwards, such as `(1000, 30)`; empty for a single
            server.
        operations_per_second: Speed of the server that removes the masks of a protocol.

    Raises:
        ProgramError: if a rate is not positive, or a tier is not smaller than the tier below.

    Example:
        >>> flat, tiered = Servers(1e9), Servers(1e9, tiers=(100,))
        >>> flat.adding_seconds(10_000, 1e6), tiered.adding_seconds(10_000, 1e6)  # 10,000 results of 1 MB
        (10.0, 0.2)

    References:
        Bonawitz et al., "Towards Federated Learning at Scale: System Design", MLSys 2019, section 4: aggregators below
        a master aggregator.
    """

    bytes_per_second: float = 1.25e9
    tiers: tuple[int, ...] = ()
    operations_per_second: float = 1e10

    def __post_init__(self) -> None:
        falling = all(below > above >= 1 for below, above in itertools.pairwise((*self.tiers, 1)))
        if self.bytes_per_second <= 0 or self.operations_per_second <= 0 or not falling:
            message = (
                f"`Servers` received {self}. Each tier must have fewer aggregators than the tier below it, and a "
                "single server is above the last tier: pass positive rates, and list the tiers from the clients "
                "upwards, such as (1000, 30)."
            )
            raise ProgramError(message)

    def adding_seconds(self, results: int, result_bytes: float) -> float:
        """Returns the seconds from the last result until all tiers have added their results.

        The result is an upper bound: it assumes that a server uses one link at a time and receives nothing in advance.
        """
        children, seconds = results, 0.0
        for servers in (*self.tiers, 1):
            seconds += math.ceil(children / servers) * result_bytes / self.bytes_per_second
            children = min(servers, children)
        return seconds

    def between_bytes(self, model_bytes: float, result_bytes: float) -> float:
        """Returns the bytes sent between servers in a round: the model down, and one sum per aggregator up."""
        return sum(self.tiers) * (model_bytes + result_bytes)
