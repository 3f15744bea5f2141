import io

import pytest

from workbench.aot import _frames
from workbench.aot._frames import LARGEST_FRAME_BYTES, FrameError, read_frame, write_frame


def test_frames_come_back_as_they_were_sent():
    stream = io.BytesIO()
    messages = [{"id": 1, "text": "ä" * 1000}, {"id": 2, "nested": {"list": [1, 2.5, None, True]}}]
    for message in messages:
        write_frame(stream, message)
    stream.seek(0)
    assert [read_frame(stream), read_frame(stream), read_frame(stream)] == [*messages, None]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\0\0\0", "3 of the 8 bytes"),
        ((5).to_bytes(8, "big") + b"{}", "ended after 2 of a frame's 5 bytes"),
        ((LARGEST_FRAME_BYTES + 1).to_bytes(8, "big"), "something other than frames"),
        (b"Hello, world, this is a compiler", "something other than frames"),
        ((3).to_bytes(8, "big") + b"abc", "is not valid JSON"),
        ((2).to_bytes(8, "big") + b"[]", "a JSON list, not an object"),
    ],
    ids=["cut-length", "cut-body", "too-long", "printed-text", "no-json", "no-object"],
)
def test_bytes_that_are_no_frame_are_an_error(data, words):
    with pytest.raises(FrameError, match=words):
        read_frame(io.BytesIO(data))


def test_frame_that_no_reader_accepts_is_not_written(monkeypatch):
    monkeypatch.setattr(_frames, "LARGEST_FRAME_BYTES", 10)
    stream = io.BytesIO()
    with pytest.raises(FrameError, match="exceeds the frame size limit"):
        write_frame(stream, {"text": "longer than ten bytes"})
    assert stream.getvalue() == b""
