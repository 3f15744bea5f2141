"""Access to MLIR and Shardy in jaxlib: parses StableHLO, runs Shardy's passes and reads the results.

jaxlib does not guarantee pass names and option names (written against 0.10.2), so callers catch `ShardyError`.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
from jax._src.interpreters import mlir as _mlir
from jaxlib.mlir import ir as _ir, passmanager as _passmanager

from workbench._jax_compat.shardy_read import ShardyProgram as ShardyProgram, op_name, read_module
from workbench._open_types import Foreign

WHY_PASSES = (
    "symbol-dce,sdy-import-pipeline,sdy-user-priority-propagate{debug-sharding-origins=true "
    "debug-propagation-edge-sharding=true keep-sharding-rules=true}"
)
COLLECTIVE_PASSES = (
    "symbol-dce,sdy-propagation-pipeline,func.func(sdy-insert-explicit-reshards{enable-full-version=true},"
    "canonicalize,sdy-reshard-to-collectives,canonicalize)"
)
_FACTORS = [*"ijklmnopqrstuvwxyz", *(f"z_{number}" for number in range(1, 1000))]  # of a rule, as Shardy names them


class ShardyError(Exception):
    """An error from jaxlib's MLIR or Shardy, with the original text."""


def stablehlo_text(program: Foreign) -> str:
    """StableHLO with locations, from a `jax.stages.Lowered`, an MLIR module or text."""
    if isinstance(program, str):
        return program
    if isinstance(program, jax.stages.Lowered):
        program = program.compiler_ir("stablehlo")
    return program.operation.get_asm(enable_debug_info=True)


def run_shardy(text: str, passes: str, *, reasons: bool = True) -> ShardyProgram:
    """Inlines the calls of a StableHLO module, runs `passes` on the module and reads the result."""
    with _errors(), _mlir.make_ir_context():
        module = _ir.Module.parse(text)
        _inline_calls(module)
        _add_rules(module)
        manager = _passmanager.PassManager.parse(f"builtin.module({passes})")
        manager.enable_verifier(False)  # the verifier in jaxlib 0.10.2 rejects Shardy's own debug edges on loops
        manager.run(module.operation)
        return read_module(module, reasons=reasons)


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except ShardyError:
        raise
    except Exception as error:  # MLIR raises its own exception types, which differ between versions
        first = str(error).strip().splitlines() or [type(error).__name__]
        raise ShardyError(first[0] if len(first) == 1 else f"{first[0]} {first[1]}"[:600]) from error


def _inline_calls(module: _ir.Module) -> None:
    """Inlines all called functions, because jaxlib lacks MLIR's inliner for `func.call`."""
    functions = {_symbol(op): op for op in module.body.operations if op.operation.name == "func.func"}
    main = functions.get("main")
    if main is None:
        message = "the module has no function `main`"
        raise ShardyError(message)
    pending = _calls(main.operation)
    while pending:
        call = pending.pop()
        callee = functions.get(_ir.FlatSymbolRefAttr(call.attributes["callee"]).value)
        if callee is not None:
            pending.extend(_inline(module, call, callee))
    for name, function in functions.items():
        if name != "main":
            function.operation.erase()


def _add_rules(module: _ir.Module) -> None:
    """Adds the sharding rules of elementwise CHLO operations, such as `square`, at which propagation stops otherwise.

    XLA replaces these operations before it propagates shardings; jaxlib 0.10.2 registers no pass that does so. XLA
    keeps `erf`, at which its propagation stops too. `top_k` is not elementwise: XLA keeps the sharding of its batch
    dimensions, which is missing here.
    """

    def visit(op: _ir.Operation) -> _ir.WalkResult:
        if op.name.startswith("chlo.") and op.name not in ("chlo.erf", "chlo.top_k"):
            shapes = [tuple(_ir.RankedTensorType(value.type).shape) for value in (*op.operands, *op.results)]
            if len(set(shapes)) == 1 and min(shapes[0], default=0) >= 0:  # a symbolic size is negative
                sides = [", ".join([f"[{', '.join(_FACTORS[: len(shapes[0])])}]"] * len(side))
                         for side in (op.operands, op.results)]  # fmt: skip
                sizes = ", ".join(f"{factor}={size}" for factor, size in zip(_FACTORS, shapes[0], strict=False))
                rule = f"#sdy.op_sharding_rule<({sides[0]})->({sides[1]}) {{{sizes}}}>"
                op.attributes["sdy.sharding_rule"] = _ir.Attribute.parse(rule)
        return _ir.WalkResult.ADVANCE

    module.operation.walk(visit)


def _symbol(function: _ir.OpView) -> str:
    return _ir.StringAttr(function.operation.attributes["sym_name"]).value


def _calls(root: _ir.Operation) -> list[Any]:
    calls = []

    def visit(op: _ir.Operation) -> _ir.WalkResult:
        if op.name in ("func.call", "call"):
            calls.append(op)
        return _ir.WalkResult.ADVANCE

    root.walk(visit)
    return calls


def _inline(module: _ir.Module, call: _ir.OpView, callee: _ir.OpView) -> list[Any]:
    """Copies the callee's operations to the position before the call; returns the calls among them."""
    copy = callee.operation.clone(_ir.InsertionPoint(module.body))
    block = copy.regions[0].blocks[0]
    for argument, operand in zip(list(block.arguments), list(call.operands), strict=True):
        argument.replace_all_uses_with(operand)
    prefix, caller = op_name(call.location), call.location
    operations = list(block.operations)
    calls = []
    for op in operations[:-1]:

        def visit(inner: _ir.OpView) -> _ir.WalkResult:
            inner.location = _prefixed(prefix, inner.location, caller)
            return _ir.WalkResult.ADVANCE

        op.operation.walk(visit)
        calls.extend(_calls(op.operation))
        op.operation.move_before(call)
    for result, returned in zip(list(call.results), list(operations[-1].operands), strict=True):
        result.replace_all_uses_with(returned)
    call.erase()
    copy.erase()
    return calls


def _prefixed(prefix: str, location: _ir.Location, caller: _ir.Location) -> _ir.Location:
    """Adds the call's scopes before an inlined operation's scopes, and the call's lines if the operation has none."""
    lines = caller.child_loc if isinstance(caller, _ir.NameLoc) else caller
    if not isinstance(location, _ir.NameLoc):
        return _ir.Location.name(prefix, childLoc=lines)
    has_location = not isinstance(location.child_loc, _ir.UnknownLoc)
    return _ir.Location.name(f"{prefix}/{location.name_str}", childLoc=location.child_loc if has_location else lines)
