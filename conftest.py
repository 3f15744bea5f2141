"""What the examples in docstrings may use without importing it, and the eight devices that they run on."""

import functools
import os
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("NPROC", "64")  # more threads than simulated devices: see workbench/mesh/_simulate.py

import jax
import pytest
from jax._src import compiler  # noqa: TID251, PLC2701 -- options of every compilation of a process have no public name

jax.config.update("jax_num_cpu_devices", 8)


@functools.cache
def quick_options() -> list[tuple[str, str | bool | int]]:
    """The options without the emitters of fusions, and with one part to generate; none where XLA does not know them."""
    options: dict[str, str | bool | int] = {
        "xla_cpu_use_fusion_emitters": False,
        "xla_cpu_parallel_codegen_split_count": 1,
    }
    try:
        jax.jit(lambda: 0).lower().compile(compiler_options=options)
    except jax.errors.JaxRuntimeError:
        return []
    return list(options.items())


@pytest.fixture
def little_optimized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles several times as fast where only numbers are compared, without the emitters of fusions.

    The HLO is not that of users: tests of collectives, memory and costs must not use it.
    """
    made = compiler.get_compile_options
    added = quick_options()

    def get_compile_options(*args: Any, **keywords: Any) -> Any:
        options = made(*args, **keywords)
        options.env_option_overrides = [*options.env_option_overrides, *added]
        return options

    monkeypatch.setattr(compiler, "get_compile_options", get_compile_options)


# Folders of the library whose examples only print numbers.
OF_NUMBERS = {"algorithms", "engines", "primitives", "replicate"}


@pytest.fixture(autouse=True)
def _names_of_examples(request: pytest.FixtureRequest, doctest_namespace: dict[str, Any]) -> None:
    import jax.numpy as jnp
    import numpy as np

    import workbench
    from workbench import primitives

    if isinstance(request.node, pytest.DoctestItem) and request.path.parent.name in OF_NUMBERS:
        request.getfixturevalue("little_optimized")
    doctest_namespace.update(jax=jax, jnp=jnp, np=np, wb=workbench)
    for name in (
        "program",
        "broadcast",
        "map_fn",
        "select",
        "sample",
        *(n for n in dir(primitives) if n.startswith("reduce_")),
    ):
        doctest_namespace[name] = getattr(primitives, name)
