"""Programs out of libraries and tutorials: all of every figure finds a line, and collectives the right one."""

import functools
import math

import pytest

import workbench as wb
from benchmarks.attribution import as_libraries_expect
from benchmarks.attribution_programs import (
    ELSEWHERE,
    HERE,
    line_of,
    mapreduce_gradient,
    mapreduce_nested,
    mapreduce_round,
    mixture_of_experts,
    pipeline,
    ring_attention,
    scanned_layers,
)

ALL = [*HERE, *ELSEWHERE]


@functools.cache
def inspected(make):
    if make in ELSEWHERE:
        pytest.importorskip(ELSEWHERE[make])
    with as_libraries_expect():
        call = make()
        return wb.trace(call.fn)(*call.args).inspect(on=call.mesh)


@functools.cache
def traced(make):
    if make in ELSEWHERE:
        pytest.importorskip(ELSEWHERE[make])
    with as_libraries_expect():
        call = make()
        return wb.trace(call.fn)(*call.args).call_tree


@pytest.mark.parametrize("make", ALL)
def test_98_percent_of_every_figure_is_on_a_users_line(make):
    shares = inspected(make).call_tree.attributed_to_line
    assert {figure: share for figure, share in shares.items() if share < 0.98} == {}


@pytest.mark.parametrize("make", ALL)
def test_98_percent_of_every_figure_is_in_a_function_or_module(make):
    shares = inspected(make).call_tree.attributed_to_module
    assert {figure: share for figure, share in shares.items() if share < 0.98} == {}


@pytest.mark.parametrize("make", ALL)
def test_a_node_is_its_own_work_and_its_childrens(make):
    tree = inspected(make).call_tree
    for node in tree.nodes:
        below = [child.total for child in tree.children(node)]
        for figure in ("flops_matmul", "flops_elementwise", "traffic_bytes", "peak_bytes", "sent"):
            parts = getattr(node.own, figure) + sum(getattr(total, figure) for total in below)
            assert getattr(node.total, figure) == pytest.approx(parts)


@pytest.mark.parametrize("make", ALL)
def test_the_root_is_the_module(make):
    record = inspected(make)
    module, total = record.module, record.call_tree.root.total
    if module.flops is not None:
        assert total.flops_matmul == pytest.approx(module.flops)
    if module.accessed_bytes is not None:
        assert total.traffic_bytes == pytest.approx(module.accessed_bytes)
    assert total.peak_bytes == pytest.approx(module.memory.peak_bytes)
    known = [c for c in module.collectives if c.executions is not None]
    assert sum(c.executions for c in total.collectives) == pytest.approx(sum(c.executions for c in known))
    assert total.sent == pytest.approx(sum((c.wire_bytes or 0.0) * c.executions for c in known))


@pytest.mark.parametrize("make", ALL)
def test_the_tree_of_the_jaxpr_is_the_count_of_the_jaxpr(make):
    total = traced(make).root.total
    assert math.isfinite(total.flops_matmul)
    assert total.traffic_bytes > 0


@pytest.mark.parametrize("make", ALL)
def test_the_jaxpr_is_on_the_users_lines_too(make):
    shares = traced(make).attributed_to_line
    assert {figure: share for figure, share in shares.items() if share < 0.98} == {}


@pytest.mark.parametrize("make", ALL)
def test_the_text_speaks_of_functions_and_lines(make):
    record = inspected(make)
    text = str(record)
    assert "attribution_programs.py:" in text
    assert record.plan.placements or "clients" not in text


@pytest.mark.parametrize(
    ("make", "mark", "kind", "executions"),
    [
        (ring_attention, "ring keys", "collective-permute", 8),
        (ring_attention, "ring values", "collective-permute", 8),
        (pipeline, "pipeline", "collective-permute", 11),  # eight microbatches through four stages
        (pipeline, "pipeline result", "all-reduce", 1),
        (mixture_of_experts, "tokens to experts", "all-to-all", 1),
        (mixture_of_experts, "tokens back", "all-to-all", 1),
        (mapreduce_round, "mean of models", "all-reduce", 1),
    ],
)
def test_collectives_by_line_are_those_counted_by_hand(make, mark, kind, executions):
    assert executions_at(inspected(make).call_tree, line_of(mark)) == {kind: executions}


@pytest.mark.parametrize(
    ("make", "mark", "kind", "executions"),
    [
        (ring_attention, "ring keys", "collective-permute", 8),
        (pipeline, "pipeline", "collective-permute", 11),
        (mixture_of_experts, "tokens back", "all-to-all", 1),
    ],
)
def test_collectives_of_the_jaxpr_by_line_are_those_counted_by_hand(make, mark, kind, executions):
    assert executions_at(traced(make), line_of(mark)) == {kind: executions}


def test_no_other_line_communicates():
    tree = inspected(ring_attention).call_tree
    marked = {line_of("ring keys"), line_of("ring values")}
    assert {at for at in lines_that_communicate(tree)} == marked


def test_24_layers_are_a_loop_of_24_iterations_whose_passes_are_distinguished():
    tree = inspected(scanned_layers).call_tree
    layer = 2 * 2 * 8 * 16 * 64  # two products of 8 x 16 with 16 x 64
    by_pass = {name: 0.0 for name in ("forward", "transpose", "remat")}
    for node in tree.nodes:
        by_pass[node.pass_name] = by_pass.get(node.pass_name, 0.0) + node.own.flops_matmul
    assert by_pass["forward"] == 24 * layer
    assert by_pass["transpose"] == 2 * 24 * layer
    assert by_pass["remat"] == 24 * layer // 2  # of the second product only its operand is needed again
    assert {node.trip_count for node in tree.nodes if node.kind == "loop"} == {24}


def test_scopes_are_modules_of_the_tree():
    tree = inspected(scanned_layers).call_tree
    inside = next(node for node in tree.fold().nodes if node.kind == "scope" and node.name == "mlp")
    assert inside.total.flops_matmul == tree.root.total.flops_matmul


@pytest.mark.parametrize("make", [mapreduce_round, mapreduce_gradient])
def test_all_work_of_clients_is_below_the_line_that_maps_them(make):
    tree = inspected(make).call_tree
    assert [node.name.endswith(tree.root.name) for node in tree.children(tree.root)] == [True]
    mapped = [node for node in tree.nodes if node.kind == "call" and node.line == line_of("clients train")]
    assert sum(node.total.flops_matmul for node in mapped) == tree.root.total.flops_matmul > 0


def test_nested_placements_are_below_the_lines_that_lead_to_them():
    tree = inspected(mapreduce_nested).call_tree
    communicating = [node for node in tree.nodes if node.own.collectives]
    products = [node for node in tree.nodes if node.own.flops_matmul]
    assert {node.own.collectives[0].axes: lines_to(tree, node) for node in communicating} == {
        ("clients",): [line_of("pods"), line_of("mean of a pod")],
        ("pods",): [line_of("mean of pods")],
    }
    assert {tuple(lines_to(tree, node)[:2]) for node in products} == {(line_of("pods"), line_of("a pod's clients"))}


def executions_at(tree, line: int) -> dict[str, float]:
    found: dict[str, float] = {}
    for node in tree.nodes:
        if node.own.collectives and innermost_line(tree, node) == line:
            for collective in node.own.collectives:
                found[collective.kind] = found.get(collective.kind, 0) + collective.executions
    return found


def lines_that_communicate(tree) -> set[int]:
    return {innermost_line(tree, node) for node in tree.nodes if node.own.collectives}


def innermost_line(tree, node) -> int:
    return lines_to(tree, node)[-1]


def lines_to(tree, node) -> list[int]:
    return [each.line for each in tree.path(node) if each.kind in ("line", "call") and not each.hidden]
