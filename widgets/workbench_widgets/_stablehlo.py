"""StableHLO text as lines, each with its place in the user's code."""

import re
from collections.abc import Collection, Sequence

from workbench.records import package_of

Key = tuple[str, int]  # file, line

_DEFINITION = re.compile(r"^#(loc\d*) = loc\((.*)\)\s*$")
_PART = re.compile(r'"([^"]+)":(\d+):\d+|#(loc\d*)\b')
_SUFFIX = re.compile(r"\s*loc\((?:[^()]|\([^()]*\))*\)")
MOST_FRAMES = 64


def read_stablehlo(text: str, sources: Collection[Key | None] = ()) -> list[tuple[str, Key | None]]:
    r"""Every line without its locations, paired with its place in the user's code.

    A location is a stack of calls, innermost first. The first call in `sources` is used; otherwise the first call in a
    user file.

    Example:
        >>> read_stablehlo('%0 = stablehlo.abs %1 loc(#loc1)\n#loc1 = loc("a.py":3:0)')
        [('%0 = stablehlo.abs %1', ('a.py', 3))]
    """
    lines = text.splitlines()
    named = {match[1]: match[2] for match in map(_DEFINITION.match, lines) if match}
    frames: dict[str, tuple[Key, ...]] = {}

    def expand(content: str, chain: tuple[str, ...] = ()) -> tuple[Key, ...]:
        keys: list[Key] = []
        for file, line, reference in _PART.findall(content):
            if not reference:
                keys.append((file, int(line)))
            elif reference in named and reference not in chain:
                if reference not in frames:
                    frames[reference] = expand(named[reference], (*chain, reference))
                keys.extend(frames[reference])
        return tuple(keys[:MOST_FRAMES])

    def choose(places: Sequence[Key]) -> Key | None:
        source = next((place for place in places if place in sources), None)
        return source or next((place for place in places if package_of(place[0]) is None), None)

    listing = []
    for line in lines:
        if _DEFINITION.match(line):
            continue
        before, mark, location = line.rpartition(" loc(")
        key = choose(expand(location)) if mark and before.strip() != "}" else None
        listing.append((_SUFFIX.sub("", line), key))
    return listing
