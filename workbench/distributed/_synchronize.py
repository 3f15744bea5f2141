"""Timeouts for multi-host steps, so that a lost host raises an error."""

import functools
import time
from collections.abc import Callable
from typing import TypeVar

import jax

from workbench._jax_compat import is_ready
from workbench.errors import EngineError

TIMEOUT_SECONDS = 300.0
_LONGEST_PAUSE_SECONDS = 0.01

T = TypeVar("T")


def wait_for(results: T, *, timeout_seconds: float = TIMEOUT_SECONDS) -> T:
    """Waits until arrays are computed, for at most `timeout_seconds`.

    Args:
        results: A pytree of arrays, on the devices of any number of hosts.
        timeout_seconds: Maximum time to wait. Ctrl-C stops waiting at any time.

    Returns:
        The same pytree, once its arrays are computed.

    Raises:
        EngineError: if the arrays are not computed in time. Restart this process after this error, because JAX cannot
            cancel a pending collective.

    Example:
        >>> float(wait_for(jnp.ones(()) + 1))
        2.0
    """
    waiting = [leaf for leaf in jax.tree.leaves(results) if isinstance(leaf, jax.Array)]
    ends = time.monotonic() + timeout_seconds
    pause = 0.0
    while waiting := [leaf for leaf in waiting if not is_ready(leaf)]:
        if time.monotonic() > ends:
            message = (
                f"a step did not end within {timeout_seconds:g} s on host {jax.process_index()} of "
                f"{jax.process_count()}: {len(waiting)} of its results are missing. All hosts must run the same steps "
                "in the same order, and no host may be stopped while others wait for it. Check what the other hosts "
                "were running, then restart all hosts: JAX cannot cancel a step that has begun."
            )
            raise EngineError(message)
        time.sleep(pause)
        pause = min(pause + 1e-4, _LONGEST_PAUSE_SECONDS)
    return jax.block_until_ready(results)


def synchronized(step: Callable[..., T], *, timeout_seconds: float = TIMEOUT_SECONDS) -> Callable[..., T]:
    """Makes a step return only after it has finished on this host's devices.

    On simulated hosts, several steps in flight can deadlock. Only a few threads run the collectives, and the threads
    of different hosts wait for each other in different orders. Waiting after every step gives all hosts the
    same order.

    Args:
        step: A compiled function.
        timeout_seconds: As for `wait_for`.

    Returns:
        A function with the same arguments and results.

    Example:
        >>> double = synchronized(jax.jit(lambda x: 2 * x))
        >>> float(double(jnp.ones(())))
        2.0
    """

    @functools.wraps(step)
    def step_and_wait(*args: object, **kwargs: object) -> T:
        return wait_for(step(*args, **kwargs), timeout_seconds=timeout_seconds)

    return step_and_wait
