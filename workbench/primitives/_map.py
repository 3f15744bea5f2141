"""`map_fn`: one function, called once per client; a primitive that contains the jaxpr of *one* client."""

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence, Set as AbstractSet

import jax
from jax import Array
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Effect, Jaxpr, JaxprEqn, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from workbench import _jax_compat
from workbench._types import AnyMesh, Aval, KeyPath, Param, PyTree, PyTreeDef
from workbench.errors import ProgramError, WorkbenchError
from workbench.primitives._callback_errors import CallbackErrors, calls_back
from workbench.primitives._checks import Structure, as_arrays, check_clients
from workbench.primitives._layout import Layout, check_mesh, find_layout, gather, reveal, spread
from workbench.primitives._linear import bind_broadcast, rows_of, typed
from workbench.primitives._placement import Placement, ProgramScope, active, current_scope, resolve
from workbench.primitives._rebase import rebase
from workbench.primitives._static import hide_static, is_array, show_static

map_p: Primitive = Primitive("map_fn")
map_p.multiple_results = True

_MOST_ASKED, _MOST_FAILURES = 1024, 8  # maximum number of clients that are called one by one to find failing clients


def map_fn(fn: Callable, args: PyTree[Array], *, over: str | None = None, on: AnyMesh | None = None) -> PyTree[Array]:
    """Calls `fn` once per client, with the client's row of `args`.

    Sends nothing between clients; values that `fn` closes over are broadcast to the clients.

    Args:
        fn: Function for one client. The function's arguments lack the leading client axis.
        args: Pytree of arrays `[clients, ...]`. A tuple is unpacked: `fn(*args)`.
        over: Name of the placement; needed only if there are several placements.
        on: Mesh to spread the clients over, instead of the mesh set by `jax.set_mesh`.

    Returns:
        The results of `fn`, each leaf with a leading client axis.

    Raises:
        PlacementError: outside a program, or if an argument's leading axis does not equal the number of clients.
        ProgramError: if `fn` raises, or returns values that are not arrays.

    Example:
        >>> with program(clients=3):
        ...     map_fn(lambda x, y: x * y, (jnp.arange(3), jnp.arange(3))).tolist()
        [0, 1, 4]

    References:
        Rush, Charles, Garrett et al., "DrJAX: Scalable and Differentiable MapReduce Primitives in JAX", 2024.
    """
    placement, outer = resolve("map_fn", over)
    if outer:

        def of_group(*rows: Array) -> PyTree[Array]:
            return map_fn(fn, rows, over=placement.name, on=on)

        of_group.__name__ = "<lambda>"
        of_group.__wrapped__ = fn  # pyright: ignore[reportFunctionMemberAccess] -- the rows bind to its parameters
        return map_fn(of_group, _tuple(args), over=outer[0].name)
    operands, structure = as_arrays("map_fn", "args", args)
    check_clients("map_fn", "args", structure.hidden(operands), placement)
    check_mesh("map_fn", on)
    layout = find_layout(placement, on)
    call = _ClientCall(fn, structure, isinstance(args, tuple), placement)
    if _jax_compat.runs_operations_alone():
        results = _one_by_one(call, operands, placement, layout)
    elif layout is None and _jax_compat.at_top_level() and not any(map(_is_on_several_devices, operands)):
        results = _at_once(call, operands, placement)
    else:
        bound = bind_map(call, operands, placement, layout, name=call.name, source=fn, arguments=call.arguments)
        results = [reveal(y, layout) for y in bound]
    return show_static(jax.tree.unflatten(call.result_structure, results))


def _at_once(call: "_ClientCall", operands: Sequence[Array], placement: Placement) -> list[Array]:
    """Evaluates all clients; if only some of them raise, for example in a check, the error names the first."""
    try:
        return jax.vmap(call, axis_name=placement.name, axis_size=placement.size)(*operands)
    except ProgramError:
        failures: dict[int, ProgramError] = {}
        for client in range(min(placement.size, _MOST_ASKED)):
            call.client = client
            try:
                call(*(x[client] for x in operands))
            except ProgramError as error:
                failures[client] = error
            except Exception:  # a client failed for another reason, such as a collective: keep the first error
                break
            if failures and len(failures) <= client:  # a client succeeded
                first = failures[min(failures)]
                raise first from first.__cause__
            if len(failures) == _MOST_FAILURES:
                break
        raise


def _one_by_one(
    call: "_ClientCall", operands: Sequence[Array], placement: Placement, layout: Layout | None
) -> list[Array]:
    """Runs client by client under `jax.disable_jit`, so that `print` and breakpoints see concrete values."""
    shared = [gather(x, layout) for x in operands]
    rows = []
    for client in range(placement.size):
        call.client = client
        try:
            rows.append(call(*(x[client] for x in shared)))
        except ProgramError as error:
            if not _jax_compat.is_unbound_axis(error.__cause__, placement.name):
                raise
            call.client = None  # clients communicate, so they must run together
            return jax.vmap(call, axis_name=placement.name, axis_size=placement.size)(*shared)
    return [spread(jax.numpy.stack(values), layout) for values in zip(*rows, strict=True)]


def _is_on_several_devices(x: object) -> bool:
    return isinstance(x, Array) and not isinstance(x, Tracer) and len(x.sharding.device_set) > 1


def _tuple(args: PyTree[Array]) -> tuple:
    return args if isinstance(args, tuple) else (args,)


class _ClientCall:
    """The user's function for one client, on flat arrays and inside the scope of its placement."""

    def __init__(self, fn: Callable, structure: Structure, unpack: bool, placement: Placement) -> None:
        scope = current_scope()
        assert scope is not None
        self.fn, self.structure, self.unpack, self.placement = fn, structure, unpack, placement
        self.scope = ProgramScope(scope.placements, scope.placements.index(placement) + 1)
        self.name = getattr(fn, "__name__", type(fn).__name__)
        self.result_structure: PyTreeDef | None = None
        self.client: int | None = None  # client number, if clients run one by one

    @property
    def arguments(self) -> list[str]:
        """Names of the arrays in the user's function: `params['w']`."""
        parameters = _parameters(self.fn)
        leaves = jax.tree_util.tree_flatten_with_path(self.structure.hidden(range(self.structure.treedef.num_leaves)))
        return [self._argument(path, parameters) for path, _ in leaves[0]]

    def _argument(self, path: KeyPath, parameters: Sequence[str]) -> str:
        place = path[0].idx if self.unpack else 0
        inside = jax.tree_util.keystr(path[1:] if self.unpack else path)
        if place < len(parameters) and not parameters[place].startswith("*"):
            return f"{parameters[place]}{inside}"
        variadic = next((name[1:] for name in parameters if name.startswith("*")), "args")
        return f"{variadic}[{place - sum(not name.startswith('*') for name in parameters)}]{inside}"

    def __call__(self, *rows: Array) -> list[Array]:
        args = self.structure.unflatten(rows)
        with active(self.scope):
            try:
                result = self.fn(*args) if self.unpack else self.fn(args)
            except WorkbenchError:
                raise
            except Exception as error:
                raise _client_error(error, self._failure(rows, error)) from error
        hidden = hide_static(result)
        leaves, self.result_structure = jax.tree.flatten(hidden)
        wrong = [leaf for leaf in leaves if not is_array(leaf)]
        if wrong:
            message = (
                f"`map_fn` called `{self.name}`, which returned {len(wrong)} non-array "
                f"value{'s' * (len(wrong) != 1)}, the first of type {type(wrong[0]).__name__}: "
                f"{str(wrong[0])[:60]!r}. The results of one client are stacked over the {self.placement.size} clients "
                f'of "{self.placement.name}", so they must be a pytree of arrays and numbers: return only these, and '
                "keep other values outside the program."
            )
            raise ProgramError(message)
        return [jax.numpy.asarray(leaf) for leaf in leaves]

    def _failure(self, rows: Sequence[Array], error: Exception) -> str:
        shapes = ", ".join(str(jax.typeof(row)) for row in rows[:6]) + (", …" if len(rows) > 6 else "")
        place = f'of the stage over "{self.placement.name}" ({self.placement.size} clients)'
        raised = f"it raised {type(error).__name__}: {error}"
        if self.client is not None:
            return (
                f"`map_fn` could not call the client function `{self.name}` for client {self.client} {place}: "
                f"{raised}. The client's values are ({shapes}); the exception above points to the line."
            )
        return (
            f"`map_fn` could not call the client function `{self.name}` {place}: {raised}. The function is called once "
            f"with the values of one client ({shapes}), without the leading axis of clients. Change the function to "
            "accept these shapes; the exception above points to the line."
        )


def _parameters(fn: Callable) -> list[str]:
    """The positional parameters of a function, including `*args` with the star."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # a builtin without a signature
        return []
    kinds = {parameter.name: parameter.kind for parameter in parameters}
    starred = [f"*{name}" for name, kind in kinds.items() if kind is inspect.Parameter.VAR_POSITIONAL]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [*(name for name, kind in kinds.items() if kind in positional), *starred]


def _client_error(cause: Exception, message: str) -> ProgramError:
    """A `ProgramError` that `except type(cause)` also catches, so that callers can handle their own exceptions."""
    try:
        mixed = type("ProgramError", (ProgramError, type(cause)), dict(_MIXED))
        error = mixed.__new__(mixed)
    except TypeError:  # classes with a different instance layout cannot be mixed in
        return ProgramError(message)
    error.args = (message,)
    return error


_MIXED = {
    "__module__": ProgramError.__module__,
    "__str__": lambda error: error.args[0],
    "__reduce__": lambda error: (ProgramError, error.args),  # the mixed class does not exist in other processes
}


def bind_map(
    fn: Callable[..., Sequence[Array]],
    operands: Sequence[Array],
    placement: Placement,
    layout: Layout | None,
    *,
    name: str,
    source: Callable | None = None,
    arguments: Sequence[str] = (),
) -> list[Array]:
    """Traces a flat function for one client and binds it; values it closes over become broadcasts."""
    operands = [typed(x, layout) for x in operands]
    avals = [_jax_compat.drop_leading_axis(_jax_compat.aval_of(x)) for x in operands]
    jaxpr, closed_over = _jax_compat.trace_to_jaxpr(
        fn, avals, name=name, axis_sizes={placement.name: placement.size}, source=source, arguments=arguments
    )
    shared = [bind_broadcast(value, placement, layout) for value in closed_over]
    return bind_map_jaxpr(jaxpr, [*shared, *operands], placement, layout, name=name)


def bind_map_jaxpr(
    jaxpr: ClosedJaxpr, operands: Sequence[Array], placement: Placement, layout: Layout | None, *, name: str
) -> list[Array]:
    """Binds the jaxpr of one client to `[clients, ...]` operands."""
    with jax.named_scope(f"wb.map_fn[{placement.name}]"):
        return map_p.bind(*operands, jaxpr=jaxpr, placement=placement, layout=layout, name=name)


# Evaluate: all clients of a device at once. The plan has a better lowering; see workbench/plan.
def _evaluate(
    *operands: Array, jaxpr: ClosedJaxpr, placement: Placement, layout: Layout | None, name: str
) -> list[Array]:
    # JAX 0.10 has no collectives over a vmapped axis that is explicitly sharded: in that case, every device computes
    # all clients.
    together = layout is not None and layout.explicit and _jax_compat.uses_named_axes(jaxpr)
    operands = tuple(gather(x, layout) if together else spread(x, layout) for x in operands)
    if layout is not None and layout.explicit and not jax.sharding.get_abstract_mesh().empty:
        # Constants that were closed over as numpy arrays have types without a mesh.
        jaxpr = rebase(jaxpr)
    call = jax.vmap(
        jaxpr_as_fun(jaxpr),
        axis_name=placement.name,
        axis_size=placement.size,
        spmd_axis_name=None if layout is None or together or _has_inner_shard_map(jaxpr, layout) else layout.entry,
    )
    return [spread(y, layout) for y in call(*operands)]


def _has_inner_shard_map(jaxpr: ClosedJaxpr, layout: Layout) -> bool:
    """Returns whether a client function uses a `shard_map` that does not include the clients' axes."""
    return any(not set(layout.axes) <= set(e.params["newly_manual_axes"]) for e in _shard_maps(jaxpr))


def _shard_maps(jaxpr: Jaxpr | ClosedJaxpr) -> Iterator[JaxprEqn]:
    for equation in jaxpr.eqns:
        if equation.primitive.name == "shard_map":
            yield equation
        for inner in _jax_compat.inner_jaxprs(equation):
            yield from _shard_maps(inner)


@map_p.def_impl
def _evaluate_now(*operands: Array, **params: Param) -> list[Array]:
    if calls_back(params["jaxpr"]):
        errors = CallbackErrors(params["name"])
        run = jax.jit(functools.partial(_evaluate, **{**params, "jaxpr": errors.guarded(params["jaxpr"])}))
        return errors.call(run, operands, {})
    if params["layout"] is not None and any(_shard_maps(params["jaxpr"])):
        # JAX 0.10 compares the specs of an eager shard_map before it adds the clients' axis to them.
        return jax.jit(functools.partial(_evaluate, **params))(*operands)
    return _evaluate(*operands, **params)


@map_p.def_effectful_abstract_eval
def _type(
    *_: Aval, jaxpr: ClosedJaxpr, placement: Placement, layout: Layout | None, name: str
) -> tuple[list[Aval], AbstractSet[Effect]]:
    return [rows_of(aval, placement, layout) for aval in jaxpr.out_avals], jaxpr.effects


mlir.register_lowering(map_p, mlir.lower_fun(_evaluate, multiple_results=True))


# Differentiate: a map of the outputs and the residuals, then a second, linear map of the tangents. The first map has
# only known inputs, and the second map has only tangents and residuals. Partial evaluation therefore separates them
# cleanly (DrJAX, section 4: a derivative of a MapReduce program is a MapReduce program).
def _jvp(
    primals: Sequence[Array],
    tangents: Sequence[Array | ad.Zero],
    *,
    jaxpr: ClosedJaxpr,
    placement: Placement,
    layout: Layout | None,
    name: str,
) -> tuple[list[Array], list[Array | ad.Zero]]:
    moving = [not isinstance(t, ad.Zero) for t in tangents]
    if not any(moving):
        outputs = bind_map_jaxpr(jaxpr, primals, placement, layout, name=name)
        return outputs, [_jax_compat.zero_tangent(y) for y in outputs]
    axis_sizes = {placement.name: placement.size}
    split = _Linearization(jaxpr, moving, axis_sizes)
    try:
        first, closed_over = _jax_compat.trace_to_jaxpr(
            split.outputs_and_residuals,
            jaxpr.in_avals,
            name=name,
            axis_sizes=axis_sizes,
            arguments=_jax_compat.argument_names(jaxpr),
        )
    except ValueError as error:
        if "Linearization failed" not in str(error):
            raise
        return _jvp_together(primals, tangents, jaxpr, placement, layout, name)
    assert not closed_over
    results = bind_map_jaxpr(first, primals, placement, layout, name=name)
    outputs, computed = results[: len(jaxpr.out_avals)], results[len(jaxpr.out_avals) :]
    residuals = [_residual(source, primals, computed, placement, layout) for source in split.residuals]
    moved = [t for t in tangents if not isinstance(t, ad.Zero)]
    slopes = iter(bind_map_jaxpr(split.linear, [*residuals, *moved], placement, layout, name=f"d {name}"))
    return outputs, [
        next(slopes) if moves else _jax_compat.zero_tangent(y)
        for y, moves in zip(outputs, split.outputs_move, strict=True)
    ]


def _jvp_together(
    primals: Sequence[Array],
    tangents: Sequence[Array | ad.Zero],
    jaxpr: ClosedJaxpr,
    placement: Placement,
    layout: Layout | None,
    name: str,
) -> tuple[list[Array], list[Array | ad.Zero]]:
    """A map that computes outputs and tangents, for operations with only forward derivatives (Pallas kernels)."""
    moving = [not isinstance(t, ad.Zero) for t in tangents]
    moved = [t for t in tangents if not isinstance(t, ad.Zero)]
    outputs_move = [not _jax_compat.is_float0(aval.to_tangent_aval()) for aval in jaxpr.out_avals]

    def outputs_and_tangents(*values: Array) -> list[Array]:
        inputs, directions = values[: len(primals)], values[len(primals) :]

        of_moving, points = _along(jaxpr, inputs, moving)
        outputs, slopes = jax.jvp(of_moving, points, tuple(directions))
        return [*outputs, *(slope for slope, moves in zip(slopes, outputs_move, strict=True) if moves)]

    avals = [*jaxpr.in_avals, *(a.to_tangent_aval() for a, moves in zip(jaxpr.in_avals, moving, strict=True) if moves)]
    both, closed_over = _jax_compat.trace_to_jaxpr(
        outputs_and_tangents, avals, name=name, axis_sizes={placement.name: placement.size}
    )
    assert not closed_over
    results = bind_map_jaxpr(both, [*primals, *moved], placement, layout, name=name)
    slopes = iter(results[len(jaxpr.out_avals) :])
    return results[: len(jaxpr.out_avals)], [
        next(slopes) if moves else _jax_compat.zero_tangent(y) for y, moves in zip(results, outputs_move, strict=False)
    ]


def _along(
    jaxpr: ClosedJaxpr, inputs: Sequence[Array], moving: Sequence[bool]
) -> tuple[Callable[..., list[Array]], tuple[Array, ...]]:
    """The jaxpr as a function of only the inputs that have tangents, and a list of these inputs."""

    def of_moving(*values: Array) -> list[Array]:
        supply = iter(values)
        return jaxpr_as_fun(jaxpr)(*(next(supply) if moves else x for x, moves in zip(inputs, moving, strict=True)))

    return of_moving, tuple(x for x, moves in zip(inputs, moving, strict=True) if moves)


class _Linearization:
    """Splits one client's jaxpr into (outputs, residuals) and a linear jaxpr of (residuals, tangents).

    Each residual is ("input", i), ("computed", i) or ("constant", array), so that no input is passed on twice.
    """

    def __init__(self, jaxpr: ClosedJaxpr, moving: Sequence[bool], axis_sizes: dict[str, int]) -> None:
        self.jaxpr, self.moving, self.axis_sizes = jaxpr, moving, axis_sizes
        self.linear: ClosedJaxpr
        self.residuals: list[tuple[str, int | Array]] = []
        self.outputs_move: list[bool] = []

    def outputs_and_residuals(self, *inputs: Array) -> list[Array]:
        of_moving, moved = _along(self.jaxpr, inputs, self.moving)
        outputs, tangent_fn = jax.linearize(of_moving, *moved)
        linear, residuals = _jax_compat.trace_to_jaxpr(
            lambda *t: tangent_fn(*t),
            [_jax_compat.aval_of(x).to_tangent_aval() for x in moved],
            name="tangent",
            axis_sizes=self.axis_sizes,
        )
        self.outputs_move = [not _jax_compat.is_float0(aval) for aval in linear.out_avals]
        linear, used = _jax_compat.drop_dead_code(linear, self.outputs_move)
        self.linear = linear
        # Pruning also drops unused tangent inputs; the linear map takes every nonzero tangent, so add these again.
        found_used, tangents_used = used[: len(residuals)], used[len(residuals) :]
        self.linear = _with_all_inputs(linear, tangents_used, moved, sum(found_used))
        positions = {id(x): i for i, x in enumerate(inputs)}
        computed: list[Array] = []
        for value, is_used in zip(residuals, found_used, strict=True):
            if not is_used:
                continue
            if id(value) in positions:
                self.residuals.append(("input", positions[id(value)]))
            elif isinstance(value, Tracer):
                self.residuals.append(("computed", len(computed)))
                computed.append(value)
            else:
                self.residuals.append(("constant", value))
        return [*outputs, *computed]


def _with_all_inputs(linear: ClosedJaxpr, used: Sequence[bool], moved: Sequence[Array], residuals: int) -> ClosedJaxpr:
    if all(used):
        return linear
    avals = [*linear.in_avals[:residuals], *(_jax_compat.aval_of(x).to_tangent_aval() for x in moved)]

    def call(*values: Array) -> list[Array]:
        tangents = [v for v, is_used in zip(values[residuals:], used, strict=True) if is_used]
        return jaxpr_as_fun(linear)(*values[:residuals], *tangents)

    return _jax_compat.trace_to_jaxpr(call, avals, name="tangent")[0]


def _residual(
    source: tuple[str, int | Array],
    primals: Sequence[Array],
    computed: Sequence[Array],
    placement: Placement,
    layout: Layout | None,
) -> Array:
    kind, value = source
    if not isinstance(value, int):
        return bind_broadcast(value, placement, layout)
    return primals[value] if kind == "input" else computed[value]


ad.primitive_jvps[map_p] = _jvp


# Transpose: the client's linear function, transposed, is called once per client (DrJAX, section 4).
def _transpose(
    cotangents: Sequence[Array | ad.Zero],
    *operands: Array | ad.UndefinedPrimal,
    jaxpr: ClosedJaxpr,
    placement: Placement,
    layout: Layout | None,
    name: str,
) -> list[Array | ad.Zero | None]:
    linear = [isinstance(x, ad.UndefinedPrimal) for x in operands]
    pushed = [not isinstance(ct, ad.Zero) for ct in cotangents]
    fixed_operands = [x for x in operands if not isinstance(x, ad.UndefinedPrimal)]
    pulled: list[bool] = []  # set while the client is traced: the linear inputs that receive a cotangent

    def transposed(*values: Array) -> list[Array]:
        stream = iter(values)
        fixed = [None if is_linear else next(stream) for is_linear in linear]
        results = _jax_compat.transpose_jaxpr(jaxpr, fixed, [next(stream) if live else None for live in pushed])
        pulled.extend(ct is not None for ct in results)
        return [ct for ct in results if ct is not None]

    live = [ct for ct in cotangents if not isinstance(ct, ad.Zero)]
    results = iter(
        bind_map(transposed, [*fixed_operands, *live], placement, layout, name=f"transpose {name}") if live else ()
    )
    moves = iter(pulled)
    return [
        None if not is_linear else next(results) if next(moves, False) else _jax_compat.zero_cotangent(x.aval)
        for x, is_linear in zip(operands, linear, strict=True)
    ]


ad.primitive_transposes[map_p] = _transpose


# Batch: a map of the vmapped client function; the batch axis comes after the client axis.
def _batch(
    operands: Sequence[Array],
    axes: Sequence[int | None],
    *,
    jaxpr: ClosedJaxpr,
    placement: Placement,
    layout: Layout | None,
    name: str,
) -> tuple[list[Array], list[int]]:
    moved = [_behind(x, axis) for x, axis in zip(operands, axes, strict=True)]
    inner = jax.vmap(jaxpr_as_fun(jaxpr), in_axes=tuple(None if axis is None else 0 for axis in axes))
    results = bind_map(lambda *rows: inner(*rows), moved, placement, layout, name=name)
    return results, [1] * len(results)


def _behind(x: Array, axis: int | None) -> Array:
    return x if axis is None else jax.numpy.moveaxis(x, axis, 1)


batching.primitive_batchers[map_p] = _batch


# Prune: removes outputs that are not read, and inputs that only these outputs need.
def _prune(used_outputs: list[bool], equation: JaxprEqn) -> tuple[list[bool], JaxprEqn | None]:
    if not any(used_outputs) and not equation.effects:
        return [False] * len(equation.invars), None
    jaxpr, used_inputs = _jax_compat.drop_dead_code(equation.params["jaxpr"], used_outputs)
    return used_inputs, _jax_compat.new_equation(
        equation,
        invars=[v for v, used in zip(equation.invars, used_inputs, strict=True) if used],
        outvars=[v for v, used in zip(equation.outvars, used_outputs, strict=True) if used],
        params={**equation.params, "jaxpr": jaxpr},
        effects=jaxpr.effects,
    )


_jax_compat.register_dce(map_p, _prune)


# Refs that live inside a client become values when the program is lowered.
def _without_refs(*operands: Array, jaxpr: ClosedJaxpr, **params: Param) -> list[Array]:
    return map_p.bind(*operands, jaxpr=_jax_compat.without_refs(jaxpr), **params)


_jax_compat.register_discharge(map_p, _without_refs)
