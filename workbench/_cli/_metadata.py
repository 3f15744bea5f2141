"""What the installed distribution says about itself: dependencies and extras, read from its metadata."""

import importlib.metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

DISTRIBUTION = "mapreduce-workbench"


def read_requirements() -> list[Requirement]:
    """The libraries that are always needed on this platform.

    Raises:
        importlib.metadata.PackageNotFoundError: if the workbench itself is not installed.
    """
    return [r for r in _all_requirements() if r.marker is None or r.marker.evaluate({"extra": ""})]


def read_extras() -> dict[str, list[Requirement]]:
    """The libraries of every optional extra on this platform; an extra that only repeats others is left out.

    Raises:
        importlib.metadata.PackageNotFoundError: if the workbench itself is not installed.
    """
    names = importlib.metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    always = {canonicalize_name(r.name) for r in read_requirements()} | {DISTRIBUTION}
    extras: dict[str, list[Requirement]] = {}
    for name in sorted(names):
        own = [
            r
            for r in _all_requirements()
            if r.marker is not None
            and r.marker.evaluate({"extra": name})
            and not (canonicalize_name(r.name) in always and not r.extras)
        ]
        if own:
            extras[name] = own
    return extras


def _all_requirements() -> list[Requirement]:
    return [Requirement(line) for line in importlib.metadata.requires(DISTRIBUTION) or []]
