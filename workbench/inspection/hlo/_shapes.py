"""HLO shapes: elements, bytes (padded to the layout's tiles) and memory spaces."""

import functools
import math
import re
from dataclasses import dataclass

_LEAF = re.compile(r"([a-z]\w*)\[([^\]]*)\](?:\{([^}]*)\})?")
_TILE = re.compile(r"T\(([\d,]+)\)")
_SPACE = re.compile(r"S\((\d+)\)")
_BITS = {
    "pred": 8, "token": 0, "opaque": 0,
    "s1": 8, "u1": 8, "s2": 2, "u2": 2, "s4": 4, "u4": 4, "f4e2m1fn": 4, "f8e8m0fnu": 8, "f8e3m4": 8, "f8e4m3": 8,
    "s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32, "u32": 32, "s64": 64, "u64": 64,
    "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128,
    "f8e5m2": 8, "f8e4m3fn": 8, "f8e4m3b11fnuz": 8, "f8e5m2fnuz": 8, "f8e4m3fnuz": 8,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ArrayShape:
    """One array of a shape."""

    dtype: str
    dimensions: tuple[int, ...]
    elements: int
    size_bytes: int  # without padding
    padded_bytes: int  # including the padding of the layout's first tile
    space: int  # 0: main memory (HBM); on TPU 1 is VMEM, 3 CMEM, 5 the host


@dataclass(frozen=True)
class Shape:
    """An array or a (nested) tuple of arrays, flattened; `parse_shape` returns one object for identical shapes."""

    leaves: tuple[ArrayShape, ...]
    is_tuple: bool

    @functools.cached_property
    def dimensions(self) -> tuple[int, ...]:
        """Dimensions of the first array in the shape."""
        return self.leaves[0].dimensions if self.leaves else ()

    @functools.cached_property
    def elements(self) -> int:
        """Number of elements in the first array."""
        return self.leaves[0].elements if self.leaves else 0

    @functools.cached_property
    def size_bytes(self) -> int:
        """Bytes of all arrays, without padding."""
        return sum(leaf.size_bytes for leaf in self.leaves)

    @property
    def padding_bytes(self) -> int:
        """Padding bytes that fill up the layout's tiles, summed over all arrays."""
        return sum(leaf.padded_bytes - leaf.size_bytes for leaf in self.leaves)

    @functools.cached_property
    def main_bytes(self) -> int:
        """Bytes of the arrays in main memory, including padding."""
        return sum(leaf.padded_bytes for leaf in self.leaves if leaf.space == 0)

    @functools.cached_property
    def space(self) -> int:
        """Memory space of the first array."""
        return self.leaves[0].space if self.leaves else 0


@functools.lru_cache(maxsize=65536)
def parse_shape(text: str) -> Shape:
    """Parses a shape such as `f32[32,512]{1,0:T(8,128)S(1)}` or a tuple of shapes.

    Example:
        >>> parse_shape("(bf16[2,3]{1,0}, u32[])").size_bytes
        16
    """
    leaves = tuple(_leaf(*match) for match in _LEAF.findall(text))
    return Shape(leaves, text.startswith("("))


@functools.lru_cache(maxsize=1024)
def tuple_widths(text: str) -> tuple[int, ...]:
    """Number of arrays in each element of a tuple shape.

    Example:
        >>> tuple_widths("((f32[2], f32[3]), u32[])")
        (2, 1)
    """
    widths, depth, start = [], 0, 1
    for index, char in enumerate(text):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        if (char == "," and depth == 1) or depth == 0:
            widths.append(len(parse_shape(text[start:index].strip()).leaves))
            start = index + 1
        if depth == 0:
            break
    return () if text.startswith("()") else tuple(widths)


@functools.lru_cache(maxsize=65536)
def _leaf(dtype: str, dimensions: str, layout: str) -> ArrayShape:
    sizes = tuple(_size(d.strip().removeprefix("<=")) for d in dimensions.split(",") if d.strip())
    bits = _BITS.get(dtype, 0)
    elements = math.prod(sizes)
    space = _SPACE.search(layout)
    return ArrayShape(
        dtype,
        sizes,
        elements,
        -(-elements * bits // 8),
        -(-_padded_elements(sizes, layout) * bits // 8),
        int(space[1]) if space else 0,
    )


def _size(text: str) -> int:
    """The size of a dimension; an unbounded dimension (`?`) counts as 0 elements."""
    return 0 if text == "?" else int(text)


def _padded_elements(sizes: tuple[int, ...], layout: str) -> int:
    tile = _TILE.search(layout)
    if tile is None:
        return math.prod(sizes)
    order = [int(d) for d in layout.split(":")[0].split(",") if d]
    physical = [sizes[d] for d in reversed(order)] if order else list(sizes)
    tiles = [int(d) for d in tile[1].split(",")]
    physical = [1] * (len(tiles) - len(physical)) + physical
    start = len(physical) - len(tiles)
    padded = [-(-size // t) * t for size, t in zip(physical[start:], tiles, strict=True)]
    return math.prod(physical[:start]) * math.prod(padded)
