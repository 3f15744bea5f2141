"""What programs emit reaches who listens, with the client and step that it comes from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.errors import InspectionError, ProgramError

ROWS = jnp.arange(1.0, 9.0)


@wb.program(clients=8)
def one_round(params, rows):
    def descend(local, row):
        def step(value, _):
            loss = (value * row) ** 2
            wb.emit("loss", loss)
            return value - 0.01 * 2 * value * row**2, None

        last, _ = jax.lax.scan(step, local, None, length=3)
        wb.emit("change", last - local)
        return last

    return wb.reduce_mean(wb.map_fn(descend, (wb.broadcast(params), rows)))


def expected_losses(params):
    losses = []
    for row in np.arange(1.0, 9.0):
        value, own = float(params), []
        for _ in range(3):
            own.append((value * row) ** 2)
            value -= 0.01 * 2 * value * row**2
        losses.append(own)
    return np.array(losses)


@pytest.mark.parametrize("at_once", [None, 1, 3, "auto"], ids=str)
@pytest.mark.parametrize("spread", [False, True], ids=["no mesh", "mesh"])
def test_emitted_values_keep_client_and_step(at_once, spread):
    compiled = wb.jit(one_round, chunk_size=at_once)
    with jax.set_mesh(wb.make_mesh(clients=4 if spread else 1)), wb.listen() as received:
        compiled(jnp.float32(0.5), ROWS)
    np.testing.assert_allclose(received.latest("loss"), expected_losses(0.5), rtol=1e-5)
    assert {h.name: h.axes for h in received} == {"loss": ("clients", "step"), "change": ("clients",)}


def test_rounds_in_a_scan_are_distinguished():
    many = wb.jit(lambda params: jax.lax.scan(lambda p, _: (one_round(p, ROWS), None), params, None, length=2)[0])
    with wb.listen() as received:
        many(jnp.float32(0.5))
    assert {h.name: h.axes for h in received} == {"loss": ("round", "clients", "step"), "change": ("round", "clients")}
    np.testing.assert_allclose(received.latest("loss")[0], expected_losses(0.5), rtol=1e-5)
    assert list(received.to_pandas().query("name == 'loss'").columns) == [
        "program", "call", "name", "round", "clients", "step", "value",
    ]  # fmt: skip


def test_loops_of_rounds_are_numbered_from_the_outermost():
    def repeated(rounds):
        return lambda params: jax.lax.scan(lambda p, _: (rounds(p), None), params, None, length=2)[0]

    with wb.listen() as received:
        wb.jit(repeated(repeated(repeated(lambda params: one_round(params, ROWS)))))(jnp.float32(0.5))
    assert {h.axes for h in received if h.name == "change"} == {("round", "round 2", "round 3", "clients")}


def test_listening_does_not_change_the_result():
    compiled = wb.jit(one_round)
    quiet = compiled(jnp.float32(0.5), ROWS)
    with wb.listen():
        loud = compiled(jnp.float32(0.5), ROWS)
    np.testing.assert_allclose(quiet, loud, rtol=1e-6)


def test_nobody_listening_means_nothing_is_computed():
    text = wb.jit(one_round).lower(jnp.float32(0.5), ROWS).as_text()
    assert "custom_call" not in text  # no callback, and only the one result
    assert text.count("-> (tensor<f32>") == 1


def test_one_client_can_be_tapped():
    with wb.listen(client=2) as received:
        wb.jit(one_round)(jnp.float32(0.5), ROWS)
    assert {h.axes for h in received} == {("step",), ()}
    np.testing.assert_allclose(received.latest("loss"), expected_losses(0.5)[2], rtol=1e-5)


def test_a_branch_not_taken_emits_nan():
    @wb.program(clients=2)
    def branch(x):
        def client(row):
            def emits():
                wb.emit("seen", row)
                return row

            return jax.lax.cond(row > 1, emits, lambda: 0.0 * row)

        return wb.reduce_sum(wb.map_fn(client, x))

    with wb.listen() as received:
        wb.jit(branch, chunk_size=1)(jnp.array([1.0, 2.0]))
    np.testing.assert_array_equal(received.latest("seen"), [np.nan, 2.0])


def test_a_failing_listener_is_reported_and_ends_nothing():
    def fail(_):
        raise ValueError("no room on the screen")

    with wb.listen(on_value=fail) as received:
        result = wb.jit(one_round)(jnp.float32(0.5), ROWS)
    assert np.isfinite(result)
    assert received.errors[0] == "loss: ValueError: no room on the screen"


def test_emitting_what_is_no_array_says_what_to_do():
    with pytest.raises(
        ProgramError, match=r"`emit` was given name='loss' and a value of type dict\. .* once for each of its arrays"
    ):
        wb.emit("loss", {"a": 1})


def test_asking_for_what_nobody_emitted_says_what_was_received():
    with wb.listen() as received:
        wb.jit(one_round)(jnp.float32(0.5), ROWS)
    with pytest.raises(InspectionError, match=r"asked for 'accuracy', but the captured names are \['loss', 'change'\]"):
        received.latest("accuracy")


def test_what_plain_jit_drops_is_named():
    @jax.jit
    def step(w):
        wb.emit("loss", (w**2).sum())
        return w * 0.9

    def listening():
        with wb.listen() as received:
            step(jnp.ones(3))
        return received

    with pytest.warns(UserWarning, match="emits 'loss'.*workbench.jit") as warned:
        received = listening()
    assert warned[0].filename == __file__
    assert received.names == ()
    with wb.listen() as received:
        wb.jit(lambda w: step(w) + 1)(jnp.ones(3))
    assert received.names == ("loss",)
