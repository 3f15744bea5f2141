"""Form of the loop over a device's clients, apart from the number of clients computed together."""

import dataclasses

from workbench.records.program import Spread as Spread

# Rows that wait for a later pass may take this much; above it they are computed twice, and memory stays flat.
KEPT_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class LoopForm:
    """Free choices in the loop over clients, which decide time and memory but not results.

    Attributes:
        spread: How clients are spread over a mesh; see `jit`.
        kept_bytes: Rows of clients that a later pass reads are kept where all of them together take no more bytes, on
            all devices together; otherwise they are computed a second time, and memory stays flat.
        unroll: Chunks of clients that one iteration of the loop computes, one after the other.
    """

    spread: Spread = "auto"
    kept_bytes: float = KEPT_BYTES
    unroll: int = 1
