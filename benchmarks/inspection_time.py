"""Time of `inspect` compared with XLA's compilation, and memory for reading a long module.

`python -m benchmarks.inspection_time` compiles a training step of twelve transformer layers (Flax NNX, AdamW). It
prints the CPU seconds of XLA's compilation, of reading the compiled module with its call tree, and of everything that
`inspect` adds to tracing, lowering and compiling. All times are from one call, so another process on the same cores
slows both sides of the ratio. The table has medians and ranges over several calls. The benchmark then reads a module
of about 100,000 instructions, made of copies of the first module. It prints the CPU seconds, and the peak of Python's
memory as a multiple of the text.
"""

import argparse
import re
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--instructions", type=int, default=100_000, help="number of instructions of the long module")
    given = parser.parse_args()
    from workbench.inspection import inspect_module

    step, args = transformer_step(given.layers)
    compiled = jax.jit(step).lower(*args).compile()
    text, module = compiled.as_text() or "", inspect_module(compiled)
    size = f"{len(module.instructions):,} instructions, {len(text) / 1e6:.1f} MB of text"
    print(f"{given.layers} layers, {size}; CPU seconds, medians of {given.runs} runs")
    runs = [inspection_seconds(given.layers) for _ in range(given.runs)]
    for name in runs[0]:
        values = [run[name] for run in runs]
        ratios = [run[name] / run["compilation"] for run in runs]
        print(
            f"  {name:12} {statistics.median(values):.2f} = {statistics.median(ratios):.3f} of the compilation "
            f"({min(ratios):.3f} to {max(ratios):.3f})"
        )
    long = repeated(text, max(1, round(given.instructions / len(module.instructions))))
    seconds, read = timed(lambda: inspect_module(long))
    print(f"{len(read.instructions):,} instructions, {len(long) / 1e6:.1f} MB of text: {seconds:.1f} CPU s")
    tracemalloc.start()
    inspect_module(long)
    _, peak = tracemalloc.get_traced_memory()
    print(f"  peak memory {peak / 1e6:.0f} MB = {peak / len(long):.1f} × the text")


def inspection_seconds(layers: int) -> dict[str, float]:
    """CPU seconds of `inspect` by phase, for a step that was never traced before."""
    import workbench as wb

    wb.trace(lambda x: 2 * x)(1.0).inspect()  # the package's own modules are loaded before the clock starts
    step, args = transformer_step(layers)
    spent = {"tracing": 0.0, "lowering": 0.0, "compilation": 0.0, "reading": 0.0}
    methods = (
        (jax.stages.Traced, "lower", "lowering"),
        (jax.stages.Lowered, "compile", "compilation"),
        (sys.modules["workbench.inspection._program"], "inspect_module", "reading"),
    )
    known = [getattr(holder, method) for holder, method, _ in methods]
    for (holder, method, name), original in zip(methods, known, strict=True):
        setattr(holder, method, _counted(original, name, spent))
    try:
        spent["tracing"], traced = timed(lambda: wb.trace(step)(*args))
        whole, _ = timed(traced.inspect)
    finally:
        for (holder, method, _), original in zip(methods, known, strict=True):
            setattr(holder, method, original)
    return {**spent, "inspect adds": whole - spent["lowering"] - spent["compilation"]}


def _counted(call: Callable[..., Any], name: str, spent: dict[str, float]) -> Callable[..., Any]:
    def counted(*args: Any, **kwargs: Any) -> Any:
        seconds, result = timed(lambda: call(*args, **kwargs))
        spent[name] += seconds
        return result

    return counted


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    """CPU seconds of a call on all threads, and its result."""
    start = time.process_time()
    result = call()
    return time.process_time() - start, result


def repeated(text: str, copies: int) -> str:
    """A module with several renamed copies of its computations; the last copy is the entry."""
    head, _, body = text.partition("\n\n%")
    parts = [head]
    for copy in range(copies):
        renamed = re.sub(r"%([\w.\-]+)", rf"%c{copy}.\1", "%" + body)
        parts.append(renamed if copy == copies - 1 else renamed.replace("\nENTRY ", "\n"))
    return "\n\n".join(parts)


def transformer_step(layers: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """A training step and its arguments."""
    import optax
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, width: int, rngs: nnx.Rngs) -> None:
            self.norm, self.norm_2 = nnx.LayerNorm(width, rngs=rngs), nnx.LayerNorm(width, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(4, width, decode=False, rngs=rngs)
            self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = x + self.attention(self.norm(x))
            return x + self.down(nnx.gelu(self.up(self.norm_2(x))))

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.embed, self.head = nnx.Embed(64, 32, rngs=rngs), nnx.Linear(32, 64, rngs=rngs)
            self.blocks = nnx.List([Block(32, rngs) for _ in range(layers)])

        def __call__(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    graph, params = nnx.split(Model(nnx.Rngs(0)))
    optimizer = optax.adamw(1e-3)

    def train_step(params: Any, state: Any, tokens: Any) -> Any:
        def loss(params: Any) -> Any:
            logits = nnx.merge(graph, params)(tokens)
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    return train_step, (params, optimizer.init(params), jnp.zeros((4, 16), jnp.int32))


if __name__ == "__main__":
    main()
