"""The Ray engine, which computes batches of clients as Ray tasks."""

# pyright: reportMissingImports=false

import concurrent.futures
import dataclasses
import importlib
import importlib.util
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Protocol

from workbench._processes import end_ray_with_this_process, has_lost_raylet
from workbench._types import Argument
from workbench.engines._executor import Executor
from workbench.engines._remote import Values
from workbench.errors import EngineError, MissingDependencyError, ProgramError

Future = concurrent.futures.Future


@dataclasses.dataclass(eq=False, repr=False)
class Ray(Executor):
    """Computes batches of clients as tasks on the Ray cluster that `ray.init` connected to (extra `ray`).

    The server's values and the stage (as StableHLO) are put into Ray's object store once per pass, so each machine
    receives them once. A worker process compiles a stage when it runs its first task of that stage. If a worker is
    killed or a machine is lost, its tasks are computed again elsewhere, up to `retries` times, with the same result. If
    a run is cancelled or interrupted, or times out, the run's tasks are cancelled. Workers must be able to import
    `workbench`. If `workbench` is not installed for the workers, call
    `ray.init(runtime_env={"env_vars": {"PYTHONPATH": ...}})`. The engine does not shut down the cluster.

    Args (of the constructor):
        clients_per_task: Number of clients that one task processes together. "auto": up to 32, but few enough that
            every slot receives clients.
        resources: Resources for one task, such as {"CPU": 1, "GPU": 0.5}; other names refer to the cluster's custom
            resources.
        retries: Maximum number of times that a task is retried after its worker is lost; -1 for no limit.
        check_nan: Stop the run at the first NaN that a client returns, and name that client.
        platforms: Platforms for which stages are exported, such as ("cpu",). Default: the platform of this process.
        timeout_seconds: Stop the run if no task answers within this time. Default: wait as long as Ray runs.
        quorum: Once a quorum has answered, continue without the other clients, as in `Executor`.
        deadline_seconds: Maximum time to wait for all clients, as in `Executor`.
        backups: Send second copies of late batches to idle slots, as in `Executor`.

    Raises:
        MissingDependencyError: if Ray is not installed.
        ProgramError: if `ray.init` was not called, if a number is out of range, or if no machine in the cluster has
            `resources`.

    Example:
        >>> import ray  # doctest: +SKIP
        >>> _ = ray.init(num_cpus=2)  # doctest: +SKIP
        >>> run = Ray(clients_per_task=32).run(fedavg, w, data)  # doctest: +SKIP

    References:
        P. Moritz et al., "Ray: A Distributed Framework for Emerging AI Applications", OSDI 2018.
    """

    pool: concurrent.futures.Executor = dataclasses.field(init=False)
    _: dataclasses.KW_ONLY
    resources: Mapping[str, float] | None = None
    retries: int = 3

    def __post_init__(self) -> None:
        if importlib.util.find_spec("ray") is None:
            raise MissingDependencyError("ray", extra="ray", needed_for="`workbench.engines.Ray`")
        ray = importlib.import_module("ray")
        if not ray.is_initialized():
            message = (
                "`Ray()` was created before `ray.init`. `Ray` runs clients on the cluster that Ray is connected to "
                "and starts no cluster: first call `ray.init()` for this machine, or `ray.init(address=...)`."
            )
            raise ProgramError(message)
        end_ray_with_this_process()
        self.pool = _RayPool(ray, dict(self.resources or {"CPU": 1}), self.retries)
        super().__post_init__()
        self.name = "ray"

    def _put(self, values: Values) -> object:
        ray: ModuleType = self.pool._ray  # pyright: ignore[reportAttributeAccessIssue]
        if not ray.is_initialized():  # every other call would start a cluster
            message = (
                "`Ray` has lost its cluster: Ray was shut down in this process. Stages are sent to the cluster that "
                "`ray.init` connected to: call `ray.init` again, then create a new `Ray()`."
            )
            raise EngineError(message)
        return ray.put(values)


class _Reference(Protocol):
    def future(self) -> Future: ...


class _Answer(concurrent.futures.Future):
    """The reply of one task; cancelling the reply kills the task."""

    def __init__(self, ray: ModuleType, reference: _Reference) -> None:
        super().__init__()
        self._ray, self._reference = ray, reference
        reference.future().add_done_callback(self._take)

    def cancel(self) -> bool:
        """Kills the task with its worker process, because XLA ignores interrupts."""
        if self.done() or not self._ray.is_initialized():
            return False
        self._ray.cancel(self._reference, force=True)
        return True

    def _take(self, future: Future) -> None:
        error = future.exception()
        if error is None:
            self.set_result(future.result())
        else:
            cause = getattr(error, "cause", None)  # Ray's error contains the task's exception and a long traceback
            self.set_exception(cause if isinstance(cause, Exception) else error)


class _RayPool(concurrent.futures.Executor):
    def __init__(self, ray: ModuleType, resources: dict[str, float], retries: int) -> None:
        self._ray = ray
        self._needs = {name: float(need) for name, need in resources.items() if need}
        wrong = [f"{name}={need}" for name, need in self._needs.items() if need < 0]
        if wrong or isinstance(retries, bool) or not isinstance(retries, int) or retries < -1:
            message = (
                f"`Ray` was given resources={resources} and retries={retries!r}. A task uses part of a machine's "
                "resources, and `retries` limits how often a lost task is computed again. Pass numbers of at "
                "least 0 as `resources`, and an int as `retries` (0 for never, -1 for no limit)."
            )
            raise ProgramError(message)
        self._retries = retries
        _ = self._max_workers  # raises if no machine has these resources

    def submit(self, fn: Callable, /, *args: Argument, **kwargs: Argument) -> Future:  # as `Executor.submit`
        needs = dict(self._needs)
        call = self._ray.remote(fn).options(
            num_cpus=needs.pop("CPU", 0), num_gpus=needs.pop("GPU", 0), resources=needs or None,
            max_retries=self._retries,
        )  # fmt: skip
        return _Answer(self._ray, call.remote(*args, **kwargs))

    @property
    def _max_workers(self) -> int:
        """Number of tasks that the cluster can currently run at the same time."""
        lost = has_lost_raylet()  # Ray itself notices this seconds later
        nodes = [] if lost else [node.get("Resources", {}) for node in self._ray.nodes() if node.get("Alive")]
        if not nodes:
            message = (
                "`Ray` has lost its cluster: the raylet of this process exited, or no machine is alive. When a raylet "
                "exits, the workers on its machine exit too: call `ray.shutdown()` and `ray.init()`, then create a "
                "new `Ray()`."
            )
            raise EngineError(message)
        places = sum(
            int(min((node.get(name, 0.0) / need for name, need in self._needs.items()), default=node.get("CPU", 1)))
            for node in nodes
        )
        if not places:
            message = (
                f"`Ray` was given resources={self._needs}, but no machine in the cluster has these resources; the "
                f"machines have {nodes}. A task runs on one machine: request fewer resources, or start machines with "
                "these resources."
            )
            raise ProgramError(message)
        return places
