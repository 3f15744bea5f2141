"""What every algorithm's derivative must not hold: communication that is not ours."""

import re
from collections.abc import Callable
from typing import Any

import jax
import pytest
from jax.extend.core import Literal

from workbench._jax_compat import inner_jaxprs
from workbench.primitives import MAPREDUCE_PRIMITIVES, REDUCTIONS

CLIENTS = 11  # a size that no other axis of these tests has
_HIDDEN = re.compile(r"psum|pmax|pmin|all_gather|all_to_all|ppermute|reduce_scatter|shard_map|reshard")


class _Search:
    """Follows values through a jaxpr: those of "client" have a row per client, "server" has not, "free" are constants.

    An equation that is not ours may not turn one kind into another. A server's own array may have CLIENTS rows (what a
    sum by key with a key per client returns); it stays a server's until a `broadcast`.
    """

    def __init__(self) -> None:
        self.found: list[str] = []
        self.ours = 0

    def follow(self, jaxpr: Any, kinds: list[str]) -> list[str]:
        known = {v: "free" for v in jaxpr.constvars} | dict(zip(jaxpr.invars, kinds, strict=True))
        for equation in jaxpr.eqns:
            operands = ["free" if isinstance(v, Literal) else known[v] for v in equation.invars]
            known.update(zip(equation.outvars, self.results(equation, operands), strict=True))
        return ["free" if isinstance(v, Literal) else known[v] for v in jaxpr.outvars]

    def results(self, equation: Any, operands: list[str]) -> list[str]:
        if _HIDDEN.search(equation.primitive.name):
            self.found.append(str(equation))
        if equation.primitive in MAPREDUCE_PRIMITIVES:
            return self._ours(equation, operands)
        given = operands[1:] if equation.primitive.name == "cond" else operands
        for inner in inner_jaxprs(equation):
            inner = getattr(inner, "jaxpr", inner)
            if (len(inner.invars), len(inner.outvars)) == (len(given), len(equation.outvars)):
                return self.follow(inner, given)
        return [self._of_other(equation, operands, out) for out in equation.outvars]

    def _ours(self, equation: Any, operands: list[str]) -> list[str]:
        self.ours += 1
        takes_clients = equation.primitive.name != "broadcast"
        if takes_clients and "server" in operands[:1] + (operands if equation.primitive.name == "map_fn" else []):
            self.found.append(f"a server's value without a broadcast: {equation}")
        return ["server" if equation.primitive in REDUCTIONS else "client"] * len(equation.outvars)

    def _of_other(self, equation: Any, operands: list[str], out: Any) -> str:
        shaped = [(kind, CLIENTS in v.aval.shape) for kind, v in zip(operands, equation.invars, strict=True)]
        if ("client", True) in shaped and (CLIENTS not in out.aval.shape or ("server", True) in shaped):
            self.found.append(str(equation))
        if "client" in operands:
            return "client"
        return "server" if any(v.aval.shape for v in equation.invars) and "server" in operands else _scalar(operands)


def _scalar(operands: list[str]) -> str:
    return "free" if set(operands) <= {"free"} else "server"


def _hidden_communication(fn: Callable, *args: Any) -> list[str]:
    closed = jax.make_jaxpr(fn)(*args)
    search = _Search()
    search.follow(closed.jaxpr, ["client" if v.aval.shape[:1] == (CLIENTS,) else "server" for v in closed.jaxpr.invars])
    assert search.ours
    return search.found


@pytest.fixture
def hidden_communication() -> Callable[..., list[str]]:
    """`hidden_communication(fn, *args)` lists equations that carry values between clients and are not ours."""
    return _hidden_communication


@pytest.fixture
def clients() -> int:
    return CLIENTS
