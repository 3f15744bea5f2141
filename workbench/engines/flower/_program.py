"""A plan as the `program.json` of a Flower app: numbered operations with StableHLO functions."""

import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Literal, Var

from workbench._jax_compat.exported import without_folders
from workbench._types import AnyArray, Atom
from workbench.engines._artifact import pack
from workbench.engines._interpreter import PlanInterpreter, Server
from workbench.engines._stage import BatchFunction, Totals, dtype_of, edge_aval, from_edge, to_edge, to_host
from workbench.errors import ProgramError
from workbench.plan import Cond, ControlFlow, Phase, Scan, Step, While, control_flow
from workbench.primitives import bind_here
from workbench.records import folders_pattern


@dataclasses.dataclass
class Use:
    """The readers of a block's input, and the input's client axis."""

    clients: bool = False
    server: bool = False
    axis: int = 0

    def join(self, other: "Use", iterations: int = 0) -> None:
        """Adds the readers of another use, which receives the input without its first `iterations` axes."""
        self.clients |= other.clients
        self.server |= other.server
        self.axis = max(self.axis, other.axis + iterations)


class Stages:
    """A program's functions as bytes, keyed by digest."""

    def __init__(self, platforms: Sequence[str] | None) -> None:
        self.platforms = platforms
        self.bytes: dict[str, bytes] = {}

    def add(self, name: str, stage: str, fn: Callable[..., Any], avals: Sequence[Any]) -> str:
        """Exports a function of plain arrays; returns its digest."""
        try:
            with without_folders(folders_pattern()):
                module = jax.export.export(jax.jit(fn), platforms=self.platforms)(*avals)
            data = pack(module, name=name)
        except Exception as error:
            message = (
                f"`Flower.export` could not write stage {stage} (`{name}`): jax.export raised {type(error).__name__}: "
                f"{error}. A stage of an app is StableHLO, which contains no Python: remove callbacks "
                "(`jax.debug.print`, `jax.pure_callback`), and use platforms that JAX supports."
            )
            raise ProgramError(message) from error
        digest = hashlib.sha256(data).hexdigest()
        self.bytes[digest] = data
        return digest


class FlowerBlock:
    """One jaxpr (of the program or of a loop body), as operations on numbered values."""

    def __init__(self, walk: PlanInterpreter, stages: Stages, constants: dict[str, Any]) -> None:
        self.walk, self.stages, self.constants = walk, stages, constants
        self._numbers: dict[Any, int] = {}
        self._count = 0
        self._ops: list[dict[str, Any]] = []
        self._own_constants: list[list[Any]] = []
        closed = walk.plan.closed
        self.uses: dict[Any, Use] = {v: Use() for v in closed.jaxpr.invars}
        inputs = [self._number(v) for v in closed.jaxpr.invars]
        for v, x in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            self._constant(self._number(v), x)
        for level in range(walk.plan.levels):
            self._serve(level)
            for phase in walk.phases.get(level, ()):
                self._clients(phase)
        outputs = [self._read(atom, "held") for atom in closed.jaxpr.outvars]
        self.described = {"inputs": inputs, "constants": self._own_constants, "ops": self._ops, "outputs": outputs}

    def _number(self, v: object) -> int:
        self._numbers[v] = self._count
        self._count += 1
        return self._numbers[v]

    def _constant(self, number: int, value: object) -> int:
        name = f"constant-{len(self.constants)}"
        self.constants[name] = to_host(value)
        self._own_constants.append([number, {"name": name, **describe(self.constants[name])}])
        return number

    def _read(self, atom: Atom, reader: str) -> int:
        """Returns the number of a value; `reader` is "server", "clients", or "held" (which only forwards the value)."""
        if isinstance(atom, Literal):
            number, self._count = self._count, self._count + 1
            return self._constant(number, jax.numpy.asarray(atom.val, dtype_of(atom)))
        if atom in self.uses and reader != "held":
            self.uses[atom].join(Use(**{reader: True}))
        if atom not in self._numbers:  # broadcast rows that are read outside the clients
            step = self.walk.broadcasts[atom]
            self._server_op("broadcast", step.stage, lambda x: bind_here(step.equation, x), (step.inputs, [atom]))
        return self._numbers[atom]

    def _serve(self, level: int) -> None:
        plan = self.walk.plan
        for stage in plan.stages:
            steps = [step for step in stage.steps if step.level == level]
            if not steps or stage.kind not in ("server", "loop", "branch"):
                continue
            if stage.kind == "server":
                server = Server(plan, stage.index)
                self._server_op(stage.name or "server", stage.index, server, (server.inputs, server.outputs))
                continue
            for step in steps:
                self._follow(step)

    def _server_op(
        self, name: str, stage: int, fn: Callable[..., Any], ends: tuple[Sequence[Var], Sequence[Var]]
    ) -> None:
        inputs, outputs = ends

        def call(*operands: jax.Array) -> list[Any]:
            return [to_edge(y) for y in fn([from_edge(x, dtype_of(v)) for x, v in zip(operands, inputs, strict=True)])]

        numbers = [self._read(v, "server") for v in inputs]
        path = f"{self.walk.path}{stage}"
        digest = self.stages.add(name, path, call, [_edge(v) for v in inputs])
        out = [self._number(v) for v in outputs]
        self._ops.append({"op": "server", "stage": path, "name": name, "digest": digest, "in": numbers, "out": out})

    def _clients(self, phase: Phase) -> None:
        function = BatchFunction(self.walk.plan, phase, self.walk.path, 1)
        if not phase.divisible:
            message = (
                f"`Flower.export` was given a program whose clients communicate with each other in stage "
                f"{function.stage} (`{function.name}`). Flower nodes communicate only with the server: write this "
                "exchange as a reduction and a broadcast."
            )
            raise ProgramError(message)
        shared = list(phase.shared.values())
        numbers = [*(self._read(v, "clients") for v in phase.rows), *(self._read(atom, "server") for atom in shared)]
        totals = Totals(phase)
        partial = totals.partial_avals
        count = len(partial)

        def merge(*both: object) -> object:
            return totals.merge(list(both[:count]), list(both[count:]))

        op: dict[str, Any] = {
            "op": "clients",
            "stage": function.stage,
            "name": function.name,
            "clients": phase.placement.size,
            "digest": self.stages.add(function.name, function.stage, function, function.in_avals),
            "rows": len(phase.rows),
            "names": [*(f"row {i}" for i in range(len(phase.rows))), *(f"shared {i}" for i in range(len(shared)))],
            "kept_avals": [describe(_edge(v)) for v in phase.kept],
            "partial_avals": [describe(aval) for aval in partial],
            "leaves": [
                {"name": name, **describe(aval)}
                for name, aval in zip(function.out_names[len(phase.kept) :], partial, strict=True)
            ],
            "merge": None,
            "finish": None,
            "in": numbers,
        }
        if partial:
            op["merge"] = self.stages.add("merge", function.stage, merge, [*partial, *partial])
            op["finish"] = self.stages.add("finish", function.stage, lambda *t: totals.finish(list(t)), partial)
        outputs = [*phase.kept, *(step.equation.outvars[0] for step in phase.reductions)]
        op["out"] = [self._number(v) for v in outputs]
        self._ops.append(op)

    def _follow(self, step: Step) -> None:
        flow, operands = control_flow(step.equation), step.equation.invars
        if isinstance(flow, Scan):
            avals = flow.body.out_avals[flow.carries :]
            body = self._body(flow, flow.body, operands, sliced=len(operands) - flow.consts - flow.carries)
            more = {"length": flow.length, "reverse": flow.reverse, "consts": flow.consts, "carries": flow.carries}
            self._loop(step, "scan", {**more, "stacked_avals": [describe(edge_aval(x)) for x in avals], "body": body})
        elif isinstance(flow, While):
            for_condition, for_body, carry = flow.split(operands)
            condition = self._body(flow, flow.condition, [*for_condition, *carry], "?")
            body = self._body(flow, flow.body, [*for_body, *carry])
            more = {"conditions": len(for_condition), "bodies": len(for_body), "condition": condition, "body": body}
            self._loop(step, "while", more)
        elif isinstance(flow, Cond):
            index, inputs = flow.split(operands)
            self._read(index, "server")
            branches = [self._body(flow, closed, inputs, f"[{i}]") for i, closed in enumerate(flow.bodies)]
            self._loop(step, "cond", {"branches": branches})

    def _body(
        self, flow: ControlFlow, closed: ClosedJaxpr, operands: Sequence[Any], part: str = "", sliced: int = 0
    ) -> dict[str, Any]:
        """Exports a loop body and marks its operands as read; the last `sliced` operands are read slice by slice."""
        walk = self.walk.inner(flow, closed, part)
        block = FlowerBlock(walk, self.stages, self.constants)
        pairs = zip(walk.plan.closed.jaxpr.invars, operands, strict=True)
        for i, (v, atom) in enumerate(pairs):
            if not isinstance(atom, Literal) and atom in self.uses:
                self.uses[atom].join(block.uses[v], iterations=int(i >= len(operands) - sliced))
        return block.described

    def _loop(self, step: Step, kind: str, more: dict[str, Any]) -> None:
        numbers = [self._read(atom, "held") for atom in step.equation.invars]
        out = [self._number(v) for v in step.outputs]
        self._ops.append({"op": kind, "stage": f"{self.walk.path}{step.stage}", "in": numbers, "out": out, **more})


def _edge(v: Atom) -> jax.ShapeDtypeStruct:
    aval = edge_aval(v.aval)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)


def describe(x: jax.ShapeDtypeStruct | AnyArray) -> dict[str, Any]:
    """A shape and dtype, for JSON."""
    return {"shape": list(x.shape), "dtype": str(x.dtype)}
