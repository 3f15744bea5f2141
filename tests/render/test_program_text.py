"""The printed record of a program: predicted seconds, loops of unknown length, callers of helpers."""

import jax
import jax.numpy as jnp
import pytest

import workbench as wb
from workbench.render.units import seconds_text


def helper(x, w):
    return x @ w


def layers(first, second, x):
    h = jnp.tanh(helper(x, first))
    h = jax.lax.with_sharding_constraint(h, jax.P("data", None))
    return helper(h, second)


def repeated(first, limit, x):
    return jax.lax.while_loop(lambda c: c.sum() < limit, lambda c: jnp.tanh(c @ first), x)


@pytest.fixture(scope="module")
def printed():
    """The record and the text of both programs, priced for a chip."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))

    def shape(*sizes, spec=()):
        return jax.ShapeDtypeStruct(sizes, "float32", sharding=jax.NamedSharding(mesh, jax.P(*spec)))

    def inspected(fn, *args, on="v5e"):
        with jax.set_mesh(mesh):
            record = wb.inspect(fn, on=on)(*args)
        return record, str(record).splitlines()

    w, x = shape(64, 64, spec=("data",)), shape(64, 64, spec=("data",))
    return {
        "layers": inspected(layers, w, w, x),
        "unpriced": inspected(layers, w, w, x, on="H100 PCIe"),
        "repeated": inspected(repeated, w, shape(), x),
    }


def line_of(fn, number):
    return f"test_program_text.py:{fn.__code__.co_firstlineno + number}"


def test_predicted_seconds_are_those_of_the_cost_with_their_error(printed):
    record, lines = printed["layers"]
    (line,) = [each for each in lines if each.startswith("Predicted")]
    assert line.startswith(f"Predicted {seconds_text(record.cost.seconds)} per call on v5e, collective-bound (")
    assert f"({record.cost.error_bar})" in line


def test_unknown_seconds_say_what_is_unknown(printed):
    _, lines = printed["unpriced"]
    (line,) = [each for each in lines if each.startswith("Predicted")]
    assert "unknown, as" in line
    assert "no bandwidth of the network beyond is published" in line


def test_a_loop_of_unknown_length_is_counted_once_and_named(printed):
    record, lines = printed["repeated"]
    total = record.call_tree.root.total
    place = line_of(repeated, 1)
    assert lines[0].split(": ")[1].startswith("at least 65.5 kFLOP in matrix products")
    assert total.flops_matmul == 2 * 8 * 64 * 64  # of one device, in one iteration
    assert f"counts as one iteration ({place})" in lines[0]
    (line,) = [each for each in lines if each.startswith("Predicted")]
    assert f"Predicted at least {seconds_text(total.predicted_seconds)} per call on v5e" in line
    assert place in line
    inside = [each for each in lines if "all-reduce over data: " in each]  # of the condition
    assert inside
    assert all("counted once: in a loop of unknown length" in each for each in inside)
    assert any("one device sends at least" in each for each in lines)


def test_collectives_of_a_helper_name_the_lines_that_call_it(printed):
    _, lines = printed["layers"]
    inside = [each for each in lines if " over data: " in each and line_of(helper, 1) in each]
    assert {each.rpartition("called at ")[2] for each in inside} == {line_of(layers, 1), line_of(layers, 3)}
