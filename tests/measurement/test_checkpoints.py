import asyncio
import resource
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from measurement_examples import bits, count, quiet

from workbench.errors import DataError, EngineError, MeasureError, RoundError
from workbench.measurement import Run, load_checkpoint, run_rounds
from workbench.measurement._checkpoints import Checkpoints, HistoryFile
from workbench.measurement._state_check import describe_state
from workbench.records.live import RoundRecord


def make_training():
    """Adam on a small regression, a typed key in the state, another one per round, and per-client losses."""
    optimizer = optax.adam(0.1)

    @jax.jit
    def step(state, batch, key):
        noise = jax.random.normal(key, (4, 3))
        losses, gradient = jax.vmap(jax.value_and_grad(lambda w, x: jnp.sum((w - x) ** 2)), (None, 0))(
            state["w"], batch + noise
        )
        with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an int32 power
            updates, moments = optimizer.update(gradient.mean(axis=0), state["optimizer"])
        own, _ = jax.random.split(state["key"])
        return {"w": optax.apply_updates(state["w"], updates), "optimizer": moments, "key": own}, {"loss": losses}

    w = jnp.zeros(3)
    state = {"w": w, "optimizer": optimizer.init(w), "key": jax.random.key(7)}
    settings = {"data": lambda round: jnp.full((4, 3), float(round)), "key": jax.random.key(0), "progress": False}
    return step, state, settings


def test_resume_continues_bit_for_bit_with_optax_state_and_typed_keys(tmp_path):
    step, state, settings = make_training()
    straight = run_rounds(step, state, 6, **settings)
    run_rounds(step, state, 3, checkpoint_dir=tmp_path / "run", **settings)
    resumed = run_rounds(step, state, 6, checkpoint_dir=tmp_path / "run", **settings)
    assert bits(resumed.state) == bits(straight.state)
    assert jax.tree.structure(resumed.state) == jax.tree.structure(straight.state)
    assert [r.metrics for r in resumed.history] == [r.metrics for r in straight.history]


def test_resume_skips_what_an_iterator_gave_already(tmp_path):
    def step(state, batch):
        return [*state, batch], {}

    run_rounds(
        lambda state, batch: (state + batch, {}), 0, 2, data=iter([1, 2, 4, 8]), checkpoint_dir=tmp_path, **quiet
    )
    run = run_rounds(
        lambda state, batch: (state + batch, {}), 0, 4, data=iter([1, 2, 4, 8]), checkpoint_dir=tmp_path, **quiet
    )
    assert run.state == 15


def test_checkpoint_brings_shardings_back(tmp_path):
    mesh = Mesh(np.array(jax.devices()), ("clients",))
    state = jax.device_put(jnp.arange(16.0), NamedSharding(mesh, P("clients")))
    run_rounds(lambda state, round: (state * 2, {}), state, 1, checkpoint_dir=tmp_path, **quiet)
    finished, loaded, history = load_checkpoint(tmp_path, state)
    assert (finished, len(history)) == (1, 1)
    assert loaded.sharding == state.sharding
    assert loaded.tolist() == [2.0 * i for i in range(16)]


def test_only_the_last_checkpoints_are_kept_and_an_older_one_can_be_chosen(tmp_path):
    run_rounds(count, 0, 5, checkpoint_dir=tmp_path, keep=2, **quiet)
    assert load_checkpoint(tmp_path, 0)[:2] == (5, 5)
    assert load_checkpoint(tmp_path, 0, round=4)[:2] == (4, 4)
    with pytest.raises(DataError, match=r"asked for round 1 in .*which has rounds \[4, 5\].*as `like=`"):
        load_checkpoint(tmp_path, 0, round=1)


def test_last_round_is_written_although_it_is_between_checkpoints(tmp_path):
    run_rounds(count, 0, 5, checkpoint_dir=tmp_path, checkpoint_every=3, **quiet)
    assert load_checkpoint(tmp_path, 0)[0] == 5


def test_missing_checkpoint_is_an_error_that_says_where(tmp_path):
    with pytest.raises(DataError, match=r"asked for the newest round in .*nowhere.*has rounds none"):
        load_checkpoint(tmp_path / "nowhere", 0)
    assert not (tmp_path / "nowhere").exists()


def test_damaged_checkpoint_falls_back_to_the_one_before(tmp_path):
    run_rounds(lambda state, round: (state + 1, {}), jnp.zeros(50), 3, checkpoint_dir=tmp_path, **quiet)
    for file in (tmp_path / "3").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    assert load_checkpoint(tmp_path, jnp.zeros(50))[0] == 2


def test_checkpoint_of_another_shape_is_an_error_that_lists_what_was_tried(tmp_path):
    run_rounds(lambda state, round: (state, {}), {"w": jnp.zeros(3)}, 1, checkpoint_dir=tmp_path, **quiet)
    with pytest.raises(DataError, match=r"these cannot be read into the given state: 1 \("):
        load_checkpoint(tmp_path, {"w": jnp.zeros(3), "b": jnp.zeros(2)})


@pytest.mark.parametrize(("count", "more"), [(5, ""), (6, "; and 1 more"), (7, "; and 2 more")])
def test_five_leaves_that_do_not_fit_are_named(tmp_path, monkeypatch, count, more):
    about = {"leaves": describe_state({"state": dict.fromkeys("abcdefg"[:count], 1)})}
    with Checkpoints(tmp_path, read_only=True) as checkpoints:
        monkeypatch.setattr(checkpoints, "_open", lambda: SimpleNamespace(restore=lambda *_, **__: {"history": about}))
        with pytest.raises(DataError) as error:
            checkpoints._read(1, {})
    named = "; ".join(f"state['state']['{name}'] is only in the checkpoint" for name in "abcde")
    assert str(error.value) == named + more


def test_history_of_a_checkpoint_is_a_part_of_the_file(tmp_path):
    rounds = [RoundRecord(round=number, seconds=0.5, metrics={"loss": 1.0}) for number in range(4)]
    file = HistoryFile(tmp_path)
    abouts = [file.append(rounds, finished) for finished in (1, 3, 3)]
    assert [about["rounds"] for about in abouts] == [1, 3, 3]
    assert abouts[1] == abouts[2]
    assert abouts[2]["bytes"] == file.path.stat().st_size
    again = HistoryFile(tmp_path)
    assert [len(again.read(about)) for about in abouts] == [1, 3, 3]
    again.read(abouts[0])
    assert again.append(rounds[:1] + rounds[3:], 2)["rounds"] == 2  # the rest of the file is another checkpoint's
    assert list(HistoryFile(tmp_path).read(again.append(rounds, 2))) == [rounds[0], rounds[3]]
    cut = "truncated or changed"
    changes = ({"rounds": 2}, "has 1 rounds, but 2 were written"), ({"bytes": 10**6}, cut), ({"bytes": 9}, cut)
    for change, fact in changes:
        with pytest.raises(DataError, match=fact):
            HistoryFile(tmp_path).read(abouts[0] | change)


def test_resume_that_is_not_wanted_is_an_error(tmp_path):
    run_rounds(count, 0, 2, checkpoint_dir=tmp_path, **quiet)
    with pytest.raises(MeasureError, match=r"resume=False and checkpoint_dir=.*has rounds \[1, 2\].*another folder"):
        Run(count, 0, 4, checkpoint_dir=tmp_path, resume=False, **quiet)


def test_full_disk_is_noted_and_neither_the_run_nor_the_last_checkpoint_is_lost(tmp_path):
    state = jnp.asarray(np.random.default_rng(0).random(100_000))  # 400 kB that cannot be compressed away
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def step(state, round):
        if round == 2:  # from now on no file may grow beyond 20 kB
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
        return state + 1, {"loss": 1.0}

    try:
        run = run_rounds(step, state, 4, checkpoint_dir=tmp_path, **quiet)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert run.status == "finished"
    assert np.asarray(run.state).tolist() == np.asarray(state + 1 + 1 + 1 + 1).tolist()
    assert "checkpoint of round 3 could not be written" in run.problems[0].what
    assert "the checkpoint of round 2 is kept" in run.problems[0].what
    finished, loaded, _ = load_checkpoint(tmp_path, state)
    assert finished == 2
    assert np.asarray(loaded).tolist() == np.asarray(state + 1 + 1).tolist()


def test_run_after_a_full_disk_resumes_from_the_last_good_checkpoint(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    state = jnp.asarray(np.random.default_rng(0).random(100_000))
    add = lambda state, round: (state + 1, {})  # noqa: E731
    run_rounds(add, state, 1, checkpoint_dir=tmp_path, **quiet)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        run_rounds(add, state, 2, checkpoint_dir=tmp_path, **quiet)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    again = run_rounds(add, state, 3, checkpoint_dir=tmp_path, **quiet)
    assert (again.finished, again.problems) == (3, ())
    assert load_checkpoint(tmp_path, state)[0] == 3


def test_failure_after_donation_reports_what_is_lost_and_start_takes_the_checkpoint(tmp_path):
    add = jax.jit(lambda state: state + 1, donate_argnums=0)
    failures = iter([RuntimeError])

    def step(state, round):
        after = add(state)
        state.delete()  # JAX 0.11 does not take memory on a CPU that a checkpoint was read from
        if round == 1:
            for failure in failures:
                raise failure
        return after, {}

    run = Run(step, jnp.zeros(2), 3, checkpoint_dir=tmp_path, **quiet)
    with pytest.raises(RoundError):
        run.start()
    with pytest.raises(
        EngineError, match=r"state after 1 rounds.*donates its state.*Round 1 is on disk.*without donation"
    ):
        _ = run.state
    assert run.start().state.tolist() == [3.0, 3.0]


def test_run_can_be_awaited_and_checkpoint_inside_an_event_loop(tmp_path):
    async def notebook():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        run = await Run(count, 0, 5, checkpoint_dir=tmp_path / "awaited", **quiet)
        ticking.cancel()
        blocking = run_rounds(count, 0, 2, checkpoint_dir=tmp_path / "blocking", **quiet)
        return run, blocking, ticks

    run, blocking, ticks = asyncio.run(notebook())
    assert (run.state, blocking.state) == (5, 2)
    assert ticks > 1
