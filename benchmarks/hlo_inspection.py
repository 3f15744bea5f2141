"""How long it takes to inspect a compiled module of at least 10,000 instructions.

Run it as `python benchmarks/hlo_inspection.py [layers]`. Compilation is timed apart; the goal is an inspection in under
3 seconds on two cores. Wall time of a busy machine says little: the processor time of this process stands beside it.
"""

import os
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp

from workbench.inspection import inspect_module

LAYERS, WIDTH = 170, 8


def unrolled(x: jax.Array, weights: jax.Array) -> jax.Array:
    """A network without a scan, so that every layer is compiled into instructions of its own."""
    for layer in range(len(weights)):
        with jax.named_scope(f"wb:{layer}:clients"):
            x = jnp.tanh(x @ weights[layer]) + jnp.sin(x).sum(0)
            x = x / jnp.linalg.norm(x) + jnp.sort(x, 0)
    return x


def main() -> None:
    """Compiles, inspects three times and prints the best."""
    layers = int(sys.argv[1]) if len(sys.argv) > 1 else LAYERS
    arguments = jnp.ones((WIDTH, WIDTH)), jnp.ones((layers, WIDTH, WIDTH))
    start = time.perf_counter()
    compiled = jax.jit(unrolled).lower(*arguments).compile()
    print(f"compiled {layers} layers in {time.perf_counter() - start:.1f} s")
    module = inspect_module(compiled)
    assert module.flops == layers * 2 * WIDTH**3
    seconds = []
    for _ in range(3):
        wall, processor = time.perf_counter(), time.process_time()
        inspect_module(compiled)
        seconds.append((time.perf_counter() - wall, time.process_time() - processor))
    wall, processor = min(seconds)
    print(
        f"inspected {len(module.instructions):,} instructions in {wall:.2f} s wall, {processor:.2f} s processor; "
        f"{module.attributed_instructions:.1%} of instructions and {module.attributed_bytes:.1%} of bytes have a stage"
    )


if __name__ == "__main__":
    main()
