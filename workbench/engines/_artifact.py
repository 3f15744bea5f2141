"""Serialized exported programs with a header, which a child process reads first: damaged bodies can crash XLA's reader.

The bytes start with the output of `jax.export.Exported.serialize`. `jax.export.deserialize` can read them, because it
ignores bytes after the flatbuffer. A trailer follows this output, with the header as JSON, the header's length, the
SHA-256 of all preceding bytes, and the name of the format.

The child process reads an eight-byte length and a body from stdin, answers with a line of JSON, and exits when stdin
closes.
"""

import contextlib
import hashlib
import json
import os
import signal
import struct
import sys
from typing import Any, cast

import jax
import jax.export

from workbench._jax_compat.exported import unknown_custom_calls
from workbench._processes import ChildProcess
from workbench.errors import InspectionError

_LENGTH = struct.Struct(">Q")
_READ_SECONDS = 1  # of the processor
_SECONDS_PER_MIB = 1
_ADDRESSES = 16 << 30  # JAX reserves address space that it never uses
_ADDRESSES_PER_BYTE = 64


class BodyReader:
    """A process that reads bodies one by one.

    The process starts with the first body and restarts after a crash.

    Use it in a `with` block; the process exits at the end of the block.
    """

    def __init__(self) -> None:
        self._child: ChildProcess | None = None

    def __enter__(self) -> "BodyReader":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.end()
            child.stdout.close()

    def read(self, body: bytes) -> dict[str, object]:
        try:
            return self._ask(body)
        except BaseException:
            self.close()  # also when interrupted; otherwise the next body would receive this answer
            raise

    def _ask(self, body: bytes) -> dict[str, object]:
        if self._child is None or not self._child.running:
            self.close()
            path = os.pathsep.join(entry for entry in sys.path if entry)
            environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
            command = [sys.executable, "-P", "-c", "from workbench.engines._artifact import serve; serve()"]
            self._child = ChildProcess(command, env=environment)
        child = self._child
        try:
            child.stdin.write(_LENGTH.pack(len(body)) + body)
            child.stdin.flush()
        except OSError:  # it crashed on the previous body, or at startup
            return {"error": self._death(child)}
        line = child.stdout.readline()
        return json.loads(line) if line.endswith(b"\n") else {"error": self._death(child)}

    def _death(self, child: ChildProcess) -> str:
        status = child.wait(10)
        self.close()
        if status is None or status >= 0:
            return f"the checking process ended with exit status {status}"
        name = signal.Signals(-status).name
        limit = f" (limit: {_READ_SECONDS} s of processor time, plus {_SECONDS_PER_MIB} s per MiB)"
        why = limit if name == "SIGPROF" else ""
        return f"the checking process was killed by {name}{why}"


def serve() -> None:
    """Answers requests until stdin closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)  # XLA prints its stack addresses when it crashes
    while len(head := sys.stdin.buffer.read(_LENGTH.size)) == _LENGTH.size:
        (length,) = _LENGTH.unpack(head)
        body = sys.stdin.buffer.read(length)
        _limit(length)
        try:
            answer = {"unknown": unknown_custom_calls(jax.export.deserialize(bytearray(body)))}
        except Exception as error:  # a damaged body can make JAX raise any error
            answer = {"error": f"JAX {jax.__version__} raised {type(error).__name__}: {str(error)[:2000]}"}
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _limit(length: int) -> None:
    """Limits the time and memory for reading a body, if the system supports such limits."""
    if sys.platform == "win32":
        return
    import resource

    signal.setitimer(signal.ITIMER_PROF, _READ_SECONDS + _SECONDS_PER_MIB * (length >> 20))  # ends C++ too
    most, (_, hard) = _ADDRESSES + _ADDRESSES_PER_BYTE * length, resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


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
