"""Advice in several threads: JAX is as it was, and every thread traced with its own policy."""

import threading

import jax
import jax.numpy as jnp

from workbench._jax_compat import checkpoints_with

REMAT = jax.make_jaxpr(jax.checkpoint(lambda x: x * 2))(1.0).eqns[0].primitive


def saved(policy=None):
    """How many matrix products a gradient computes: two are made again where nothing is saved."""

    @jax.checkpoint
    def layer(w, x):
        return jnp.sin(jnp.sin(x @ w) @ w)

    def gradient(w, x):
        return jax.grad(lambda w: layer(w, x).sum())(w)

    def trace():
        return str(jax.make_jaxpr(gradient)(jnp.ones((4, 4)), jnp.ones((2, 4)))).count("dot_general")

    if policy is None:
        return trace()
    with checkpoints_with(policy):
        return trace()


def test_policies_of_threads_never_mix_and_jax_is_left_as_it_was():
    everything, nothing = jax.checkpoint_policies.everything_saveable, jax.checkpoint_policies.nothing_saveable
    before = dict(REMAT.__dict__)
    expected = {policy: saved(policy) for policy in (everything, nothing, None)}
    assert expected[everything] < expected[nothing] == expected[None]
    wrong: list[object] = []
    start = threading.Barrier(6)

    def work(policy) -> None:
        start.wait()
        wrong.extend(policy for _ in range(8) if saved(policy) != expected[policy])

    threads = [threading.Thread(target=work, args=(policy,)) for policy in (everything, nothing, None) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert dict(REMAT.__dict__) == before
    assert saved() == expected[None]


def test_blocks_may_be_nested():
    everything, nothing = jax.checkpoint_policies.everything_saveable, jax.checkpoint_policies.nothing_saveable
    before, alone = dict(REMAT.__dict__), saved(everything)
    with checkpoints_with(nothing):
        assert saved(everything) == alone
    assert REMAT.__dict__ == before


def test_equations_of_another_thread_keep_their_lines_while_a_policy_is_tried():
    traced = []

    def trace():
        layer = jax.checkpoint(jnp.tanh)
        jaxpr = jax.make_jaxpr(jax.grad(lambda x: layer(layer(x))))(1.0)
        traced.append(jaxpr.pretty_print(source_info=True))

    trace()
    with checkpoints_with(jax.checkpoint_policies.everything_saveable):
        thread = threading.Thread(target=trace)
        thread.start()
        thread.join()
    assert "test_threads.py" in traced[0]
    assert traced[1] == traced[0]
