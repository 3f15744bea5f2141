"""Changes equations of a traced program, including those in loops, branches and called functions."""

from collections.abc import Sequence

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from workbench import _jax_compat


class Rewriting:
    """A pass over a program; subclasses define how equations or their parameters are replaced."""

    def __init__(self) -> None:
        self._jaxprs: dict[Jaxpr, Jaxpr] = {}

    def closed(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """The changed program."""
        return ClosedJaxpr(self.jaxpr(closed.jaxpr), self.consts(closed))

    def consts(self, closed: ClosedJaxpr) -> Sequence[object]:
        """The constants of the changed program."""
        return closed.consts

    def jaxpr(self, jaxpr: Jaxpr) -> Jaxpr:
        """A part of the program after the change; it is shared by all callers, because JAX's caches use it as a key."""
        if jaxpr not in self._jaxprs:
            self._jaxprs[jaxpr] = self.rewritten(jaxpr)
        return self._jaxprs[jaxpr]

    def rewritten(self, jaxpr: Jaxpr) -> Jaxpr:
        """The equations of one part, in order."""
        return jaxpr.replace(eqns=[self.equation(self.inside(equation)) for equation in jaxpr.eqns])

    def equation(self, equation: JaxprEqn) -> JaxprEqn:
        """Returns the replacement for an equation whose jaxprs have been rewritten."""
        return equation

    def inside(self, equation: JaxprEqn) -> JaxprEqn:
        """The equation with its inner jaxprs rewritten."""
        return _jax_compat.new_equation(equation, params=self.params(equation))

    def params(self, equation: JaxprEqn) -> dict[str, object]:
        """The parameters of an equation, with their jaxprs rewritten."""
        return {name: self.param(value) for name, value in equation.params.items()}

    def param(self, value: object) -> object:
        """A parameter or a part of it: jaxprs are also found inside tuples, named tuples and dicts."""
        if isinstance(value, ClosedJaxpr):
            return self.closed(value)
        if isinstance(value, Jaxpr):
            return self.jaxpr(value)
        if isinstance(value, tuple):
            parts = [self.param(item) for item in value]
            make = getattr(type(value), "_make", tuple)  # named tuples contain the jaxprs of `custom_linear_solve`
            return make(parts)
        if isinstance(value, list):
            return [self.param(item) for item in value]
        if isinstance(value, dict):
            return {key: self.param(item) for key, item in value.items()}
        return value
