"""Serialized exported programs with a header that is checked before loading.

The bytes start with the output of `jax.export.Exported.serialize`. `jax.export.deserialize` can read them, because it
ignores bytes after the flatbuffer. A trailer follows this output, with the header as JSON, the header's length, the
SHA-256 of all preceding bytes, and the name of the format.
"""

import contextlib
import hashlib
import json
import struct
from typing import Any, cast

import jax
import jax.export

from workbench._jax_compat.exported import unknown_custom_calls
from workbench.engines._artifact_check import BodyReader
from workbench.errors import InspectionError

MAGIC = b"WBSTHLO2"
_FIELDS = {
    "name": str,
    "jax": str,
    "calling_convention": int,
    "platforms": list,
    "devices": int,
    "inputs": list,
    "outputs": list,
    "body_bytes": int,
}
_END = 4 + 32 + len(MAGIC)  # length of the header, SHA-256 of all preceding bytes, format
_MOST_READ = 10_000
_read_before: dict[bytes, None] = {}  # digests of artifacts that this process wrote, or read safely; newest last


def pack(module: jax.export.Exported, *, name: str, vjp_order: int = 0) -> bytes:
    """Adds a header with the JAX version, platforms, inputs and outputs to an exported module."""
    body = bytes(module.serialize(vjp_order=vjp_order))
    header = {
        "name": name,
        "jax": jax.__version__,
        "calling_convention": module.calling_convention_version,
        "platforms": list(module.platforms),
        "devices": module.nr_devices,
        "inputs": [str(aval) for aval in module.in_avals],
        "outputs": [str(aval) for aval in module.out_avals],
        "derivatives": vjp_order,
        "body_bytes": len(body),
    }
    data = seal(json.dumps(header, sort_keys=True).encode(), body)
    _remember(_digest(data))
    return data


def seal(text: bytes, body: bytes) -> bytes:
    """Creates an artifact from any header text and a body."""
    content = body + text + struct.pack("<I", len(text))
    return content + hashlib.sha256(content).digest() + MAGIC


def read_header(data: bytes) -> dict[str, Any]:
    """Reads an artifact's header after verifying its SHA-256.

    Raises:
        InspectionError: if the bytes are not an artifact, are truncated or changed, or have an unknown version or
            layout.
    """
    if data[-len(MAGIC) : -1] == MAGIC[:-1] and data[-1:] != MAGIC[-1:]:
        message = (
            f"`load` was given an exported program of format {data[-1:]!r}; this workbench "
            f"reads format {MAGIC[-1:]!r}. Each format is read by the workbench version that wrote it and by later "
            "versions: update mapreduce-workbench here, or export the program again."
        )
        raise InspectionError(message)
    if not data.endswith(MAGIC):
        message = (
            f"`load` was given {len(data)} bytes that end with {bytes(data[-8:])!r}, not with {MAGIC!r}: the bytes are "
            "not an exported program, or are truncated. Only the output of `export` can be loaded: pass these bytes, "
            "or the path of the file that contains them."
        )
        raise InspectionError(message)
    content = data[: -32 - len(MAGIC)]
    if len(data) < _END or hashlib.sha256(content).digest() != _digest(data):
        message = (
            f"`load` was given an exported program of {len(data)} bytes whose SHA-256 does not match its stored "
            "SHA-256. The program was truncated or changed in transit, so it is not loaded: copy the file again, or "
            "export the program again."
        )
        raise InspectionError(message)
    (length,) = struct.unpack("<I", content[-4:])
    start = max(0, len(content) - 4 - length)
    try:
        header = json.loads(content[start:-4])
    except (ValueError, RecursionError) as error:
        raise InspectionError(_misformed(f"a header that is not JSON ({type(error).__name__})")) from error
    if wrong := _wrong_fields(header):
        raise InspectionError(_misformed(wrong))
    if header["body_bytes"] != start:
        wrong = f"{start} bytes before a header that states {header['body_bytes']}"
        raise InspectionError(_misformed(wrong))
    return header


def unpack_apart(data: bytes, reader: BodyReader | None = None) -> tuple[dict[str, Any], jax.export.Exported]:
    """Unpacks untrusted bytes whose body a separate process has parsed.

    A maliciously damaged module can crash the process that reads it. Artifacts that this process wrote or read before
    are not checked again.

    Args:
        data: The artifact.
        reader: The process that reads the body. None starts a process for this call; this takes about two seconds.

    Raises:
        InspectionError: as for `unpack`, or if the body crashes the reading process.
    """
    header = read_header(data)
    _check_version(header)
    digest = _digest(data)
    if digest not in _read_before:
        with contextlib.ExitStack() as ends:
            reply = (reader or ends.enter_context(BodyReader())).read(_body(header, data))
        if "error" in reply:
            raise InspectionError(_unreadable(header, str(reply["error"])))
        _check_calls(header, list(map(str, cast(list[object], reply["unknown"]))))
        _remember(digest)
    return unpack(data)


def unpack(data: bytes) -> tuple[dict[str, Any], jax.export.Exported]:
    """Unpacks the header and the module from trusted bytes, in this process."""
    header = read_header(data)
    _check_version(header)
    try:
        module = jax.export.deserialize(bytearray(_body(header, data)))
        unknown = unknown_custom_calls(module)
    except Exception as error:
        message = _unreadable(header, f"JAX {jax.__version__} raised {type(error).__name__}: {error}")
        raise InspectionError(message) from error
    _check_calls(header, unknown)
    return header, module


def _remember(digest: bytes) -> None:
    _read_before[digest] = None
    while len(_read_before) > _MOST_READ:
        _read_before.pop(next(iter(_read_before)), None)


def _body(header: dict[str, Any], data: bytes) -> bytes:
    return data[: header["body_bytes"]]


def _digest(data: bytes) -> bytes:
    return data[-32 - len(MAGIC) : -len(MAGIC)]


def _unreadable(header: dict[str, Any], why: str) -> str:
    return (
        f"`load` could not read the exported program `{header['name']}`: {why}. The program was exported with JAX "
        f"{header['jax']}: use that version, or export it again."
    )


def _check_calls(header: dict[str, Any], unknown: list[str]) -> None:
    if unknown:
        message = (
            f"`load` was given the exported program `{header['name']}`, which calls the external targets "
            f"{', '.join(unknown)}. A program may call only targets that JAX keeps stable. A callback contains an "
            "address that is valid only in the exporting process; in this process, the call would crash. The program "
            "is not run: ask its author for an export without callbacks."
        )
        raise InspectionError(message)


def _wrong_fields(header: object) -> str:
    """Describes header fields that `pack` would not write in this form; returns "" if there are none."""
    if not isinstance(header, dict):
        return f"a header of type {type(header).__name__} instead of a JSON object"
    wrong = [name for name, kind in _FIELDS.items() if type(header.get(name)) is not kind]
    for name in ("platforms", "inputs", "outputs"):
        if name not in wrong and not all(isinstance(item, str) for item in header[name]):
            wrong.append(name)
    return (
        f"a header whose {', '.join(wrong)} {'is' if len(wrong) == 1 else 'are'} missing or of the wrong type"
        if wrong
        else ""
    )


def _misformed(fault: str) -> str:
    return (
        f"`load` was given an exported program with {fault}. The bytes have the right SHA-256, but `export` did not "
        "write them. Only files that `export` wrote can be loaded: export the program again."
    )


def _check_version(header: dict[str, Any]) -> None:
    version = header["calling_convention"]
    low = jax.export.minimum_supported_calling_convention_version
    high = jax.export.maximum_supported_calling_convention_version
    if low <= version <= high:
        return
    message = (
        f"`load` was given the exported program `{header['name']}`, exported by JAX {header['jax']} with calling "
        f"convention {version}; JAX {jax.__version__} here runs conventions {low} to {high}. JAX reads artifacts that "
        "are up to 6 months older or 3 weeks newer than itself: export the program again with a JAX version near the "
        "version that runs it."
    )
    raise InspectionError(message)
