"""The compiler's memory plan, written byte by byte, and the values that its blocks are divided among."""

from typing import Any

import pytest

from workbench.inspection import inspect_module
from workbench.inspection.hlo import _assignment
from workbench.inspection.hlo._assignment import (
    RESERVED,
    Allocation,
    Placed,
    _addresses as addresses,
    fields,
    read_allocations,
)


def varint(number: int) -> bytes:
    low, rest = number & 0x7F, number >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def message(*parts: tuple[int, int | bytes]) -> bytes:
    """A protobuf message of numbers and bytes; like a real writer, the caller leaves out numbers that are 0."""
    return b"".join(
        varint(number << 3) + varint(value) if isinstance(value, int)
        else varint(number << 3 | 2) + varint(len(value)) + value
        for number, value in parts
    )  # fmt: skip


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (b"\x08\x00", [(1, 0)]),
        (b"\x08\xac\x02", [(1, 300)]),  # 0x2c + (2 << 7)
        (b"\x08\x80\x80\x01\x10\x7f", [(1, 1 << 14), (2, 127)]),
        (b"\x0a\x02ab\x12\x00", [(1, b"ab"), (2, b"")]),
        (b"\x09" + bytes(range(8)) + b"\x10\x05", [(1, bytes(range(8))), (2, 5)]),  # 64 bits
        (b"\x0d" + bytes(range(4)) + b"\x10\x05", [(1, bytes(range(4))), (2, 5)]),  # 32 bits
        (b"\xba\x02\x01x", [(39, b"x")]),
    ],
)
def test_fields_of_a_message(data, expected):
    assert list(fields(data)) == expected


@pytest.mark.parametrize(
    "data", [b"\x08", b"\x08\x80", b"\x0a\x02a", b"\x0d\x01\x02\x03", b"\x09" + b"1234567", b"\x0b", b"\x0b\x08\x01"]
)
def test_messages_that_end_early_or_have_another_syntax_are_refused(data):
    with pytest.raises(ValueError, match="truncated"):
        list(fields(data))


FIRST, SECOND, THIRD = 7, 1 << 32 | 3, 2 << 32 | 4  # instructions of the computations 0, 1 and 2


def value(number: int, instruction: int, size: int) -> tuple[int, bytes]:
    written = [(1, number)] if number else []
    return 1, message(*written, (2, size), (3, message((1, b"main"), (4, instruction))))


def block(*parts: tuple[int, int | bytes]) -> tuple[int, bytes]:
    return 3, message(*parts)


def inner(name: str, number: int) -> tuple[int, bytes]:
    return 2, message((1, name.encode()), (2, b"opcode"), (35, number), (36, b"later"))


MODULE = message(
    (1, b"module"),
    (3, message((1, b"main"), inner("a", FIRST), inner("c", FIRST + 1))),  # number 0 is not written
    (3, message((1, b"body"), inner("b", SECOND), (5, 1))),
    (3, message((5, 2), (2, b"\x0a"))),  # no value is defined here, so this broken instruction is not read
)
VALUES = value(0, FIRST, 100), value(1, SECOND, 40), (1, message((1, 2), (2, 8)))


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        pytest.param([block((2, 100), (5, 1), (9, message()))], [Allocation(100, 0, (Placed("a", 0, 100),))],
                     id="the first argument"),
        pytest.param([block((2, 64), (5, 1), (6, 3))], [Allocation(64, 3, ())], id="the fourth argument"),
        pytest.param([block((2, 64), (6, 3))], [Allocation(64, None, ())], id="no argument"),
        pytest.param([block((2, 64), (3, 1)), block((2, 64), (12, 1)), block((2, 5), (4, 1))],
                     [Allocation(5, None, ())], id="per thread, constant, tuple"),
        pytest.param([block((1, 4))], [Allocation(0, None, ())], id="without a size"),
        pytest.param(
            [block((2, 200), (9, message((1, 1), (2, 64), (3, 32))), (9, message((2, 128))), (9, message((1, 9))),
                   (9, message((1, 2))))],
            [Allocation(200, None, (Placed("b", 64, 32), Placed("a", 128, 100)))],
            id="an arena, with a size of its own and without, and values of unknown instructions"),
    ],
)  # fmt: skip
def test_allocations_of_a_plan(written, expected):
    assert list(read_allocations(message(*VALUES, (2, 9), *written), MODULE)) == expected


@pytest.mark.parametrize(
    ("size", "placed", "alive", "expected"),
    [
        (100, (), (), [(None, 100)]),
        (63, (), (), [(None, 63)]),  # no value is before it
        (300, (("a", 0, 100), ("b", 163, 137)), (), [("a", 100), ("a", 63), ("b", 137)]),  # a gap for alignment
        (300, (("a", 0, 100), ("b", 164, 136)), (), [("a", 100), (None, 64), ("b", 136)]),
        (100, (("a", 0, 100), ("b", 0, 40)), ("b",), [("b", 40), ("a", 60)]),
        (100, (("a", 0, 100), ("b", 0, 40)), (), [("a", 40), ("a", 60)]),
        (100, (("a", 0, 100), ("b", 0, 40)), ("a", "b"), [("a", 40), ("a", 60)]),
        (100, (("a", 0, 50), ("b", 0, 50)), (), [("a", 50), ("a", 50)]),  # the first of two of one size
        (100, (("b", 60, 80), ("a", 0, 60)), (), [("a", 60), ("b", 40)]),  # not beyond the block
    ],
)
def test_owners_of_the_parts_of_a_block(size, placed, alive, expected):
    assert list(addresses(Allocation(size, None, tuple(Placed(*p) for p in placed)), set(alive))) == expected


TEXT = """HloModule jit_f, is_scheduled=true

ENTRY main {
  x = f32[4] parameter(0)
  a = f32[32] broadcast(x), dimensions={}
  c = f32[8] custom-call(a), custom_call_target="k"
  ROOT d = f32[8] negate(c)
}
"""  # at the peak x, a and c are alive: 16, 128 and 32 bytes


def held(monkeypatch: pytest.MonkeyPatch, plan: tuple[bytes, bytes] | None, peak: int) -> tuple[dict[str, float], Any]:
    monkeypatch.setattr(_assignment, "buffer_assignment_of", lambda *_: plan)
    tree: Any = inspect_module(TEXT, platform="cpu", peak_bytes=peak).call_tree
    return {n.name: n.own.peak_bytes for n in tree.nodes if n.own.peak_bytes}, tree.notes[0]


def test_peak_is_divided_by_the_plan_if_the_plan_adds_up_to_the_peak(monkeypatch):
    names = message((3, message((1, b"main"), inner("a", 1), inner("c", 2), inner("d", 3))))
    plan = message(
        value(1, 1, 128), value(2, 2, 32), value(3, 3, 32),
        block((2, 24), (5, 1)),  # the argument, which is 16 bytes in the text
        block((2, 384), (9, message((1, 1), (3, 128))), (9, message((1, 2), (2, 128), (3, 32)))),
        block((2, 40), (9, message((1, 3), (3, 32)))), block((2, 48), (5, 1), (6, 5)),
    )  # fmt: skip
    parts, note = held(monkeypatch, (plan, names), 24 + 384 + 40 + 48)
    # 224 bytes after `c` and an argument that the text does not have belong to the compiler; 8 bytes after `d` to `d`
    assert parts == {"argument": 24, "broadcast": 128, "custom-call": 32, "negate": 40, RESERVED: 224 + 48}
    assert note.startswith("peak bytes come from the compiler")


@pytest.mark.parametrize("plan", [None, (b"\x08", b""), (message(block((2, 1000), (5, 1))), b"")])
def test_peak_without_a_plan_that_adds_up_is_divided_by_the_schedule(monkeypatch, plan):
    alive = {"argument": 16, "broadcast": 128, "custom-call": 32}
    assert held(monkeypatch, plan, 176)[0] == alive
    assert held(monkeypatch, plan, 276)[0] == alive | {RESERVED: 100}
    parts, note = held(monkeypatch, plan, 88)
    assert parts == {name: size / 2 for name, size in alive.items()}
    assert "each value counts for 50 % of its bytes" in note
    assert "176 bytes; the compiler reports a peak of 88 bytes" in note
