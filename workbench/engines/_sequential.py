"""The sequential engine: the reference for testing other engines, and the debugger."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import JaxprEqn, Literal

from workbench.engines._client_loop import Pass
from workbench.engines._clients import Batch
from workbench.engines._engine import Engine
from workbench.engines._run_recorder import brief, find_nan
from workbench.engines._stage import dtype_of, from_edge, to_edge
from workbench.errors import EngineError
from workbench.plan import REDUCTION_OF, InnerCall, PythonInterpreter, Scan, While, source_line
from workbench.primitives import bind_here, map_p
from workbench.records.program import SourceLine


@dataclasses.dataclass(frozen=True)
class Observed:
    """One operation of one client, with its values. Inner clients are named after their outer clients, as in `2/0`.

    `steps` are the current iterations of the client's loops, outermost first.
    """

    stage: str
    client: int | str | None
    operation: str
    line: SourceLine | None
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    steps: tuple[int, ...] = ()


def interpret_client(work: Pass, batch: Batch, client: "TracedClient") -> list[Any]:
    """Runs one client's stages, one operation at a time."""
    phase, path = work.phase, work.function(1).path
    values: dict[Any, Any] = {}
    for v, rows in zip(phase.rows, batch.rows, strict=True):
        values[v] = from_edge(jnp.asarray(rows[0]), dtype_of(v))
    for (v, atom), x in zip(phase.shared.items(), work.shared, strict=True):
        values[v] = from_edge(jnp.asarray(x), dtype_of(atom))
    totals = []
    for step in phase.steps:
        atoms = [a for a in step.equation.invars if not (step.glue and isinstance(a, Literal))]
        operands = [jnp.asarray(a.val) if isinstance(a, Literal) else values[a] for a in atoms]
        if step.kind == "clients":
            assert step.jaxpr is not None
            client.enter(f"{path}{step.stage}", work.function(1).plan.stages[step.stage].name)
            values.update(zip(step.outputs, client.run(step.jaxpr, operands), strict=True))
        else:
            reduction = REDUCTION_OF[step.equation.primitive]
            rows = [x[None] for x in operands]
            totals.append(reduction.add(step.equation, reduction.start(step.equation), rows, None))
    return [*(to_edge(values[v])[None] for v in phase.kept), *totals]


class TracedClient(PythonInterpreter):
    """Evaluates one client's jaxprs, one operation at a time."""

    def __init__(
        self, stage: str, name: str, client: int | str, watch: Callable[[Observed], None] | None, check_nan: bool
    ) -> None:
        self.stage, self.name, self.client, self.watch, self.check_nan = stage, name, client, watch, check_nan
        self.steps: tuple[int, ...] = ()

    def enter(self, stage: str, name: str) -> None:
        self.stage, self.name = stage, name

    def iteration(self, flow: Scan | While, number: int, operands: Sequence[Any]) -> list[Any]:
        self.steps = (*self.steps, number)
        try:
            return self.run(flow.body, operands)
        finally:
            self.steps = self.steps[:-1]

    def bind(self, equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
        """Runs one operation, passes it to the watcher, and checks for NaNs."""
        if equation.primitive is map_p:
            return self.map_clients(equation.params, operands)
        try:
            results = list(jax.block_until_ready(bind_here(equation, operands)))
        except Exception as error:
            raise self._error(equation, operands, f"raised {brief(error)}") from error
        if self.watch is not None:
            line = source_line(equation)
            name = equation.primitive.name
            self.watch(Observed(self.stage, self.client, name, line, tuple(operands), tuple(results), self.steps))
        if self.check_nan and find_nan([to_edge(x) for x in results], [""] * len(results)) is not None:
            raise self._error(equation, operands, "made a NaN")
        return results

    def call(self, flow: InnerCall, operands: Sequence[Any]) -> list[Any]:
        """Runs a call operation by operation, under the mesh of its placement."""
        return self.run(flow.body, operands)

    def _error(self, equation: JaxprEqn, operands: Sequence[Any], fault: str) -> EngineError:
        line = source_line(equation)
        shown = ", ".join(" ".join(str(x).split())[:80] for x in operands[:4])
        message = (
            f"client {self.client!r} in stage {self.stage} (`{self.name}`), at {line}: the operation "
            f"`{equation.primitive.name}` {fault}. Its inputs were {shown}. The operation comes from this line of your "
            "code: correct the line, or the data of this client; a `watch` function sees every earlier value."
        )
        return EngineError(message, stage=self.stage, client=self.client)

    def map_clients(self, params: dict[str, Any], operands: Sequence[Any]) -> list[Any]:
        outputs = []
        for index in range(params["placement"].size):
            inner = self.inner(f"{self.name}.{params['name']}", f"{self.client}/{index}")
            outputs.append(inner.run(params["jaxpr"], [x[index] for x in operands]))
        return [jnp.stack(column) for column in zip(*outputs, strict=True)]

    def inner(self, name: str, client: str) -> "TracedClient":
        interpreter = TracedClient(self.stage, name, client, self.watch, self.check_nan)
        interpreter.steps = self.steps
        return interpreter


@dataclasses.dataclass(eq=False, repr=False)
class Sequential(Engine):
    """Computes one client after another, in order.

    Every client is a separate call, so time, bytes and failures are recorded for each client. With `debug`, client
    functions are not compiled: their operations run one by one with concrete values. An error then names the line of
    your code that contains the operation. Your Python code runs only once, during tracing, so a `breakpoint()` in it
    sees tracers. To see values, put the `breakpoint()` in `watch`, or use `jax.debug.breakpoint()` and
    `jax.debug.print`.

    Args (of the constructor):
        debug: Run each client's operations one by one.
        watch: With `debug`, a function that receives one `Observed` per operation, with the operation's stage, client,
            line, inputs and outputs.
        check_nan: Stop the run at the first NaN that a client returns or, with `debug`, that any operation returns.

    Example:
        >>> import workbench as wb
        >>> @wb.program(clients=3)
        ... def total(x):
        ...     return wb.reduce_sum(wb.map_fn(lambda row: row**2, x))
        >>> run = Sequential().run(total, np.arange(3, dtype=np.float32))
        >>> float(run.results), [client.client for client in run.clients]
        (5.0, [0, 1, 2])
    """

    name = "sequential"

    _: dataclasses.KW_ONLY
    debug: bool = False
    watch: Callable[[Observed], None] | None = None
    check_nan: bool = False

    def __post_init__(self) -> None:
        self.debug = self.debug or self.watch is not None

    def _compute(self, work: Pass) -> None:
        compiled = None if self.debug else work.compiled(1)
        for batch in work.batches(1):
            started = time.perf_counter()
            try:
                if compiled is not None:
                    outputs = jax.block_until_ready(compiled(*work.operands(batch)))
                else:
                    client = TracedClient(work.stage, work.name, batch.clients[0], self.watch, self.check_nan)
                    outputs = interpret_client(work, batch, client)
            except EngineError:
                raise
            except Exception as error:
                raise work.failed(batch, error, "this process") from error
            seconds = time.perf_counter() - started
            work.add(batch, outputs, seconds=seconds, where="this process", check_nan=self.check_nan)
