"""The result of `workbench.jit`, and the tracing it shares with `workbench.plan`."""

import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
from jax import Array
from jax.core import Tracer

from workbench import _jax_compat
from workbench._types import Argument, KeyPath, PyTree
from workbench.plan._chunk_size import ChunkSize
from workbench.plan._emissions import Emission, with_emissions
from workbench.plan._evaluate import PlannedCall, evaluate
from workbench.plan._listen import Emitted, deliver, listens
from workbench.plan._loop_form import LoopForm
from workbench.plan._plan import plan_jaxpr
from workbench.primitives import (
    CallbackErrors,
    hide_static,
    is_array,
    planned,
    refuse_deleted,
    refuse_forked,
    refuse_readers,
    show_static,
)
from workbench.records.program import PlanChoiceRecord


def trace(
    fn: Callable, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None, *, listening: bool = False
) -> PlannedCall:
    """Traces a call of `fn` (with arrays, ShapeDtypeStructs or tracers) and creates its plan.

    Args:
        fn: The function.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        listening: Whether emitted values become additional outputs.

    Example:
        >>> call = trace(lambda x: 2 * x, (jnp.ones(3),))
        >>> [stage.kind for stage in call.plan.stages]
        ['server']
    """
    return _trace(fn, args, kwargs or {}, listening=listening)


def _trace(
    fn: Callable,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    listening: bool,
    errors: CallbackErrors | None = None,
) -> PlannedCall:
    if isinstance(fn, Jitted):
        fn = fn.fn
    refuse_deleted("trace", (args, kwargs))
    leaves, in_tree = flatten_call(args, kwargs)
    paths = jax.tree_util.tree_flatten_with_path(_hidden((args, kwargs)))[0]
    out_tree: list[Any] = []

    def flat(*values: Argument) -> list[Any]:
        call_args, call_kwargs = show_static(jax.tree.unflatten(in_tree, values))
        results, tree = jax.tree.flatten(_hidden(fn(*call_args, **call_kwargs)))
        out_tree.append(tree)
        return [jax.numpy.asarray(y) if not hasattr(y, "dtype") else y for y in results]

    name = getattr(fn, "__name__", type(fn).__name__)
    avals = [_jax_compat.aval_of(x) for x in leaves]
    with planned():
        closed, closed_over = _jax_compat.trace_to_jaxpr(
            flat, avals, name=name, traced_for="workbench.trace", source=fn
        )
    if closed_over:
        closed = _jax_compat.close_over(closed, closed_over)
    if errors is not None:
        closed = errors.guarded(closed)
    names = tuple(_argument_name(fn, path) for path, _ in paths)
    emissions: tuple[Emission, ...] = ()
    if listening:
        closed, emissions = with_emissions(closed, name)
    return PlannedCall(plan_jaxpr(closed, name), in_tree, out_tree[-1], names, emissions)


def flatten_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[list[Any], Any]:
    """The arrays in a call, and the structure of the call, in which all other leaves are static parts."""
    return jax.tree.flatten(_hidden((args, kwargs)))


def _hidden(tree: PyTree[Array]) -> PyTree[Array]:
    """`tree`, in which all leaves that are not arrays are static parts; unchanged if there are no such leaves."""
    if all(hasattr(x, "dtype") or is_array(x) for x in jax.tree.leaves(tree)):
        return tree
    return hide_static(tree)


def _refused(tree: PyTree[Array]) -> bool:
    """Returns whether JAX refuses the arguments of a call: an array was deleted, or a leaf is not an array."""
    arrays = (x for x in jax.tree.leaves(tree) if isinstance(x, Array) and not isinstance(x, Tracer))
    return _hidden(tree) is not tree or any(x.is_deleted() for x in arrays)


def _argument_name(fn: Callable, path: KeyPath) -> str:
    import inspect

    root, position, *rest = path
    if root.idx == 1:
        return f"{position.key}{jax.tree_util.keystr(tuple(rest))}"
    try:
        parameters = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        parameters = []
    base = parameters[position.idx] if position.idx < len(parameters) else f"args[{position.idx}]"
    return f"{base}{jax.tree_util.keystr(tuple(rest))}"


class _DirectCall(property):
    """A property that `type(jitted).__call__(jitted, ...)` can call, too."""

    def __call__(self, jitted: "Jitted", /, *args: Argument, **kwargs: Argument) -> Argument:
        return self.__get__(jitted)(*args, **kwargs)


class Jitted:
    """A compiled program; see `jit`. `fn` is the function as written; `chunk_size` and `form` are as passed."""

    def __init__(
        self, fn: Callable, chunk_size: ChunkSize, options: dict[str, Any], form: LoopForm | None = None
    ) -> None:
        functools.update_wrapper(self, fn)
        self.fn: Callable = fn
        self.form: LoopForm = form or LoopForm()
        self.chunk_size: ChunkSize = chunk_size
        self.plan_choice: PlanChoiceRecord | None = None
        self.options: dict[str, Any] = dict(options)
        self._returns_static = False  # set while the function is traced
        self._has_static = any(option.startswith("static") for option in options)  # or a call had such leaves
        self._errors = CallbackErrors(getattr(fn, "__name__", type(fn).__name__))

        @functools.wraps(fn)
        def plain(*args: Argument, **kwargs: Argument) -> Argument:
            args, kwargs = show_static((args, kwargs))
            results = fn(*args, **kwargs)
            hidden = _hidden(results)
            self._returns_static |= hidden is not results
            return hidden

        @functools.wraps(fn)
        def staged(*args: Argument, **kwargs: Argument) -> Argument:
            return call_staged(*without_static(plain, args, kwargs), chunk_size, form, self._errors)

        @functools.wraps(fn)
        def listened(*args: Argument, **kwargs: Argument) -> Argument:
            moving, args, kwargs = without_static(plain, args, kwargs)
            traced = _trace(moving, args, kwargs, listening=True, errors=self._errors)
            values = evaluate(traced.plan, jax.tree.leaves((args, kwargs)), chunk_size=chunk_size, form=form)
            count = traced.out_tree.num_leaves
            # The descriptions are keys of a returned pytree, so that a cached call has them as well.
            emitted = Emitted(traced.emissions, tuple(values[count:]))
            return jax.tree.unflatten(traced.out_tree, values[:count]), emitted

        self._staged, self._listened = jax.jit(staged, **options), jax.jit(listened, **options)
        self._plain = jax.jit(plain, **options)
        self._direct = _jax_compat.call_directly(self._staged, self._answer)

    if TYPE_CHECKING:

        def __call__(self, *args: Argument, **kwargs: Argument) -> Argument: ...

    else:  # a getter without Python code, so that a call of a compiled program is as fast as with `jax.jit`
        __call__ = _DirectCall(operator.attrgetter("_direct"))

    def _answer(
        self, run: Callable[..., tuple[Any, Any]], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any]:
        """The results of a call that no compiled program fits, and the entry with which JAX answers the next one."""
        if not self._runs_directly() or _refused((args, kwargs)):
            return self._checked(args, kwargs), None
        results, entry = self._errors.call(run, args, kwargs)
        return self._shown(results), entry if self._runs_directly() else None

    def _runs_directly(self) -> bool:
        """Returns whether JAX alone can answer calls in this context; `_checked` handles all others."""
        is_special = self._errors.found or self._has_static or self._returns_static
        return not is_special and _jax_compat.calls_directly() and not listens()

    def _checked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Argument:
        """A call in any context and with any arguments."""
        refuse_forked("jit")
        if _jax_compat.runs_operations_alone() and not listens():
            refuse_deleted("jit", (args, kwargs))
            return self.fn(*args, **kwargs)
        refuse_deleted("jit", (args, kwargs))
        refuse_readers(getattr(self.fn, "__name__", "jit"), (args, kwargs))
        tree = args, kwargs
        args, kwargs = _hidden(tree)
        self._has_static |= args is not tree[0]
        # Under another transformation, the primitives must stay visible: the outermost compilation makes the plan.
        if not _jax_compat.at_top_level():
            return self._shown(self._plain(*args, **kwargs))
        if not listens():
            return self._shown(self._errors.call(self._staged, args, kwargs))
        results, emitted = self._errors.call(self._listened, args, kwargs)
        deliver(getattr(self.fn, "__name__", "program"), emitted.emissions, emitted.values)
        return self._shown(results)

    def computes_as(self, chunk_size: ChunkSize, form: LoopForm, choice: PlanChoiceRecord) -> None:
        """Adopts a choice, so that inspection shows the program that actually runs."""
        self.chunk_size, self.form, self.plan_choice = chunk_size, form, choice

    def _shown(self, results: object) -> Argument:
        return show_static(results) if self._returns_static else results

    def run_compiled(self, compiled: Callable, *args: Argument) -> Argument:
        """Runs a result of `lower(...).compile()`; exceptions in its callbacks are raised, as in a direct call."""
        return self._errors.call(compiled, args, {})

    def lower(self, *args: Argument, **kwargs: Argument) -> jax.stages.Lowered:
        """Like `jax.jit(fn).lower`."""
        args, kwargs = _hidden((args, kwargs))
        return self._staged.lower(*args, **kwargs)

    def trace(self, *args: Argument, **kwargs: Argument) -> jax.stages.Traced:
        """Like `jax.jit(fn).trace`."""
        args, kwargs = _hidden((args, kwargs))
        return self._staged.trace(*args, **kwargs)

    def eval_shape(self, *args: Argument, **kwargs: Argument) -> Argument:
        """Like `jax.jit(fn).eval_shape`."""
        args, kwargs = _hidden((args, kwargs))
        return show_static(self._plain.eval_shape(*args, **kwargs))

    def clear_cache(self) -> None:
        """Like `jax.jit(fn).clear_cache`: drops traced and compiled programs."""
        for jitted in (self._staged, self._listened, self._plain):
            jitted.clear_cache()  # pyright: ignore[reportAttributeAccessIssue]
        _jax_compat.forget_direct_calls()

    def __get__(self, instance: object, owner: object = None) -> "Jitted | functools.partial[Argument]":
        """Binds a decorated method."""
        return self if instance is None else functools.partial(self, instance)


def without_static(fn: Callable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Callable, Any, Any]:
    """The call with its static arguments closed over, because a jit would turn them into tracers."""
    leaves, tree = jax.tree.flatten((args, kwargs))
    moves = [isinstance(leaf, Tracer) for leaf in leaves]
    if all(moves):
        return fn, args, kwargs

    @functools.wraps(fn)
    def of_moving(*values: Argument) -> Argument:
        supply = iter(values)
        all_leaves = [next(supply) if moving else leaf for leaf, moving in zip(leaves, moves, strict=True)]
        all_args, all_kwargs = jax.tree.unflatten(tree, all_leaves)
        return fn(*all_args, **all_kwargs)

    return of_moving, tuple(leaf for leaf, moving in zip(leaves, moves, strict=True) if moving), {}


def call_staged(
    fn: Callable,
    args: tuple[Argument, ...],
    kwargs: dict[str, Argument],
    chunk_size: ChunkSize,
    form: LoopForm | None = None,
    errors: CallbackErrors | None = None,
) -> Argument:
    """Calls a program according to its plan inside the current trace; `errors` collects callback exceptions."""
    traced = _trace(fn, args, kwargs, listening=False, errors=errors)
    leaves, _ = flatten_call(args, kwargs)
    return jax.tree.unflatten(traced.out_tree, evaluate(traced.plan, leaves, chunk_size=chunk_size, form=form))
