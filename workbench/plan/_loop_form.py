"""Parameters of the loop over a device's clients, apart from the chunk size."""

import dataclasses

from workbench.records.program import Spread as Spread

# Maximum size of rows kept for a later pass; larger rows are computed twice, so that memory stays constant.
KEPT_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class LoopForm:
    """Free parameters of the client loop, which affect time and memory but not results.

    Attributes:
        spread: How clients are spread over a mesh; see `jit`.
        kept_bytes: Maximum total size of the client rows kept for a later pass, in bytes, over all devices. Above
            the limit, rows are computed a second time, so that memory stays constant.
        unroll: Number of client chunks that one iteration of the loop computes, one after another.
    """

    spread: Spread = "auto"
    kept_bytes: float = KEPT_BYTES
    unroll: int = 1
