"""`Flower.export`: Flower app projects that need flwr, JAX and numpy, but not the workbench.

The plan becomes `program.json`: numbered operations with StableHLO functions.
"""

import base64
import dataclasses
import importlib.util
import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, Var

from workbench._jax_compat.exported import without_folders
from workbench._types import AnyArray, Atom
from workbench.engines._artifact import read_header
from workbench.engines._engine import plan_of
from workbench.engines._interpreter import PlanInterpreter, Server
from workbench.engines._stage import BatchFunction, Totals, at_edges, dtype_of, edge_aval, exported_stage, to_host
from workbench.engines.flower import _app as _flower_app
from workbench.engines.flower._runtime import project_file
from workbench.errors import EngineError, MissingDependencyError, ProgramError
from workbench.plan import Cond, ControlFlow, Jitted, Phase, PlannedCall, Scan, Step, While, control_flow
from workbench.primitives import bind_here
from workbench.records import folders_pattern

_LIMIT_BYTES = 9 << 20  # Flower rejects apps above 10 MiB


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
        try:
            with without_folders(folders_pattern()):
                digest, data = exported_stage(fn, avals, name, stage, self.platforms)
        except EngineError as error:
            cause = error.__cause__
            message = (
                f"`Flower.export` could not write stage {stage} (`{name}`): jax.export raised {type(cause).__name__}: "
                f"{cause}. A stage of an app is StableHLO, which contains no Python: remove callbacks "
                "(`jax.debug.print`, `jax.pure_callback`), and use platforms that JAX supports."
            )
            raise ProgramError(message) from cause
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
            self._server_op("broadcast", step.stage, lambda x: bind_here(step.equation, x), step.inputs, [atom])
        return self._numbers[atom]

    def _serve(self, level: int) -> None:
        plan = self.walk.plan
        for stage in plan.stages:
            steps = [step for step in stage.steps if step.level == level]
            if not steps or stage.kind not in ("server", "loop", "branch"):
                continue
            if stage.kind == "server":
                server = Server(plan, stage.index)
                self._server_op(stage.name or "server", stage.index, server, server.inputs, server.outputs)
            else:
                for step in steps:
                    self._follow(step)

    def _server_op(
        self, name: str, stage: int, fn: Callable[..., Any], inputs: Sequence[Var], outputs: Sequence[Var]
    ) -> None:
        numbers = [self._read(v, "server") for v in inputs]
        path = f"{self.walk.path}{stage}"
        digest = self.stages.add(name, path, at_edges(fn, inputs), [edge_aval(v.aval) for v in inputs])
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
            "kept_avals": [describe(edge_aval(v.aval)) for v in phase.kept],
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


def describe(x: jax.ShapeDtypeStruct | AnyArray) -> dict[str, Any]:
    return {"shape": list(x.shape), "dtype": str(x.dtype)}


def export_app(
    fn: Callable[..., Any],
    folder: str | Path,
    *args: object,
    platforms: Sequence[str] | None = None,
    package: str = "workbench_app",
) -> Path:
    """Writes a Flower app: a ServerApp that interprets the plan, and a ClientApp that runs its stages.

    Every function of the plan is versioned StableHLO, in text files that are checked before they run. The app contains
    no pickled code, and `flwr run <folder>` needs only flwr, JAX and numpy. Arguments whose rows the clients read are
    client data. Client data are never sent; each node reads its own data (replace `workbench_app/data.py` with your
    reader). Arrays that are passed for client data are written to `data/`, one folder per node, so that you can try out
    the app.

    Args:
        fn: A program, any function that calls programs, a derivative of one, or the result of `workbench.jit`.
        folder: Project folder; must be new or empty.
        *args: Arguments of `fn`; client data may be `jax.ShapeDtypeStruct`s.
        platforms: Platforms that nodes and server run on, such as ("cpu", "cuda"). Default: the platform of this
            process.
        package: Name of the app's Python package. One Flower project can contain several packages with different names.

    Returns:
        The folder.

    Raises:
        MissingDependencyError: if flwr is not installed.
        ProgramError: if `folder` is not empty, if the app is too large for Flower, or if a server's argument has no
            value; also if a server stage reads clients' data, if clients communicate with each other, or if the program
            has callbacks.

    References:
        https://flower.ai/docs/framework/how-to-run-flower-on-existing-superlink-via-docker.html
    """
    if importlib.util.find_spec("flwr") is None:
        raise MissingDependencyError("flwr", extra="flower", needed_for="`workbench.engines.Flower.export`")
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        message = (
            f"`Flower.export` was given the folder {folder.name!r}, which is not empty. `export` writes a whole "
            "project and overwrites no files: pass a new folder, or empty this folder."
        )
        raise ProgramError(message)
    fn = fn.fn if isinstance(fn, Jitted) else fn
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        traced, walk = plan_of(fn, args)
        stages, constants = Stages(platforms), {}
        block = FlowerBlock(walk, stages, constants)
    inputs, values = _inputs(traced, walk, block, args)
    results = jax.tree.unflatten(traced.out_tree, range(traced.out_tree.num_leaves))
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(results)[0]]
    described = {
        "name": walk.plan.name,
        "nodes": max((op["clients"] for op in client_stages(block.described)), default=1),
        "inputs": inputs,
        "results": _names([f"result{jax.tree_util.keystr(path)}" for path in paths]),
        "body": block.described,
    }
    _check_size(stages, walk.plan.name)
    _write(folder / package, described, stages, {**values, **constants})
    _write_data(folder, inputs, jax.tree.leaves(args))
    return folder


def _names(texts: Sequence[str]) -> list[str]:
    """Converts strings to unique file names made of letters, digits and dashes."""
    names: list[str] = []
    for text in texts:
        name = re.sub(r"\W+", "-", text).strip("-") or "value"
        while name in names:
            name += "-"
        names.append(name)
    return names


def _inputs(
    traced: PlannedCall, walk: PlanInterpreter, block: FlowerBlock, args: tuple[Any, ...]
) -> tuple[list[dict[str, Any]], dict[str, np.ndarray]]:
    """The kind of each argument: client data or a server value."""
    variables = walk.plan.closed.jaxpr.invars
    returned = {v for v in walk.plan.closed.jaxpr.outvars if v in block.uses}
    names, leaves = _names(traced.in_names), jax.tree.leaves(args)
    pairs = [(name, v, block.uses[v]) for name, v in zip(traced.in_names, variables, strict=True)]
    both = [name for name, v, use in pairs if use.clients and (use.server or v in returned)]
    if both:
        message = (
            f"`Flower.export` was given {_listed(both)}: the clients read the rows, and a server stage (or the caller) "
            "also reads all of them. Client data are not sent to the server. Either move the work of the server into "
            "the client function (for a cohort, pass `where=` to a reduction instead of using `select`), or pass a "
            "separate argument to the server."
        )
        raise ProgramError(message)
    if absent := [n for (n, _, use), x in zip(pairs, leaves, strict=True) if not use.clients and _is_struct(x)]:
        message = (
            f"`Flower.export` was given only shapes for {_listed(absent)}, but the server needs values. The app runs "
            "on its own: pass arrays for all arguments that are not client data."
        )
        raise ProgramError(message)
    described, values = [], {}
    for name, (label, v, use), x in zip(names, pairs, leaves, strict=True):
        aval = edge_aval(v.aval)
        described.append({"name": name, "argument": label, "own": use.clients, "axis": use.axis, **describe(aval)})
        if not use.clients:
            values[name] = to_host(x).astype(aval.dtype, copy=False)
    return described, values


def _is_struct(x: object) -> bool:
    return isinstance(x, jax.ShapeDtypeStruct)


def _listed(names: Sequence[str]) -> str:
    return "the argument" + ("s " if len(names) > 1 else " ") + ", ".join(f"`{name}`" for name in names)


def _check_size(stages: Stages, name: str) -> None:
    size = sum(map(len, stages.bytes.values())) * 4 // 3
    if size > _LIMIT_BYTES:
        message = (
            f"`Flower.export` wrote {size / 2**20:.0f} MiB of stages for `{name}`, but Flower accepts apps of at most "
            "10 MiB. Stages contain the constants that the client function closes over: pass large constants as "
            "arguments."
        )
        raise ProgramError(message)


def _write(package: Path, described: dict[str, Any], stages: Stages, values: dict[str, np.ndarray]) -> None:
    folder = package.parent
    (package / "stages").mkdir(parents=True)
    for source in sorted(Path(str(_flower_app.__file__)).parent.glob("*.py")):
        shutil.copyfile(source, package / source.name)
    (package / "program.json").write_text(json.dumps(described, indent=1))
    for digest, data in stages.bytes.items():
        text = json.dumps({"about": read_header(data), "base64": base64.b64encode(data).decode()}, indent=1)
        (package / "stages" / f"{digest[:16]}.json").write_text(text)
    (folder / "inputs").mkdir()
    for name, x in values.items():
        np.save(folder / "inputs" / f"{name}.npy", x)
    # relative to the working folder, or passed to `flwr run`
    config = {name: name for name in ("data", "inputs", "results")}
    name = re.sub(r"[^a-z0-9]+", "-", described["name"].lower()).strip("-") or "program"
    (folder / "pyproject.toml").write_text(project_file(name, package.name, {**config, "timeout-seconds": 600}))
    (folder / "README.md").write_text(_readme(name, package.name, described))


def _write_data(folder: Path, inputs: Sequence[dict[str, Any]], leaves: Sequence[Any]) -> None:
    for described, x in zip(inputs, leaves, strict=True):
        if not described["own"] or _is_struct(x):
            continue
        rows = to_host(x).astype(described["dtype"], copy=False)
        for node in range(rows.shape[described["axis"]]):
            (folder / "data" / str(node)).mkdir(parents=True, exist_ok=True)
            part = rows.take([node], axis=described["axis"])
            np.save(folder / "data" / str(node) / f"{described['name']}.npy", part)


def client_stages(block: dict[str, Any]) -> list[dict[str, Any]]:
    """The client stages in a program and in all its loops."""
    stages = []
    for op in block["ops"]:
        inner = [op[name] for name in ("body", "condition") if name in op] + op.get("branches", [])
        stages += [op] if op["op"] == "clients" else [stage for body in inner for stage in client_stages(body)]
    return stages


def _readme(name: str, package: str, described: dict[str, Any]) -> str:
    client_inputs = [x for x in described["inputs"] if x["own"]]
    stages = client_stages(described["body"])
    pairs = [(f"- stage {op['stage']} (`{op['name']}`)", x) for op in stages for x in op["leaves"]]
    leaves = [f"{stage}: {x['name']}, {x['dtype']}{x['shape']}" for stage, x in pairs]
    if any(op["kept_avals"] for op in stages):
        leaves.append("- rows that a server stage reads or that are a result; all other rows stay on the node")
    shapes = [[1 if i == x["axis"] else size for i, size in enumerate(x["shape"])] for x in client_inputs]
    rows = zip(client_inputs, shapes, strict=True)
    needed = [f"- `{x['name']}.npy`: {x['dtype']}{shape} ({x['argument']})" for x, shape in rows]
    facts = {"data": "\n".join(needed) or "- nothing", "leaves": "\n".join(leaves) or "- nothing"}
    template = (Path(__file__).parent / "_project" / "README.md.txt").read_text()
    return template.format(name=name, package=package, nodes=described["nodes"], **facts)
