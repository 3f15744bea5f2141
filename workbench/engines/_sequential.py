"""The sequential engine: the reference for testing other engines, and the debugger."""

import time
from collections.abc import Callable

import jax

from workbench.engines._client_loop import Pass
from workbench.engines._debug import Observed, trace_client
from workbench.engines._engine import Engine
from workbench.errors import EngineError


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

    name: str = "sequential"

    def __init__(
        self, *, debug: bool = False, watch: Callable[[Observed], None] | None = None, check_nan: bool = False
    ) -> None:
        self.debug: bool = debug or watch is not None
        self.watch: Callable[[Observed], None] | None = watch
        self.check_nan: bool = check_nan

    def _compute(self, work: Pass) -> None:
        compiled = None if self.debug else work.compiled(1)
        for batch in work.batches(1):
            started = time.perf_counter()
            try:
                if compiled is not None:
                    outputs = jax.block_until_ready(compiled(*work.operands(batch)))
                else:
                    outputs = trace_client(work, batch, watch=self.watch, check_nan=self.check_nan)
            except EngineError:
                raise
            except Exception as error:
                raise work.failed(batch, error, "this process") from error
            seconds = time.perf_counter() - started
            work.add(batch, outputs, seconds=seconds, where="this process", check_nan=self.check_nan)
