"""Every record shows itself as the result of a cell: one line, a short text, a card; through IPython and treescope."""

import dataclasses
import re
import types
import typing
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import pytest
from IPython.core.interactiveshell import InteractiveShell
from records_examples import fedavg_record, pods_record, rounds_record
from records_parts import RECORD_CLASSES, cost_record, mesh_record, module_record, sharding_record

from workbench import render, trace
from workbench.measurement import History
from workbench.records import Record, deferred
from workbench.records.call_tree import CallTreeRecord
from workbench.records.compiled import ProgramRecord
from workbench.records.hardware import MeshRecord
from workbench.records.live import RoundRecord
from workbench.records.profile import ProfileRecord
from workbench.records.program import StageRecord
from workbench.records.run import RunRecord
from workbench.render import display_object
from workbench.render._card import TEXT_LINES

BIG = [fedavg_record(), rounds_record(), pods_record(), module_record(), cost_record(), mesh_record()]
BIG += [sharding_record(), fedavg_record().plan, module_record().memory, sharding_record().leaves[0]]
VOID = {"img", "br"}


class Strict(HTMLParser):
    """Notes elements, and fails on one that is not closed by its own end."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        assert not any(name.startswith("on") or name == "class" for name, _ in attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.fixture(scope="module")
def shell():
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def example_of(hint, depth=4):
    """A value of a field's type: one entry in every tuple and mapping, and text that a page would misread."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, Record):
        hints = typing.get_type_hints(hint)
        fields = [f for f in dataclasses.fields(hint) if f.compare and (depth > 0 or f.default is dataclasses.MISSING)]
        return hint(**{field.name: example_of(hints[field.name], depth - 1) for field in fields})
    if origin is Literal:
        return args[0]
    if origin in (typing.Union, types.UnionType):
        return example_of(args[0], depth)
    if origin is tuple and args[-1] is Ellipsis:
        whole = args[0] is Any or (depth <= 0 and isinstance(args[0], type) and issubclass(args[0], Record))
        return () if whole else (example_of(args[0], depth),)
    if origin is tuple:
        return tuple(example_of(each, depth) for each in args)
    if origin in (dict, Mapping):
        return {"<b>": example_of(args[1], depth)}
    return {types.NoneType: None, float: 0.5, int: 0, bool: True, tuple: ()}.get(hint, "<b>")


def check(shell, x):
    assert "\n" not in repr(x)
    assert len(repr(x)) <= 240
    shown, _ = shell.display_formatter.format(x)
    assert set(shown) == {"text/plain", "text/html"}
    assert len(shown["text/plain"].splitlines()) <= TEXT_LINES
    parser = Strict()
    parser.feed(shown["text/html"])
    assert parser.open == []
    assert not parser.seen & {"script", "style", "link", "iframe", "b"}
    return shown


@pytest.mark.parametrize("cls", RECORD_CLASSES, ids=lambda c: c.__name__)
def test_every_record_class_is_one_line_a_text_and_a_card(shell, cls):
    shown = check(shell, example_of(cls))
    # The parts of these refer to one another, which made-up values do not; real ones are below.
    assert "not drawn" not in shown["text/plain"] or cls in (CallTreeRecord, MeshRecord, ProfileRecord, ProgramRecord)


@pytest.mark.parametrize("record", BIG, ids=lambda r: type(r).__name__)
def test_text_is_what_print_gives(shell, record):
    shown = check(shell, record)
    assert "not drawn" not in shown["text/plain"]
    assert shown["text/plain"] == render.text(record) == str(record)
    headline = render.text(record).splitlines()[0]
    assert headline in shown["text/html"].replace("&#x27;", "'").replace("&lt;", "<").replace("&gt;", ">")


def test_repr_counts_parts_and_leaves_out_defaults():
    text = repr(mesh_record())
    assert text.startswith("MeshRecord(axes=<")
    assert "× DeviceRecord>" in text
    assert repr(RunRecord(name="r", engine="mesh", seconds=0.5)) == "RunRecord(name='r', engine='mesh', seconds=0.5)"


def test_repr_makes_no_deferred_field():
    record = StageRecord(index=0, path="0", kind="server", name="f", jaxpr=deferred(lambda: pytest.fail("was made")))
    assert "jaxpr=…" in repr(record)


def test_long_text_and_long_table_say_what_is_missing():
    shown = display_object("Kind", "\n".join(f"line {n}" for n in range(100)))
    assert shown["text/plain"].splitlines()[-1] == "… 61 more lines: `print` shows all of them"
    table = display_object("Kind", "title", [{"round": n, "seconds": n / 2} for n in range(25)])["text/html"]
    assert table.count("<tr>") == 11
    assert "… and 15 more" in table
    assert re.search(r">500 ms</td>", table)


def test_a_history_and_a_traced_call_have_cards(shell):
    history = History([RoundRecord(round=n, seconds=0.5, metrics={"loss": (3.0, 1.0)}) for n in range(50)])
    shown = check(shell, history)
    assert ">2</td>" in shown["text/html"]  # the mean over clients
    traced = trace(lambda x: x * 2)(jnp.ones(3))
    assert "3 FLOP elementwise" in check(shell, traced)["text/html"]
    tree = traced.inspect().call_tree
    assert check(shell, tree)["text/plain"] == render.text(tree)


def test_treescope_draws_records_when_it_is_active(shell, monkeypatch):
    treescope = pytest.importorskip("treescope")
    drawn = []
    html = shell.display_formatter.formatters["text/html"]
    monkeypatch.setattr(html, "type_printers", dict(html.type_printers))
    monkeypatch.setattr(shell.display_formatter, "formatters", dict(shell.display_formatter.formatters))
    monkeypatch.setattr(treescope, "render_to_html", drawn.append, raising=False)
    treescope.register_as_default(streaming=False, compress_html=False)
    shown = check_html(shell, mesh_record())
    assert "MeshRecord" in shown
    assert "treescope" in shown
    np.testing.assert_equal(drawn, [])


def check_html(shell, x):
    shown, _ = shell.display_formatter.format(x)
    return shown["text/html"]
