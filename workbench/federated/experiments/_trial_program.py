"""The compiled program for a group of trials: a scan over the rounds."""

import functools
import inspect
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from workbench._types import Argument, PyTree
from workbench.errors import ProgramError
from workbench.federated.experiments._space import Setting
from workbench.plan import ChunkSize, jit
from workbench.primitives import broadcast, map_fn, program


class AlgorithmLike(Protocol):
    """Protocol of a trial: an `Algorithm`, or another object with these attributes."""

    @property
    def init(self) -> Callable[..., PyTree[Array]]: ...
    @property
    def round(self) -> Callable[..., tuple[PyTree[Array], PyTree[Array]]]: ...
    @property
    def params_of(self) -> Callable[[PyTree[Array]], PyTree[Array]]: ...


class Problem(NamedTuple):
    """Inputs that every trial of a sweep shares."""

    make: Callable[..., Any]  # an `AlgorithmLike`, or a pair (init, round)
    params: PyTree[jax.Array]
    data: PyTree[Array]
    batches: Callable[[int, int], PyTree[Array]] | None
    evaluate: Callable[..., Mapping[str, ArrayLike]] | None


def is_maker(value: object) -> bool:
    """Returns whether `value` is a function that creates data, rather than a callable pytree."""
    return callable(value) and jax.tree_util.treedef_is_leaf(jax.tree.structure(value))


def keys_of(seed: ArrayLike) -> tuple[jax.Array, jax.Array]:
    """Derives two keys from a seed: for initial parameters, and for the data of all rounds."""
    key = jax.random.key(seed)
    return jax.random.fold_in(key, 0), jax.random.fold_in(key, 1)


def call_with(fn: Callable[..., PyTree[Array]], key: jax.Array, setting: Setting) -> PyTree[Array]:
    """Calls `fn(key)`, or `fn(key, hyperparameters)` if `fn` has two parameters."""
    return fn(key, setting) if _positional(fn) > 1 else fn(key)


def _positional(fn: Callable[..., PyTree[Array]]) -> int:
    try:
        kinds = [p.kind for p in inspect.signature(fn).parameters.values()]
    except (TypeError, ValueError):
        return 1
    return sum(kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)


def make_algorithm(problem: Problem, setting: Setting, seed: object) -> AlgorithmLike:
    """Builds the algorithm; passes the seed if `make` has a free parameter `seed`."""
    parameters = inspect.signature(problem.make).parameters
    seeded = {"seed": seed} if "seed" in parameters and "seed" not in setting else {}
    algorithm: Argument = problem.make(**setting, **seeded)
    if _is_pair(algorithm):
        return _Rounds(*algorithm)
    if not callable(getattr(algorithm, "init", None)) or not callable(getattr(algorithm, "round", None)):
        message = (
            f"`sweep` received a `make` that returned {type(algorithm).__name__}. `make` builds an algorithm from its "
            "hyperparameters: return an `Algorithm`, or a pair (init, round)."
        )
        raise ProgramError(message)
    return algorithm


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(callable, value))


class _Rounds(NamedTuple):
    """A pair `(init, round)` wrapped as an `AlgorithmLike`."""

    init: Callable[..., Any]
    round: Callable[..., Any]

    @staticmethod
    def params_of(state: PyTree[Array]) -> PyTree[Array]:
        return getattr(state, "params", state)


def first_state(problem: Problem, setting: Setting, seed: ArrayLike) -> PyTree[Array]:
    """Creates the state before the first round."""
    params = problem.params
    if is_maker(params):
        params = call_with(params, keys_of(seed)[0], setting)
    state = make_algorithm(problem, setting, seed).init(params)
    return jax.tree.map(_strong, state)  # a scan rejects a state that is weakly typed only in its first iteration


def _strong(leaf: PyTree[Array]) -> jax.Array:
    leaf = jnp.asarray(leaf) if not hasattr(leaf, "dtype") else leaf
    return leaf if jnp.issubdtype(leaf.dtype, jax.dtypes.extended) else jax.lax.convert_element_type(leaf, leaf.dtype)


def rounds_of(
    problem: Problem, setting: Setting, seed: ArrayLike, state: PyTree[Array], data: PyTree[Array], numbers: jax.Array
) -> tuple[PyTree[Array], dict[str, Array]]:
    """Runs rounds of one trial; returns the state and the metrics `[rounds, ...]`."""
    algorithm = make_algorithm(problem, setting, seed)
    form = jax.tree.map(lambda leaf: leaf.dtype, state)

    def body(state: PyTree[Array], item: tuple[Array, PyTree[Array]]) -> tuple[PyTree[Array], dict[str, Array]]:
        number, batch = item
        if is_maker(problem.data):
            batch = call_with(problem.data, jax.random.fold_in(keys_of(seed)[1], number), setting)
        elif problem.batches is None:
            batch = data
        state, metrics = algorithm.round(state, batch)
        if not isinstance(metrics, dict):
            metrics = {"value": metrics}
        if problem.evaluate is not None:
            params = algorithm.params_of(state)
            more = problem.evaluate(params, setting) if _positional(problem.evaluate) > 1 else problem.evaluate(params)
            if not isinstance(more, Mapping):
                message = (
                    f"`sweep` received an `evaluate` that returned {type(more).__name__}. Metrics have names: return a "
                    "dictionary, such as {'error': ...}."
                )
                raise ProgramError(message)
            metrics = {**metrics, **more}
        return jax.tree.map(_as_type, state, form), {name: jnp.asarray(value) for name, value in metrics.items()}

    rows = data if problem.batches is not None else None
    return jax.lax.scan(body, state, (numbers, rows))


def _as_type(leaf: PyTree[Array], dtype: np.dtype) -> jax.Array:
    leaf = jnp.asarray(leaf) if not hasattr(leaf, "dtype") else leaf
    if jnp.issubdtype(leaf.dtype, jnp.inexact) and not jnp.issubdtype(dtype, jnp.inexact):
        message = (
            f"`sweep` received a state whose array of dtype {dtype} became {leaf.dtype} in a round. The state must "
            "have the same dtypes after every round, and rounding would stop the training: pass `params` of floats."
        )
        raise ProgramError(message)
    return leaf if leaf.dtype == dtype else leaf.astype(dtype)


class GroupProgram:
    """The trials of one group that share a compiled program."""

    def __init__(
        self, problem: Problem, static: Setting, traced: Sequence[str], length: int, chunk_size: ChunkSize
    ) -> None:
        self.problem, self.static, self.traced, self.length = problem, static, tuple(traced), length
        self._chunk_size: ChunkSize = chunk_size
        self._compiled: dict[int, jax.stages.Compiled] = {}
        self.compile_seconds = 0.0
        self.run_seconds = 0.0
        self.memory_bytes = 0

    def _setting(self, values: Sequence[Array]) -> Setting:
        named = dict(zip(self.traced, values, strict=True))
        return {**self.static, **named}

    @functools.cached_property
    def form(self) -> PyTree[Array]:
        """The state of one trial as ShapeDtypeStructs."""
        values = [jax.ShapeDtypeStruct((), jnp.result_type(float)) for _ in self.traced]
        seed = jax.ShapeDtypeStruct((), jnp.int32)
        return jax.eval_shape(lambda v, s: first_state(self.problem, self._setting(v), s), values, seed)

    def check(self, data: PyTree[Array]) -> None:
        """Traces rounds of one trial without running them; errors in the user's functions are raised."""
        values = [jax.ShapeDtypeStruct((), jnp.result_type(float)) for _ in self.traced]
        numbers = jnp.zeros(self.length, jnp.int32)

        def run_trial(
            v: Sequence[Array], seed: ArrayLike, state: PyTree[Array], data: PyTree[Array]
        ) -> tuple[PyTree[Array], dict[str, Array]]:
            return rounds_of(self.problem, self._setting(v), seed, state, data, numbers)

        jax.eval_shape(run_trial, values, jax.ShapeDtypeStruct((), jnp.int32), self.form, data)

    def start(self, values: Sequence[np.ndarray], seeds: np.ndarray) -> PyTree[Array]:
        """Computes initial states `[trials, ...]`."""

        @program(placements={"trials": len(seeds)})
        def first(values: PyTree[Array], seeds: Array) -> PyTree[Array]:
            return map_fn(lambda v, s: first_state(self.problem, self._setting(v), s), (tuple(values), seeds))

        began = time.perf_counter()
        arguments = (tuple(values), seeds)
        # The program runs once, and LLVM needs seconds to optimize random numbers. Level 0 changes their last bits.
        options: dict[str, str | bool] | None
        options = {"xla_backend_optimization_level": "1"} if jax.default_backend() == "cpu" else None
        compiled = jit(first).lower(*arguments).compile(compiler_options=options)
        states = jax.block_until_ready(compiled(*jax.device_put(arguments, compiled.input_shardings[0])))
        self.compile_seconds += time.perf_counter() - began
        return states

    def compile(self, size: int, arguments: tuple[Any, ...]) -> jax.stages.Compiled:
        if size not in self._compiled:
            per_trial = self.problem.batches is not None

            @program(placements={"trials": size})
            def segment(
                states: PyTree[Array], values: Sequence[Array], seeds: Array, numbers: Array, data: PyTree[Array]
            ) -> tuple[PyTree[Array], dict[str, Array]]:
                def run_trial(
                    state: PyTree[Array], v: Sequence[Array], seed: ArrayLike, numbers: Array, data: PyTree[Array]
                ) -> tuple[PyTree[Array], dict[str, Array]]:
                    return rounds_of(self.problem, self._setting(v), seed, state, data, numbers)

                shared = data if per_trial else broadcast(data)
                return map_fn(run_trial, (states, values, seeds, broadcast(numbers), shared))

            began = time.perf_counter()
            executable = jit(segment, chunk_size=self._chunk_size).lower(*arguments).compile()
            self.compile_seconds += time.perf_counter() - began
            memory = executable.memory_analysis()
            names = ("temp_size_in_bytes", "argument_size_in_bytes", "output_size_in_bytes")
            self.memory_bytes = sum(int(getattr(memory, name, 0) or 0) for name in names)
            self._compiled[size] = executable
        return self._compiled[size]

    def run(
        self, states: PyTree[Array], values: PyTree[Array], seeds: np.ndarray, first: int, data: PyTree[Array]
    ) -> tuple[PyTree[Array], dict[str, np.ndarray]]:
        """Runs the next rounds of all trials; returns results on the host."""
        numbers = np.arange(first, first + self.length, dtype=np.int32)
        arguments = (states, tuple(values), seeds, numbers, data)
        compiled = self.compile(len(seeds), arguments)
        # A compiled program does not move its arguments to its devices.
        arguments = jax.device_put(arguments, compiled.input_shardings[0])
        began = time.perf_counter()
        states, metrics = jax.block_until_ready(compiled(*arguments))
        metrics = {name: np.asarray(value) for name, value in metrics.items()}
        self.run_seconds += time.perf_counter() - began
        return states, metrics
