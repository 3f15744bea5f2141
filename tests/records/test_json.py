"""Every record class reads back what it wrote, and refuses what it cannot read."""

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

import pytest
import records_examples as examples
import records_parts as parts
from hypothesis import HealthCheck, given, settings, strategies as st
from records_parts import RECORD_CLASSES

from workbench import records
from workbench.errors import RecordError
from workbench.records import Record
from workbench.records.live import RoundRecord
from workbench.records.program import PlacementRecord, PlanRecord, SourceLine, StageRecord
from workbench.records.run import RunRecord

NUMBERS = st.floats(allow_nan=False) | st.integers(-(2**60), 2**60)


def values_of(hint: Any, depth: int) -> st.SearchStrategy[Any]:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, Record):
        return records_of(hint, depth)
    if origin is Literal:
        return st.sampled_from(args)
    if origin in (typing.Union, types.UnionType):
        return st.one_of([values_of(each, depth) for each in args])
    if origin is tuple and args == (Any, ...):
        return st.recursive(NUMBERS.map(float), lambda inner: st.lists(inner, max_size=2).map(tuple), max_leaves=4).map(
            lambda x: x if isinstance(x, tuple) else (x,)
        )
    if origin is tuple and args[-1] is Ellipsis:
        size = 0 if depth <= 0 and isinstance(args[0], type) and issubclass(args[0], Record) else 2
        return st.lists(values_of(args[0], depth - 1), max_size=size).map(tuple) if size else st.just(())
    if origin is tuple:
        return st.tuples(*(values_of(each, depth - 1) for each in args))
    if origin in (dict, Mapping):
        return st.dictionaries(st.text(max_size=5), values_of(args[1], depth - 1), max_size=2)
    simple = {types.NoneType: st.none(), float: NUMBERS, int: st.integers(), bool: st.booleans()}
    return simple[hint] if hint in simple else st.text(max_size=8)


def records_of(cls: type[Record], depth: int = 2) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(cls)
    fields = {f.name: values_of(hints[f.name], depth - 1) for f in dataclasses.fields(cls) if f.compare}
    optional = {f.name for f in dataclasses.fields(cls) if f.default is not dataclasses.MISSING and depth <= 0}
    return st.builds(cls, **{name: each for name, each in fields.items() if name not in optional})


@pytest.mark.parametrize("cls", RECORD_CLASSES, ids=lambda c: c.__name__)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_record_reads_back(cls: type[Record], data: st.DataObject):
    record = data.draw(records_of(cls))
    assert cls.from_json(record.to_json()) == record
    assert Record.from_dict(record.to_dict()) == record


@pytest.mark.parametrize(
    "make", [examples.fedavg_record, examples.rounds_record, parts.mesh_record, parts.sharding_record]
)
def test_whole_programs_read_back(make):
    assert Record.from_json(make().to_json(indent=1)) == make()


def test_numbers_that_json_lacks_are_read_back_from_strict_json():
    record = RoundRecord(round=1, seconds=math.inf, metrics={"loss": math.nan, "norms": (1.0, -math.inf)})
    text = record.to_json()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    found = RoundRecord.from_json(text)
    assert (found.seconds, math.isnan(found.metrics["loss"]), found.metrics["norms"]) == (
        math.inf,
        True,
        (1.0, -math.inf),
    )


def test_results_of_a_run_are_not_part_of_its_json():
    run = RunRecord(name="fedavg", engine="mesh", seconds=1.0, results=object())
    assert RunRecord.from_json(run.to_json()).results is None


def test_record_of_another_version_names_both_versions():
    plain = {**PlacementRecord(name="clients", size=4).to_dict(), "version": 99}
    with pytest.raises(RecordError, match="PlacementRecord of version 99") as raised:
        Record.from_dict(plain)
    assert f"reads version {records.VERSION}" in str(raised.value)


def test_record_of_another_class_is_refused():
    with pytest.raises(RecordError, match="type PlacementRecord, but accepts only records of type PlanRecord"):
        PlanRecord.from_json(PlacementRecord(name="clients", size=4).to_json())


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "not JSON"),
        ("[]", "does not describe a record"),
        ('{"name": "x"}', "keys 'name'"),
        ('{"version": 1, "record": "SourceLine", "file": "a.py"}', "lacks line"),
        ('{"version": 1, "record": "SourceLine", "file": "a.py", "line": 1, "mood": 2}', "has mood"),
        ('{"version": 1, "record": "SourceLine", "file": "a.py", "line": "1"}', "SourceLine.line received '1'"),
        ('{"version": 1, "record": "StageRecord", "index": 0, "path": "0", "kind": "cloud", "name": ""}', "'cloud'"),
        ('{"version": 1, "record": "NoRecord"}', "received a record of type NoRecord"),
    ],
)
def test_text_that_fits_no_record_is_refused(text: str, part: str):
    with pytest.raises(RecordError) as raised:
        Record.from_json(text)
    assert part in str(raised.value)


def test_misfit_inside_a_record_is_named_by_its_place():
    stage = StageRecord(index=0, path="0", kind="server", name="s", source=SourceLine(file="a.py", line=3))
    plain = PlanRecord(name="p", placements=(), stages=(stage,)).to_dict()
    plain["stages"][0]["source"]["line"] = None
    with pytest.raises(RecordError, match=r"PlanRecord\.stages\[0\]\.source\.line received None"):
        PlanRecord.from_dict(plain)
