"""The name stack of an operation: user scopes, JAX structure, and the differentiation pass."""

import functools
import re
from typing import NamedTuple

from workbench.records.call_tree import CallPass

_TRANSFORM = re.compile(r"^(jvp|transpose|vmap|vjp|linearize|pmap|checkpoint|remat|mask|shmap)\((.*)\)$")
_CALL = re.compile(r"^(p?jit(\(.*\))?|xla_call|core_call|(core_)?closed_call|checkpoint|remat2?|body|cond)$")
_BRANCH = re.compile(r"^branch_\d+_fun$")
_STAGE = re.compile(r"^wb[:.]")  # scopes opened by the workbench's own primitives
_CALLED = re.compile(r"^(custom_jvp_call|custom_vjp_call|custom_lin|custom_vmap_call|while_loop|named_call)$")
_JITTED = re.compile(r"jit\(([\w<>]+)\)")
_LOOPS = frozenset(("while", "scan", "cond"))
_MARKED = frozenset(("shard_map", "pallas_call", "custom_vjp_call", "run_state", "core_map"))


class NameStack(NamedTuple):
    """The parts of an `op_name`."""

    scopes: tuple[str, ...]  # scopes of the user, outermost first; "while" and "cond" mark a loop or a branch
    operation: str  # "dot_general"
    pass_name: CallPass


@functools.lru_cache(maxsize=65536)
def read_op_name(op_name: str) -> NameStack:
    """Parses the name that JAX gives an operation.

    Example:
        >>> read_op_name("jit(step)/transpose(jvp(Net))/layers_0/while/body/closed_call/Dense_0/dot_general")
        NameStack(scopes=('Net', 'layers_0', 'while', 'Dense_0'), operation='dot_general', pass_name='transpose')
    """
    name = op_name.split(";", 1)[0]
    parts = _split(name)
    if not parts:
        return NameStack((), "", "forward")
    operation = _bare(parts[-1]) if not _is_structure(parts[-1]) else parts[-1]
    scopes = []
    for index, part in enumerate(parts[:-1]):
        following = parts[index + 1]
        bare = _bare(part)
        if bare == "shard_map" and _STAGE.match(_bare(following)):
            continue  # opened by the plan, which uses it to spread clients over devices
        if bare == "while" or (bare == "cond" and _BRANCH.match(following)) or bare in _MARKED:
            scopes.append(bare)
        elif bare and not _is_structure(bare) and not _is_structure(part):
            scopes.append(bare)
    return NameStack(tuple(scopes), operation, pass_of(name))


@functools.lru_cache(maxsize=65536)
def called_functions(op_name: str) -> tuple[str, ...]:
    """The jitted functions in a name stack, beginning with the program.

    Example:
        >>> called_functions("jit(step)/jvp(jit(helper))/sin")
        ('step', 'helper')
    """
    return tuple(_JITTED.findall(op_name))


def pass_of(name_stack: str) -> CallPass:
    """The pass of reverse-mode differentiation to which a name stack belongs.

    Example:
        >>> pass_of("transpose(jvp())/checkpoint/rematted_computation/layer/tanh")
        'remat'
    """
    if "rematted_computation" in name_stack:
        return "remat"
    return "transpose" if "transpose(" in name_stack else "forward"


def _is_structure(part: str) -> bool:
    return bool(
        _CALL.match(part)
        or _BRANCH.match(part)
        or _STAGE.match(part)
        or _CALLED.match(part)
        or part in ("rematted_computation", "while")
        or "->" in part  # an einsum's scope
    )


def _bare(part: str) -> str:
    """A part of a name without the transformations around it."""
    while match := _TRANSFORM.match(part):
        part = match[2]
    return part


def _split(name: str) -> list[str]:
    """Splits at slashes outside parentheses, because scopes may contain both, such as `vmap(BTNH,BSNH->BNTS)`."""
    if "(" not in name:
        return name.split("/") if name else []
    parts, depth, start = [], 0, 0
    for index, char in enumerate(name):
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == "/" and depth <= 0:
            parts.append(name[start:index])
            start = index + 1
    parts.append(name[start:])
    nested = []
    for part in parts:  # `transpose(jvp(Net/layers_0))`: the transformation was opened around two scopes
        bare = _bare(part)
        nested += _split(bare) if bare != part and "/" in bare else [part]
    return nested
