"""The printed record of a program: predicted seconds, loops of unknown length, callers of helpers."""

import jax
import jax.numpy as jnp
import pytest

import workbench as wb
from workbench.aot import known_chip
from workbench.records.call_tree import CallCollectiveRecord, CallFiguresRecord, CallNodeRecord, CallTreeRecord
from workbench.render._call_tree import collective_lines
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


def blocks(params, x):
    for i, w in enumerate(params):
        with jax.named_scope(f"block_{i}"):
            x = jnp.tanh(x @ w)
    return jnp.mean(x**2)


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
    assert "no bandwidth of the network beyond these links is published" in line


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


@pytest.mark.parametrize("count", [1, 5, 9])
def test_identical_layers_are_printed_once_with_their_sums(count):
    """The text of a deep model is no longer than that of a shallow one."""
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.NamedSharding(mesh, jax.P("data"))
    w, x = (jax.ShapeDtypeStruct(shape, "float32", sharding=sharding) for shape in ((128, 128), (64, 128)))
    with jax.set_mesh(mesh):
        record = wb.inspect(jax.grad(blocks))([w] * count, x)
    lines = str(record).splitlines()
    collectives = lines[next(i for i, line in enumerate(lines) if line.startswith("Collectives")) + 1 :]
    collectives = [line for line in collectives if " over data" in line]
    assert 0 < len(collectives) <= 6
    if count > 1:
        assert sum(f"block_0…{count - 1}" in line for line in collectives) >= 2
        assert sum(f"{count} × block_0…{count - 1}" in line for line in lines) == 1
        assert not any("block_1" in line for line in lines)
    gathered = [line for line in collectives if "all-gather" in line]
    executed = sum(int(line.split(" × ")[0].strip().replace(",", "")) for line in gathered)
    assert executed == sum(each.kind == "all-gather" for each in record.module.collectives)
    tree = record.call_tree
    assert tree.fold(layers=True).root.total.flops == pytest.approx(tree.root.total.flops)


def test_a_tiny_part_of_a_combined_collective_is_not_zero_collectives():
    part = CallCollectiveRecord(
        kind="all-reduce", axes=("data",), count=1e-8, executions=1e-8, payload_bytes=4.0, sent_bytes=7.0
    )
    figures = CallFiguresRecord(collectives=(part,), sent_bytes={"data": 7.0})
    root = CallNodeRecord(id=0, parent=None, kind="root", name="step", own=figures, total=figures)
    (line,) = collective_lines(CallTreeRecord(made_from="compiled", nodes=(root,)))
    assert line.strip().startswith("less than 1 % of a combined all-reduce over data: 4 B, 7 B sent")


def test_places_beyond_a_screen_are_counted():
    def places(number):
        part = CallCollectiveRecord(
            kind="all-reduce", axes=("data",), count=1, executions=1, payload_bytes=4.0, sent_bytes=float(number)
        )
        figures = CallFiguresRecord(collectives=(part,), sent_bytes={"data": float(number)})
        return CallNodeRecord(
            id=number, parent=0, kind="line", name=f"a.py:{number}", file="a.py", line=number, own=figures
        )

    root = CallNodeRecord(id=0, parent=None, kind="root", name="step")
    lines = collective_lines(CallTreeRecord(made_from="compiled", nodes=(root, *map(places, range(1, 41)))))
    assert len(lines) == 17
    assert lines[-1] == f"  … and 24 more places, {sum(range(1, 25))} B sent"


def test_a_program_compiled_for_cpus_and_priced_for_a_chip_is_compared_with_its_memory():
    small = wb.inspect(lambda x: jnp.sin(x), on="v5e")(jnp.ones(4))
    assert "Peak of 32 B per device, fits into 16 GiB on v5e.\n" in f"{small}\n"
    large = jax.ShapeDtypeStruct((3 << 30,), "float32")  # 12 GiB, and a result of 12 GiB
    assert "Peak of 24 GiB per device, does not fit into 16 GiB on v5e." in str(wb.inspect(jnp.sin, on="v5e")(large))
    chip = known_chip("v5e")
    assert chip is not None
    memory = small.module.memory.replace(peak_bytes=9 << 30).within(chip.replace(devices_per_chip=2))
    assert (memory.available_bytes, memory.fits) == (8 << 30, False)
