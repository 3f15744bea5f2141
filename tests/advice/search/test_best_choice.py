"""The search against brute force: every assignment of a small program is priced, and the best must be the first."""

import itertools
import math
import random
import types
from typing import Any

import jax
import pytest
from jax.sharding import AbstractMesh

import workbench as wb
from workbench.advice._search._groups import SpecGroup
from workbench.advice._search._program import Priced, SearchProgram
from workbench.advice._search._search import Search, _joined
from workbench.records.advice import JitRecord


def shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, "bfloat16")


def predict(w, v, x):
    return jax.nn.gelu(x @ w) @ v


def product(w, x):
    return x @ w


def all_specs(sizes, axes):
    """Every way to place each axis on one dimension or on none, if it divides the dimension."""
    for places in itertools.product(range(-1, len(sizes)), repeat=len(axes)):
        spec = tuple(tuple(a for a, place in zip(axes, places, strict=True) if place == d) for d in range(len(sizes)))
        parts = [math.prod(axes[axis] for axis in entry) for entry in spec]
        if all(n % part == 0 for n, part in zip(sizes, parts, strict=True)):
            yield spec


def order(fits, seconds, peak_bytes, memory_bytes):
    """What `search` documents: choices that fit, then the faster one; of those that do not fit, the smaller one."""
    return (not fits, seconds if fits else peak_bytes / memory_bytes)


@pytest.mark.parametrize(
    ("fn", "args", "axes", "memory_bytes"),
    [
        (predict, (shape(1024, 4096), shape(4096, 1024), shape(64, 1024)), {"model": 8}, None),
        (predict, (shape(64, 64), shape(64, 64), shape(65536, 64)), {"data": 8}, None),
        (product, (shape(256, 1024), shape(512, 256)), {"data": 2, "model": 2}, None),
        (predict, (shape(256, 1024), shape(1024, 256), shape(510, 256)), {"data": 4}, 5 * 2**18),
        (predict, (shape(256, 1024), shape(1024, 256), shape(512, 256)), {"data": 4}, 2**17),
    ],
    ids=["large weights", "large batch", "two axes", "little memory", "too little memory"],
)
def test_first_choice_is_the_best_of_all_assignments(fn, args, axes, memory_bytes):
    mesh = AbstractMesh(tuple(axes.values()), tuple(axes))
    found = wb.search(fn, on=(mesh, "v5e"), compiled=False, memory_bytes=memory_bytes)(*args).best
    call: Any = wb.trace(fn)(*args)._call
    program = SearchProgram(call, mesh, "v5e", memory_bytes=memory_bytes)
    room = program.memory_bytes
    by_shape = [all_specs(group.shape, axes) for group in program.groups]
    every = [program.plan(specs) for specs in itertools.product(*by_shape)]
    best = min(order(each.fits, each.seconds, each.peak_bytes, room) for each in every)
    assert order(found.fits, found.seconds, found.peak_bytes, room) == pytest.approx(best, rel=1e-3)


AXES = {"a": 2, "b": 2, "c": 2}
ROOM = 1000
ALL = list(itertools.product(all_specs((8,), AXES), repeat=2))  # 64 assignments of two vectors


class Table(types.SimpleNamespace):
    """A program of two vectors whose figures are given: planned, compiled for CPU devices, and for the chip."""

    def __init__(self, planned, on_cpu, on_chip: Any = None, peaks=None):
        chip = types.SimpleNamespace(name="v5e")
        super().__init__(
            axes=AXES, memory_bytes=ROOM, chip=chip, where="v5e:2x4", chunk_size=None, counts_once=False, given=None,
            call=types.SimpleNamespace(name="f"), mesh=types.SimpleNamespace(size=8), leaves=[],
            target=None if on_chip is None else "v5e:2x4", planned_count=0, compiled_count=0, jit=JitRecord(),
            groups=[SpecGroup("w", (8,), "float32", [], 32, outputs=[0]), SpecGroup("x", (8,), "float32", [], 32)],
        )  # fmt: skip
        self.planned, self.on_cpu, self.peaks = planned, on_cpu, peaks or {}
        self.on_chip: Any = on_chip
        self.rehearsed, self.compiled = [], []

    def priced(self, specs, seconds, how):
        peak = self.peaks.get(specs, 100.0)
        return Priced(specs, seconds, peak, 10.0, fits=peak <= ROOM, how=how)

    def plan(self, assignment):
        specs = tuple(((),) if spec is None else spec for spec in assignment)
        return self.priced(specs, self.planned[specs], "planned")

    def rehearse(self, specs, **_):
        self.rehearsed.append(specs)
        return self.priced(specs, self.on_cpu[specs], "compiled" if self.target is None else "rehearsed")

    def compile(self, specs, **_):
        self.compiled.append(specs)
        return self.priced(specs, self.on_chip[specs], "compiled")

    def requested_results(self, specs):
        return {}


def specs_of(choice):
    return tuple(choice.specs.get(name, ((),)) for name in ("w", "x"))


def figures(generator, low=1.0, high=2.0):
    return {specs: generator.uniform(low, high) for specs in ALL}


def ranked(table, seconds, specs):
    return order(table.peaks.get(specs, 100.0) <= ROOM, seconds[specs], table.peaks.get(specs, 100.0), ROOM)


@pytest.mark.parametrize("seed", range(20))
def test_no_choice_that_was_not_compiled_looks_better_than_the_first(seed):
    generator = random.Random(seed)
    planned = figures(generator, 1.0, 1.5)
    on_cpu = {specs: seconds * generator.uniform(1.0, 1.6) for specs, seconds in planned.items()}
    peaks = {specs: generator.choice([100.0, 800.0, 1200.0]) for specs in ALL}
    table: Any = Table(planned, on_cpu, peaks=peaks)
    search = Search(table, seconds=1e6)
    first = specs_of(search.run().best)
    assert ranked(table, on_cpu, first) == min(ranked(table, on_cpu, specs) for specs in table.rehearsed)
    assert len(set(table.rehearsed)) == len(table.rehearsed)
    named = {specs for specs in ALL if search.names_of([specs]).get(specs, "found") != "found"}
    assert named <= set(table.rehearsed)
    rest = [specs for specs in ALL if search.is_planned(specs) and specs not in table.rehearsed]
    unsuccessful = table.rehearsed[table.rehearsed.index(first) + 1 :]
    assert len(unsuccessful) >= 12 or all(
        planned[specs] >= 1.25 * on_cpu[first] or peaks[specs] > ROOM for specs in rest
    )


def test_twelve_choices_without_an_improvement_end_the_search():
    planned = {specs: 1.0 + 0.001 * number for number, specs in enumerate(ALL)}
    table: Any = Table(planned, dict.fromkeys(ALL, 2.0))
    search = Search(table, seconds=1e6)
    search.run()
    promised = {*sorted(ALL, key=planned.__getitem__)[:2], search.data_parallel}
    promised |= {specs for specs in ALL if search.names_of([specs]).get(specs, "found") != "found"}
    assert promised < set(table.rehearsed)
    assert len(table.rehearsed) == len(promised) + 12


@pytest.mark.parametrize("seed", range(20))
def test_the_compiler_of_the_chip_decides(seed):
    generator = random.Random(seed)
    planned, on_cpu, on_chip = figures(generator), figures(generator), figures(generator)
    table: Any = Table(planned, on_cpu, on_chip)
    first = specs_of(Search(table, seconds=1e6).run().best)
    assert table.compiled[0] == min(table.rehearsed, key=on_cpu.__getitem__)
    assert first == min(table.compiled, key=on_chip.__getitem__)
    assert len(set(table.compiled)) == len(table.compiled) <= 5


def test_a_faster_choice_precedes_a_smaller_one():
    large, small = ALL[-1], ALL[0]
    table: Any = Table(
        dict.fromkeys(ALL, 2.0), {**dict.fromkeys(ALL, 2.0), large: 1.0, small: 1.1}, peaks={large: 990.0}
    )
    table.planned |= {large: 1.0, small: 1.1}
    assert specs_of(Search(table, seconds=1e6).run().best) == large


def test_of_equally_fast_choices_the_smaller_one_is_first():
    small = ALL[7]
    table: Any = Table(dict.fromkeys(ALL, 1.0), dict.fromkeys(ALL, 1.0), peaks={small: 99.0})
    assert specs_of(Search(table, seconds=1e6).run().best) == small


def test_a_choice_that_fits_precedes_a_faster_one_that_does_not():
    fast, slow = ALL[3], ALL[12]
    table: Any = Table(
        {**dict.fromkeys(ALL, 1.0), slow: 5.0}, {**dict.fromkeys(ALL, 1.0), slow: 5.0},
        peaks={**dict.fromkeys(ALL, 1500.0), fast: 1001.0, slow: 1000.0},
    )  # fmt: skip
    choices = Search(table, seconds=1e6).run().choices
    assert [specs_of(choice) for choice in choices[:2]] == [slow, fast]


@pytest.mark.parametrize("seed", range(20))
def test_combined_changes_save_the_most_that_fits(seed):
    """The integer program against all combinations of at most one change per group."""
    generator = random.Random(seed)
    specs = [((), ()), (("a",), ()), ((), ("a",))]

    def priced(seconds, peak) -> Any:
        return Priced((), seconds, peak, 0.0)

    base = priced(10.0, generator.choice([800.0, 1000.0]))
    options = [
        (group, spec, priced(10.0 + generator.uniform(-2, 1), base.peak_bytes + generator.uniform(-200, 300)))
        for group in range(4)
        for spec in specs
    ]
    combinations = itertools.product(*([None, *(each for each in options if each[0] == group)] for group in range(4)))
    sums = []
    for combination in combinations:
        changes = [each[2] for each in combination if each is not None]
        peak = base.peak_bytes + sum(each.peak_bytes - base.peak_bytes for each in changes)
        if peak <= ROOM:
            sums.append(sum(each.seconds - base.seconds for each in changes))
    unknown = (0, ((), ("b",)), priced(None, 0.0))  # a choice without predicted seconds is never part of it
    chosen = _joined(base, [*options, unknown], ROOM)
    by_place = {(group, spec): each for group, spec, each in options}
    assert len({group for group, _ in chosen}) == len(chosen)
    assert sum(by_place[each].seconds - base.seconds for each in chosen) == pytest.approx(min(sums), abs=1e-4)
    assert sum(by_place[each].peak_bytes - base.peak_bytes for each in chosen) <= ROOM - base.peak_bytes + 1e-3
