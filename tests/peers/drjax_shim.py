"""Makes `import drjax` mean our primitives, and runs one test file of DrJAX against them.

`python drjax_shim.py FILE` prints a JSON object: the tests that passed, those that did not with the end of their
message, and those that were skipped.
"""

import importlib.util
import json
import sys
import types
import unittest
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp

import workbench as wb
from workbench._jax_compat import inner_jaxprs
from workbench.errors import PlacementError

_NAMES = {"broadcast_": "broadcast", "sum_from_": "reduce_sum", "mean_from_": "reduce_mean"}


def install() -> None:
    """Puts `drjax` and its inner modules, made of our primitives, where `import` finds them."""
    api = _module(
        "drjax._src.api",
        broadcast=wb.broadcast,
        map_fn=wb.map_fn,
        reduce_sum=wb.reduce_sum,
        reduce_mean=wb.reduce_mean,
        reduce_weighted_mean=wb.reduce_weighted_mean,
        drjax_program=_drjax_program,
        OperatorUndefinedError=PlacementError,
    )
    impls = _module("drjax._src.impls", PlacedComputations=_PlacedComputations)
    primitives = _module("drjax._src.primitives", register_primitives=_register_primitives)
    source = _module("drjax._src", api=api, impls=impls, primitives=primitives)
    _module("drjax", _src=source, program=wb.program, **{k: v for k, v in vars(api).items() if not k.startswith("_")})


def _module(name: str, **members: Any) -> types.ModuleType:
    module = types.ModuleType(name)
    vars(module).update(members)
    module.__path__ = []
    sys.modules[name] = module
    return module


def _drjax_program(*, placements: Mapping[str, int], self_module: Any, use_abstract_mesh: bool = True) -> Any:
    return wb.program(placements=placements)


class _PlacedComputations:
    def __init__(self, placements_to_n_elements: Mapping[str, int], use_abstract_mesh: bool = True) -> None:
        self._program = wb.program(placements=placements_to_n_elements)

    def broadcast_to_placement(self, arg: Any, placement: str, mesh: Any = None) -> Any:
        with self._program:
            return wb.broadcast(jnp.array(arg), to=placement, on=mesh)

    def map_to_placement(self, fn: Callable, arg: Any, placement: str, mesh: Any = None) -> Any:
        with self._program:
            return wb.map_fn(fn, arg, over=placement, on=mesh)

    def sum_from_placement(self, arg: Any) -> Any:
        with self._program:
            return wb.reduce_sum(arg)

    def mean_from_placement(self, arg: Any) -> Any:
        with self._program:
            return wb.reduce_mean(arg)


def _register_primitives(placements: Mapping[str, int]) -> tuple[dict[str, Callable], dict[str, Any]]:
    program = wb.program(placements=placements)
    of_name = {"broadcast_": wb.broadcast, "sum_from_": wb.reduce_sum, "mean_from_": wb.reduce_mean}
    return {prefix + placement: program(fn) for placement in placements for prefix, fn in of_name.items()}, {}


def _jaxpr_has_primitive(jaxpr: Any, name: str) -> bool:
    """DrJAX writes the placement into the name of its primitives; ours is `broadcast` for every placement."""
    wanted = next(ours for prefix, ours in _NAMES.items() if name.startswith(prefix))
    return any(
        equation.primitive.name == wanted or any(_jaxpr_has_primitive(inner, name) for inner in inner_jaxprs(equation))
        for equation in jaxpr.eqns
    )


class _Record(unittest.TextTestResult):
    passed: list[str]

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.passed = [*getattr(self, "passed", []), test.id()]


def run(path: str) -> dict[str, Any]:
    """Runs the tests of one file."""
    from absl import flags

    install()
    spec = importlib.util.spec_from_file_location("peer", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["peer"] = module
    spec.loader.exec_module(module)
    if hasattr(module, "_jaxpr_has_primitive"):
        module._jaxpr_has_primitive = _jaxpr_has_primitive
    flags.FLAGS(["peer"])
    runner = unittest.TextTestRunner(stream=sys.stderr, resultclass=_Record, verbosity=0)
    result = runner.run(unittest.defaultTestLoader.loadTestsFromModule(module))
    failed = {test.id(): text.strip().splitlines()[-1] for test, text in [*result.failures, *result.errors]}
    return {
        "passed": sorted(set(getattr(result, "passed", [])) - set(failed)),
        "failed": failed,
        "skipped": [test.id() for test, _ in result.skipped],
    }


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1])))
