"""Stores arrays in files without pickle, including dtypes that numpy cannot store."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workbench.engines._places import place, whole_file


def load_arrays(path: str | Path) -> list[np.ndarray]:
    """Reads the arrays in a file, in order.

    If numpy's format cannot store an array's dtype, the array was saved as bytes, with the dtype's name.
    """
    with place(path).open("rb") as data, np.load(data, allow_pickle=False) as file:
        names = json.loads(str(file["names"]))
        return [file[f"x{i}"].view(np.dtype(name)) if name else file[f"x{i}"] for i, name in enumerate(names)]


def save_arrays(path: str | Path, arrays: Sequence[Any]) -> None:
    """Writes arrays to one file, which receives its final name only once it is complete."""
    plain = [np.asarray(x) for x in arrays]
    flags = [x.dtype.kind == "V" or x.dtype.name in ("bfloat16",) or x.dtype.name.startswith("float8") for x in plain]
    names = [x.dtype.name if is_own else "" for x, is_own in zip(plain, flags, strict=True)]
    shown = [x.view(f"u{x.dtype.itemsize}") if is_own else x for x, is_own in zip(plain, flags, strict=True)]
    with whole_file(place(path)) as file:
        np.savez(file, names=json.dumps(names), **{f"x{i}": x for i, x in enumerate(shown)})  # pyright: ignore[reportArgumentType]
