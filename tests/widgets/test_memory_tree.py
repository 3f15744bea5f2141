"""All of the peak as a tree: arguments by their names, temporaries by layers, and nothing that is not listed."""

import jax
import jax.numpy as jnp
import pytest
from workbench_widgets._memory import memory_state
from workbench_widgets._memory_tree import buffer_tree

from workbench import inspect
from workbench.records.compiled import BufferRecord
from workbench.records.program import SourceLine


def buffer(name: str, size: int, op_name: str = "", line: int | None = None) -> BufferRecord:
    source = None if line is None else SourceLine(file="model.py", line=line)
    return BufferRecord(name=name, size_bytes=size, op_name=op_name, source=source)


def names(rows: list[dict], at: int = -1) -> dict:
    """The tree as nested dictionaries of names; a buffer is its bytes."""
    inside = [(i, row) for i, row in enumerate(rows) if row["parent"] == at]
    return {row["name"]: names(rows, i) if row["count"] else row["bytes"] for i, row in inside}


def test_arguments_are_grouped_by_their_paths_and_temporaries_by_their_scopes():
    buffers = [
        buffer("p0", 64, "state.params['dense_0']['kernel']"),
        buffer("p1", 64, "state.opt_state[0].mu['dense_0']['kernel']"),
        buffer("p2", 64, "state.opt_state[0].mu['dense_1']['kernel']"),
        buffer("p3", 8, "batch"),
        buffer("dot.1", 32, "jit(step)/jvp(Net)/dense_0/dot_general", 3),
        buffer("dot.2", 16, "jit(step)/transpose(jvp(Net))/dense_0/dot_general", 3),
        buffer("copy.2", 1, "jit(step)/jvp(Net)/dense_0/transpose;jit(step)/jvp(Net)/dense_0/transpose"),
        buffer("tanh.1", 4, "jit(step)/while/body/closed_call/tanh", 9),
        buffer("dot.3", 8, "jit(step)/jvp()/shard_map/ij,jk->ik/dot_general", 9),
        buffer("copy.1", 2),
    ]
    assert names(buffer_tree(buffers, {"p0", "p1", "p2", "p3"})) == {
        "arguments": {
            "state": {
                ".params['dense_0']": {"state.params['dense_0']['kernel']": 64},
                ".opt_state[0].mu": {
                    "['dense_0']": {"state.opt_state[0].mu['dense_0']['kernel']": 64},
                    "['dense_1']": {"state.opt_state[0].mu['dense_1']['kernel']": 64},
                },
            },
            "batch": 8,
        },
        "temporaries and results": {
            "Net › dense_0": {"dot.1": 32, "dot.2": 16, "copy.2": 1},
            "outside name scopes": {"model.py:9": {"tanh.1": 4, "dot.3": 8}, "no source line": {"copy.1": 2}},
        },
    }


def test_temporaries_without_any_name_scope_are_grouped_by_line():
    buffers = [buffer("tanh.1", 4, "jit(step)/tanh", 9), buffer("copy.1", 2)]
    assert names(buffer_tree(buffers, set())) == {
        "temporaries and results": {"model.py:9": {"tanh.1": 4}, "no source line": {"copy.1": 2}}
    }


def test_every_level_holds_the_sum_of_what_is_in_it():
    rows = buffer_tree([buffer("a", 3, "x.w"), buffer("b", 4, "x.v"), buffer("c", 5, "jit(f)/L/dot")], {"a", "b"})
    for at, row in enumerate(rows):
        if row["count"]:
            assert row["bytes"] == sum(each["bytes"] for each in rows if each["parent"] == at)
        assert row["parent"] < at


@pytest.fixture(scope="module")
def record():
    """Twenty layers, so that more than a dozen buffers are alive."""

    def loss(params, x):
        for number, w in enumerate(params):
            with jax.named_scope(f"layer_{number}"):
                x = jnp.sin(x @ w)
        return (x**2).sum()

    params = [jnp.ones((32, 32))] * 20
    return inspect(jax.jit(jax.value_and_grad(loss)))(params, jnp.ones((16, 32)))


def test_tree_of_a_program_is_all_of_its_peak(record):
    state, _ = memory_state(record)
    rows = state["buffers"]
    top = {row["name"]: row["bytes"] for row in rows if row["parent"] == -1}
    assert sum(top.values()) == max(size for _, size in record.module.memory.timeline)
    assert top["arguments"] == 20 * 32 * 32 * 4 + 16 * 32 * 4
    layers = {row["name"] for row in rows if row["name"].startswith("layer_")}
    assert len(layers) >= 18  # activations that wait for the backward pass
