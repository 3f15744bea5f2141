"""Networks of Flax NNX for agents; a module of its own, so that other processes import it by name."""

from typing import Any

import jax
from flax import nnx


class Values(nnx.Module):
    """The value of each action, with one hidden layer."""

    def __init__(self, observations: int, actions: int, *, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(observations, 64, rngs=rngs)
        self.out = nnx.Linear(64, actions, kernel_init=nnx.initializers.normal(0.02), rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.out(jax.nn.relu(self.hidden(x)))


class Dropping(Values):
    """With the random numbers of dropout."""

    def __init__(self, observations: int, actions: int, *, rngs: nnx.Rngs) -> None:
        super().__init__(observations, actions, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
