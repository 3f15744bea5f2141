"""One call of a function, traced once: its jaxpr, its arrays, and its compilation on any mesh.

Functions with a `trace` or `lower` method (`jax.jit`, `nnx.jit`, `eqx.filter_jit`, `wb.jit`) are traced through that
method. Shardings, donation and static arguments are then the same as in the program that runs.
"""

import contextlib
import dataclasses
import functools
import inspect
import re
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol, TypeAlias, TypeGuard

import jax
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec
from jax.stages import Wrapped

from workbench import _jax_compat
from workbench._open_types import Option
from workbench._types import AnyMesh, Argument, PyTree, PyTreeDef
from workbench.errors import InspectionError
from workbench.inspection._call_tree._jaxpr import read_jaxpr_tree
from workbench.inspection._compiled_shardings import Spec
from workbench.inspection._retarget import RebaseError, mesh_of_program, retarget
from workbench.mesh import check_axis_names
from workbench.plan import (
    ChunkSize,
    Jitted,
    LoopForm,
    Plan,
    TunedJitted,
    choose_loop,
    evaluate,
    holds_clients,
    plan_jaxpr,
)
from workbench.primitives import planned
from workbench.records import Record
from workbench.records.call_tree import CallTreeRecord
from workbench.records.program import PlanChoiceRecord

Stage: TypeAlias = Any  # `jax.stages.Traced`, which is generic over types that JAX does not export
_NO_MESH = AbstractMesh((), ())


class Inspected(ABC):
    """A traced call, which can be passed in place of a function, with the same options."""

    @abstractmethod
    def inspect(self) -> Record:
        """The record of the call."""


class Wrapper(Protocol):
    """A function with a `lower` method, as returned by `jax.pmap`, `nnx.jit` and `eqx.filter_jit`."""

    def __call__(self, *args: Argument, **kwargs: Argument) -> Argument: ...
    def lower(self, *args: Argument, **kwargs: Argument) -> jax.stages.Lowered: ...


class TracedCall:
    """A traced call, whose jaxpr is `closed`; `args` and `kwargs` hold None for static arguments.

    Attributes:
        name: Name of the function.
        fn: The function as the caller passed it.
        stage: Result of JAX's `trace`, if the mesh that was current during tracing is still the current mesh.
        mesh: The mesh that the function was traced under; None without a mesh.
        chunk_size: The `chunk_size` of `wb.jit`; "auto" for plain functions, and None (all clients at once) for other
            jitted functions.
        notes: Notes for the records made from this call.
    """

    def __init__(
        self,
        fn: Callable[..., Argument],
        stage: Stage,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        *,
        chunk_size: ChunkSize,
        form: LoopForm | None = None,
        mesh: AnyMesh | None,
        again: Callable[..., "TracedCall"] | None = None,
        given: tuple[tuple[Argument, ...], dict[str, Argument]] = ((), {}),
        wrapped: Callable | None = None,
        finish: Callable[[Argument], Argument] | None = None,
    ) -> None:
        self.fn: Callable = fn
        self.stage: Stage = stage
        self.args: tuple[Argument, ...] = args
        self.kwargs: dict[str, Argument] = kwargs
        self.name: str = function_name(fn)
        self.chunk_size: ChunkSize = chunk_size
        self.form: LoopForm = form or LoopForm()
        self.mesh = mesh
        self.choice: PlanChoiceRecord | None = None  # set for a tuned program
        self.notes: tuple[str, ...] = ()
        self.closed: ClosedJaxpr = stage.jaxpr
        self.out_tree: PyTreeDef = stage.out_tree
        self.finish: Callable[[Argument], Argument] = finish or (
            lambda results: results
        )  # the compiled program's result -> the result of the user's function
        self.holds_clients: bool = holds_clients(self.closed)
        self._wrapped = wrapped or fn  # the function whose parameters the arguments are bound to
        self._again, self._arguments = again, given  # a function that traces the call again, and its arguments
        self.result_name: Callable[[str], str] = "result{}".format  # path of a result -> the user's name for the result
        self._versions: dict[Any, Version] = {}
        self._is_rewritten = False
        self.result_specs: dict[int, Spec] = {}  # by position, in place of the jit's `out_shardings`
        self.references: tuple[int, ...] = ()  # leaves that are references in the user's program, and arrays here

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """One name per array in the arguments, as written inside the function, such as `params['w']`."""
        arg_names = getattr(self.closed.jaxpr.debug_info, "arg_names", None) or ()
        count = len(self.closed.in_avals)
        names = [name or f"args[{i}]" for i, name in enumerate(arg_names)] if len(arg_names) == count else ()
        return tuple(names) or tuple(f"args[{i}]" for i in range(count))

    @property
    def parameters(self) -> Callable[..., Argument]:
        """The function to whose parameters `args` are bound."""
        return self._wrapped

    @property
    def stage_args(self) -> tuple[tuple[Argument, ...], dict[str, Argument]]:
        """The arguments in the form that the program compiled from `stage` accepts."""
        return jax.tree.unflatten(self.stage.in_tree, self.leaves)

    @property
    def donations(self) -> dict[str, Argument]:
        """The options `donate_argnums` and `donate_argnames` of the jit."""
        structure = jax.tree.structure((self.args, self.kwargs))
        args, kwargs = jax.tree.unflatten(structure, _jax_compat.jit_options(self.stage)["donated"])
        return {
            "donate_argnums": tuple(i for i, arg in enumerate(args) if any(jax.tree.leaves(arg))),
            "donate_argnames": tuple(name for name, arg in kwargs.items() if any(jax.tree.leaves(arg))),
        }

    @property
    def leaves(self) -> list[Any]:
        """The arrays in the arguments."""
        return jax.tree.leaves((self.args, self.kwargs))

    @property
    def reference_leaves(self) -> tuple[int, ...]:
        """Positions of the leaves that are references (`jax.Ref`), which the program updates in place."""
        return tuple(i for i, aval in enumerate(self.closed.in_avals) if hasattr(aval, "inner_aval"))

    def form_for(self, chunk_size: ChunkSize) -> LoopForm:
        """The client loop as compiled; for another chunk size, a loop with the same spread."""
        return self.form if chunk_size == self.chunk_size else LoopForm(self.form.spread)

    def read_choice(self) -> PlanChoiceRecord:
        """Client-loop configuration on the mesh of this call, and the reason for the choice."""
        if self.choice is not None:
            return self.choice
        version = self.under(current_mesh() or self.mesh)
        with on_mesh(version.mesh):
            return choose_loop(version.plan, self.chunk_size, self.form, program=self.name)

    def read_tree(self) -> CallTreeRecord:
        """The call tree, without compiling."""
        return read_jaxpr_tree(self.closed, name=self.name)

    def under(self, mesh: AnyMesh | None) -> "Version":
        """The program under a mesh, from a rewritten jaxpr or, if rewriting is impossible, from a new trace."""
        key = (mesh, None if mesh is None else tuple(mesh.axis_types))
        if key not in self._versions:
            self._versions[key] = self._version(mesh)
        return self._versions[key]

    def _version(self, mesh: AnyMesh | None) -> "Version":
        if mesh == self.mesh and _types(mesh) == _types(self.mesh):
            return Version(self, self.closed, mesh, None if self._is_rewritten else self.stage)
        there = _abstract(mesh)
        if there == _abstract(self.mesh) and there.axis_types == _abstract(self.mesh).axis_types:
            if not isinstance(mesh, AbstractMesh) or mesh_of_program(self.closed) is None:
                return Version(self, self.closed, mesh, None)  # the same mesh over other devices, or without devices
        try:
            return Version(self, retarget(self.closed, there), mesh, None)
        except RebaseError as error:
            if self._again is None:
                raise InspectionError(self._other_mesh(error)) from error
            try:
                with on_mesh(mesh):
                    call_again = self._again(*self._arguments)
            except ValueError as refused:
                program_mesh = mesh_of_program(self.closed)
                if program_mesh is None:
                    raise
                raise InspectionError(self._own_mesh(program_mesh, there)) from refused
            note = f"the function was traced a second time, inside the other mesh: {error}"
            return Version(call_again, call_again.closed, mesh, call_again.stage, notes=(note,))

    def _own_mesh(self, program_mesh: AnyMesh, there: AbstractMesh) -> str:
        kinds = program_mesh.shape == there.shape  # the same axes, but a different mesh
        fixed, choice = (
            ("its axis types", "a mesh of the same") if kinds else ("its devices", f"{program_mesh.size} devices")
        )
        types = [
            f" with axes {', '.join(kind.name for kind in mesh.axis_types)}" * kinds for mesh in (there, program_mesh)
        ]
        return (
            f"`{self.name}` cannot be inspected on the mesh {_shape(there)}{types[0]}, because the function enters a "
            f"`jax.shard_map` over the mesh {_shape(program_mesh)}{types[1]}. A mesh passed to `shard_map` fixes "
            f"{fixed}. Choose {choice}, or omit `mesh=` in `shard_map`, which then uses the mesh of `jax.set_mesh`."
        )

    def _other_mesh(self, error: Exception) -> str:
        return (
            f"`{self.name}` was given as a program that was already traced under the mesh {_shape(self.mesh)}: {error} "
            "A traced program can be inspected on another mesh only if the program itself does not specify a mesh: "
            "pass the function."
        )

    @functools.cached_property
    def replayed(self) -> Callable[..., Argument]:
        """A function of `args` and `kwargs` that evaluates the traced equations under the current mesh."""

        @functools.wraps(self._wrapped)
        def program(*args: Argument, **kwargs: Argument) -> Argument:
            version = self.under(current_mesh())
            return version.call(args, kwargs)

        program.__name__ = self.name
        return program

    def rewritten(self, closed: ClosedJaxpr) -> "TracedCall":
        """The same call with different equations for the same inputs and results; valid on the call's mesh only."""
        copy = self._copy()
        copy.closed, copy._again, copy._is_rewritten = closed, None, True
        return copy

    def with_results(self, specs: Mapping[int, Spec]) -> "TracedCall":
        """The same call with other specs of some results, by position."""
        copy = self._copy()
        copy.result_specs, copy._is_rewritten = {**self.result_specs, **specs}, True
        return copy

    def with_one_chunk_at_once(self) -> "TracedCall":
        """The same call with one chunk per client-loop iteration, so that clients can be distinguished."""
        if self.form.unroll == 1:
            return self
        copy = self._copy()
        copy.form = dataclasses.replace(self.form, unroll=1)
        return copy

    def _copy(self) -> "TracedCall":
        copy: TracedCall = object.__new__(TracedCall)
        copy.__dict__.update(self.__dict__)
        copy.__dict__.pop("replayed", None)
        copy._versions = {}
        return copy

    def with_shapes(self) -> "TracedCall":
        """The same call with shapes instead of arrays, so that it keeps no array alive."""
        copy = self._copy()
        copy.args, copy.kwargs = jax.tree.map(as_shape, (self.args, self.kwargs))
        copy._arguments = jax.tree.map(as_shape, self._arguments)
        return copy

    def without_references(self) -> "TracedCall":
        """The same call with an array for each `jax.Ref` among its arguments.

        The final values of the references are returned after the other results. The arrays are donated, because a
        reference is updated in place. Each leaf is a separate argument.
        """
        at = self.reference_leaves
        if not at:
            return self
        closed, structure = self.closed, self.out_tree

        def program(*values: Argument) -> Argument:
            references = {i: jax.new_ref(values[i]) for i in at}
            results = jaxpr_as_fun(closed)(*[references.get(i, value) for i, value in enumerate(values)])
            return jax.tree.unflatten(structure, results), tuple(ref[...] for ref in references.values())

        program.__name__ = self.name
        leaves = [as_shape(leaf) if i not in at else _shape_of_reference(leaf) for i, leaf in enumerate(self.leaves)]
        jit_options = _jax_compat.jit_options(self.stage)
        donated = (*at, *(i for i, is_donated in enumerate(jit_options["donated"]) if is_donated))
        options: dict[str, Argument] = {"donate_argnums": donated, "keep_unused": jit_options["keep_unused"]}
        if any(sharding is not None for sharding in jit_options["out_shardings"]):
            options["out_shardings"] = jax.tree.unflatten(structure, jit_options["out_shardings"]), None
        with on_mesh(self.mesh):
            call = _trace_jitted(self.fn, jax.jit(program, **options), tuple(leaves), {}, self.mesh)
        call.name, call.names, call.references = self.name, self.names, at
        call.chunk_size, call.form, call.choice = self.chunk_size, self.form, self.choice
        return call


def _shape_of_reference(leaf: Argument) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=getattr(leaf, "sharding", None))


class Version:
    """A call under one mesh."""

    def __init__(
        self,
        call: TracedCall,
        closed: ClosedJaxpr,
        mesh: AnyMesh | None,
        stage: Stage | None,
        notes: tuple[str, ...] = (),
    ) -> None:
        self.of: TracedCall = call
        self.closed: ClosedJaxpr = closed
        self.mesh: AnyMesh | None = mesh
        self.stage: Stage | None = stage
        self.notes: tuple[str, ...] = notes
        self.known: dict[Any, Any] = {}  # compiled programs, keyed by chunk size

    @functools.cached_property
    def plan(self) -> Plan:
        """The stages of the program on this mesh."""
        with on_mesh(self.mesh):
            return plan_jaxpr(self.closed, self.of.name)

    def call(self, args: object, kwargs: object) -> PyTree[Array]:
        """The results of the traced equations."""
        results = jaxpr_as_fun(self.closed)(*jax.tree.leaves((args, kwargs)))
        return jax.tree.unflatten(self.of.out_tree, results)

    def jitted(self, chunk_size: ChunkSize, *, shardings: bool = True, **options: Option) -> Wrapped:
        """Returns the `jax.jit` of the call's function, evaluated in stages if it has clients."""
        call, plan = self.of, self.plan

        @functools.wraps(call._wrapped)
        def program(*args: Argument, **kwargs: Argument) -> Argument:
            if not call.holds_clients:
                return self.call(args, kwargs)
            values = evaluate(
                plan, jax.tree.leaves((args, kwargs)), chunk_size=chunk_size, form=call.form_for(chunk_size)
            )
            return jax.tree.unflatten(call.out_tree, values)

        program.__name__ = call.name
        return jax.jit(program, **{**self._options(shardings), **options})

    def _options(self, shardings: bool) -> dict[str, Argument]:
        """The options passed to the user's own jit."""
        options_of_jit = _jax_compat.jit_options(self.of.stage)
        structure = jax.tree.structure((self.of.args, self.of.kwargs))
        options: dict[str, Argument] = {"keep_unused": options_of_jit["keep_unused"]}
        options |= self.of.donations
        if options_of_jit["compiler_options"]:
            options["compiler_options"] = options_of_jit["compiler_options"]
        if shardings and any(s is not None for s in options_of_jit["in_shardings"]) and not self.of.kwargs:
            moved = [self._moved(sharding) for sharding in options_of_jit["in_shardings"]]
            options["in_shardings"] = jax.tree.unflatten(structure, moved)[0]
        if self.of.result_specs or any(s is not None for s in options_of_jit["out_shardings"]):
            moved = [self._moved(sharding) for sharding in options_of_jit["out_shardings"]]
            mesh = self.mesh or mesh_of_values([*moved, *self.of.leaves])
            if mesh is not None:
                for at, spec in self.of.result_specs.items():
                    moved[at] = NamedSharding(mesh, PartitionSpec(*(tuple(axes) or None for axes in spec)))
            options["out_shardings"] = jax.tree.unflatten(self.of.out_tree, moved)
        return options

    def _moved(self, sharding: object) -> PyTree[Array]:
        """A sharding from the user's jit, on this mesh."""
        if not isinstance(sharding, NamedSharding) or self.mesh is None or sharding.mesh == self.mesh:
            return sharding
        axes = {axis for entry in sharding.spec for axis in ((entry,) if isinstance(entry, str) else entry or ())}
        return NamedSharding(self.mesh, sharding.spec) if axes <= set(self.mesh.axis_names) else None


class LoweredCall:
    """A call without a jaxpr, such as a `Lowered`, a `Compiled` or a `pmap`; only lowered or compiled code exists."""

    def __init__(
        self,
        name: str,
        program: jax.stages.Lowered | jax.stages.Compiled,
        args: tuple[Argument, ...] = (),
        kwargs: dict[str, Argument] | None = None,
    ) -> None:
        self.name: str = name
        self.program: jax.stages.Lowered | jax.stages.Compiled = program
        self.args: tuple[Argument, ...] = args
        self.kwargs: dict[str, Argument] = kwargs or {}


def trace_call(
    fn: Callable[..., Argument],
    args: tuple[Argument, ...],
    kwargs: Mapping[str, Argument],
    mesh: AnyMesh | None = None,
    *,
    as_run: bool = False,
) -> TracedCall | LoweredCall:
    """Traces one call of a function once, through its `trace` or `lower` method if it has one.

    Args:
        fn: Any callable.
        args: Arrays, `jax.ShapeDtypeStruct`s, and pytrees of them; all other leaves are kept constant.
        kwargs: Keyword arguments, with the same types of leaves.
        mesh: Mesh to trace the function under; by default the current mesh. A function that enters a `shard_map` over
            its own mesh is traced without `mesh`; `inspect` then rewrites the program for `mesh`.
        as_run: Whether to use JAX's own trace of a call that has just run, even if its source lines may come from an
            older version of the file.
    """
    if inspect.isgeneratorfunction(inspect.unwrap(fn)):
        message = (
            f"`trace` received the generator function `{function_name(fn)}`. Calling a generator function runs none "
            "of its body, so there is nothing to trace. Return the values as a tuple, or loop inside `jax.lax.scan`."
        )
        raise TypeError(message)
    with contextlib.nullcontext() if as_run else _jax_compat.apart_from_disk_cache():
        try:
            return _trace_on(fn, args, kwargs, mesh)
        except ValueError as refused:
            if mesh is None or "should match the mesh passed to shard_map" not in str(refused):
                raise
            return _trace_on(fn, args, kwargs, None)


def _trace_on(
    fn: Callable[..., Argument], args: tuple[Argument, ...], kwargs: Mapping[str, Argument], mesh: AnyMesh | None
) -> TracedCall | LoweredCall:
    if mesh is not None:  # an array on another mesh cannot enter a trace under this mesh, but its shape can
        args, kwargs = jax.tree.map(lambda x: _moved(x, mesh), (args, dict(kwargs)))
    with on_mesh(mesh):
        current = mesh if mesh is not None else current_mesh()
        fn, args, kwargs = _bound(fn, args, dict(kwargs))
        if isinstance(fn, TunedJitted):
            fn = fn.chosen_for(args, kwargs)
        if isinstance(fn, Jitted):
            call = _trace_plain(fn.fn, args, kwargs, current, chunk_size=fn.chunk_size, options=fn.options)
            call.form, call.choice = fn.form, fn.plan_choice
            return call
        if _jax_compat.is_jitted(fn):
            return _trace_jitted(fn, fn, args, kwargs, current)
        if _lowers(fn):
            parts = _jax_compat.pmapped(fn, args, kwargs)
            if parts is not None:
                return _trace_pmapped(fn, *parts, args, kwargs, current)
            return _trace_wrapper(fn, args, kwargs, current)
        nnx = sys.modules.get("flax.nnx")
        if nnx is not None and _holds(nnx, (args, kwargs)):  # plain functions may update their modules
            call = _trace_wrapper(nnx.jit(fn), args, kwargs, current)
            call.name = function_name(fn)
            return call
        return _trace_plain(fn, args, kwargs, current)


def _moved(x: PyTree[Array], mesh: AnyMesh) -> PyTree[Array]:
    """Replaces an array on a mesh of a different size with a shape that has the same spec on this mesh."""
    placed = isinstance(x, jax.Array | jax.ShapeDtypeStruct) and not isinstance(x, Tracer)
    sharding = x.sharding if placed else None  # pyright: ignore[reportAttributeAccessIssue]
    if not isinstance(sharding, NamedSharding) or dict(sharding.mesh.shape) == dict(mesh.shape):
        return x
    axes = {axis for entry in sharding.spec for axis in ((entry,) if isinstance(entry, str) else entry or ())}
    new_sharding = NamedSharding(mesh, sharding.spec) if axes <= set(mesh.axis_names) else None
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=new_sharding, weak_type=_is_weak(x))


def call_of_traced(traced: Stage) -> TracedCall:
    """The call that belongs to `traced`, a trace made by JAX."""
    shapes = [jax.ShapeDtypeStruct(info.shape, info.dtype) for info in jax.tree.leaves(traced.args_info)]
    shardings = _jax_compat.jit_options(traced)["in_shardings"]
    placed = [
        shape if sharding is None else shape.update(sharding=sharding)
        for shape, sharding in zip(shapes, shardings, strict=True)
    ]
    args, kwargs = jax.tree.unflatten(traced.in_tree, placed)

    def fn(*args: Argument, **kwargs: Argument) -> Argument:
        """A call to a program that is already traced."""

    fn.__name__ = str(traced.fun_name)
    return TracedCall(fn, traced, args, kwargs, chunk_size=None, mesh=_jax_compat.context_mesh(traced))


def _trace_plain(
    fn: Callable[..., Argument],
    args: tuple[Argument, ...],
    kwargs: dict[str, Argument],
    mesh: AnyMesh | None,
    *,
    chunk_size: ChunkSize = "auto",
    options: Mapping[str, Argument] | None = None,
) -> TracedCall:
    """Traces a function with its original signature; leaves other than arrays (strings, functions) are closed over."""
    fixed = _static_positions(options or {}, fn, len(args))
    wrapped_args = tuple(_Fixed(arg) if i in fixed[0] else arg for i, arg in enumerate(args))
    named = {name: _Fixed(arg) if name in fixed[1] else arg for name, arg in kwargs.items()}
    leaves, tree = jax.tree.flatten((wrapped_args, named))
    moves = [is_value(leaf) for leaf in leaves]
    static = [None if moved else leaf for leaf, moved in zip(leaves, moves, strict=True)]  # keeps no array alive
    remainders: list[Any] = []

    @functools.wraps(fn)
    def moving(*values: Argument, **named: Argument) -> Argument:
        supply = iter(jax.tree.leaves((values, named)))
        every = [next(supply) if moved else _opened(leaf) for leaf, moved in zip(static, moves, strict=True)]
        inner_args, inner_kwargs = jax.tree.unflatten(tree, every)
        results, structure = jax.tree.flatten(fn(*inner_args, **inner_kwargs))
        remainders.append((structure, [None if is_value(y) else y for y in results]))
        return [y for y in results if is_value(y)] if not all(map(is_value, results)) else structure.unflatten(results)

    moving.__name__ = function_name(fn)
    if all(moves):
        shown = (args, dict(kwargs))
    else:
        shown = jax.tree.unflatten(tree, [leaf if moved else None for leaf, moved in zip(leaves, moves, strict=True)])
    settings = {key: value for key, value in (options or {}).items() if not key.startswith("static_")}
    with planned():
        stage = jax.jit(moving, **settings).trace(*shown[0], **shown[1])
    structure, static_results = remainders[-1]

    def finish(results: object) -> Argument:
        if not any(y is not None for y in static_results):
            return results
        supply = iter(jax.tree.leaves(results))
        return structure.unflatten([next(supply) if y is None else y for y in static_results])

    shown_args, shown_kwargs = shown
    return TracedCall(
        fn,
        stage,
        shown_args,  # pyright: ignore[reportArgumentType]
        shown_kwargs,  # pyright: ignore[reportArgumentType]
        chunk_size=chunk_size,
        mesh=mesh,
        again=lambda args, kwargs: _trace_plain(
            fn, args, kwargs, current_mesh(), chunk_size=chunk_size, options=options
        ),
        given=(args, kwargs),
        wrapped=moving,
        finish=finish,
    )


def _trace_jitted(
    fn: Callable[..., Argument],
    jitted: Wrapped,
    args: tuple[Argument, ...],
    kwargs: dict[str, Argument],
    mesh: AnyMesh | None,
    finish: Callable[[Argument], Argument] | None = None,
) -> TracedCall:
    """Traces the result of `jax.jit` with the options of the jit."""
    stage = jitted.trace(*args, **kwargs)
    positions, names = _jax_compat.static_arguments(jitted, len(args))
    shown_args = tuple(None if i in positions else arg for i, arg in enumerate(args))
    shown_kwargs = {name: None if name in names else arg for name, arg in kwargs.items()}
    if len(jax.tree.leaves((shown_args, shown_kwargs))) != len(stage.jaxpr.in_avals):
        call = call_of_traced(stage)  # the static arguments are unknown, but shapes are sufficient
        shown_args, shown_kwargs = call.args, call.kwargs
    return TracedCall(
        fn,
        stage,
        shown_args,
        shown_kwargs,
        chunk_size=None,
        mesh=mesh,
        again=lambda args, kwargs: _trace_jitted(fn, jitted, args, kwargs, current_mesh(), finish),
        given=(args, kwargs),
        wrapped=getattr(jitted, "__wrapped__", fn),
        finish=finish,
    )


def _trace_pmapped(
    fn: Callable,
    jitted: Wrapped,
    flat: tuple[Argument, ...],
    args: tuple[Argument, ...],
    kwargs: dict[str, Argument],
    mesh: AnyMesh | None,
) -> TracedCall:
    """Traces the result of `jax.pmap`: a jitted `shard_map` over the arrays in its arguments."""
    call = _trace_jitted(fn, jitted, flat, {}, mesh)
    call.name = function_name(fn)
    _name_leaves(call, fn, args, kwargs)
    return call


class _FoundError(BaseException):
    """Carries the call of a `jax.jit` out of a library's wrapper, before that call is lowered."""

    def __init__(self, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> None:
        super().__init__()
        self.call = args, kwargs
        self.made: TracedCall


class _Recorder:
    """Replaces the `jax.jit` inside a wrapper while the wrapper prepares one call."""

    def __init__(self, jitted: Wrapped, mesh: AnyMesh | None) -> None:
        self._jitted, self._mesh = jitted, mesh

    def lower(self, *args: Argument, **kwargs: Argument) -> NoReturn:
        error = _FoundError(args, kwargs)
        error.made = _trace_jitted(self._jitted, self._jitted, args, kwargs, self._mesh)  # in the wrapper's contexts
        raise error

    trace = lower

    def __getattr__(self, name: str) -> object:
        return getattr(self._jitted, name)


def _trace_wrapper(
    fn: Wrapper, args: tuple[Argument, ...], kwargs: dict[str, Argument], mesh: AnyMesh | None
) -> TracedCall | LoweredCall:
    """Traces a wrapper around `jax.jit` (`nnx.jit`, `eqx.filter_jit`) through the call that the wrapper makes."""
    inner = [name for name, value in getattr(fn, "__dict__", {}).items() if _jax_compat.is_jitted(value)]
    if len(inner) != 1 or inner[0].startswith("__"):
        lowered = fn.lower(*args, **kwargs)
        return LoweredCall(function_name(fn), getattr(lowered, "lowered", lowered), args, kwargs)
    jitted = getattr(fn, inner[0])
    try:
        object.__setattr__(fn, inner[0], _Recorder(jitted, mesh))
        fn.lower(*args, **kwargs)
    except _FoundError as error:
        call = error.made
    else:
        lowered = fn.lower(*args, **kwargs)  # the wrapper did not call its jit
        return LoweredCall(function_name(fn), getattr(lowered, "lowered", lowered), args, kwargs)
    finally:
        object.__setattr__(fn, inner[0], jitted)
    call.name, call.fn = function_name(fn), fn
    _name_leaves(call, fn, args, kwargs)
    call.finish = _results_of(fn)
    return call


def _name_leaves(call: TracedCall, fn: Callable, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> None:
    """Names the arrays after the user's arguments if the wrapper passes them on unchanged."""
    paths = {id(leaf): path for path, leaf in jax.tree_util.tree_flatten_with_path((args, kwargs))[0]}
    try:
        parameters = list(inspect.signature(fn).parameters)
    except (TypeError, ValueError):
        parameters = []

    def named(position: int) -> str:
        return parameters[position] if position < len(parameters) else f"args[{position}]"

    names = []
    for leaf, name in zip(call.leaves, call.names, strict=True):
        path = paths.get(id(leaf))
        if path is None:
            names.append(name)
            continue
        root, key, *rest = path
        end = jax.tree_util.keystr(tuple(rest)).removesuffix(".value")
        names.append((named(key.idx) if root.idx == 0 else str(key.key)) + end)
    inner = dict(zip(call.names, names, strict=True))
    call.names = tuple(names)
    is_flax = type(fn).__module__.startswith("flax.")

    def result_name(path: str) -> str:
        """The user's name for a result; an argument's name if `nnx.jit` updates that argument.

        The wrapper's results are `(model, optimizer), …, result` in Flax and `marker, result, …` in Equinox.
        """
        updated = re.match(r"\[0\]\[(\d+)\]", path) if is_flax else None
        if updated is not None:
            argument = named(int(updated[1])) + path[updated.end() :]
            return inner.get(argument, argument)
        marks = "[2]" if is_flax else "[1]"
        return f"result{path.removeprefix(marks)}" if path.startswith(marks) else f"{function_name(fn)}{path}"

    call.result_name = result_name


def _results_of(fn: object) -> Callable[[Argument], Argument]:
    """The user's results, selected from all results of the `jax.jit` inside a library's wrapper."""
    if type(fn).__module__.startswith("flax."):
        return lambda results: results[2] if isinstance(results, tuple) and len(results) == 3 else results
    if type(fn).__module__.startswith("equinox."):
        return lambda results: results[1] if isinstance(results, tuple) and len(results) == 3 else results
    return lambda results: results


class _Fixed:
    """A static argument wrapped as a single leaf of a pytree."""

    def __init__(self, value: object) -> None:
        self.value = value


def _opened(leaf: object) -> Argument:
    return leaf.value if isinstance(leaf, _Fixed) else leaf


def _static_positions(
    options: Mapping[str, Argument], fn: Callable[..., Argument], count: int
) -> tuple[set[int], set[str]]:
    """Positions of the arguments that the jit's options declare static."""
    if not any(key.startswith("static_") for key in options):
        return set(), set()
    static_options = {key: value for key, value in options.items() if key.startswith("static_")}
    positions, names = _jax_compat.static_arguments(jax.jit(fn, **static_options), count)
    return set(positions), set(names)


def _bound(
    fn: Argument, args: tuple[Argument, ...], kwargs: dict[str, Argument]
) -> tuple[Any, tuple[Argument, ...], dict[str, Argument]]:
    """Turns partial calls and bound methods of lowerable functions into calls with all arguments."""
    while True:
        inner = getattr(fn, "func", None)
        if (isinstance(fn, functools.partial) or _is_library_partial(fn)) and _lowers(inner):
            fn, args, kwargs = inner, (*fn.args, *args), {**fn.keywords, **kwargs}
        elif isinstance(fn, types.MethodType) and _lowers(fn.__func__):
            fn, args = fn.__func__, (fn.__self__, *args)
        else:
            return fn, args, kwargs


def _is_library_partial(fn: object) -> bool:
    return all(hasattr(fn, name) for name in ("func", "args", "keywords"))


def _lowers(fn: object) -> TypeGuard[Wrapper]:
    return callable(getattr(fn, "lower", None))


def _holds(nnx: object, tree: object) -> bool:
    kinds = tuple(kind for kind in (getattr(nnx, "Module", None), getattr(nnx, "Optimizer", None)) if kind)
    leaves = jax.tree.leaves(tree, is_leaf=lambda x: isinstance(x, kinds))
    return any(isinstance(leaf, kinds) for leaf in leaves)


def is_value(x: object) -> bool:
    """Returns whether a leaf is an array, the shape of an array, or a number."""
    if isinstance(x, np.ndarray | np.generic):
        return x.dtype.kind in "biufcV"
    if isinstance(x, bool | int | float | complex | jax.Array | jax.ShapeDtypeStruct):
        return True
    return hasattr(x, "shape") and hasattr(x, "dtype") and not isinstance(x, type)


def as_shape(x: object) -> PyTree[Array]:
    """Converts an array to a shape with its sharding; returns other leaves unchanged.

    Uncommitted arrays have no sharding: JAX moves them to the devices of the other arguments.
    """
    if isinstance(x, jax.Array):
        sharding = x.sharding if x.committed else None
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding, weak_type=_is_weak(x))
    return jax.ShapeDtypeStruct(x.shape, x.dtype) if isinstance(x, np.ndarray) else x


def _is_weak(x: object) -> bool:
    return getattr(x, "weak_type", False)  # arrays of random keys have no such attribute


def function_name(fn: object) -> str:
    """Name of a function; for a partial call, the name of the inner function."""
    while not hasattr(fn, "__name__") and (hasattr(fn, "func") or hasattr(fn, "__wrapped__")):
        fn = getattr(fn, "func", None) or getattr(fn, "__wrapped__", None)
    return str(getattr(fn, "__name__", type(fn).__name__))


@contextlib.contextmanager
def on_mesh(mesh: AnyMesh | None) -> Iterator[None]:
    """Makes `mesh` the current mesh; None leaves the current mesh unchanged."""
    if mesh is None or mesh == current_mesh():
        yield
    elif isinstance(mesh, Mesh):
        with jax.set_mesh(mesh):
            yield
    else:  # an abstract mesh must not be combined with a concrete mesh of another size
        with jax.set_mesh(None), jax.sharding.use_abstract_mesh(mesh):
            yield


def current_mesh() -> AnyMesh | None:
    """The mesh set by `jax.set_mesh`, or the abstract mesh set by `use_abstract_mesh`; None if neither is set."""
    abstract = jax.sharding.get_abstract_mesh()
    check_axis_names("jax.set_mesh", abstract.axis_names)
    if not _jax_compat.at_top_level():  # JAX reports the devices only outside a trace
        return None if abstract.empty else abstract
    concrete = jax.sharding.get_mesh()
    if not concrete.empty and concrete.abstract_mesh == abstract:
        return concrete
    return None if abstract.empty else abstract


def mesh_of_values(values: Sequence[Any]) -> AnyMesh | None:
    """The mesh of the first array or sharding that spans several devices of a mesh."""
    for value in values:
        sharding = getattr(value, "sharding", value)
        if isinstance(sharding, NamedSharding) and not sharding.mesh.empty and sharding.mesh.size > 1:
            check_axis_names("jax.sharding.Mesh", sharding.mesh.axis_names)
            return sharding.mesh
    return None


def _abstract(mesh: AnyMesh | None) -> AbstractMesh:
    return _NO_MESH if mesh is None else mesh.abstract_mesh


def _types(mesh: AnyMesh | None) -> tuple[AxisType, ...]:
    return () if mesh is None else tuple(mesh.axis_types)


def _shape(mesh: AnyMesh | None) -> str:
    return "of none" if mesh is None else str(dict(mesh.shape))
