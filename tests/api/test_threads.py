"""Public calls at once: each answer is the one that the call gives alone; `benchmarks.threads` has all of them."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import workbench as wb
from benchmarks.public_calls import W, X, average, calls
from benchmarks.threads import KINDS, answer

CHEAP = (
    "trace", "jit", "grad", "inspect", "why", "advise", "tap", "watch_compilations", "run_rounds",
    "make_mesh", "page",
)  # fmt: skip


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    all_calls = calls(tmp_path_factory.mktemp("calls"), wb.inspect(average())(W, X))
    return {name: all_calls[name] for name in CHEAP}


@pytest.fixture(scope="module")
def alone(known):
    with ThreadPoolExecutor(1) as pool:  # call trees begin with the frames of whoever calls
        return dict(zip(known, pool.map(answer, known.values()), strict=True))


@pytest.mark.parametrize("kind", ["threads", "asyncio", "nested"])
def test_answers_beside_other_calls_are_those_of_one_thread(known, alone, kind):
    count, wrong, _ = KINDS[kind](known, alone, 0)
    assert count >= len(CHEAP)
    assert wrong == []


def test_another_answer_is_noticed(known, alone):
    _, wrong, _ = KINDS["threads"]({"jit": known["jit"]}, {"jit": "1.0"}, 0)
    assert wrong
