"""Time and memory for opening a very large profile.

`python -m benchmarks.large_profile --megabytes 250` writes a profile of this size from copies of a recorded profile's
events; each copy is later in time than the one before. `open_profile` then opens the file. The benchmark prints
seconds, events per second, and the process's peak of private memory. Private memory excludes the file's own pages,
which the system reclaims when necessary. `--check` compares the sums with the recorded file's sums, multiplied by the
number of copies.
"""

import argparse
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np

RECORDED = Path(__file__).parents[1] / "tests" / "recorded"


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=250.0)
    parser.add_argument("--recorded", type=Path, default=RECORDED / "tpu_v6e_4chips_host_offload.xplane.pb")
    parser.add_argument("--check", action="store_true", help="compare the sums with the recorded file's sums")
    given = parser.parse_args()
    from workbench.measurement import open_profile

    with tempfile.TemporaryDirectory(prefix="large-profile-") as directory:
        path = Path(directory) / "large.xplane.pb"
        copies = write_copies(given.recorded, path, round(given.megabytes * 1e6))
        small = open_profile(given.recorded)  # what every reading needs once is loaded now
        before = memory()
        with Peak() as peak:
            start, busy = time.perf_counter(), time.process_time()
            large = open_profile(path)
            seconds, busy = time.perf_counter() - start, time.process_time() - busy
        size = path.stat().st_size
    events = sum(device.events for device in large.devices) + sum(lost.events for lost in large.unjoined)
    print(f"{size / 1e6:,.0f} MB, {copies:,} copies of {given.recorded.name}, {events:,} events")
    print(f"  {seconds:.1f} s ({busy:.1f} s of one core), {events / busy:,.0f} events/s, {size / 1e6 / busy:.1f} MB/s")
    print(f"  private memory {before[0]:.0f} MB before, at most {peak.private:.0f} MB")
    print(f"  resident memory, including the file's pages: at most {peak.resident:.0f} MB")
    if given.check:
        ratio = large.seconds / small.seconds
        print(f"  measured seconds are {ratio / copies:.9f} of {copies:,} times the recorded ones")


def write_copies(recorded: Path, path: Path, size: int) -> int:
    """Writes a profile of about `size` bytes: every line of a device holds its events again and again, later each time.

    Returns:
        How often.
    """
    planes = list(fields(recorded.read_bytes()))
    devices = [body for number, body in planes if number == 1 and b"/device:" in body[:64]]
    lines = [line for plane in devices for number, line in fields(plane) if number == 3]
    period = max(map(ended, lines)) - min(map(began, lines)) + 1_000_000
    one = sum(len(copied(event, set(), wide)) for line in lines for number, event in fields(line) if number == 4)
    copies = max(1, size // one)
    with path.open("wb") as file:
        for number, plane in planes:
            if plane not in devices:
                file.write(field(number, plane))
                continue
            clocks = {key_of(entry) for n, entry in fields(plane) if n == 5 and b"device_offset_ps" in entry}
            parts = [Line(body, clocks, copies, period) if n == 3 else field(n, body) for n, body in fields(plane)]
            file.write(varint(1 << 3 | 2) + varint(sum(map(len, parts))))
            for part in parts:
                file.writelines(part.pieces() if isinstance(part, Line) else (part,))
    return copies


class Line:
    """A line with repeated events; its length is known before its bytes are made."""

    def __init__(self, line: bytes, clocks: set[int], copies: int, period: int) -> None:
        self.head = b"".join(field(number, body) for number, body in fields(line) if number != 4)
        self.events = [body for number, body in fields(line) if number == 4]
        self.clocks, self.copies, self.period = clocks, copies, period
        self.length = len(self.head) + copies * sum(len(copied(event, clocks, wide)) for event in self.events)

    def __len__(self) -> int:
        return len(varint(3 << 3 | 2)) + len(varint(self.length)) + self.length

    def pieces(self) -> Iterator[bytes]:
        """The bytes, one copy at a time."""
        yield varint(3 << 3 | 2) + varint(self.length) + self.head
        # What changes from copy to copy is numbers of ten bytes: the same places in all copies, the same amount later.
        first = np.frombuffer(self._all(wide), np.uint8)
        marks = [np.frombuffer(self._all(lambda _, byte=byte: byte * 10), np.uint8) for byte in (b"\xff", b"\x00")]
        starts = np.flatnonzero((marks[0] == 0xFF) & (marks[1] == 0))[::10]
        shifts, places = 7 * np.arange(10, dtype=np.uint64), starts[:, None] + np.arange(10)
        values = ((first[places] & 0x7F).astype(np.uint64) << shifts).sum(1, dtype=np.uint64)
        made = first.copy()
        for copy in range(self.copies):
            later = values + np.uint64(copy * self.period)
            made[places] = ((later[:, None] >> shifts) & np.uint64(0x7F)) | np.array([0x80] * 9 + [0], np.uint64)
            yield made.tobytes()

    def _all(self, put: Callable[[int], bytes]) -> bytes:
        return b"".join(copied(event, self.clocks, put) for event in self.events)


def copied(event: bytes, clocks: set[int], put: Callable[[int], bytes]) -> bytes:
    """An event whose times are written by `put`, in ten bytes each, so that all copies have the same length."""
    body = b""
    for number, value in fields(event):
        if number == 2:
            body += varint(2 << 3) + put(value)
        elif number == 4 and key_of(value) in clocks:
            moved = [varint(n << 3) + (put(v) if n in (3, 4) else varint(v)) for n, v in fields(value)]
            body += field(4, b"".join(moved))
        else:
            body += field(number, value)
    return field(4, body)


def began(line: bytes) -> int:
    """The start of a line in picoseconds."""
    return 1000 * sum(value for number, value in fields(line) if number == 3)


def ended(line: bytes) -> int:
    """The end of the last event of a line in picoseconds."""
    events = [fields(event) for number, event in fields(line) if number == 4]
    return began(line) + max((sum(v for n, v in event if n in (2, 3)) for event in events), default=0)


def key_of(entry: bytes) -> int:
    """The value of a message's first numeric field."""
    return next((value for number, value in fields(entry) if number == 1), 0)


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Numbers and values of the fields of a message in protobuf's wire format."""
    at = 0
    while at < len(data):
        key, at = read_varint(data, at)
        value, at = read_varint(data, at) if key & 7 in (0, 2) else (0, at)
        if key & 7 != 0:
            end = at + {1: 8, 2: value, 5: 4}[key & 7]
            value, at = data[at:end], end
        yield key >> 3, value


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number in wire format, and the position after it."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def field(number: int, value: Any) -> bytes:
    """A field in wire format."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    return varint(number << 3) + varint(value)


def varint(value: int) -> bytes:
    """A number in the shortest wire format."""
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def wide(value: int) -> bytes:
    """A number in wire format, in ten bytes."""
    return bytes([(value >> 7 * i & 0x7F) | (0x80 if i < 9 else 0) for i in range(10)])


class Peak:
    """Peak memory of this process during a block, sampled every 50 ms."""

    def __enter__(self) -> Self:
        self.private = self.resident = 0.0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while True:
            private, resident = memory()
            self.private, self.resident = max(self.private, private), max(self.resident, resident)
            if self._done.wait(0.05):
                return


def memory() -> tuple[float, float]:
    """Megabytes of this process: private memory, and resident memory with the pages of mapped files (Linux)."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    return int(lines["RssAnon"].split()[0]) / 1e3, int(lines["VmRSS"].split()[0]) / 1e3


if __name__ == "__main__":
    main()
