"""Where the nodes of a tree are placed, and which facts their ancestors share."""

import jax
import jax.numpy as jnp

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


def test_ancestors_of_a_loop_of_unknown_length_are_lower_bounds():
    def step(x):
        looped = jax.lax.while_loop(lambda y: y.sum() < 1, lambda y: y @ y, x)
        return jnp.sin(looped)

    tree = wb.trace(step)(X).call_tree
    marked = {node.id for node in tree.nodes if node.at_least}
    products = {node.id for node in tree.nodes if node.kind == "operation" and node.own.flops_matmul}
    assert products <= marked
    assert tree.root.id in marked
    assert {tree.nodes[number].parent for number in marked} <= marked | {None}
    assert not any(node.at_least for node in tree.nodes if node.name == "sin")
