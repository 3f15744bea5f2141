"""Networks between hosts, as stated by the user: "400G", "8x400G", "infiniband-ndr"."""

import difflib
import re

from workbench.errors import MeshError
from workbench.records.hardware import ChipRecord

# Gbit/s per chip, one way, as published by vendors and clouds. Quoted from memory; no page was opened.
NETWORKS: dict[str, float] = {
    "infiniband-hdr": 200,
    "infiniband-ndr": 400,
    "infiniband-xdr": 800,
    "efa-p4d": 50,  # 4 × 100 for 8 GPUs
    "efa-p5": 400,  # 3,200 for 8 GPUs
    "a3-mega": 200,  # 8 × 200 for 8 GPUs
    "a3-ultra": 400,  # 8 × 400 for 8 GPUs
    "slingshot-11": 200,
}
_STATED = re.compile(r"(?:(\d+)x)?(\d+(?:\.\d+)?)g(?:b(?:it)?(?:ps|/s)?)?")


def with_network(chip: ChipRecord, network: str) -> ChipRecord:
    """Adds a network between groups of chips to a chip; the chip's own links connect only one group.

    Args:
        chip: A row of the chip table.
        network: "400G" means 400 Gbit/s per chip, one way. "8x400G" means 8 adapters of 400 Gbit/s for each group of
            chips that fast links connect. A name from `NETWORKS` is also accepted.

    Returns:
        The chip; collectives over several groups now have predicted times.

    Raises:
        MeshError: if the network neither has this form nor is known by name.

    Example:
        >>> from workbench.aot import known_chip
        >>> known_chip("h100@8x400G").dcn_bytes_per_second, known_chip("h100@efa-p4d").dcn_bytes_per_second
        (50000000000.0, 6250000000.0)
    """
    name = network.strip().lower().replace(" ", "")
    stated = _STATED.fullmatch(name)
    if stated is not None:
        gigabits = float(stated[2]) * (int(stated[1]) / (chip.domain or 1) if stated[1] else 1.0)
    elif name in NETWORKS:
        gigabits = NETWORKS[name]
    else:
        near = difflib.get_close_matches(name, NETWORKS, n=1)
        message = (
            f"`known_chip` was given the network {network!r}{f' (did you mean {near[0]!r}?)' if near else ''}. A "
            f"network is either a bandwidth in Gbit/s, per chip ('400G') or per group of chips ('8x400G'), or one of "
            f"{', '.join(NETWORKS)}: write, for example, 'h100@8x400G'."
        )
        raise MeshError(message)
    if not gigabits:
        message = (
            f"`known_chip` was given the network {network!r}, whose bandwidth is 0. A network needs more than 0 "
            "Gbit/s: write, for example, 'h100@8x400G'."
        )
        raise MeshError(message)
    return chip.replace(
        dcn_bytes_per_second=gigabits * 1e9 / 8, source=f"{chip.source}; network as specified: {network}"
    )
