"""The only package that uses JAX's internals: it contains all uses of `jax._src` and all version switches.

Written against JAX 0.10. Each function states its requirements, so that they can be checked one by one for the next JAX
version.
"""

import contextlib
import copy
import functools
import inspect
import os
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeGuard

import jax
import jaxlib
import numpy as np
from jax._src import (
    ad_checkpoint as _ad_checkpoint,
    api_util as _api_util,
    config as _config,
    core as _core,
    effects as _effects,
    hijax as _hijax,
    linear_util as _lu,
    mesh as _mesh,
    sharding_impls as _sharding_impls,
    source_info_util as _source_info,
    xla_bridge as _xla_bridge,
)
from jax._src.array import ArrayImpl as _Array
from jax._src.interpreters import ad as _ad, mlir as _mlir, partial_eval as _pe
from jax._src.state import discharge as _discharge
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Primitive, Var, jaxpr_as_fun
from jax.interpreters import ad
from jaxlib import _hlo  # pyright: ignore[reportAttributeAccessIssue] compiled, without stubs
from jaxlib.mlir import ir as _ir
from jaxlib.mlir.dialects import stablehlo as _stablehlo

from workbench._open_types import Foreign
from workbench._types import AnyMesh, Aval, Param

JaxprEqnContext = _core.JaxprEqnContext
"""Context in which an equation was traced: the mesh and the configuration."""

NEWEST_KNOWN = (0, 12)
"""The newest minor version of JAX on which the tests pass."""


def warn_of_newer_jax(version: tuple[int, ...] = jax.__version_info__) -> None:
    """Warns if this JAX is newer than the tested versions; does not disable anything."""
    if version[:2] > NEWEST_KNOWN:
        current, newest = (".".join(map(str, numbers)) for numbers in (version, NEWEST_KNOWN))
        warnings.warn(
            f"The workbench is tested up to JAX {newest}, but this is JAX {current}. The workbench reads parts of JAX "
            "that change without notice: if something fails, look for a newer workbench, or run "
            f'`pip install "jax<{NEWEST_KNOWN[0]}.{NEWEST_KNOWN[1] + 1}"`.',
            stacklevel=2,
        )


warn_of_newer_jax()


def compile_with_own_lines(lowered: jax.stages.Lowered) -> jax.stages.Compiled:
    """Compiles a program without reusing stale source lines from JAX's persistent cache.

    That cache ignores source lines by default. Inside this call, and only in this thread, source lines are part of the
    key. An unchanged file still hits the cache. Requires JAX's context managers for configuration options (JAX 0.10 to
    0.12).
    """
    with _config.compilation_cache_include_metadata_in_key(True):
        return lowered.compile()


def lines_may_be_stale(program: jax.stages.Lowered | jax.stages.Compiled) -> bool:
    """Returns whether the user compiled this program with JAX's persistent cache, which ignores source lines.

    Requires that a `Lowered` keeps its executable in `_lowering._executable` (0.10 to 0.12).
    """
    if not _disk_cache_ignores_lines():
        return False
    lowering = getattr(program, "_lowering", None)
    return isinstance(program, jax.stages.Compiled) or getattr(lowering, "_executable", None) is not None


def _disk_cache_ignores_lines() -> bool:
    cached = _config.enable_compilation_cache.value and _config.compilation_cache_dir.value
    return bool(cached) and not _config.compilation_cache_include_metadata_in_key.value


@contextlib.contextmanager
def apart_from_disk_cache() -> Iterator[None]:
    """Traces functions separately from the user's runs, because source lines from those runs may be stale."""
    if not _disk_cache_ignores_lines():
        yield
        return
    with jit_keys().inspected(True):
        yield


_CHANGING = threading.RLock()  # held while a JAX primitive is patched, by one thread at a time; reentrant


@contextlib.contextmanager
def checkpoints_with(policy: Callable[..., Any]) -> Iterator[None]:
    """Overrides the policy of every `jax.checkpoint` that this thread traces inside the block.

    The override does not affect other threads; a second caller waits until the block of the first caller ends. The
    policy takes effect while a derivative is traced, so it cannot be applied by editing equations afterwards. Requires
    that `jax.checkpoint` binds `ad_checkpoint.remat_p` with the parameter `policy` (0.10 to 0.12). Functions that an
    inner `jax.jit` has already traced keep their own policy, because JAX reuses the cached trace.
    """
    primitive, thread = _ad_checkpoint.remat_p, threading.get_ident()
    with _CHANGING:
        original = primitive.__dict__.get("bind")
        bind = getattr(primitive.bind, "of_jax", primitive.bind)  # the policy of the innermost block applies

        def changed(*args: object, **params: object) -> object:
            is_target = threading.get_ident() == thread and not params.get("differentiated") and "policy" in params
            return bind(*args, **({**params, "policy": policy} if is_target else params))

        changed.of_jax = bind  # pyright: ignore[reportFunctionMemberAccess]
        # A frame inside JAX, so that equations from other threads keep their user lines.
        changed.__code__ = changed.__code__.replace(co_filename=_ad_checkpoint.__file__)
        primitive.bind = changed
        try:
            yield
        finally:
            if original is None:
                del primitive.bind
            else:
                primitive.bind = original


_forked: list[bool] = []  # not empty in an `os.fork` child of a process that had started JAX's devices


def _note_fork() -> None:
    if backend_started():
        _forked.append(True)
        forget_direct_calls()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def waits_forever(operation: str) -> str | None:
    """Returns an error message if this process is an `os.fork` child without JAX's threads; None otherwise."""
    if not _forked:
        return None
    return (
        f"{operation} runs programs, but this process is an `os.fork` child of a process that had used JAX. The "
        "threads of JAX stayed in the parent process, so the call would deadlock. Start processes with "
        '`multiprocessing.get_context("spawn")`, or fork before the first use of JAX.'
    )


def needs_compiler(operation: str) -> str | None:
    """Returns an error message if `jax.disable_jit` is on or JAX cannot run; None if `operation` can compile."""
    if waiting := waits_forever(operation):
        return waiting
    if not jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
        return None
    return (
        f"{operation} compiles the program, but `jax.disable_jit` is on. Call it outside of `jax.disable_jit()` (unset "
        "JAX_DISABLE_JIT); to see the values of every client, call the program directly."
    )


def is_unbound_axis(error: BaseException | None, name: str) -> bool:
    """Returns whether JAX raised `error` because the axis `name` is unbound (JAX 0.10 to 0.12)."""
    return isinstance(error, NameError) and f"unbound axis name: {name}" in str(error)


def jit_cache_size(fn: object) -> int | None:
    """Returns the number of compiled versions of a `jax.jit` function; None if the function does not report it."""
    count: Callable[[], int] | None = getattr(fn, "_cache_size", None)
    return None if count is None else int(count())


def at_top_level() -> bool:
    """Returns whether no trace (jit, grad, vmap, …) is in progress, so that values are concrete."""
    return _core.trace_state_clean()


def calls_directly() -> bool:
    """Returns whether a compiled function runs when it is called: nothing is traced, and nothing forbids to run it."""
    return _core.trace_state_clean() and not (_config.disable_jit.value or _forked)


def runs_operations_alone() -> bool:
    """Returns whether `jax.disable_jit` is on and no jaxpr is being traced, so that Python code sees values.

    Under `jax.grad` and `jax.vmap`, the code sees tracers that wrap values.
    """
    if not jax.config.jax_disable_jit:  # pyright: ignore[reportAttributeAccessIssue]
        return False
    trace: Foreign = _core.trace_ctx.trace
    while trace is not None:
        if isinstance(trace, _pe.DynamicJaxprTrace):
            return False
        trace = getattr(trace, "parent_trace", None)
    return True


_Answer = Callable[[Callable[..., tuple[Any, Any]], tuple[Any, ...], dict[str, Any]], tuple[Any, Any]]
_direct_calls: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def call_directly(jitted: Callable[..., Any], answer: _Answer) -> Callable[..., Any]:
    """Calls `jitted` without Python code in between if a program that is already compiled fits the call.

    For all other calls (first calls, new shapes or contexts, tracers, deleted arrays, `jax.disable_jit`), JAX calls
    `answer(run, args, kwargs)`. `run(*args, **kwargs)` returns the results of `jitted`, and an entry for JAX's cache.
    `answer` returns its own results and this entry. If it returns None instead of the entry, JAX asks at every such
    call until `forget_direct_calls`. Requires that the state of a compiled function contains its `cache_miss` (0.10 to
    0.12); otherwise JAX asks at every call.
    """

    def run_slowly(*args: object, **kwargs: object) -> tuple[Any, None]:
        return jitted(*args, **kwargs), None

    def ask(*args: object, **kwargs: object) -> Any:
        return answer(run_slowly, args, kwargs)[0]

    try:
        function: Foreign = jitted
        kind: Foreign = type(jitted)
        state = dict(function.__getstate__())
        missed = state["cache_miss"]

        def run(*args: object, **kwargs: object) -> tuple[Any, Any]:
            results, *entry = missed(*args, **kwargs)
            return results, entry

        def miss(*args: object, **kwargs: object) -> tuple[Any, ...]:
            try:
                results, entry = answer(run, args, kwargs)
            except BaseException:
                direct._clear_cache()  # otherwise JAX would ask at every later call of this kind
                raise
            return results, *(entry or (None, False))

        direct = kind.__new__(kind)
        direct.__setstate__({**state, "cache_miss": miss, "fun": ask})
        vars(direct).update(vars(function))
    except (AttributeError, KeyError, TypeError):
        return ask
    _direct_calls[id(direct)] = direct
    return direct


def forget_direct_calls() -> None:
    """Makes JAX ask again at the next call of every function from `call_directly`."""
    for reference in _direct_calls.valuerefs():
        if (direct := reference()) is not None:
            direct._clear_cache()


_is_deleted = _Array.is_deleted


def live_arrays(tree: object) -> list[jax.Array] | None:
    """The leaves if all are live JAX arrays; None if any is a tracer, a deleted array or another value."""
    leaves: list[Any] = [tree] if type(tree) is _Array else jax.tree.leaves(tree)
    try:  # without a Python loop, because every call of a compiled program runs this
        return leaves if leaves and not any(map(_is_deleted, leaves)) else None
    except TypeError:  # not an array
        return None


def backend_started() -> bool:
    """Returns whether JAX has already initialized its devices, so that their number is fixed."""
    return _xla_bridge.backends_are_initialized()


class JitKeys(NamedTuple):
    """Contexts that are part of the keys of JAX's trace caches; None by default."""

    program: Any  # the placements of the program
    present: Any  # the masks of the clients that are present
    inspected: Any  # whether a function is being traced separately from the user's runs


_MAKING = threading.Lock()
_made_keys: JitKeys | None = None


def jit_keys() -> JitKeys:
    """Returns the contexts; the first call creates them.

    After a context is created, JAX retraces and recompiles all functions it has compiled before. All contexts are
    therefore created together: on import if nothing can have been compiled yet, otherwise with the first program.
    """
    global _made_keys
    if _made_keys is None:
        with _MAKING:
            if _made_keys is None:
                _made_keys = JitKeys(*(jax.make_user_context(default_value=None) for _ in JitKeys._fields))
    return _made_keys


def has_jit_keys() -> bool:
    """Returns whether the contexts exist; creates them if no compilation would be discarded."""
    if _made_keys is None and not backend_started():
        jit_keys()
    return _made_keys is not None


has_jit_keys()


def mesh_of_old_context() -> jax.sharding.Mesh:
    """The mesh of a `with mesh:` block (deprecated in JAX 0.10 in favour of `jax.set_mesh`), or an empty mesh."""
    return _mesh.thread_resources.env.physical_mesh


def aval_of(x: object) -> Aval:
    """The abstract value (shape, dtype, sharding type) of an array, tracer or ShapeDtypeStruct."""
    return _core.shaped_abstractify(x)


def drop_leading_axis(aval: Aval) -> Aval:
    """The abstract value of one row of `aval`."""
    return _core.mapped_aval(aval.shape[0], 0, aval)


def add_leading_axis(
    aval: Aval, size: int, explicit_axes: str | tuple[str, ...] | None, mesh: AnyMesh | None = None
) -> Aval:
    """The abstract value of `size` rows of `aval`, with the new axis sharded over explicit mesh axes."""
    if explicit_axes is None or not aval.sharding.mesh.empty:
        return _core.unmapped_aval(size, 0, aval, explicit_mesh_axis=explicit_axes)
    spec = jax.sharding.PartitionSpec(explicit_axes, *(None,) * aval.ndim)
    assert mesh is not None
    sharding = jax.sharding.NamedSharding(mesh.abstract_mesh, spec)
    return aval.update(shape=(size, *aval.shape), sharding=sharding)


def trace_to_jaxpr(
    fn: Callable[..., Sequence[Any]],
    avals: Sequence[Aval],
    *,
    name: str,
    axis_sizes: dict[str, int] | None = None,
    traced_for: str = "map_fn",
    source: Callable | None = None,
    arguments: Sequence[str] = (),
) -> tuple[ClosedJaxpr, list[Any]]:
    """Traces a flat function to a jaxpr without constants, and lists its closed-over values.

    The closed-over values become the leading arguments. `axis_sizes` lists the named axes over which `fn` may use
    collectives. JAX's errors state that `source`, with its file and line, was traced for `traced_for`, and use the
    names in `arguments`, one name per array.
    """
    described = (None if source is None else _api_util.fun_sourceinfo(source)) or name
    named = tuple(arguments) if len(arguments) == len(avals) else ("",) * len(avals)
    debug_info = _core.DebugInfo(traced_for, described, named, None)
    wrapped = _lu.wrap_init(fn, debug_info=debug_info)
    with _core.extend_axis_env_nd(list((axis_sizes or {}).items())):
        jaxpr, _, consts = _pe.trace_to_jaxpr_dynamic(wrapped, list(avals))
    jaxpr = _pe.convert_constvars_jaxpr(jaxpr)
    return ClosedJaxpr(jaxpr, ()), list(consts)


def argument_names(closed: ClosedJaxpr) -> tuple[str, ...]:
    """Names of the traced function's inputs, such as `params['w']`; empty for captured or unknown inputs."""
    names = tuple(name or "" for name in getattr(closed.jaxpr.debug_info, "arg_names", None) or ())
    count = len(closed.in_avals)
    return names if len(names) == count else ("",) * count


def drop_dead_code(jaxpr: ClosedJaxpr, used_outputs: Sequence[bool]) -> tuple[ClosedJaxpr, list[bool]]:
    """The jaxpr without the parts that only unused outputs need, and the inputs that are still used."""
    pruned, used_inputs = _pe.dce_jaxpr(jaxpr.jaxpr, list(used_outputs))
    return ClosedJaxpr(pruned, jaxpr.consts), list(used_inputs)


def drop_dead_equations(jaxpr: ClosedJaxpr) -> ClosedJaxpr:
    """The jaxpr without equations that no output needs; its inputs are unchanged."""
    pruned, _ = _pe.dce_jaxpr(jaxpr.jaxpr, [True] * len(jaxpr.out_avals), instantiate=True)
    return ClosedJaxpr(pruned, jaxpr.consts)


def drop_unused_outputs(jaxpr: ClosedJaxpr, used_outputs: Sequence[bool]) -> ClosedJaxpr:
    """The jaxpr without some outputs and the equations that only they need; its inputs are unchanged."""
    pruned, _ = _pe.dce_jaxpr(jaxpr.jaxpr, list(used_outputs), instantiate=True)
    return ClosedJaxpr(pruned, jaxpr.consts)


def register_dce(primitive: Primitive, rule: Callable) -> None:
    """Registers how an equation of `primitive` is pruned."""
    if jax.__version_info__ >= (0, 12):  # JAX 0.12 also passes the live inputs, which matter only for Refs
        _pe.dce_rules[primitive] = lambda used, _live, equation: rule(used, equation)  # pyright: ignore
    else:
        _pe.dce_rules[primitive] = rule


def register_discharge(primitive: Primitive, rule: Callable[..., Sequence[Any]]) -> None:
    """Registers how to remove the inner Refs of `primitive`'s equations that have no Ref operands."""
    if jax.__version_info__ >= (0, 11):  # one context instead of the types of inputs and outputs
        _discharge.register_discharge_rule(primitive)(
            lambda context, *operands, **params: ([None] * len(operands), rule(*operands, **params))  # pyright: ignore
        )
    else:
        _discharge.register_discharge_rule(primitive)(
            lambda in_avals, out_avals, *operands, **params: ([None] * len(operands), rule(*operands, **params))
        )


def without_refs(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The same jaxpr with its own Refs converted to values."""
    return _discharge.discharge_state(closed)


def is_float0(aval: Aval) -> bool:
    """Returns whether a tangent with this abstract value carries no information, as for integers."""
    return aval.dtype == jax.dtypes.float0


def new_equation(equation: JaxprEqn, **changes: Param) -> JaxprEqn:
    """A copy of a jaxpr equation with some parts changed."""
    return equation.replace(**changes)


def new_variable(variable: Var, aval: Aval) -> Var:
    """A jaxpr variable like the given one, but with a different type."""
    return variable if isinstance(variable, _core.DropVar) and variable.aval is aval else type(variable)(aval)


def renamed_effects(effects: Iterable[_core.Effect], variables: Mapping[Any, Any]) -> _core.Effects:
    """The effects of a jaxpr or equation, with the variables of its Ref effects replaced (JAX 0.10 to 0.12)."""

    def renamed(effect: _core.Effect) -> _core.Effect:
        if isinstance(effect, _effects.JaxprInputEffect) and effect.input in variables:
            return effect.replace(input=variables[effect.input])
        return effect

    kind: Foreign = type(effects)  # a set, or JAX's own ordered set
    return kind(renamed(effect) for effect in effects)


def varying_axes(aval: Foreign) -> frozenset[str]:
    """The axes of a `shard_map` over which a value differs according to its type."""
    kind = getattr(aval, "manual_axis_type", None)  # JAX 0.10; before, the attribute `vma`
    return frozenset(getattr(aval, "vma", ()) if kind is None else kind.varying)


def retyped_constant(value: Foreign, aval: Aval) -> object:
    """A jaxpr constant with a different type; needed because a traced constant's type keeps the mesh of its trace."""
    if type(value).__name__ != "TypedNdArray":  # JAX 0.10 and later
        return value
    try:
        return type(value)(np.asarray(value), aval)
    except TypeError:  # constructed differently in this JAX
        return value


def retyped_literal(literal: _core.Literal, aval: Aval) -> _core.Literal:
    """A jaxpr literal with a different type."""
    return type(literal)(retyped_constant(literal.val, aval), aval)


def context_under(context: JaxprEqnContext, mesh: jax.sharding.AbstractMesh) -> JaxprEqnContext:
    """The context of an equation, moved to another mesh."""
    none = jax.sharding.AbstractMesh((), ())  # intermediate step: JAX rejects a mesh of another size inside a mesh
    with context.manager, jax.sharding.use_abstract_mesh(none), jax.sharding.use_abstract_mesh(mesh):
        return JaxprEqnContext()


def zero_tangent(primal: object) -> ad.Zero:
    """A symbolic zero tangent for `primal`."""
    return ad.Zero(_core.typeof(primal).to_tangent_aval())


def zero_cotangent(aval: Aval) -> ad.Zero:
    """A symbolic zero cotangent for a linear input whose abstract value is `aval`."""
    return ad.Zero(aval.to_ct_aval())


def transpose_jaxpr(closed: ClosedJaxpr, operands: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
    """Pulls cotangents back through a jaxpr; its linear inputs are those that are None in `operands`.

    None means a zero cotangent, both in `cotangents` and in the result, which has one entry per linear input.
    """
    linear = [x is None for x in operands]
    primals = [
        ad.UndefinedPrimal(v.aval.to_ct_aval()) if x is None else x
        for v, x in zip(closed.jaxpr.invars, operands, strict=True)
    ]
    pushed = [
        zero_cotangent(v.aval) if ct is None else ct for v, ct in zip(closed.jaxpr.outvars, cotangents, strict=True)
    ]
    pulled = _ad.backward_pass(closed.jaxpr, True, closed.consts, primals, pushed)
    linear_cotangents = [ct for ct, is_linear in zip(pulled, linear, strict=True) if is_linear]
    return [None if isinstance(ct, ad.Zero) else ct for ct in linear_cotangents]


def changed_operation(value: object, change: Callable[[Any], Any]) -> object:
    """A copy of an operation object (JAX 0.12: `jnp.nonzero`) with changed attributes; returns other values unchanged.

    The attributes of such an object hold its parameters, and the types of its operands and results.
    """
    kind = getattr(_hijax, "HiPrim", None) or getattr(_hijax, "VJPHiPrimitive", ())
    if not isinstance(value, kind):
        return value
    clone = copy.copy(value)
    clone.__dict__.update({name: change(attribute) for name, attribute in vars(value).items()})
    return clone


def is_of_equinox(equation: JaxprEqn) -> bool:
    """Returns whether an equation has a primitive of Equinox (used in Lineax, Optimistix), whose parameters hide types.

    Inside a `shard_map`, the hidden types differ from the types of the operands, and Lineax rejects them.
    """
    params = dict(equation.params)
    params.update(params.get("params", ()) if "prim" in params else ())  # `vmap` over such a primitive
    return {"treedef", "static", "flatten"} <= params.keys()


def expanded(equation: JaxprEqn) -> JaxprEqn:
    """The operations of an equation as a `jax.jit` call, traced under the equation's own mesh."""
    primitive, params = equation.primitive, equation.params
    none = jax.sharding.AbstractMesh((), ())  # intermediate step: JAX rejects a mesh of another size inside a mesh
    mesh = equation.ctx.cur_abstract_mesh

    def results(*values: Foreign) -> Sequence[Any]:
        outputs = primitive.impl(*values, **params)
        return outputs if primitive.multiple_results else [outputs]

    with jax.sharding.use_abstract_mesh(none), jax.sharding.use_abstract_mesh(mesh):
        closed, closed_over = trace_to_jaxpr(results, [v.aval for v in equation.invars], name=primitive.name)
        if closed_over:
            closed = close_over(closed, closed_over)
        closed = _without_guards(closed)
        call = jax.make_jaxpr(jax.jit(jaxpr_as_fun(closed)))(*closed.in_avals).eqns[0]
    return equation.replace(primitive=call.primitive, params={**call.params, "jaxpr": closed}, effects=closed.effects)


def _without_guards(closed: ClosedJaxpr) -> ClosedJaxpr:
    """The jaxpr without Equinox's `nontraceable`, an identity that rejects all transformations."""
    aliases: dict[Any, Any] = {}
    equations = []
    for equation in closed.jaxpr.eqns:
        operands = [aliases.get(v, v) if isinstance(v, Var) else v for v in equation.invars]
        if equation.primitive.name == "nontraceable":
            aliases[equation.outvars[0]] = operands[0]
        else:
            equations.append(equation.replace(invars=operands))
    outputs = [aliases.get(v, v) if isinstance(v, Var) else v for v in closed.jaxpr.outvars]
    return ClosedJaxpr(closed.jaxpr.replace(eqns=equations, outvars=outputs), closed.consts)


def user_frames(equation_source: _source_info.SourceInfo) -> tuple[tuple[str, int, int, int, int, str], ...]:
    """User frames of a source_info, innermost first: file, line, column, end line, end column, function.

    JAX omits its own frames; the caller must omit the frames of this package.
    """
    return _frames_of(equation_source.traceback)


@functools.lru_cache(maxsize=1024)  # cached, because operations on one line are queried one after another
def _frames_of(traceback: Foreign) -> tuple[tuple[str, int, int, int, int, str], ...]:
    return tuple(
        (f.file_name, f.start_line, f.start_column, f.end_line, f.end_column, f.function_name)
        for f in _source_info.user_frames(traceback)
    )


@contextlib.contextmanager
def source_of(equation: JaxprEqn, *, mesh: bool = True) -> Iterator[None]:
    """Assigns the source lines, name scope and mesh context of `equation` to operations in the block."""
    stack = _source_info.current_name_stack() + equation.source_info.name_stack
    with (
        _source_info.user_context(equation.source_info.traceback, name_stack=stack),
        equation.ctx.manager if mesh else contextlib.nullcontext(),
    ):
        yield


def bind_equation(equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
    """Runs one equation of a jaxpr on values; always returns a list."""
    results = equation.primitive.bind(*operands, **equation.primitive.get_bind_params(equation.params))
    return list(results) if equation.primitive.multiple_results else [results]


def scan_counts(params: Mapping[str, Any]) -> tuple[int, int]:
    """Numbers of constant and carried operands of a `scan`; the remaining operands are sliced."""
    if "ft_in" in params:  # JAX 0.11
        consts, carries, _ = (len(part) for part in params["ft_in"].unpack())
        return consts, carries
    return params["num_consts"], params["num_carry"]


def inner_jaxprs(equation: JaxprEqn) -> list[Any]:
    """The jaxprs among the parameters of an equation."""
    return list(_core.jaxprs_in_params(equation.params))


def uses_named_axes(jaxpr: Jaxpr | ClosedJaxpr) -> bool:
    """Returns whether a jaxpr communicates across a named axis (`jax.lax.psum(x, "clients")`)."""
    if any(isinstance(effect, _core.NamedAxisEffect) for effect in jaxpr.effects):
        return True
    return bool(_named_axes(getattr(jaxpr, "jaxpr", jaxpr)))


def once_per_jaxpr(fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Caches the result of `fn` for an open jaxpr as long as the jaxpr is alive.

    JAX's own `weakref_lru_cache` rejects a jaxpr permanently if Ctrl-C interrupted its first call.
    """
    answers: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    @functools.wraps(fn)
    def remembered(jaxpr: Any) -> Any:
        try:
            return answers[jaxpr]
        except KeyError:
            answers[jaxpr] = answer = fn(jaxpr)
            return answer

    return remembered


@once_per_jaxpr
def _named_axes(jaxpr: Jaxpr | ClosedJaxpr) -> set[str]:
    """Axes of collectives, excluding those of an inner `shard_map`.

    The effects of the jaxpr are not enough: in JAX 0.10, `ppermute` has no effect.
    """
    axis_names: set[str] = set()
    for equation in jaxpr.eqns:
        names = equation.params.get("axis_name") or ()
        axis_names |= {name for name in (names if isinstance(names, tuple) else (names,)) if isinstance(name, str)}
        inner = set().union(*map(_named_axes, inner_jaxprs(equation)))
        axis_names |= inner - set(equation.params.get("newly_manual_axes", ()))
    return axis_names


def compilation_key(lowered: jax.stages.Lowered) -> str | None:
    """The cache key of a compilation, except for the program's text; None for programs with callbacks."""
    arguments = lowered._lowering.compile_args  # pyright: ignore[reportAttributeAccessIssue]
    tied = ("host_callbacks", "keepalive", "ordered_effects", "unordered_effects", "mut")
    if any(arguments.get(name) for name in tied):
        return None
    shardings = [*arguments["in_shardings"], *arguments["out_shardings"]]
    devices = [[device.id for device in getattr(s, "_device_assignment", ())] for s in shardings]
    options = getattr(lowered._lowering, "_compiler_options_kvs", None)
    parts = (shardings, devices, arguments["backend"], options, jax.config.jax_default_device)  # pyright: ignore
    return repr((*parts, lowered.in_tree, lowered.out_tree))


def results_of(stage: jax.stages.Lowered | jax.stages.Compiled, compiled: jax.stages.Compiled) -> tuple[Any, Any]:
    """The shapes and the shardings of a program's results, without the final values of references.

    `out_info` and `output_shardings` raise an error if an argument is a `jax.Ref`: the program also returns the values
    of references, after the results in its tree. Requires that a `Compiled` keeps them in `_executable` (0.10 to 0.12).
    """
    try:
        return stage.out_info, compiled.output_shardings
    except ValueError:
        tree, executable = compiled.out_tree, compiled._executable
        both = executable.out_avals, executable._out_shardings  # pyright: ignore[reportAttributeAccessIssue]
        shapes, shardings = (jax.tree.unflatten(tree, list(leaves)[: tree.num_leaves]) for leaves in both)
        return shapes, shardings


def has_ordered_effects(jaxpr: Jaxpr | ClosedJaxpr) -> bool:
    """Returns whether a jaxpr has ordered effects."""
    return any(_effects.ordered_effects.contains(effect) for effect in jaxpr.effects)


def is_ready(array: Foreign) -> bool:
    """Returns whether an array has been computed, without waiting."""
    return array.is_ready()


def key_implementation(dtype: Foreign) -> str:
    """The name of the generator to which PRNG keys of this dtype belong."""
    return dtype._impl.name


def has_manual_axes() -> bool:
    """Returns whether the code runs inside a `shard_map`."""
    mesh = jax.sharding.get_abstract_mesh()
    return not mesh.empty and jax.sharding.AxisType.Manual in mesh.axis_types


def pretty_jaxpr(jaxpr: Jaxpr, *, source: bool = False, most: int | None = None) -> str:
    """A jaxpr as text, optionally with the source line of each equation."""
    shown, budget = len(jaxpr.eqns), most
    if budget is not None:
        for index, equation in enumerate(jaxpr.eqns):
            budget -= 1 + _equations_inside(equation, budget)
            if budget < 0 and index:
                shown = index
                break
    written = jaxpr if shown == len(jaxpr.eqns) else jaxpr.replace(eqns=jaxpr.eqns[:shown])
    text = written.pretty_print(source_info=source, print_shapes=True, use_color=False)
    return text if written is jaxpr else f"{text}\n# and {len(jaxpr.eqns) - shown:,} more equations"


def _equations_inside(equation: JaxprEqn, most: int) -> int:
    """Counts the equations in the jaxprs that an equation contains, up to `most`."""
    count, pending = 0, list(_core.jaxprs_in_params(equation.params))
    while pending and count <= most:
        inner = pending.pop()
        count += len(inner.eqns)
        pending.extend(body for e in inner.eqns for body in _core.jaxprs_in_params(e.params))
    return count


def close_over(closed: ClosedJaxpr, values: Sequence[Any]) -> ClosedJaxpr:
    """Fixes the leading inputs of a jaxpr to `values`."""
    attach = getattr(closed, "with_consts", None)
    if attach is not None:  # JAX 0.11 passes constants as values of the first inputs
        return attach(list(values))
    return ClosedJaxpr(_pe.convert_invars_to_constvars(closed.jaxpr, len(values)), list(values))


def sub_jaxpr(equations: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], name: str) -> ClosedJaxpr:
    """Some equations of a jaxpr, as a separate jaxpr."""
    debug_info = _core.DebugInfo("map_fn", name, ("",) * len(inputs), ("",) * len(outputs))
    effects = frozenset().union(*(equation.effects for equation in equations)) if equations else frozenset()
    effects = frozenset(e for e in effects if not isinstance(e, _effects.JaxprInputEffect) or e.input in inputs)
    return ClosedJaxpr(_core.Jaxpr((), list(inputs), list(outputs), list(equations), effects, debug_info), ())


class _EmitEffect(_effects.Effect):
    """Keeps `emit` equations alive although they have no outputs."""

    def __repr__(self) -> str:
        return "Emit"


EMIT_EFFECT = _EmitEffect()
for _allowed in (
    _effects.lowerable_effects,
    _effects.control_flow_allowed_effects,
    _effects.remat_allowed_effects,
    _effects.custom_derivatives_allowed_effects,
):
    _allowed.add_type(_EmitEffect)


def emits(jaxpr: Jaxpr | ClosedJaxpr) -> bool:
    """Returns whether a jaxpr contains an `emit` at any depth."""
    return EMIT_EFFECT in jaxpr.effects


def is_jitted(fn: object) -> TypeGuard[jax.stages.Wrapped]:
    """Returns whether a function is a result of `jax.jit`."""
    return callable(fn) and hasattr(fn, "_jit_info") and callable(getattr(fn, "trace", None))


def static_arguments(jitted: Foreign, count: int) -> tuple[frozenset[int], frozenset[str]]:
    """The positions (out of `count` arguments) and the names of a jitted function's static arguments."""
    info = jitted._jit_info
    positions = (position + count if position < 0 else position for position in info.static_argnums)
    return frozenset(positions), frozenset(info.static_argnames)


def keeps_results(fn: Any) -> bool:
    """Returns whether `fn` wraps a function whose results it returns: `jax.shard_map` or `jax.checkpoint`.

    Requires: the names of the inner functions of these transformations.
    """
    if not hasattr(fn, "__wrapped__"):
        return False
    try:
        wrappers = [cell.cell_contents for cell in fn.__closure__ or ()]
    except (AttributeError, ValueError):  # no function, or an empty cell
        return False
    names = {wrapper.__code__.co_name for wrapper in wrappers if inspect.isfunction(wrapper)}
    return not names.isdisjoint(("wrapped", "fun_remat"))


def is_pmapped(fn: object) -> bool:
    """Returns whether a function is a result of `jax.pmap`."""
    return getattr(getattr(fn, "lower", None), "__module__", "") == "jax._src.pmap"


def pmapped(
    fn: object, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[jax.stages.Wrapped, tuple[Any, ...]] | None:
    """The jitted `shard_map` of one `jax.pmap` call, and its flat arguments; None for other functions.

    The stages of `fn.lower` hide the traced function, and `pmap` has no `trace`.
    """
    lower = getattr(fn, "lower", None)
    names = getattr(getattr(lower, "__code__", None), "co_freevars", ())
    if getattr(lower, "__module__", "") != "jax._src.pmap" or "infer_params" not in names:
        return None
    closure = getattr(lower, "__closure__", None) or ()
    _, jitted, flat, *_ = closure[names.index("infer_params")].cell_contents(*args, **kwargs)
    return (jitted, tuple(flat)) if is_jitted(jitted) else None


def jit_options(traced: jax.stages.Traced) -> dict[str, Any]:
    """The options of the jit that traced a function, one entry per array; unspecified shardings are None."""
    params = traced._params

    def specified(shardings: Sequence[object]) -> list[Any]:
        return [None if isinstance(s, _sharding_impls.UnspecifiedValue) else s for s in shardings]  # pyright: ignore

    return {
        "in_shardings": specified(params["in_shardings"]),
        "out_shardings": specified(params["out_shardings"]),
        "donated": list(params["donated_invars"]),
        "keep_unused": params["keep_unused"],
        "compiler_options": dict(params["compiler_options_kvs"]),
    }


def context_mesh(traced: jax.stages.Traced) -> AnyMesh | None:
    """The mesh from `jax.set_mesh` under which a function was traced; None if there was none."""
    mesh = traced._params["ctx_mesh"]
    return None if mesh.empty else mesh


def jaxlib_version() -> str:
    """The version of jaxlib."""
    return jaxlib.__version__  # pyright: ignore[reportPrivateImportUsage]


def hlo_of_proto(data: bytes) -> str | None:
    """The text of a serialised HLO module (an `HloModuleProto`, or the `HloProto` around it); None for other bytes."""
    for read in (_hlo.HloModule.from_serialized_hlo_module_proto, _from_hlo_proto):
        try:
            text = read(data).to_string()
        except Exception:  # XLA raises its own exception types
            continue
        if text.startswith("HloModule") and "ENTRY" in text:
            return text
    return None


def _from_hlo_proto(data: bytes) -> _hlo.HloModule:
    """Reads field 1, the module, of an `HloProto` (as written by `xla_dump_hlo_as_proto`)."""
    if data[:1] != b"\x0a":
        message = "no HloProto"
        raise ValueError(message)
    length, shift, position = 0, 0, 1
    while True:
        byte = data[position]
        length |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            break
    return _hlo.HloModule.from_serialized_hlo_module_proto(data[position : position + length])


def stablehlo_of_bytecode(data: bytes) -> str | None:
    """The text of StableHLO bytecode, whether portable or not; None for other bytes."""
    if not data.startswith(b"ML\xefR"):
        return None
    for read in (_stablehlo.deserialize_portable_artifact_str, None):
        try:
            with _mlir.make_ir_context():
                text = data if read is None else read(data)
                return str(_ir.Module.parse(text).operation.get_asm(enable_debug_info=True))
        except Exception:  # MLIR raises its own exception types, which differ between versions
            continue
    return None


def named_sharding(sharding: jax.sharding.Sharding, mesh: AnyMesh | None) -> jax.sharding.Sharding:
    """Converts a compiler's sharding without axis names to a sharding over the axes of `mesh`, if possible."""
    hlo = getattr(sharding, "_hlo_sharding", None)
    if mesh is None or hlo is None:
        return sharding
    try:
        (spec,) = _sharding_impls.parse_flatten_op_sharding(hlo, mesh)
    except (ValueError, AssertionError, NotImplementedError, KeyError, IndexError):
        return sharding
    return jax.sharding.NamedSharding(mesh, spec)
