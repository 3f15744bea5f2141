"""Messages between kernel and worker: a length in 8 bytes, followed by JSON.

Pickle is not used, so a compromised worker can send only data.
"""

import json
import struct
from typing import Any, BinaryIO

_LENGTH = struct.Struct(">Q")
LARGEST_FRAME_BYTES = 1 << 30


class FrameError(ValueError):
    """The bytes on the pipe are not a frame."""


def write_frame(stream: BinaryIO, message: dict[str, Any]) -> None:
    body = json.dumps(message).encode()
    if len(body) > LARGEST_FRAME_BYTES:
        text = f"a message of {len(body)} bytes exceeds the frame size limit ({LARGEST_FRAME_BYTES} bytes)"
        raise FrameError(text)
    stream.write(_LENGTH.pack(len(body)) + body)
    stream.flush()


def read_frame(stream: BinaryIO) -> dict[str, Any] | None:
    """The next message; None if the stream ended cleanly."""
    head = stream.read(_LENGTH.size)
    if not head:
        return None
    if len(head) < _LENGTH.size:
        text = f"the stream ended after {len(head)} of the {_LENGTH.size} bytes that state a frame's length"
        raise FrameError(text)
    (length,) = _LENGTH.unpack(head)
    if length > LARGEST_FRAME_BYTES:
        text = f"a frame of {length} bytes was announced, so something other than frames was written to this stream"
        raise FrameError(text)
    body = stream.read(length)
    if len(body) < length:
        text = f"the stream ended after {len(body)} of a frame's {length} bytes"
        raise FrameError(text)
    try:
        message = json.loads(body)
    except ValueError as error:
        text = f"a frame of {length} bytes is not valid JSON: {error}"
        raise FrameError(text) from error
    if not isinstance(message, dict):
        text = f"a frame contains a JSON {type(message).__name__}, not an object"
        raise FrameError(text)
    return message
