"""Distinguishes values that differ between clients from values that all clients share, based on the equations."""

from collections.abc import Sequence

from jax.extend.core import ClosedJaxpr, JaxprEqn

from workbench.plan._interpreter import Cond, InnerCall, Interpreter, Scan, While


class Differs(Interpreter[bool]):
    """Propagates flags through a client function; a flag states whether a value differs between clients.

    Attributes:
        executions: Number of executions of the current equation per execution of the function.
        tally: Counts that a subclass makes. A loop is interpreted until its flags are known, but it is counted only
            once.
    """

    def __init__(self) -> None:
        self.executions: int = 1
        self.tally: dict[str, float] = {}

    def constant(self, value: object) -> bool:
        """False, because literals and constants are the same for all clients."""
        return False

    def bind(self, equation: JaxprEqn, operands: Sequence[bool]) -> list[bool]:
        """Marks the results as differing if an operand differs."""
        return [any(operands)] * len(equation.outvars)

    def scan(self, flow: Scan[bool], operands: Sequence[bool]) -> list[bool]:
        """Evaluates a loop of `length` iterations."""
        consts, carry, xs = flow.split(operands)
        return self._loop(flow.body, consts, carry, xs, max(1, flow.length))

    def while_loop(self, flow: While[bool], operands: Sequence[bool]) -> list[bool]:
        """Evaluates a loop of unknown length; all results differ if the condition differs."""
        for_condition, consts, carry = flow.split(operands)
        carry = self._loop(flow.body, consts, carry, [], 1)
        return [True] * len(carry) if any(self.run(flow.condition, [*for_condition, *carry])) else carry

    def cond(self, flow: Cond[bool], operands: Sequence[bool]) -> list[bool]:
        """Evaluates a conditional; all results differ if the index differs."""
        index, inputs = flow.split(operands)
        branches = [self.run(branch, inputs) for branch in flow.bodies]
        return [index or any(flags) for flags in zip(*branches, strict=True)]

    def call(self, flow: InnerCall[bool], operands: Sequence[bool]) -> list[bool]:
        """Evaluates a call; it opens no name scope, because no operations are created."""
        return self.run(flow.body, operands)

    def _loop(
        self, body: ClosedJaxpr, consts: list[bool], carry: list[bool], xs: list[bool], executions: int
    ) -> list[bool]:
        while True:  # a carried value differs once it depends on a differing value
            before, tally = list(carry), dict(self.tally)
            self.executions *= executions
            results = self.run(body, [*consts, *carry, *xs])
            self.executions //= executions
            carry = [a or b for a, b in zip(carry, results, strict=False)]
            if carry == before:
                return [*carry, *results[len(carry) :]]
            self.tally = tally
