"""Sweeps over hyperparameters and seeds, compiled with trials as the outermost placement."""

import contextlib
import hashlib
import inspect
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from workbench._types import PyTree
from workbench.errors import MeasureError, ProgramError, needs_library
from workbench.federated.experiments._space import (
    Grid,
    Setting,
    Space,
    Strategy,
    segment_length,
    static_part,
    traceable_names,
)
from workbench.federated.experiments._sweep_result import SweepGroup, SweepResult, pack_state, unpack_state
from workbench.federated.experiments._sweep_store import Member, SweepStore
from workbench.federated.experiments._trial_program import GroupProgram, Problem, first_state, is_maker, make_algorithm
from workbench.mesh import make_mesh
from workbench.plan import ChunkSize

if TYPE_CHECKING:
    from tqdm import std

Early = Callable[[dict[str, np.ndarray]], bool]


def sweep(
    make: Callable[..., Any],
    space: Space,
    *,
    params: PyTree[Array],
    rounds: int,
    data: PyTree[Array] = None,
    batches: Callable[[int, int], Any] | None = None,
    evaluate: Callable[..., Any] | None = None,
    seeds: int | Sequence[int] = 1,
    strategy: Strategy | None = None,
    stop_when: Early | None = None,
    rounds_per_call: int | None = None,
    directory: str | Path | None = None,
    chunk_size: ChunkSize = "auto",
    memory_bytes: int | None = None,
    progress: bool = True,
) -> SweepResult:
    """Runs an algorithm with many hyperparameters and seeds in only a few compiled programs.

    Trials are a placement above the clients. One program computes many trials, in chunks and distributed over the
    devices of the mesh set by `jax.set_mesh` (default: all devices). Float hyperparameters are arguments of the
    program. Other hyperparameters (sizes, names, optimizers) and floats that the algorithm reads in Python are
    constants. Each combination of constants is compiled as a separate program. Trials add no communication.

    Args:
        make: `make(**hyperparameters)` returns an `Algorithm`, or a pair `(init, round)` as in `Algorithm`. If `make`
            also has a parameter `seed`, it receives the seed, an int32 scalar.
        space: Values for each hyperparameter; random strategies also accept frozen `scipy.stats` distributions.
        params: Initial parameters, or a function `params(key)` or `params(key, hyperparameters)` that creates them in
            JAX.
        rounds: Number of rounds of every trial.
        data: Training data of each round: a pytree of arrays, or a function `data(key)` or `data(key, hyperparameters)`
            that draws the data in JAX. The key depends on the seed and the round.
        batches: `batches(round, seed)` prepares the data on the host, as an alternative to `data`, for pipelines such
            as `grain`. `batches` returns a pytree of arrays with the same shapes in all rounds. A resumed sweep calls
            `batches` again.
        evaluate: `evaluate(params)` or `evaluate(params, hyperparameters)` returns additional metrics after each round,
            in JAX. A metric is a number, or has one value per client, `[clients]`.
        seeds: Number of seeds, or the seeds themselves.
        strategy: `Grid()` (the default), `RandomSearch`, `SuccessiveHalving` or `HypergradientSearch`.
        stop_when: Function of a trial's metrics so far (keyed by name, `[rounds]` or `[rounds, clients]`) that returns
            True to stop the trial early.
        rounds_per_call: Maximum number of rounds in one call of the program. Progress, checkpoints and early stopping
            are handled between calls. Default: about a tenth of the rounds.
        directory: Folder for the results, which are stored in one SQLite file. An existing sweep is resumed, even if
            its process was killed. Default: in memory.
        chunk_size: Number of trials (and clients) that a device processes together, as for `wb.jit`.
        memory_bytes: Maximum memory of one call in bytes; if not all trials fit, they run in several calls. Default:
            80 % of the free memory of the device or the host.
        progress: Whether to show a progress bar.

    Returns:
        The result. A trial ends as "diverged" in the first round in which a metric is not finite. A trial that cannot
        be traced or lacks the strategy's metric ends as "failed", with the reason in `result.trials`. Other trials
        continue.

    Raises:
        KeyboardInterrupt: on Ctrl-C; `error.result` has `status == "interrupted"`, and its `resume()` continues the
            sweep.
        ProgramError: if the space is empty, or a hyperparameter is not a parameter of `make`.
        MeasureError: if counts are out of range, or `directory` contains a different sweep or is in use.

    Example:
        >>> import optax
        >>> from workbench.federated import algorithms
        >>> def make(lr):
        ...     return algorithms.fedavg(lambda w, x: (w - x) ** 2, clients=2, client_optimizer=optax.sgd(lr))
        >>> result = sweep(make, {"lr": [0.25, 0.5, 1e30]}, params=jnp.float32(0), rounds=2,
        ...                data=jnp.array([[1.0], [3.0]]), progress=False)
        >>> result.best("loss"), result.trials["status"].tolist()
        ({'lr': 0.5}, ['finished', 'finished', 'diverged'])

    References:
        Bradbury et al., JAX (2018), on `vmap` over whole trainings; Li et al., JMLR 18, 2018 (successive halving).
    """
    chosen = Grid() if strategy is None else strategy
    listed = (
        tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds) if isinstance(seeds, Iterable) else (seeds,)
    )
    _check(make, space, rounds=rounds, seeds=listed, rounds_per_call=rounds_per_call, data=data, batches=batches)
    listed = tuple(map(int, listed))
    problem = Problem(make, params, data, batches, evaluate)
    propose = getattr(chosen, "propose", None)
    settings = chosen.settings(space) if propose is None else []
    store = SweepStore(directory)
    try:
        settings = _agree(store, directory, chosen, space, settings, listed, rounds, problem)
        driver = _Driver(problem, settings, listed, rounds, chosen, store)
        driver.stop_when, driver.chunk_size, driver.progress = stop_when, chunk_size, progress
        driver.memory_bytes = memory_bytes
        driver.length = segment_length(chosen.rungs(rounds), rounds_per_call or -(-rounds // 10))
        return driver.run()
    except KeyboardInterrupt as error:
        if not hasattr(error, "result"):  # before there was a result to resume
            store.close()
        raise
    except BaseException:
        store.close()
        raise


def _check(
    make: Callable[..., object],
    space: Space,
    *,
    rounds: int,
    seeds: Sequence[int],
    rounds_per_call: int | None,
    data: PyTree[Array],
    batches: PyTree[Array],
) -> None:
    positive = [rounds] if rounds_per_call is None else [rounds, rounds_per_call]
    are_integers = all(isinstance(count, int | np.integer) for count in (*positive, *seeds))
    fit = are_integers and all(-(2**31) <= seed < 2**31 for seed in seeds)
    if not fit or min(positive) < 1 or not seeds or len(set(seeds)) < len(seeds):
        message = (
            f"`sweep` received rounds={rounds}, rounds_per_call={rounds_per_call} and seeds {list(seeds)}. Every trial "
            "runs at least one round with at least one seed, each seed once: pass positive ints as `rounds` and "
            "`rounds_per_call`, and distinct ints of 32 bits as `seeds`."
        )
        raise MeasureError(message)
    if not space:
        message = "`sweep` received no hyperparameters. Pass a space such as {'lr': [0.01, 0.1]}."
        raise ProgramError(message)
    if data is not None and batches is not None:
        message = "`sweep` received both `data` and `batches`, but a round trains on only one of them. Omit the other."
        raise ProgramError(message)
    parameters = inspect.signature(make).parameters
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    if unknown := [name for name in space if name not in parameters and not open_ended]:
        message = (
            f"`sweep` received values for {', '.join(map(repr, unknown))}, but `make` has the parameters "
            f"{', '.join(map(repr, parameters)) or 'none'}. Every hyperparameter must be a parameter of `make`: rename "
            "it, or add it to `make` (a function with **hyperparameters takes all)."
        )
        raise ProgramError(message)


def _agree(
    store: SweepStore,
    directory: object,
    strategy: Strategy,
    space: Space,
    settings: list[Setting],
    seeds: tuple[int, ...],
    rounds: int,
    problem: Problem,
) -> list[Setting]:
    """Checks and stores the sweep; returns its settings, which a resumed sweep reads from the folder."""
    propose = getattr(strategy, "propose", None)
    description = {
        "strategy": repr(strategy),
        "space": {name: repr(choices) for name, choices in space.items()} if propose else {},
        "settings": [[(name, repr(value)) for name, value in setting.items()] for setting in settings],
        "seeds": list(seeds),
        "rounds": rounds,
        **{name: _digest(getattr(problem, name)) for name in ("make", "params", "data", "batches", "evaluate")},
    }
    description = {**description, "settings": [[list(pair) for pair in setting] for setting in description["settings"]]}
    about = store.about()
    overlap = {name: about[name] for name in description if name in about}
    if overlap and overlap != description:
        differences = [name for name in description if overlap.get(name) != description[name]]
        message = (
            f"`sweep` received directory={str(directory)!r}, which contains a sweep with different "
            f"{' and '.join(differences)}. A folder stores one sweep, and only the same sweep can be resumed: pass the "
            "same arguments, or a different folder."
        )
        raise MeasureError(message)
    if propose:
        if "proposed" not in about:
            store.describe({"proposed": propose(problem, space, seeds, rounds)})
        settings = store.about()["proposed"]
    if not overlap:
        store.describe(description)
    return settings


def _digest(value: object) -> str:
    """Hashes functions by their code, without closures, and arrays by their values."""
    digest = hashlib.sha256()
    if value is None or (callable(value) and jax.tree_util.treedef_is_leaf(jax.tree.structure(value))):
        code = getattr(inspect.unwrap(value), "__code__", None) if callable(value) else None
        digest.update(b"" if code is None else _code_text(code).encode())
    else:
        leaves, structure = jax.tree.flatten(value)
        digest.update(str(structure).encode())
        for leaf in pack_state([leaf for leaf in leaves if not callable(leaf)]):
            digest.update(f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes())
    return digest.hexdigest()[:16]


def _code_text(code: CodeType) -> str:
    """Returns a string for a function's code and nested functions, identical in every process."""
    constants = [
        _code_text(c) if hasattr(c, "co_code") else repr(sorted(map(repr, c)) if isinstance(c, frozenset) else c)
        for c in code.co_consts
    ]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


class _Group:
    """Trials that share a program, and the number of runs per call."""

    def __init__(self, program: GroupProgram, trials: list[int], notes: tuple[str, ...]) -> None:
        self.program, self.trials, self.notes = program, trials, notes
        self.most = 0  # number of runs per call that fit in memory; 0: not yet known


class _Driver:
    """Runs the groups, rung by rung and call by call."""

    stop_when: Early | None = None
    chunk_size: ChunkSize = "auto"
    progress = True
    memory_bytes: int | None = None
    length = 1

    def __init__(
        self,
        problem: Problem,
        settings: list[Setting],
        seeds: tuple[int, ...],
        rounds: int,
        strategy: Strategy,
        store: SweepStore,
    ) -> None:
        self.problem, self.settings, self.seeds, self.rounds = problem, settings, seeds, rounds
        self.strategy, self.store = strategy, store
        self.groups: list[_Group] | None = None
        self.failed: list[SweepGroup] = []
        self.result = SweepResult(store, settings, seeds, rounds, self.run, self._form_of, self._params_of)

    def run(self) -> SweepResult:
        """Runs all remaining rungs."""
        began = time.perf_counter()
        self.result.status = "interrupted"
        bar = _Bar(self.progress, len(self.settings) * len(self.seeds) * self.rounds)
        try:
            self.store.lock()
            with _trials_mesh():
                if self.groups is None:
                    self.groups = self._make_groups()
                for rung in self.strategy.rungs(self.rounds):
                    for group in self.groups:
                        self._run_group(group, rung, bar)
                    if rung < self.rounds:
                        self._end_trials(rung)
            self.result.status = "finished"
        except KeyboardInterrupt as error:
            error.args = error.args or (
                "The sweep is the attribute `result` of this exception (`sys.last_value.result` in a notebook): "
                "`result.resume()` continues it.",
            )
            setattr(error, "result", self.result)  # noqa: B010 -- a builtin exception
            raise
        finally:
            bar.close(self.result.status)
            self.result.seconds += time.perf_counter() - began
            self.result.groups = (*map(_described, self.groups or ()), *self.failed)
            self.store.release()
        return self.result

    # -- groups ------------------------------------------------------------------------------------------------------

    def _make_groups(self) -> list[_Group]:
        traced = traceable_names(self.settings)
        groups: list[_Group] = []
        for trials in _by_static(range(len(self.settings)), self.settings, traced).values():
            try:
                names, notes = self._traced_names(self.settings[trials[0]], sorted(traced))
            except Exception as error:  # the user's functions may raise anything for these hyperparameters
                self._fail(trials, error)
                continue
            inner = _by_static(trials, self.settings, set(names))
            for alike in inner.values():
                try:
                    program = self._program(self.settings[alike[0]], names)
                    program.check(self._example_data())
                except Exception as error:
                    self._fail(alike, error)
                else:
                    groups.append(_Group(program, alike, notes))
        return groups

    def _fail(self, trials: list[int], error: Exception) -> None:
        reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:300]}"
        self.store.end({(trial, seed): ("failed", reason) for trial in trials for seed in self.seeds})
        self.failed.append(
            SweepGroup(static=self.settings[trials[0]], traced=(), trials=tuple(trials), notes=(reason,))
        )

    def _program(self, setting: Setting, traced: Sequence[str]) -> GroupProgram:
        static = {name: value for name, value in setting.items() if name not in traced}
        return GroupProgram(self.problem, static, traced, self.length, self.chunk_size)

    def _traced_names(self, setting: Setting, names: list[str]) -> tuple[list[str], tuple[str, ...]]:
        """Returns the names that can be traced, and the reasons why the other names cannot."""
        data = self._example_data()
        if _why_not(self._program(setting, names), data) is None:
            return names, ()
        why = {name: _why_not(self._program(setting, [name]), data) for name in names}
        candidates = [name for name in names if why[name] is None]
        notes = tuple(f"{name} is a constant of the program: {reason}" for name, reason in why.items() if reason)
        if _why_not(self._program(setting, candidates), data) is None:
            return candidates, notes
        return [], (*notes, "the floats cannot be traced together")

    def _example_data(self) -> PyTree[Array]:
        if self.problem.batches is None:
            return None if is_maker(self.problem.data) else self.problem.data
        batch = self.problem.batches(0, self.seeds[0])
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct((self.length, *np.shape(x)), jnp.asarray(x).dtype), batch)

    def _form_of(self, trial: int) -> PyTree[Array]:
        setting, seed = self.settings[trial], jax.ShapeDtypeStruct((), jnp.int32)
        return jax.eval_shape(lambda s: first_state(self.problem, setting, s), seed)

    def _params_of(self, trial: int, seed: int, state: PyTree[Array]) -> PyTree[Array]:
        return make_algorithm(self.problem, self.settings[trial], seed).params_of(state)

    # -- calls -------------------------------------------------------------------------------------------------------

    def _running(self, group: _Group, rung: int) -> dict[int, list[Member]]:
        """Returns a group's unfinished runs in this rung, keyed by the number of finished rounds."""
        members, runs = self.store.members(), {}
        for trial in group.trials:
            for seed in self.seeds:
                status, _, rounds = members.get((trial, seed), ("running", "", 0))
                if status == "running" and rounds < rung:
                    runs.setdefault(rounds, []).append((trial, seed))
        return runs

    def _run_group(self, group: _Group, rung: int, bar: "_Bar") -> None:
        while running := self._running(group, rung):
            first = min(running)
            for part in self._parts(group, running[first]):
                self._call(group, part, first, bar)

    def _parts(self, group: _Group, members: list[Member]) -> Iterator[list[Member]]:
        at = 0
        while at < len(members):
            size = min(group.most or len(members), len(members) - at)
            yield members[at : at + size]
            at += size

    def _call(self, group: _Group, members: list[Member], first: int, bar: "_Bar") -> None:
        size = self._size(group, len(members))
        padded = [*members, *[members[0]] * (size - len(members))]
        try:
            states, metrics = self._compute(group, padded, first)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error) or size == 1:
                raise
            group.most = max(1, size // 2)
            for part in self._parts(group, members):
                self._call(group, part, first, bar)
            return
        leaves = pack_state(states)
        rows = []
        for at, member in enumerate(members):
            row_metrics = {name: values[at] for name, values in metrics.items()}
            state = [leaf[at] for leaf in leaves]
            rows.append(self._row(member, first, state, row_metrics))
        self.store.write(rows)
        bar.update(sum(row[3] - first for row in rows), sum(row[1] not in ("running", "finished") for row in rows))

    def _size(self, group: _Group, count: int) -> int:
        """Rounds `count` up to the group's size, or to that size divided by 2, 4, …, to limit compilations."""
        capacity = len(group.trials) * len(self.seeds)
        capacity = min(capacity, group.most or capacity)
        while -(-capacity // 2) >= count and capacity > 1:
            capacity = -(-capacity // 2)
        devices = dict(jax.sharding.get_mesh().shape).get("trials", 1)
        return -(-capacity // devices) * devices

    def _compute(self, group: _Group, members: list[Member], first: int) -> tuple[Any, dict[str, Any]]:
        program, kind = group.program, np.dtype(jnp.result_type(float))
        values = tuple(np.array([self.settings[t][name] for t, _ in members], kind) for name in program.traced)
        seeds = np.array([seed for _, seed in members], np.int32)
        if first == 0:
            states = program.start(values, seeds)
        else:
            rows = [unpack_state(self.store.state(member) or [], program.form) for member in members]
            states = jax.tree.map(lambda *leaves: jnp.stack(leaves), *rows)
        data = None if is_maker(self.problem.data) else self.problem.data
        if self.problem.batches is not None:
            data = self._host_data(members, first)
        if not group.most:
            numbers = np.arange(program.length, dtype=np.int32)
            program.compile(len(members), (states, values, seeds, numbers, data))
            group.most = len(members)
            if program.memory_bytes > (limit := self.memory_bytes or _free_bytes()) and len(members) > 1:
                group.most = max(1, int(len(members) * limit / program.memory_bytes))
                message = f"RESOURCE_EXHAUSTED: {program.memory_bytes} bytes needed, {limit} free"
                raise jax.errors.JaxRuntimeError(message)
        return program.run(states, values, seeds, first, data)

    def _host_data(self, members: list[Member], first: int) -> PyTree[Array]:
        assert self.problem.batches is not None
        by_seed = {}
        for seed in {seed for _, seed in members}:
            rounds = [self.problem.batches(first + r, seed) for r in range(self.length)]
            by_seed[seed] = jax.tree.map(lambda *leaves: np.stack(leaves), *rounds)
        return jax.tree.map(lambda *leaves: np.stack(leaves), *[by_seed[seed] for _, seed in members])

    def _row(self, member: Member, first: int, state: list[np.ndarray], metrics: dict[str, np.ndarray]) -> tuple:
        rounds, status, reason = first + self.length, "running", ""
        bad = [
            (int(np.flatnonzero(~np.isfinite(values.reshape(len(values), -1)).all(axis=1))[0]), name)
            for name, values in metrics.items()
            if not np.isfinite(values).all()
        ]
        if bad:
            at, name = min(bad)
            value = metrics[name][at].ravel()
            example = value[~np.isfinite(value)][0]
            status, reason = "diverged", f"{name} is {example} in round {first + at}"
            rounds, metrics = first + at + 1, {n: values[: at + 1] for n, values in metrics.items()}
        elif self.stop_when is not None:
            before = self.store.metrics(member)
            so_far = {n: np.concatenate([before[n], v]) if n in before else v for n, v in metrics.items()}
            if self.stop_when(so_far):
                status, reason = "stopped", f"stop_when was true after round {rounds - 1}"
        if status == "running" and rounds >= self.rounds:
            status = "finished"
        return member, status, reason, rounds, state, first, metrics

    def _end_trials(self, rung: int) -> None:
        """Stops, once per rung, the trials that are not among the best after that rung."""
        name, decided = getattr(self.strategy, "metric", None), f"decided after {rung} rounds"
        if name is None or decided in self.store.about():
            return
        members, scores = self.store.members(), {}
        ended: dict[Member, tuple[str, str]] = {}
        for trial in range(len(self.settings)):
            alive = [(trial, seed) for seed in self.seeds if members.get((trial, seed), ("",))[0] == "running"]
            results = [self.store.metrics(member) for member in alive]
            if lacking := [metrics for metrics in results if name not in metrics]:
                has = ", ".join(sorted(lacking[0])) or "none"
                ended |= dict.fromkeys(alive, ("failed", f"metric {name!r} is missing; the metrics are {has}"))
            elif len(alive) < len(self.seeds):  # with fewer seeds, the trial might win by chance
                ended |= dict.fromkeys(alive, ("pruned", f"another seed of the trial ended before {rung} rounds"))
            else:
                scores[trial] = float(np.mean([np.mean(metrics[name][-1]) for metrics in results]))
        for trial in set(scores) - self.strategy.survivors(rung, scores):
            reason = f"not among the best after {rung} rounds ({name} = {scores[trial]:.4g})"
            ended |= {(trial, seed): ("pruned", reason) for seed in self.seeds}
        self.store.end(ended, decided=decided)


def _why_not(program: GroupProgram, data: PyTree[Array]) -> str | None:
    """Returns the reason why these hyperparameters cannot be tracers, or None if they can."""
    try:
        program.check(data)
    except Exception as error:
        # Without traced hyperparameters, tracing is not the cause: the trial cannot run at all.
        if not program.traced:
            raise
        return f"{type(error).__name__} when traced"
    return None


def _by_static(trials: Sequence[int] | range, settings: list[Setting], traced: set[str]) -> dict[Any, list[int]]:
    groups: dict[Any, list[int]] = {}
    for trial in trials:
        groups.setdefault(static_part(settings[trial], traced), []).append(trial)
    return groups


def _described(group: _Group) -> SweepGroup:
    program = group.program
    return SweepGroup(
        static=program.static,
        traced=program.traced,
        trials=tuple(group.trials),
        compile_seconds=program.compile_seconds,
        run_seconds=program.run_seconds,
        memory_bytes=program.memory_bytes,
        notes=group.notes,
    )


@contextlib.contextmanager
def _trials_mesh() -> Iterator[None]:
    """Sets a mesh of all devices with one axis for trials, unless a mesh is set."""
    if not jax.sharding.get_mesh().empty or len(jax.devices()) == 1:
        yield
        return
    with jax.set_mesh(make_mesh(trials=len(jax.devices()))):
        yield


def _free_bytes() -> int:
    """Returns the memory limit per device for one call: 80 % of the free bytes."""
    statistics = jax.devices()[0].memory_stats() or {}
    if limit := statistics.get("bytes_limit"):
        return int(0.8 * (limit - statistics.get("bytes_in_use", 0)))
    with needs_library("psutil", needed_for="`sweep`"):
        import psutil
    return int(0.8 * psutil.virtual_memory().available / len(jax.local_devices()))


class _Bar:
    """Progress bar over the rounds of all trials."""

    def __init__(self, shown: bool, total: int) -> None:
        self._bar: std.tqdm | None = None
        self._ended = 0
        if shown:
            with needs_library("tqdm", needed_for="A progress bar (`progress=True`)"):
                from tqdm.auto import tqdm
            self._bar = tqdm(total=total, unit="round")

    def update(self, rounds: int, ended: int) -> None:
        if self._bar is not None:
            self._ended += ended
            self._bar.set_postfix({"ended early": self._ended} if self._ended else {}, refresh=False)
            self._bar.update(rounds)

    def close(self, status: str) -> None:
        if self._bar is not None:
            if status != "finished":
                self._bar.set_description_str(status)
            self._bar.close()
