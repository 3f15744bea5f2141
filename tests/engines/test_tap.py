"""A tap shows what one client really computes, under the names of the user's own lines."""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import workbench as wb
from workbench.errors import InspectionError
from workbench.records.live import TapRecord

pytestmark = pytest.mark.usefixtures("little_optimized")
W = jnp.array([2.0, -1.0])
X = jnp.arange(24.0).reshape(6, 2, 2) / 10
STEP = 0.5


def loss_of(w, x):
    error = x @ w - 1
    return jnp.sum(error**2)


def train(w, x):
    def step(w, _):
        loss, slope = jax.value_and_grad(loss_of)(w, x)
        wb.emit("loss", loss)
        wb.emit("size", jnp.linalg.norm(slope))
        new = w - STEP * slope
        return new, None

    last, _ = jax.lax.scan(step, w, None, length=2)
    return last - w


@wb.program(clients=6)
def fedavg(w, x):
    return w + wb.reduce_mean(wb.map_fn(train, (wb.broadcast(w), x)))


def by_hand(client: int) -> list[dict[str, np.ndarray]]:
    """Both steps of gradient descent, in numpy: d/dw of sum((xw - 1)²) is 2 xᵀ(xw - 1)."""
    w, x, steps = np.asarray(W), np.asarray(X[client]), []
    for _ in range(2):
        error = x @ w - 1
        slope = 2 * x.T @ error
        new = w - STEP * slope
        steps.append(
            {"error": error, "loss": np.sum(error**2), "slope": slope, "size": np.linalg.norm(slope), "new": new}
        )
        w = new
    return steps


@pytest.fixture(scope="module")
def tapped() -> TapRecord:
    return wb.trace(fedavg)(W, X).tap(client=4)


@pytest.mark.parametrize("name", ["error", "loss", "slope", "size", "new"])
def test_every_named_value_of_every_local_step_is_there(tapped, name):
    found = tapped.find(name)
    assert [value.steps for value in found] == [(0,), (1,)]
    for value, expected in zip(found, by_hand(4), strict=True):
        np.testing.assert_allclose(value.value, expected[name], rtol=1e-5)


def test_values_between_have_the_expression_as_their_name(tapped):
    assert "x @ w" in tapped.names
    assert "STEP * slope" in tapped.names
    (result,) = tapped.find("last - w")
    np.testing.assert_allclose(result.value, by_hand(4)[1]["new"] - np.asarray(W), rtol=1e-5)


def test_a_tree_of_gradients_is_called_by_the_variable_that_holds_it():
    def loss(params, x):
        return jnp.sum((jnp.tanh(x @ params["in"]) @ params["out"]) ** 2)

    def client(params, x):
        value, gradient = jax.value_and_grad(loss)(params, x)
        return jax.tree.map(lambda p, g: p - STEP * g, params, gradient), value

    @wb.program(clients=2)
    def one_step(params, x):
        return wb.reduce_mean(wb.map_fn(client, (wb.broadcast(params), x)))

    params, rows = {"in": jnp.eye(2), "out": jnp.ones((2, 1))}, jnp.ones((2, 3, 2))
    record = wb.trace(one_step)(params, rows).tap(client=1)
    expected = jax.grad(loss)(params, rows[1])
    found = {value.name: value.value for value in record.values if value.name.startswith("gradient")}
    assert sorted(found) == ["gradient['in']", "gradient['out']"]
    for name in expected:
        np.testing.assert_allclose(found[f"gradient['{name}']"], expected[name], rtol=1e-5)
    (value,) = record.find("value")
    np.testing.assert_allclose(value.value, loss(params, rows[1]), rtol=1e-6)


@pytest.mark.parametrize("unpack", [True, False])
def test_gradients_of_local_steps_have_the_paths_of_their_parameters(unpack):
    """Two parameters have one shape; the optimizer clips by the norm of all gradients, and keeps momentum."""
    optimizer = optax.chain(optax.clip_by_global_norm(1e-2), optax.sgd(1e-2, momentum=0.9))

    def loss(params, x):
        hidden = jnp.tanh(x @ params["layers"]["a"]["w"] + params["layers"]["a"]["b"])
        return jnp.sum((hidden @ params["layers"]["c"]["w"]) ** 2) * params["layers"]["scale"]

    def unpacked(carry, x):
        params, state = carry
        value, grads = jax.value_and_grad(loss)(params, x)
        updates, state = optimizer.update(grads, state)
        return (optax.apply_updates(params, updates), state), value

    def indexed(carry, x):
        grads = jax.grad(loss)(carry[0], x)
        updates, state = optimizer.update(grads, carry[1])
        return (optax.apply_updates(carry[0], updates), state), jnp.sum(x)

    def client(params, rows):
        return jax.lax.scan(unpacked if unpack else indexed, (params, optimizer.init(params)), rows)[0][0]

    @wb.program(clients=2)
    def one_round(params, rows):
        return wb.reduce_mean(wb.map_fn(client, (wb.broadcast(params), rows)))

    draw = np.random.default_rng(0)
    a = {"w": draw.normal(size=(3, 3)).astype(np.float32), "b": np.zeros((1, 3), np.float32)}
    params = {"layers": {"a": a, "c": {"w": np.eye(3, dtype=np.float32)}, "scale": np.float32(2)}}
    rows = draw.normal(size=(2, 3, 4, 3)).astype(np.float32)
    record = wb.trace(one_round)(params, rows).tap(client=1)
    after = client(params, rows[1][:2])
    for path, expected in jax.tree_util.tree_leaves_with_path(jax.grad(loss)(after, rows[1][2])):
        (value,) = record.find(f"grads{jax.tree_util.keystr(path)}", steps=(2,))
        np.testing.assert_allclose(value.value, expected, rtol=1e-4, atol=1e-6)


def test_gradients_that_update_no_argument_are_named_by_their_lines():
    def client(params, x):
        gradient = jax.grad(lambda p: jnp.sum((x @ p["w"]) ** 2) + jnp.sum(p["b"] ** 2))(params)
        return jax.tree.map(jnp.sum, gradient)

    @wb.program(clients=2)
    def sums(params, x):
        return wb.reduce_mean(wb.map_fn(client, (wb.broadcast(params), x)))

    names = wb.trace(sums)({"w": jnp.eye(2), "b": jnp.ones(2)}, jnp.ones((2, 3, 2))).tap(client=0).names
    assert len([name for name in names if name.startswith("gradient from ")]) == 2


def test_gradients_without_a_name_are_named_by_their_lines():
    def client(params, x):
        _ = jax.grad(lambda p: jnp.sum((x @ p["w"]) ** 2) + jnp.sum(p["b"] ** 2))(params)
        return jax.tree.map(jnp.subtract, params, _)

    @wb.program(clients=2)
    def step(params, x):
        return wb.reduce_mean(wb.map_fn(client, (wb.broadcast(params), x)))

    names = wb.trace(step)({"w": jnp.eye(2), "b": jnp.ones(2)}, jnp.ones((2, 3, 2))).tap(client=0).names
    assert 'x @ p["w"]' in names


def test_what_came_in_is_there_too(tapped):
    inputs = [value for value in tapped.values if value.operation == "input"]
    assert any(value.shape == (2, 2) and np.array_equal(value.value, X[4]) for value in inputs)


def test_arguments_keep_their_names_under_a_mesh():
    @wb.program(clients=8)
    def scaled(weights, rows):
        return wb.reduce_mean(wb.map_fn(lambda w, row: w["scale"] * row, (wb.broadcast(weights), rows)))

    with jax.set_mesh(wb.make_mesh(clients=8)):
        record = wb.trace(scaled)({"scale": jnp.ones(3)}, jnp.ones((8, 3))).tap(client=2)
    assert [value.name for value in record.values[:2]] == ["w['scale']", "row"]


def test_values_know_their_stage_and_line(tapped):
    (value,) = tapped.find("error", steps=(0,))
    assert tapped.stages[value.stage] == "train"
    assert value.source.file == __file__
    assert value.source.line == loss_of.__code__.co_firstlineno + 1


def test_a_tap_returns_what_the_program_returns(tapped):
    np.testing.assert_allclose(tapped.results, fedavg(W, X), rtol=1e-6)


def test_nobody_else_hears_what_a_tapped_program_emits():
    with wb.listen() as received:
        wb.trace(fedavg)(W, X).tap()
    assert len(received) == 0


def test_rounds_of_a_loop_around_clients_are_distinguished():
    many = wb.jit(lambda w: jax.lax.scan(lambda w, _: (fedavg(w, X), None), w, None, length=2)[0])
    record = wb.trace(many)(W).tap(client=1)
    places = {(value.round, value.steps) for value in record.values if value.name == "loss"}
    assert places == {(0, (0,)), (0, (1,)), (1, (0,)), (1, (1,))}
    second_round, (first,) = fedavg(W, X), record.find("loss", round=1, steps=(0,))
    np.testing.assert_allclose(first.value, loss_of(second_round, X[1]), rtol=1e-5)


def test_the_first_value_that_is_not_finite_is_named():
    record = wb.trace(fedavg)(W.at[0].set(jnp.inf), X.at[2, 0, 0].set(0.0)).tap(client=2)
    named = [value for value in record.values if value.operation != "input" and value.nonfinite]
    assert named[0].name == "x @ w"  # 0 times infinity
    assert record.first_nonfinite.operation == "input"
    assert record.first_nonfinite.nonfinite == 1


def test_the_gradient_of_a_program_shows_the_forward_and_the_backward_pass():
    record = wb.trace(jax.grad(lambda w: jnp.sum(fedavg(w, X) ** 2)))(W).tap(client=3)
    assert list(record.stages.values())[-1].startswith("transpose")
    forward = record.find("new", stage=next(iter(record.stages)))
    np.testing.assert_allclose(forward[1].value, by_hand(3)[1]["new"], rtol=1e-5)
    np.testing.assert_allclose(record.results, jax.grad(lambda w: jnp.sum(fedavg(w, X) ** 2))(W), rtol=1e-5)


@pytest.mark.parametrize(
    ("client", "names"), [((1, 2), {"1/2"}), (1, {"1/0", "1/1", "1/2"})], ids=["one inside", "all inside"]
)
def test_clients_inside_clients_are_named_by_both(client, names):
    @wb.program(placements={"pods": 2, "clients": 3})
    def nested(x):
        return wb.reduce_sum(
            wb.reduce_sum(wb.map_fn(lambda row: 2 * row, x, over="clients"), over="clients"), over="pods"
        )

    record = wb.trace(nested)(jnp.arange(6.0).reshape(2, 3)).tap(client=client)
    doubled = record.find("2 * row")
    assert {value.client for value in doubled} == names
    assert {float(value.value) for value in doubled} == {2.0 * (3 + int(name[-1])) for name in names}


def test_a_branch_that_was_not_taken_leaves_no_values():
    @wb.program(clients=2)
    def branching(x):
        def choose(row):
            return jax.lax.cond(row > 0, lambda v: jnp.exp(v), lambda v: jnp.sin(v), row)

        return wb.reduce_sum(wb.map_fn(choose, x))

    record = wb.trace(branching)(jnp.array([-1.0, 1.0])).tap(client=1)
    assert "jnp.exp(v)" in record.names
    assert "jnp.sin(v)" not in record.names


def test_functions_of_a_library_are_one_value():
    @wb.program(clients=2)
    def softened(x):
        def soften(row):
            soft = jax.nn.softmax(row)
            return jnp.max(jax.nn.relu(soft - 0.3))

        return wb.reduce_sum(wb.map_fn(soften, x))

    record = wb.trace(softened)(jnp.array([[1.0, 2.0], [0.0, 3.0]])).tap(client=1)
    computed = [value.name for value in record.values if value.operation != "input"]
    assert computed == ["soft", "soft - 0.3", "jax.nn.relu(soft - 0.3)", "jnp.max(jax.nn.relu(soft - 0.3))"]


def test_beyond_the_limits_figures_or_nothing_are_kept_and_the_record_says_so():
    record = wb.trace(fedavg)(W, X).tap(most_values=4, most_bytes=20)
    assert len(record.values) == 4
    assert [value.value is None for value in record.values] == [False, True, False, True]  # 8, 16, 8 and 8 bytes
    assert record.values[1].mean == pytest.approx(float(X[0].mean()))
    assert record.notes[-2].startswith(f"{len(wb.trace(fedavg)(W, X).tap().values) - 4} later values are omitted")
    assert record.notes[-1].startswith("For 2 values, only statistics are kept")


def test_keys_are_kept_as_the_integers_they_are_made_of():
    @wb.program(clients=2)
    def noisy(keys):
        def draw(key):
            mine = jax.random.fold_in(key, 1)
            return jax.random.uniform(mine)

        return wb.reduce_sum(wb.map_fn(draw, keys))

    keys = jax.random.split(jax.random.key(0), 2)
    (mine,) = wb.trace(noisy)(keys).tap(client=1).find("mine")
    assert mine.value.tolist() == jax.random.key_data(jax.random.fold_in(keys[1], 1)).tolist()


def test_record_is_json_without_its_arrays_and_a_tree_with_them(tapped):
    assert '"name": "loss"' in tapped.to_json()
    tree = tapped.to_tree()
    assert list(tree) == ["stage 1: train"]
    np.testing.assert_allclose(tree["stage 1: train"]["step 1"]["loss"], by_hand(4)[1]["loss"], rtol=1e-5)


@pytest.mark.parametrize("client", [6, -1, (7, 0)], ids=str)
def test_a_client_that_is_not_there_is_an_error(client):
    with pytest.raises(
        InspectionError, match=r"fedavg has 6 clients of 'clients'\. Clients are numbered from 0"
    ) as caught:
        wb.trace(fedavg)(W, X).tap(client=client)
    assert f"client={client!r}" in str(caught.value)


def test_a_notebook_shows_the_values_foldable_and_a_terminal_as_text(tapped, monkeypatch, capsys):
    shown = []
    wb.show(tapped)
    assert capsys.readouterr().out.startswith("Values of client 4 in fedavg")
    monkeypatch.setattr("workbench.api._show.in_notebook", lambda: True)
    monkeypatch.setattr("IPython.display.display", lambda bundle, raw: shown.append(bundle))
    wb.show(tapped)
    assert "treescope" in shown[0]["text/html"]
    assert shown[0]["text/plain"].startswith("Values of client 4 in fedavg")


@pytest.fixture
def helper(tmp_path, monkeypatch):
    """A second file of the user's."""
    (tmp_path / "own_losses.py").write_text("def loss_of_row(row):\n    squared = row**2\n    return squared.sum()\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("own_losses")
    sys.modules.pop("own_losses")


def tapped_with(helper, **options):
    @wb.program(clients=2)
    def program(x):
        def one(row):
            halved = row * 0.5
            wb.emit("half", halved)
            return helper.loss_of_row(halved)

        return wb.reduce_sum(wb.map_fn(one, x))

    return wb.trace(program)(jnp.arange(6.0).reshape(2, 3)).tap(client=1, **options)


def files_of(record):
    return {value.source.file.rpartition("/")[2] for value in record.values if value.source}


def test_only_keeps_the_values_of_the_files_that_are_asked_for(helper):
    assert files_of(tapped_with(helper)) == {"test_tap.py", "own_losses.py"}
    mine = tapped_with(helper, only="test_tap.py")
    assert files_of(mine) == {"test_tap.py"}
    assert {"row", "halved"} <= {value.name for value in mine.values}
    assert any("outside 'test_tap.py' are omitted: own_losses.py" in note for note in mine.notes)


@pytest.mark.parametrize("only", ["own_*.py", ("nothing.py", "own_losses.py")])
def test_only_takes_patterns_and_several_files_and_keeps_what_is_emitted(helper, only):
    record = tapped_with(helper, only=only)
    assert {"squared", "half"} <= {value.name for value in record.values}
    assert "halved" not in {value.name for value in record.values}
