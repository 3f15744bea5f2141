"""The peak of memory on a call tree is the compiler's, divided over the lines whose values it is reserved for."""

import jax
import jax.numpy as jnp
import pytest

import workbench as wb
from workbench.inspection.hlo import inspect_module
from workbench.inspection.hlo._assignment import read_allocations


def step(w, x):
    def loss(w):
        hidden = jnp.tanh(x @ w)
        return (jnp.tanh(hidden @ w.T) ** 2).sum()

    return w - 0.1 * jax.grad(loss)(w)


ARGS = jnp.ones((96, 128)), jnp.ones((64, 96))


@pytest.fixture(scope="module", params=[(), (0,)], ids=["kept", "donated"])
def compiled(request):
    return jax.jit(step, donate_argnums=request.param).lower(*ARGS).compile()


def stated(compiled):
    reported = compiled.memory_analysis()
    parts = reported.argument_size_in_bytes + reported.output_size_in_bytes + reported.temp_size_in_bytes
    return max(reported.peak_memory_in_bytes, parts - reported.alias_size_in_bytes)


def test_nodes_add_up_to_the_compilers_peak(compiled):
    module = inspect_module(compiled)
    own = sum(node.own.peak_bytes for node in module.call_tree.nodes)
    assert own == module.call_tree.root.total.peak_bytes == module.memory.peak_bytes == stated(compiled)


def test_every_argument_counts_its_bytes_once(compiled):
    tree = inspect_module(compiled).call_tree
    counted = {node.name: node.own.peak_bytes for node in tree.nodes if node.name.startswith("argument")}
    assert counted == {"argument w": 4 * 96 * 128, "argument x": 4 * 64 * 96}


def test_all_of_the_peak_is_on_lines(compiled):
    assert inspect_module(compiled).call_tree.attributed_to_line["peak_bytes"] == 1.0


def test_what_the_compiler_reserves_beyond_the_schedule_is_a_node_of_its_own(compiled):
    text = compiled.as_text()
    reached = inspect_module(text).call_tree.root.total.peak_bytes
    tree = inspect_module(text, peak_bytes=int(reached) + 1000).call_tree
    (rest,) = [node for node in tree.nodes if node.kind == "unattributed"]
    assert rest.total.peak_bytes == 1000
    assert tree.root.total.peak_bytes == reached + 1000


def test_memory_that_the_compiler_shares_counts_less(compiled):
    text = compiled.as_text()
    reached = inspect_module(text).call_tree.root.total.peak_bytes
    tree = inspect_module(text, peak_bytes=int(reached) // 2).call_tree
    assert tree.root.total.peak_bytes == pytest.approx(reached / 2)
    assert "each value counts for 50 % of its bytes" in tree.notes[0]


def test_allocations_are_those_of_the_compilers_totals(compiled):
    reported = compiled.memory_analysis()
    module = compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto()
    allocations = list(read_allocations(reported.serialized_buffer_assignment_proto, module))
    arguments = sum(each.size for each in allocations if each.parameter is not None)
    assert arguments == reported.argument_size_in_bytes
    assert sum(each.size for each in allocations) == stated(compiled)


def test_pmap_is_named_as_the_users_function():
    record = wb.trace(jax.pmap(product, in_axes=(None, 0)))(ARGS[0], ARGS[1][None]).inspect()
    tree = record.call_tree
    assert tree.root.name == "product"
    assert {node.name for node in tree.nodes if node.name.startswith("argument")} == {"argument w", "argument x"}


def product(w, x):
    return x @ w
