"""What every algorithm's derivative must not hold: communication that is not ours."""

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import pytest

from workbench._jax_compat import inner_jaxprs
from workbench.primitives import MAPREDUCE_PRIMITIVES

CLIENTS = 11  # a size that no other axis of these tests has
_HIDDEN = re.compile(r"psum|pmax|pmin|all_gather|all_to_all|ppermute|reduce_scatter|shard_map|reshard")


def _equations(jaxpr: Any) -> Iterator[Any]:
    for equation in jaxpr.eqns:
        yield equation
        if equation.primitive not in MAPREDUCE_PRIMITIVES:
            for inner in inner_jaxprs(equation):
                yield from _equations(inner)


def _moves_clients(equation: Any) -> bool:
    if equation.primitive in MAPREDUCE_PRIMITIVES or inner_jaxprs(equation):
        return False
    before = any(CLIENTS in v.aval.shape for v in equation.invars)
    after = any(CLIENTS in v.aval.shape for v in equation.outvars)
    constant = not equation.invars or all(v.aval.shape == () for v in equation.invars)
    return before != after and not constant


def _hidden_communication(fn: Callable, *args: Any) -> list[str]:
    equations = list(_equations(jax.make_jaxpr(fn)(*args).jaxpr))
    assert any(e.primitive in MAPREDUCE_PRIMITIVES for e in equations)
    return [str(e) for e in equations if _HIDDEN.search(e.primitive.name) or _moves_clients(e)]


@pytest.fixture
def hidden_communication() -> Callable[..., list[str]]:
    """`hidden_communication(fn, *args)` lists equations that carry values between clients and are not ours."""
    return _hidden_communication


@pytest.fixture
def clients() -> int:
    return CLIENTS
