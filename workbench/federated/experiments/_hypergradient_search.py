"""Hyperparameter search by gradient descent through a few rounds."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from workbench._types import PyTree
from workbench.errors import ProgramError
from workbench.federated.experiments._space import Grid, Setting, Space, draw_settings, list_grid, traceable_names
from workbench.federated.experiments._trial_program import Problem, first_state, is_maker, rounds_of
from workbench.plan import jit
from workbench.primitives import broadcast, map_fn, program


@dataclass(frozen=True, slots=True)
class HypergradientSearch(Grid):
    """Improves the hyperparameters of each trial by gradient descent before the trials run.

    The metric after a few rounds is differentiated through the rounds, with respect to the logarithms of all positive
    float hyperparameters. Adam then takes a number of steps, with all trials in one program. The sweep runs each trial
    with the best values that these steps found. One step costs about four times the forward cost of its rounds. Use it
    for more hyperparameters than a grid or random draws can cover, such as one learning rate per layer. If a few rounds
    do not predict the result of many rounds, the hyperparameters suit only short runs; in this case, the learning rates
    are often too small.

    Attributes:
        metric: Metric whose mean over the clients in the last differentiated round is minimised. The metric must be
            differentiable: a loss, not an error rate.
        steps: Number of Adam steps.
        learning_rate: Adam's learning rate, for the natural logarithms of the hyperparameters.
        rounds: Number of rounds to differentiate through.
        trials: Number of random starting points, as in `RandomSearch`; None for the grid.
        seed: Seed for the draws.

    References:
        Maclaurin, Duvenaud and Adams, "Gradient-based Hyperparameter Optimization through Reversible Learning", ICML
        2015 (arXiv 1502.03492); Rush et al., "Federated Automatic Differentiation", arXiv 2301.07806, section 5.
    """

    metric: str = "loss"
    steps: int = 10
    learning_rate: float = 0.3
    rounds: int = 5
    trials: int | None = None
    seed: int = 0

    def settings(self, space: Space) -> list[Setting]:
        """Draws the trials' starting points."""
        return list_grid(space) if self.trials is None else draw_settings(space, self.trials, self.seed)

    def propose(self, problem: Problem, space: Space, seeds: tuple[int, ...], rounds: int) -> list[Setting]:
        """Returns the best settings found; a trial stops if a derivative is not finite."""
        starts = self.settings(space)
        names = sorted(name for name in traceable_names(starts) if all(s[name] > 0 for s in starts))
        static = {name: value for name, value in starts[0].items() if name not in names}
        if not names or any(setting[name] != value for setting in starts for name, value in static.items()):
            message = (
                f"`HypergradientSearch` received a space in which {', '.join(map(repr, names)) or 'nothing'} can be "
                f"optimized and {', '.join(map(repr, static)) or 'nothing'} cannot. The search optimizes positive "
                "floats. Each of the other hyperparameters must have the same value in all trials: run one search "
                "for each combination of their values."
            )
            raise ProgramError(message)
        if problem.batches is not None:
            message = (
                "`HypergradientSearch` received `batches` that are created on the host. The search differentiates "
                "the whole run, but not code on the host: pass `data` as arrays or as a function of a key."
            )
            raise ProgramError(message)
        solutions = self._descend(problem, names, static, starts, seeds[0], min(self.rounds, rounds))
        return [
            {**setting, **dict(zip(names, values, strict=True))}
            for setting, values in zip(starts, solutions, strict=True)
        ]

    def _descend(
        self, problem: Problem, names: list[str], static: Setting, starts: list[Setting], seed: int, rounds: int
    ) -> list[list[float]]:
        data = None if is_maker(problem.data) else problem.data
        adam = optax.adam(self.learning_rate)

        def objective(logs: jax.Array, data: PyTree[Array]) -> jax.Array:
            setting = {**static, **{name: jnp.exp(logs[number]) for number, name in enumerate(names)}}
            state = first_state(problem, setting, jnp.int32(seed))
            _, metrics = rounds_of(problem, setting, jnp.int32(seed), state, data, jnp.arange(rounds))
            if self.metric not in metrics:
                message = (
                    f"`HypergradientSearch` received metric={self.metric!r}, but the metrics are "
                    f"{', '.join(map(repr, sorted(metrics)))}. The search minimises one metric: pass its name."
                )
                raise ProgramError(message)
            return metrics[self.metric][-1].mean()

        def descend(logs: jax.Array, data: PyTree[Array]) -> jax.Array:
            def step(carry: PyTree[Array], _: None) -> tuple[Any, None]:
                now, optimizer, best = carry
                value, slope = jax.value_and_grad(objective)(now, data)
                with jax.numpy_dtype_promotion("standard"):  # optax's Adam mixes float and integer dtypes
                    change, after = adam.update(slope, optimizer)
                fine = jnp.isfinite(slope).all()
                moved = jax.tree.map(lambda new, old: jnp.where(fine, new, old), (now + change, after), carry[:2])
                return (*moved, _better((value, now), best)), None

            first = (logs, adam.init(logs), (jnp.float32(jnp.inf), logs))
            (last, _, best), _ = jax.lax.scan(step, first, None, length=self.steps)
            return _better((objective(last, data), last), best)[1]

        logs = np.log(np.array([[setting[name] for name in names] for setting in starts], np.float32))

        @program(placements={"trials": len(starts)})
        def all_starts(logs: object, data: PyTree[Array]) -> PyTree[Array]:
            return map_fn(descend, (logs, broadcast(data)))

        return np.exp(np.asarray(jit(all_starts)(logs, data), np.float64)).tolist()


def _better(new: PyTree[Array], best: PyTree[Array]) -> PyTree[Array]:
    """Keeps the pair with the smaller finite value."""
    value = new[0].astype(jnp.float32)
    wins = jnp.isfinite(value) & (value < best[0])
    return jax.tree.map(lambda a, b: jnp.where(wins, a, b), (value, new[1]), best)
