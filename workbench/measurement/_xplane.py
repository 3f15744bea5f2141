"""Streaming reader of XLA's profile format (`*.xplane.pb`).

A custom reader is needed because `jax.profiler.ProfileData` omits the display names and metadata statistics that
identify TPU events, and loads the whole file into memory. The only published package for this format (xprof) installs
36 other packages. The format has seven messages, and its field numbers have not changed since 2020.

References:
    `xplane.proto` of openxla/xla, xla/tsl/profiler/protobuf.
"""

import mmap
import struct
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from workbench.errors import ProfileError

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_DOUBLE = struct.Struct("<d")
_STAT_KEY, _NUMBER_KEYS = 4 << 3 | _BYTES, frozenset((1 << 3, 2 << 3, 3 << 3))  # fields of an event
_MOST_STATS = 20_000  # kept decoded
_RELEASED = 32 * 2**20  # number of bytes of a mapped file that are read before their pages are released

Buffer = bytes | mmap.mmap


class MessageSpan(NamedTuple):
    """Position of a message in the file."""

    start: int
    stop: int


class WireError(ValueError):
    """Bytes that are not a message, because they are truncated or of a different type."""


@dataclass(slots=True)
class EventKind:
    """Shared properties of all events of one kind (`XEventMetadata`)."""

    name: str
    display_name: str = ""
    stats: dict[str, Any] = field(default_factory=dict)


class PlaneEvent(NamedTuple):
    """One event; times are integer picoseconds, because float seconds would lose precision."""

    kind: EventKind
    start_ps: int
    duration_ps: int
    stats: dict[str, Any]


class Line(NamedTuple):
    """One row of a plane: a stream, a thread, or one kind of operation.

    The row's events stay in the file.
    """

    name: str
    start_ps: int
    span: MessageSpan


class Plane:
    """One device or one host; lines and events are decoded on access."""

    def __init__(self, buffer: Buffer, span: MessageSpan) -> None:
        self._buffer = buffer
        self.name = ""
        self._lines: list[MessageSpan] = []
        self._kind_spans: dict[int, MessageSpan] = {}
        self._kinds: dict[int, EventKind] = {}
        self._stat_names: dict[int, str] = {}
        self._known_stats: dict[bytes, tuple[str, Any]] = {}  # most statistics of events repeat byte for byte
        stats: list[MessageSpan] = []
        for number, value in fields(buffer, span):
            if number == 2:
                self.name = _text(buffer, value)
            elif number == 3:
                self._lines.append(value)
            elif number == 4:
                key, message = _entry(buffer, value)
                if message is not None:
                    self._kind_spans[key] = message
            elif number == 5:
                key, message = _entry(buffer, value)
                if message is not None:
                    self._stat_names[key] = next((_text(buffer, v) for n, v in fields(buffer, message) if n == 2), "")
            elif number == 6:
                stats.append(value)
        self.stats = dict(self._stat(span) for span in stats)
        self._stated = frozenset(self._stat_names.values())

    def lines(self) -> Iterator[Line]:
        """The lines, in file order."""
        for span in self._lines:
            name, start = "", 0
            for number, value in fields(self._buffer, span):
                if number == 2:
                    name = _text(self._buffer, value)
                elif number == 3:
                    start = _signed(value) * 1000
                elif number == 4 and name:  # events come last, except a second name for display
                    break
                elif number == 11:
                    name = name or _text(self._buffer, value)
            yield Line(name, start, span)

    def events(
        self, line: Line, *, stating: Iterable[str] = (), kinds: Container[str] | None = None
    ) -> Iterator[PlaneEvent]:
        """The events of a line, in file order."""
        if not set(stating) <= self._stated:
            return
        named = None if kinds is None else {key for key in self._kind_spans if self.kind(key).name in kinds}
        if named is not None and not named:
            return
        buffer, start_ps, cache, kind_of = self._buffer, line.start_ps, self._known_stats, self.kind
        position = line.span.start
        for field_number, span in fields(buffer, line.span):
            if field_number != 4:
                continue
            if span.start - position > _RELEASED:
                position = _release(buffer, position, span.start)
            key, offset, duration, pieces = _event(buffer[span.start : span.stop])
            if named is not None and key not in named:
                continue
            stats: dict[str, Any] = {}
            for piece in pieces:
                stat = cache.get(piece)
                if stat is None:
                    stat = self._stat(MessageSpan(0, len(piece)), piece)
                    if len(cache) < _MOST_STATS:
                        cache[piece] = stat
                stats[stat[0]] = stat[1]
            yield PlaneEvent(kind_of(key), start_ps + offset, duration, stats)
        _release(buffer, position, line.span.stop)

    def forget(self) -> None:
        """Drops cached data about the plane's events; other planes do not need these data."""
        self._known_stats.clear()

    def kind(self, key: int) -> EventKind:
        """Returns the shared properties of the events of one kind."""
        if key not in self._kinds:
            self._kinds[key] = self._kind(key)
        return self._kinds[key]

    def kinds(self) -> Iterator[EventKind]:
        """All kinds of the plane; the kinds of `/host:metadata` include the HLO of programs."""
        return map(self.kind, self._kind_spans)

    def _kind(self, key: int) -> EventKind:
        if key not in self._kind_spans:
            return EventKind(f"event {key}")
        kind = EventKind("")
        for number, value in fields(self._buffer, self._kind_spans[key]):
            if number == 2:
                kind.name = _text(self._buffer, value)
            elif number == 4:
                kind.display_name = _text(self._buffer, value)
            elif number == 5:
                name, stat = self._stat(value)
                kind.stats[name] = stat
        return kind

    def _stat(self, span: MessageSpan, piece: bytes | None = None) -> tuple[str, Any]:
        buffer = self._buffer if piece is None else piece
        name, stat = "", None
        for number, value in fields(buffer, span):
            if number == 1:
                name = self._stat_names.get(value, f"stat {value}")
            elif number == 2:
                stat = _DOUBLE.unpack(value.to_bytes(8, "little"))[0]
            elif number == 3:
                stat = value
            elif number == 4:
                stat = _signed(value)
            elif number == 5:
                stat = _text(buffer, value)
            elif number == 6:
                stat = bytes(buffer[value.start : value.stop])
            elif number == 7:
                stat = self._stat_names.get(value, "")
        return name, stat


@dataclass(slots=True)
class Space:
    """A whole profile.

    `damage` describes where the file is truncated or invalid; data before the damage are included.
    """

    planes: list[Plane]
    hosts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    damage: str = ""


def read_space(source: Path | bytes) -> Space:
    """Opens a profile and maps its file; planes are decoded on access."""
    where = f"{len(source)} bytes" if isinstance(source, bytes) else f"`{source}`"
    buffer = source if isinstance(source, bytes) else _mapped(source)
    planes: list[Plane] = []
    hosts: list[str] = []
    warnings: list[str] = []
    damage = ""
    try:
        for number, value in fields(buffer, MessageSpan(0, len(buffer))):
            if number == 1:
                planes.append(Plane(buffer, value))
            elif number in (2, 3):
                warnings.append(_text(buffer, value))
            elif number == 4:
                hosts.append(_text(buffer, value))
    except (WireError, TypeError, AttributeError) as error:  # a number instead of a message, or the reverse
        damage = str(error) if isinstance(error, WireError) else "a field has a different type than in XLA profiles"
    if not planes:
        fact = damage or "it contains no planes"
        msg = (
            f"`open_profile` was given {where}, which is not an XLA profile: {fact}. A profile is the unchanged "
            "`*.xplane.pb` file that `jax.profiler.stop_trace()` writes: copy it again in binary mode."
        )
        raise ProfileError(msg)
    return Space(planes, tuple(hosts), tuple(warnings), damage)


def trim_profile(path: Path) -> bytes:
    """Removes host planes, host names and the environment from a profile, so that it can be shared.

    Device planes and the HLO of the programs are kept unchanged. On a CPU, whose devices are host threads, the host's
    plane is also kept.

    Args:
        path: A `*.xplane.pb`.

    Returns:
        The bytes of a profile.
    """
    buffer = _mapped(path)
    spans = [value for number, value in fields(buffer, MessageSpan(0, len(buffer))) if number == 1]
    names = [Plane(buffer, span).name for span in spans]
    on_devices = any(name.startswith("/device:") and "CUSTOM" not in name for name in names)
    pieces = []
    for span, name in zip(spans, names, strict=True):
        if name == "/host:metadata" or name.startswith("/device:") or (name == "/host:CPU" and not on_devices):
            pieces.append(b"\x0a" + _length(span.stop - span.start) + bytes(buffer[span.start : span.stop]))
    return b"".join(pieces)


def _length(value: int) -> bytes:
    digits = bytearray()
    while value >= 0x80:
        digits.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*digits, value])


def fields(buffer: Buffer, span: MessageSpan) -> Iterator[tuple[int, Any]]:
    """Yields a message's field numbers and values: integers, or a `MessageSpan` of bytes."""
    index, stop = span
    while index < stop:
        key = buffer[index]
        index += 1
        if key >= 0x80:
            key, index = _varint(buffer, index - 1, stop)
        wire = key & 7
        if wire == _VARINT:
            if index < stop and buffer[index] < 0x80:
                value: int | MessageSpan = buffer[index]
                index += 1
            else:
                value, index = _varint(buffer, index, stop)
        elif wire == _BYTES:
            length, index = _varint(buffer, index, stop)
            if index + length > stop:
                msg = f"a field of {length} bytes at byte {index} extends beyond the end of its message at byte {stop}"
                raise WireError(msg)
            value = MessageSpan(index, index + length)
            index += length
        elif wire in (_FIXED64, _FIXED32):
            width = 8 if wire == _FIXED64 else 4
            if index + width > stop:
                msg = f"a number at byte {index} is truncated"
                raise WireError(msg)
            value = int.from_bytes(buffer[index : index + width], "little")
            index += width
        else:
            msg = f"byte {index} does not start a field"
            raise WireError(msg)
        yield key >> 3, value


def _event(data: bytes) -> tuple[int, int, int, list[bytes]]:
    """Reads an event's kind, offset, duration and raw statistics; this is the hot inner loop."""
    numbers = [0, 0, 0]
    pieces: list[bytes] = []
    index, stop = 0, len(data)
    try:
        while index < stop:
            key = data[index]
            index += 1
            if key == _STAT_KEY:
                size = data[index]
                index += 1
                if size >= 0x80:
                    size, index = _varint(data, index - 1, stop)
                end = index + size
                if end > stop:
                    msg = f"a statistic of {size} bytes extends beyond the end of its event"
                    raise WireError(msg)
                pieces.append(data[index:end])
                index = end
            elif key in _NUMBER_KEYS:
                value = data[index]
                index += 1
                if value >= 0x80:
                    value, shift = value & 0x7F, 7
                    while True:
                        byte = data[index]
                        index += 1
                        value |= (byte & 0x7F) << shift
                        if byte < 0x80:
                            break
                        shift += 7
                        if shift > 63:
                            msg = "a number of an event is truncated"
                            raise WireError(msg)
                numbers[(key >> 3) - 1] = value
            else:  # a field of another profile version
                for number, value in fields(data, MessageSpan(index - 1, stop)):
                    if number == 4:
                        pieces.append(data[value.start : value.stop])
                    elif number <= 3:
                        numbers[number - 1] = value
                break
    except IndexError:
        msg = "an event is truncated"
        raise WireError(msg) from None
    kind, offset, duration = numbers
    return kind, _signed(offset), _signed(duration), pieces


def _varint(buffer: Buffer, index: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    while index < stop:
        byte = buffer[index]
        index += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, index
        shift += 7
        if shift > 63:
            break
    msg = f"a number at byte {index} is truncated"
    raise WireError(msg)


def _entry(buffer: Buffer, span: MessageSpan) -> tuple[int, MessageSpan | None]:
    """Key and message of one map entry."""
    key, message = 0, None
    for number, value in fields(buffer, span):
        if number == 1:
            key = value
        elif number == 2:
            message = value
    return key, message


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def _text(buffer: Buffer, span: MessageSpan) -> str:
    return bytes(buffer[span.start : span.stop]).decode("utf-8", "replace")


def _release(buffer: Buffer, start: int, stop: int) -> int:
    """Releases the pages of a mapped file that have been read, to limit memory use; returns the position."""
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE
    if isinstance(buffer, mmap.mmap) and last > first and hasattr(buffer, "madvise"):
        buffer.madvise(mmap.MADV_DONTNEED, first, last - first)
    return stop


def _mapped(path: Path) -> Buffer:
    with path.open("rb") as file:
        if path.stat().st_size == 0:
            return b""
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
