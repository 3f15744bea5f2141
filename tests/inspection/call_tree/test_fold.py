"""Folding leaves out nodes and no figure."""

import functools

import jax
import jax.numpy as jnp
import optax
import pytest

import workbench as wb
from workbench.records.call_tree import CallTreeRecord


@functools.cache
def tree():
    optimizer = optax.sgd(1e-3, momentum=0.9)

    def train_step(w, state, x):
        gradient = jax.grad(lambda w: (jnp.tanh(x @ w) ** 2).mean())(w)
        updates, state = optimizer.update(gradient, state)
        return optax.apply_updates(w, updates), state

    w = jnp.ones((8, 4))
    return wb.trace(train_step)(w, optimizer.init(w), jnp.ones((2, 8))).inspect().call_tree


@pytest.mark.parametrize("operations", [False, True])
def test_the_root_stays_as_it_is(operations):
    folded = tree().fold(operations=operations)
    for figure in ("flops_matmul", "flops_elementwise", "traffic_bytes", "peak_bytes", "constant_bytes"):
        assert getattr(folded.root.total, figure) == pytest.approx(getattr(tree().root.total, figure))


def test_frames_of_libraries_are_there_and_fold_away():
    assert any(node.hidden for node in tree().nodes)
    assert not any(node.hidden for node in tree().fold().nodes)


def test_a_folded_line_holds_all_its_passes():
    passes = {node.pass_name for node in tree().fold(operations=True).nodes if node.kind == "line"}
    assert "mixed" in passes


def test_parents_come_before_children():
    assert all(node.parent is None or node.parent < node.id for node in tree().fold().nodes)
    assert [node.id for node in tree().fold().nodes] == list(range(len(tree().fold().nodes)))


def test_a_tree_survives_json():
    assert CallTreeRecord.from_json(tree().to_json()) == tree()
