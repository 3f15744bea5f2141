"""The axes of a mesh on a target of a different size; pure arithmetic, without JAX."""

import math
from collections.abc import Mapping

from workbench.aot._parse import parse_target
from workbench.errors import MeshError
from workbench.records.compiled import TargetRecord


def fit_axes(
    target: str | TargetRecord, axes: Mapping[str, int], clients: Mapping[str, int] | None = None
) -> dict[str, int]:
    """The axes of a mesh grown or shrunk to fit a target: the first axis changes, the other axes stay the same.

    A first axis that holds clients grows only to a size that divides the number of clients; the last axis takes the
    remaining factor if possible.

    Args:
        target: `"v5e:16x16"`, or a `TargetRecord`.
        axes: Axis sizes by name, in order.
        clients: Number of clients spread over an axis, keyed by the name of the axis.

    Returns:
        The sizes; their product is the target's number of devices.

    Raises:
        MeshError: if the number of devices is not a multiple of the product of the other axes.

    Example:
        >>> fit_axes("v5e:16x16", {"clients": 4, "model": 2})
        {'clients': 128, 'model': 2}
        >>> fit_axes("v5e:16x16", {"clients": 4, "model": 2}, {"clients": 16})
        {'clients': 16, 'model': 16}
    """
    target = parse_target(target) if isinstance(target, str) else target
    names = list(axes)
    divisor = math.prod(axes[name] for name in names[1:])
    if not names or target.devices % divisor:
        message = (
            f"`fit_axes` was given axes {dict(axes)} for target {target.name!r}: the axes after the first take "
            f"{divisor} devices, but {divisor} does not divide the target's {target.devices}. The first axis gets the "
            f"remaining factor: use sizes for {names[1:]} whose product divides {target.devices}."
        )
        raise MeshError(message)
    fitted = {names[0]: target.devices // divisor, **{name: axes[name] for name in names[1:]}}
    members = (clients or {}).get(names[0])
    if members and members % fitted[names[0]] and len(names) > 1:
        share = math.gcd(fitted[names[0]], members)
        fitted[names[-1]] *= fitted[names[0]] // share
        fitted[names[0]] = share
    return fitted
