"""A process that checks exported programs, because damaged bodies can crash XLA's reader.

The process reads an eight-byte length and a body from stdin, answers with a line of JSON, and exits when stdin closes.
"""

import json
import os
import signal
import struct
import sys

import jax.export

from workbench._jax_compat.exported import unknown_custom_calls
from workbench._processes import ChildProcess

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
        """Ends the process."""
        child, self._child = self._child, None
        if child is not None:
            child.end()
            child.stdout.close()

    def read(self, body: bytes) -> dict[str, object]:
        """Reads a body in the process and returns its result."""
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
            command = [sys.executable, "-P", "-c", "from workbench.engines._artifact_check import serve; serve()"]
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


def _read_body(body: bytes) -> dict[str, object]:
    try:
        return {"unknown": unknown_custom_calls(jax.export.deserialize(bytearray(body)))}
    except Exception as error:  # a damaged body can make JAX raise any error
        return {"error": f"JAX {jax.__version__} raised {type(error).__name__}: {str(error)[:2000]}"}


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
        answers.write(json.dumps(_read_body(body)).encode() + b"\n")
        answers.flush()


def _limit(length: int) -> None:
    """Limits the time and memory for reading a body, if the system supports such limits."""
    if sys.platform == "win32":
        return
    import resource

    signal.setitimer(signal.ITIMER_PROF, _READ_SECONDS + _SECONDS_PER_MIB * (length >> 20))  # ends C++ too
    most, (_, hard) = _ADDRESSES + _ADDRESSES_PER_BYTE * length, resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
