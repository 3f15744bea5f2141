"""Dependencies and extras of the installed distribution, read from its metadata."""

import importlib.metadata

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from workbench.cli._name import DISTRIBUTION


def read_requirements() -> list[Requirement]:
    """The required libraries on this platform."""
    requirements = [Requirement(line) for line in importlib.metadata.requires(DISTRIBUTION) or []]
    return [r for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})]


def read_extras() -> dict[str, list[Requirement]]:
    """The libraries of every optional extra on this platform."""
    names = importlib.metadata.metadata(DISTRIBUTION).get_all("Provides-Extra") or []
    always = {canonicalize_name(requirement.name) for requirement in read_requirements()}
    extras: dict[str, list[Requirement]] = {}
    for name in sorted(names):
        added = [r for r in _expand(_brought_by(DISTRIBUTION, name)) if canonicalize_name(r.name) not in always]
        if added:
            extras[name] = added
    return extras


def _brought_by(distribution: str, extra: str) -> list[Requirement]:
    """Packages that an extra adds to a distribution's required packages."""
    requirements = [Requirement(line) for line in importlib.metadata.requires(distribution) or []]
    return [
        r
        for r in requirements
        if r.marker and r.marker.evaluate({"extra": extra}) and not r.marker.evaluate({"extra": ""})
    ]


def _expand(requirements: list[Requirement]) -> list[Requirement]:
    """Replaces `jax[tpu]` with its libraries, because an installed jax does not imply that they are installed."""
    expanded = []
    for requirement in requirements:
        try:
            parts = [part for extra in requirement.extras for part in _brought_by(requirement.name, extra)]
        except importlib.metadata.PackageNotFoundError:
            parts = []
        expanded += _expand(parts) if parts else [requirement]
    return expanded
