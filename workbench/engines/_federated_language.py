"""Exports programs to the federated language, as a typed syntax tree and its protocol buffer."""

# pyright: reportMissingImports=false

import collections
import importlib.util
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.extend.core import Literal, Var, jaxpr_as_fun
from jax.typing import ArrayLike, DTypeLike

from workbench import _jax_compat
from workbench._types import Atom, PyTree
from workbench.engines._engine import plan_of
from workbench.engines._federated_evaluator import evaluate
from workbench.engines._interpreter import Server
from workbench.engines._stage import at_edges, dtype_of, edge_aval, from_edge, to_host
from workbench.errors import MissingDependencyError, ProgramError
from workbench.plan import REDUCTION_OF, Jitted, Plan, Step, holds_clients, source_line
from workbench.primitives import bind_here, calls_back, max_p, mean_p, min_p, sum_p
from workbench.records import write_whole

# Types of `federated_language` and jaxlib, which have no stubs or are installed only with an extra.
Block: TypeAlias = Any
Type: TypeAlias = Any
Binding: TypeAlias = Any
Hlo: TypeAlias = Any


class FederatedComputation:
    """A program in the federated language, with its type, its text, and the bytes of its protocol buffer.

    `building_block` is the tree in the package `federated_language`, `intrinsics` counts its calls, and `clients` is
    the program's number of clients.
    """

    def __init__(self, name: str, building_block: object, notes: Sequence[str], clients: int) -> None:
        self.name: str = name
        self.clients: int = clients
        self.building_block: Block = building_block
        self.notes: tuple[str, ...] = tuple(notes)

    @property
    def type_signature(self) -> str:
        """The type, such as `(<w=float32[3]@SERVER,x={float32[5,3]}@CLIENTS> -> float32[3]@SERVER)`."""
        return self.building_block.type_signature.compact_representation()

    @property
    def text(self) -> str:
        """The whole program, indented."""
        return self.building_block.formatted_representation()

    @property
    def proto(self) -> bytes:
        """The serialised `Computation`."""
        return self.building_block.to_proto().SerializeToString(deterministic=True)

    @property
    def intrinsics(self) -> dict[str, int]:
        """Number of uses of each intrinsic in the program."""
        from federated_language import framework

        counts: collections.Counter[str] = collections.Counter()
        framework.visit_postorder(
            self.building_block,
            lambda block: counts.update([block.uri]) if isinstance(block, framework.Intrinsic) else 0,
        )
        return dict(sorted(counts.items()))

    def run(self, *args: PyTree[ArrayLike]) -> list[np.ndarray]:
        """Deserializes the computation and runs it in this process, one client after another.

        Args:
            *args: Arguments of the program; the leaves are NumPy or JAX arrays, `[clients, ...]` for values placed at
                clients.

        Returns: The leaves of the results, `[clients, ...]` for values placed at clients.

        Raises:
            ProgramError: if the leaves do not match the computation's types.
        """
        return evaluate(self.proto, [to_host(x) for x in jax.tree.leaves(args)], self.clients)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the protocol buffer to a file."""
        write_whole(path, self.proto)

    def __repr__(self) -> str:
        return f"<federated computation {self.name} : {self.type_signature}>"


def to_federated_language(fn: Callable, *args: object) -> FederatedComputation:
    """Exports a program to the federated language (extra `federated-language`).

    Placements become `SERVER` and `CLIENTS`. Broadcasts and reductions become the language's intrinsics, and every
    server or client function becomes a local computation in HLO. The result works for any number of clients, unless the
    program depends on the number of clients. The result's method `run` deserializes the computation and runs it in this
    process. No other runtime that can be installed today executes local computations in HLO. TensorFlow Federated 0.87
    reads the file and its types, but its executor rejects the HLO computations. The result's `notes` name custom calls,
    such as LAPACK calls, and the platform that supports these calls.

    Args:
        fn: A program, any function that calls programs, a derivative of one, or the result of `workbench.jit`.
        *args: Arguments of `fn`, as arrays or `jax.ShapeDtypeStruct`s.

    Returns:
        The computation. The `federated_language` package has type-checked every part, and the bytes have been
        deserialized as a check.

    Raises:
        MissingDependencyError: if federated-language is not installed.
        ProgramError: if the language cannot express the program. It cannot express loops over rounds, per-client rows
            that the server computes or reads, communication between clients, several placements, or callbacks.

    References:
        https://github.com/google-parfait/federated-language
    """
    if importlib.util.find_spec("federated_language") is None:
        needed_for = "`workbench.engines.to_federated_language`"
        raise MissingDependencyError("federated-language", extra="federated-language", needed_for=needed_for)
    fn = fn.fn if isinstance(fn, Jitted) else fn
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        traced, walk = plan_of(fn, args)
        plan = walk.plan
        _check(plan)
        translation = _Translation(plan, traced.in_names)
        tree = translation.tree()
    inner = any(step.jaxpr is not None and holds_clients(step.jaxpr) for step in plan.steps)
    notes = [*["an inner placement becomes local work of a client"] * inner, *translation.platform_notes()]
    return FederatedComputation(plan.name, _validated(tree), notes, plan.placements[0].size if plan.placements else 1)


def _check(plan: Plan) -> None:
    wrong = []
    loops = [step for step in plan.steps if step.kind in ("loop", "branch")]
    if loops:
        names = ", ".join(f"`{step.equation.primitive.name}`" for step in loops)
        wrong.append(
            f"it has rounds or branches in {names}, and the language has no loops over placed values: export one round"
        )
    if len(plan.placements) > 1:
        names = ", ".join(f'"{p.name}"' for p in plan.placements)
        wrong.append(
            f"it has the separate placements {names}, but the language has only one group of clients: split the program"
        )
    if any(step.jaxpr is not None and _jax_compat.uses_named_axes(step.jaxpr) for step in plan.steps):
        wrong.append(
            "its clients communicate with each other, but the federated language allows clients to communicate only "
            "with the server: use a reduction"
        )
    if calls_back(plan.closed):
        wrong.append(
            "it has Python callbacks, which are stored as addresses in this process and would crash any other "
            "process: remove `jax.debug.print`, `jax.pure_callback` and `io_callback`"
        )
    _refuse(plan.name, wrong)


def _refuse(name: str, wrong: Sequence[str]) -> None:
    if wrong:
        message = (
            f"`to_federated_language` cannot write `{name}`: {'; '.join(wrong)}. The federated language has only a "
            "server, clients, broadcasts, maps and aggregations: write the program with these operations, or run it "
            "with `workbench.engines`, which do not have these limits."
        )
        raise ProgramError(message)


def _validated(tree: Block) -> Block:
    """Builds the tree with the package's checks, and checks that its bytes have the same type."""
    from federated_language import framework

    framework.check_contains_no_unbound_references(tree)
    framework.check_has_unique_names(tree)
    block = framework.ComputationBuildingBlock.from_proto(tree.to_proto())
    block.type_signature.check_equivalent_to(tree.type_signature)
    return tree  # after deserializing, local computations have no names


class _Translation:
    """The names that the tree uses for a plan's values; each step of the plan adds a name."""

    def __init__(self, plan: Plan, names: Sequence[str]) -> None:
        import federated_language as language

        self.language, self.framework = language, language.framework
        self.plan = plan
        self.custom_calls: set[str] = set()
        self.made_by = {v: step for step in plan.steps if step.kind == "server" for v in step.outputs}
        self.symbols: list[tuple[str, Block]] = []
        self.values: dict[Var, Block] = {}
        variables = plan.closed.jaxpr.invars
        fields = [
            (_identifier(name), self._type(v, self._is_placed(v))) for v, name in zip(variables, names, strict=True)
        ]
        self.parameter = language.StructType(_unique(fields))
        argument = self.framework.Reference("arguments", self.parameter)
        for i, v in enumerate(variables):
            self.values[v] = self.framework.Selection(argument, index=i)
        for v, x in zip(plan.closed.jaxpr.constvars, plan.closed.consts, strict=True):
            self.values[v] = self._constant(x)

    def tree(self) -> Block:
        for level in range(self.plan.levels):
            self._serve(level)
            for step in self.plan.steps:
                if step.level == level and step.kind in ("broadcast", "clients", "reduce"):
                    getattr(self, f"_{step.kind}")(step)
        outputs = [self._read(atom, None) for atom in self.plan.closed.jaxpr.outvars]
        result = outputs[0] if len(outputs) == 1 else self.framework.Struct(outputs)
        body = self.framework.Block(self.symbols, result) if self.symbols else result
        return self.framework.Lambda("arguments", self.parameter, body)

    def _is_placed(self, v: Var) -> bool:
        return any(v in step.inputs for step in self.plan.steps if step.kind in ("clients", "reduce"))

    def _type(self, v: Atom, placed: bool) -> Type:
        aval = edge_aval(v.aval)
        shape = aval.shape[1:] if placed else aval.shape
        where = self.language.CLIENTS if placed else self.language.SERVER
        return self.language.FederatedType(self.language.TensorType(np.dtype(aval.dtype), shape), where)

    def _read(self, atom: Atom, placed: bool | None) -> Block:
        """Reads the value of an atom; if `placed` is given, checks that the value is at the clients (or the server)."""
        value = self._constant(atom.val, dtype_of(atom)) if isinstance(atom, Literal) else self.values[atom]
        at_clients = value.type_signature.placement is self.language.CLIENTS
        if placed and not at_clients and (row := self._equal_row(atom)) is not None:
            return self.framework.create_federated_broadcast(self._constant(row, dtype_of(atom)))
        if placed is not None and at_clients != placed:
            form = f"{atom.aval.str_short()}" if hasattr(atom.aval, "str_short") else str(atom.aval)
            reason = (
                f"a server stage reads the rows {form} of all clients, but the language's server receives only "
                "aggregates"
                if at_clients
                else f"clients read rows {form} that the server computed for each client{self._line(atom)}, but a "
                "broadcast sends the same value to all clients"
            )
            _refuse(self.plan.name, [reason])
        return value

    def _equal_row(self, atom: Atom) -> np.ndarray | None:
        """Finds the common row of a constant whose rows are all identical, such as weights that are all 1."""
        rows = self._known(atom)
        return rows[0] if rows is not None and len(rows) and bool((rows == rows[:1]).all()) else None

    def _known(self, atom: Atom) -> np.ndarray | None:
        """The value of an atom that depends on no argument."""
        if isinstance(atom, Literal):
            return np.asarray(atom.val, dtype_of(atom))
        if atom in self.plan.closed.jaxpr.constvars:
            return to_host(self.plan.closed.consts[self.plan.closed.jaxpr.constvars.index(atom)])
        if atom not in self.made_by:
            return None
        step = self.made_by[atom]
        constants = [self._known(v) for v in step.equation.invars]
        operands = [
            from_edge(x, dtype_of(v)) for x, v in zip(constants, step.equation.invars, strict=True) if x is not None
        ]
        if len(operands) < len(constants):
            return None
        return to_host(bind_here(step.equation, operands)[step.outputs.index(atom)])

    def _line(self, atom: Atom) -> str:
        line = source_line(self.made_by[atom].equation) if atom in self.made_by else None
        return f" ({line.file}, line {line.line})" if line is not None else ""

    def platform_notes(self) -> list[str]:
        """Returns notes about operations that only this process's platform can run."""
        if not self.custom_calls:
            return []
        names = ", ".join(sorted(self.custom_calls))
        return [f"local computations call {names}, which exist only on jaxlib's {jax.default_backend()} platform"]

    def _constant(self, x: ArrayLike, dtype: DTypeLike | None = None) -> Block:
        array = to_host(x) if dtype is None else np.asarray(x, dtype)
        literal = self.framework.Literal(array, self.language.TensorType(array.dtype, array.shape))
        return self.framework.create_federated_value(literal, self.language.SERVER)

    def _bind(self, v: Var, name: str, value: Block) -> None:
        self.values[v] = self._name(name, value)

    def _serve(self, level: int) -> None:
        for stage in self.plan.stages:
            if stage.kind == "server" and any(step.level == level for step in stage.steps):
                server = Server(self.plan, stage.index)
                operands = [self._read(v, False) for v in server.inputs]
                call = at_edges(server, server.inputs)
                self._local(stage.name or "server", call, operands, server.outputs, placed=False)

    def _broadcast(self, step: Step) -> None:
        (value,) = step.equation.invars
        self._bind(step.outputs[0], "broadcast", self.framework.create_federated_broadcast(self._read(value, False)))

    def _clients(self, step: Step) -> None:
        assert step.jaxpr is not None
        atoms = [a for a in step.equation.invars if not (step.glue and isinstance(a, Literal))]
        operands = [self._read(atom, True) for atom in atoms]
        fn = jaxpr_as_fun(step.jaxpr)
        name = self.plan.stages[step.stage].name or "client"
        self._local(name, at_edges(lambda values: fn(*values), atoms), operands, step.outputs, placed=True)

    def _reduce(self, step: Step) -> None:
        equation = step.equation
        rows = [self._read(atom, True) for atom in equation.invars]
        reduction, primitive, (out,) = REDUCTION_OF[equation.primitive], equation.primitive, step.outputs
        dtype = dtype_of(equation.invars[0])
        exact = len(rows) == 1 and equation.params.get("accumulator", dtype) == dtype
        if exact and primitive is sum_p:
            return self._bind(out, "sum", self.framework.create_federated_sum(rows[0]))
        if exact and primitive is mean_p and dtype_of(out) == dtype:
            return self._bind(out, "mean", self.framework.create_federated_mean(rows[0], None))
        if primitive in (max_p, min_p):
            return self._bind(out, primitive.name, self._extreme(rows[0], primitive is max_p))
        start = jax.eval_shape(lambda: reduction.start(equation))

        def share(*values: jax.Array) -> list[Any]:
            return [reduction.add(equation, reduction.start(equation), [x[None] for x in values], None)]

        shares = self._compute("share", share, rows, placed=True, results=[start])
        total = self._name("sum", self.framework.create_federated_sum(shares))
        last = lambda total: [reduction.finish(equation, total)]  # noqa: E731
        finish = self._compute("finish", last, [total], placed=False, results=[out.aval])
        return self._bind(out, "reduced", finish)

    def _extreme(self, rows: Block, largest: bool) -> Block:
        intrinsic = self.framework.FEDERATED_MAX if largest else self.framework.FEDERATED_MIN
        plain = self.language.FederatedType(rows.type_signature.member, self.language.CLIENTS)
        return self._at_server(intrinsic, plain, rows.type_signature.member, rows)

    def _at_server(self, intrinsic: Block, argument_type: Type, member: Type, argument: Block) -> Block:
        kind = self.language.FunctionType(argument_type, self.language.FederatedType(member, self.language.SERVER))
        return self.framework.Call(self.framework.Intrinsic(intrinsic.uri, kind), argument)

    def _name(self, name: str, value: Block) -> Block:
        label = f"{_identifier(name)}_{len(self.symbols)}"
        self.symbols.append((label, value))
        return self.framework.Reference(label, value.type_signature)

    def _local(self, name: str, fn: Callable, operands: list[Block], outputs: Sequence[Var], *, placed: bool) -> None:
        avals = [edge_aval(v.aval) for v in outputs]
        results = [jax.ShapeDtypeStruct(x.shape[1:], x.dtype) if placed else x for x in avals]
        value = self._compute(name, fn, operands, placed=placed, results=results)
        if len(outputs) == 1:
            self._bind(outputs[0], name, value)
            return
        tuple_value = self._name(name, value)
        member = tuple_value.type_signature.member
        for i, v in enumerate(outputs):
            label = f"all_{len(self.symbols)}"
            selection = self.framework.Selection(self.framework.Reference(label, member), index=i)
            pick = self.framework.Lambda(label, member, selection)
            self._bind(v, f"{name}_{i}", self.framework.create_federated_map_or_apply(pick, tuple_value))

    def _compute(self, name: str, fn: Callable, operands: list[Block], *, placed: bool, results: list[Any]) -> Block:
        """Adds a local function, mapped over the clients or applied at the server."""
        avals = [x.type_signature.member for x in operands]
        shapes = [jax.ShapeDtypeStruct(tuple(t.shape), t.dtype) for t in avals]
        local = self._compiled(name, fn, shapes, [edge_aval(y) for y in results])
        if not operands:
            evaluate = self.framework.FEDERATED_EVAL_AT_SERVER
            return self._at_server(evaluate, local.type_signature, local.type_signature.result, local)
        several = len(operands) > 1
        argument = self.framework.create_federated_zip(self.framework.Struct(operands)) if several else operands[0]
        return self.framework.create_federated_map_or_apply(local, argument)

    def _compiled(self, name: str, fn: Callable, shapes: Sequence[Any], results: Sequence[Any]) -> Block:
        """Compiles a function to HLO, with its input and output types."""
        from federated_language.proto import computation_pb2
        from google.protobuf import any_pb2

        lowered = jax.jit(fn, keep_unused=True).lower(*shapes)
        self.custom_calls.update(re.findall(r"custom_call @([\w.]+)", lowered.as_text()))
        module: Hlo = lowered.compiler_ir("hlo")
        hlo = any_pb2.Any(
            type_url="type.googleapis.com/xla.HloModuleProto", value=module.as_serialized_hlo_module_proto()
        )
        binding = computation_pb2.Xla.Binding

        def bind(count: int) -> Binding:
            parts = [binding(tensor=computation_pb2.Xla.TensorBinding(index=i)) for i in range(count)]
            return parts[0] if count == 1 else binding(struct=computation_pb2.Xla.StructBinding(element=parts))

        kind = self.language.FunctionType(self._types(shapes) if shapes else None, self._types(results))
        parameter = bind(len(shapes)) if shapes else None
        payload = computation_pb2.Xla(hlo_module=hlo, parameter=parameter, result=bind(len(results)))
        proto = computation_pb2.Computation(type=kind.to_proto(), xla=payload)
        return self.framework.CompiledComputation(proto, _identifier(name), kind)

    def _types(self, avals: Sequence[Any]) -> Type:
        types = [self.language.TensorType(np.dtype(aval.dtype), aval.shape) for aval in avals]
        return types[0] if len(types) == 1 else self.language.StructType(types)


def _identifier(name: str) -> str:
    text = "".join(c if c.isalnum() else "_" for c in name).strip("_")
    return text if text[:1].isalpha() else f"x{text}"


def _unique(fields: Sequence[tuple[str, Any]]) -> list[tuple[str, Block]]:
    counts: collections.Counter[str] = collections.Counter()
    named = []
    for name, kind in fields:
        counts[name] += 1
        named.append((name if counts[name] == 1 else f"{name}_{counts[name]}", kind))
    return named
