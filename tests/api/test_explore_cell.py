"""The cell that the labextension inserts for a function: run at once only where running again changes nothing."""

import sys
import types

import pytest

from workbench.api import explore_cell


@pytest.fixture
def notebook(monkeypatch):
    """Names of a notebook, in which `train` was defined."""

    def train(state, batch):
        return state

    train.__module__ = "__main__"
    names = {"train": train, "In": []}
    shell = types.SimpleNamespace(user_ns=names)
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=lambda: shell))
    return names


@pytest.mark.parametrize(
    ("call", "runs"),
    [
        ("train(state, batch)", True),
        ("train(state['w'], batches[0])", True),
        ("train(state, -1)", True),
        ("train(state, next(batches))", False),
        ("train((state := init()), batch)", False),
        ("train(state, *[read(x) for x in files])", False),
    ],
)
def test_cell_runs_at_once_unless_its_arguments_call_something(notebook, call, runs):
    answer = explore_cell(call)
    assert call.removeprefix("train(").removesuffix(")") in answer["code"]
    assert answer["run"] is runs
