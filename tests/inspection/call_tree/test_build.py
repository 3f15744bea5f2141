"""Where the nodes of a tree are placed, and which facts their ancestors share."""

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import workbench as wb

X = jnp.ones((8, 8))


def path_of(tree, name):
    """The names from the root down to the only node with this name."""
    (node,) = (node for node in tree.nodes if node.name == name)
    names = [node.name]
    while node.parent is not None:
        node = tree.nodes[node.parent]
        names.insert(0, node.name)
    return names


def partly_scoped(x):
    y = jnp.sin(x)
    with jax.named_scope("inner"):
        return jnp.cos(y)


def test_scope_of_some_lines_of_a_function_is_below_the_function():
    def step(x):
        return partly_scoped(x)

    names = path_of(wb.trace(step)(X).call_tree, "inner")
    assert "partly_scoped" in names[: names.index("inner")]


def wholly_scoped(x):
    y = jnp.sin(x)
    return jnp.cos(y)


def test_scope_around_a_call_is_above_the_function():
    def step(x):
        with jax.named_scope("outer"):
            return wholly_scoped(x)

    tree = wb.trace(step)(X).call_tree
    names = path_of(tree, "cos")
    assert names.index("outer") < names.index("wholly_scoped")


@pytest.mark.parametrize("made_from", ["jaxpr", "compiled"])
def test_ancestors_of_a_loop_of_unknown_length_are_lower_bounds(made_from):
    def step(x):
        looped = jax.lax.while_loop(lambda y: y.sum() < 1, lambda y: y @ y, x)
        return jnp.sin(looped)

    tree: Any = wb.trace(step)(X).call_tree if made_from == "jaxpr" else wb.inspect(step)(X).call_tree
    marked = {node.id for node in tree.nodes if node.at_least}
    products = {node.id for node in tree.nodes if node.kind == "operation" and node.own.flops_matmul}
    assert products <= marked
    assert tree.root.id in marked
    assert {tree.nodes[number].parent for number in marked} <= marked | {None}
    assert not any(node.at_least for node in tree.nodes if node.name == "sin")


def test_loops_inside_loops_have_their_own_lengths():
    def step(x):
        inner = lambda y: jax.lax.scan(lambda z, _: (z @ z, None), y, length=5)[0]  # noqa: E731
        return jax.lax.scan(lambda y, _: (inner(y), None), x, length=3)[0]

    tree: Any = wb.inspect(step)(X).call_tree
    (product,) = (node for node in tree.nodes if node.own.flops_matmul)
    assert [node.trip_count for node in tree.path(product) if node.kind == "loop"] == [3, 5]


def test_operations_are_split_that_share_an_instruction():
    def step(x):
        y = jnp.sin(x)
        z = y * 2
        return (z + 1) @ x

    tree: Any = wb.inspect(step)(X).call_tree
    sharers = Counter(name for node in tree.nodes for name, share in node.instructions.items() if share)
    work = {node.id: [name for name, share in node.instructions.items() if share] for node in tree.nodes}
    expected = {number for number, names in work.items() if any(sharers[name] > 1 for name in names)}
    assert expected
    assert {node.id for node in tree.nodes if node.split} == expected
