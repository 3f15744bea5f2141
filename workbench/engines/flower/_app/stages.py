"""Stages as files: StableHLO before a header, checked before anything is run, compiled once per process."""

import base64
import hashlib
import json
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.export
import numpy as np
from jax.core import ShapedArray

MAGIC = b"WBSTHLO2"


@dataclass(frozen=True)
class CompiledStage:
    """One stage, ready to be called; the shapes and dtypes are those of its StableHLO."""

    name: str
    call: Callable
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    compile_seconds: float

    def __call__(self, operands: Sequence[Any]) -> list[np.ndarray]:
        """Its outputs as numpy arrays, after checking the operands.

        Raises:
            ValueError: if an operand has another shape or dtype than the stage was exported for.
        """
        pairs = enumerate(zip(operands, self.inputs, strict=True))
        arrays = [as_typed(x, aval, f"operand {i}") for i, (x, aval) in pairs]
        return [np.asarray(y) for y in jax.block_until_ready(self.call(*arrays))]


_MOST_STAGES = 64  # compiled, kept for their next messages
_LOADED: dict[str, CompiledStage] = {}


def load_stage(data: bytes) -> CompiledStage:
    """The stage in these bytes.

    Raises:
        ValueError: if they are not what was exported, or if this JAX cannot run them.
    """
    digest = hashlib.sha256(data).hexdigest()
    known = _LOADED.get(digest)
    if known is not None:
        return CompiledStage(known.name, known.call, known.inputs, known.outputs, 0.0)
    started = time.perf_counter()
    header, body = _read(data)
    module = jax.export.deserialize(bytearray(body))
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in module.in_avals]
    call = jax.jit(module.call).lower(*shapes).compile()
    seconds = time.perf_counter() - started
    while len(_LOADED) >= _MOST_STAGES:
        _LOADED.pop(next(iter(_LOADED)), None)  # the oldest; another thread may have taken it
    _LOADED[digest] = loaded = CompiledStage(
        header["name"], call, tuple(module.in_avals), tuple(module.out_avals), seconds
    )
    return loaded


def stage_bytes(digest: str) -> bytes:
    """The stage of this project with this digest: files of a Flower app are text, so its bytes are there in base64.

    Raises:
        ValueError: if there is none, or if the file was changed.
    """
    path = Path(__file__).parent / "stages" / f"{digest[:16]}.json"
    if not digest.isalnum() or not path.exists():
        message = f"this app has no stage {digest[:16]!r}: server and client were exported from different programs"
        raise ValueError(message)
    data = base64.b64decode(json.loads(path.read_text())["base64"])
    if hashlib.sha256(data).hexdigest() != digest:
        message = f"the file {path.name} of this app was changed after it was exported: export the program again"
        raise ValueError(message)
    return data


def as_typed(x: object, aval: ShapedArray | SimpleNamespace, what: str) -> np.ndarray:
    """An array of exactly this shape and dtype; dtypes that numpy's files and Flower's arrays do not know are restored.

    Raises:
        ValueError: if it is another.
    """
    array, dtype = np.asarray(x), np.dtype(aval.dtype)
    if dtype.kind == "V" and array.dtype != dtype and array.dtype.itemsize == dtype.itemsize:
        array = array.view(dtype)
    if array.shape != tuple(aval.shape) or array.dtype != dtype:
        message = f"{what} is {array.dtype}{list(array.shape)}, and the stage takes {dtype}{list(aval.shape)}"
        raise ValueError(message)
    return array


def as_plain(x: object) -> np.ndarray:
    """An array as Flower can send it: one of a dtype that numpy's files do not know as unsigned integers."""
    array = np.asarray(x)
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array


def _read(data: bytes) -> tuple[dict[str, Any], bytes]:
    rest, digest = data[: -32 - len(MAGIC)], data[-32 - len(MAGIC) : -len(MAGIC)]
    if not data.endswith(MAGIC) or hashlib.sha256(rest).digest() != digest:
        message = f"{len(data)} bytes that end with {bytes(data[-8:])!r} are not an exported stage, or were changed"
        raise ValueError(message)
    (length,) = struct.unpack("<I", rest[-4:])
    header = json.loads(rest[-4 - length : -4])
    low = jax.export.minimum_supported_calling_convention_version
    high = jax.export.maximum_supported_calling_convention_version
    if not low <= header["calling_convention"] <= high:
        message = (
            f"stage `{header['name']}` was made by JAX {header['jax']} with calling convention "
            f"{header['calling_convention']}; JAX {jax.__version__} here runs {low} to {high}: export it again"
        )
        raise ValueError(message)
    return header, rest[: -4 - length]
