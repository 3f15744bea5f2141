"""Stages as files with StableHLO and a header; they are checked before use and compiled once per process."""

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
    """One callable stage, with the shapes and dtypes of its StableHLO."""

    name: str
    call: Callable
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    compile_seconds: float

    def __call__(self, operands: Sequence[Any]) -> list[np.ndarray]:
        """Checks the operands and returns the outputs as numpy arrays."""
        pairs = enumerate(zip(operands, self.inputs, strict=True))
        arrays = [as_typed(x, aval, f"operand {i}") for i, (x, aval) in pairs]
        return [np.asarray(y) for y in jax.block_until_ready(self.call(*arrays))]


_MOST_STAGES = 64  # compiled stages, cached for later messages
_LOADED: dict[str, CompiledStage] = {}


def load_stage(data: bytes) -> CompiledStage:
    digest = hashlib.sha256(data).hexdigest()
    stage = _LOADED.get(digest)
    if stage is not None:
        return CompiledStage(stage.name, stage.call, stage.inputs, stage.outputs, 0.0)
    started = time.perf_counter()
    header, body = _read(data)
    module = jax.export.deserialize(bytearray(body))
    shapes = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in module.in_avals]
    call = jax.jit(module.call).lower(*shapes).compile()
    seconds = time.perf_counter() - started
    while len(_LOADED) >= _MOST_STAGES:
        _LOADED.pop(next(iter(_LOADED)), None)  # drop the oldest; another thread may have dropped it
    _LOADED[digest] = loaded = CompiledStage(
        header["name"], call, tuple(module.in_avals), tuple(module.out_avals), seconds
    )
    return loaded


def stage_bytes(digest: str) -> bytes:
    """Reads the stage with this digest. Stages are stored as base64, because app files are text."""
    path = Path(__file__).parent / "stages" / f"{digest[:16]}.json"
    if not digest.isalnum() or not path.exists():
        message = f"this app has no stage {digest[:16]!r}: server and client were exported from different programs"
        raise ValueError(message)
    data = base64.b64decode(json.loads(path.read_text())["base64"])
    if hashlib.sha256(data).hexdigest() != digest:
        message = f"the file {path.name} of this app was changed after it was exported: export the program again"
        raise ValueError(message)
    return data


def as_typed(x: object, aval: ShapedArray | SimpleNamespace, label: str) -> np.ndarray:
    """Checks an array's shape and dtype; restores dtypes that numpy files cannot store."""
    array, dtype = np.asarray(x), np.dtype(aval.dtype)
    if dtype.kind == "V" and array.dtype != dtype and array.dtype.itemsize == dtype.itemsize:
        array = array.view(dtype)
    if array.shape != tuple(aval.shape) or array.dtype != dtype:
        message = f"{label} is {array.dtype}{list(array.shape)}, but the stage takes {dtype}{list(aval.shape)}"
        raise ValueError(message)
    return array


def as_plain(x: object) -> np.ndarray:
    """Converts dtypes that numpy files cannot store to unsigned integers for Flower."""
    array = np.asarray(x)
    return array.view(f"u{array.dtype.itemsize}") if array.dtype.kind == "V" else array


def _read(data: bytes) -> tuple[dict[str, Any], bytes]:
    content, digest = data[: -32 - len(MAGIC)], data[-32 - len(MAGIC) : -len(MAGIC)]
    if not data.endswith(MAGIC) or hashlib.sha256(content).digest() != digest:
        message = f"{len(data)} bytes that end with {bytes(data[-8:])!r} are not an exported stage, or were changed"
        raise ValueError(message)
    (length,) = struct.unpack("<I", content[-4:])
    header = json.loads(content[-4 - length : -4])
    low = jax.export.minimum_supported_calling_convention_version
    high = jax.export.maximum_supported_calling_convention_version
    if not low <= header["calling_convention"] <= high:
        message = (
            f"stage `{header['name']}` was exported by JAX {header['jax']} with calling convention "
            f"{header['calling_convention']}; JAX {jax.__version__}, installed here, "
            f"supports versions {low} to {high}: export it again"
        )
        raise ValueError(message)
    return header, content[: -4 - length]
