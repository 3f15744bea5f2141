"""Checks every finding on public programs by making its change: `python -m benchmarks.advice_precision`.

The programs are those of `tests/public_programs`, on 8 simulated CPU devices. For each finding, its code is pasted, or
the line that it names is edited as described. The changed program is compiled without the library. Bytes sent are
counted with ring formulas in the compiled text. Memory is the memory that XLA assigns to arguments, results and
temporaries. The verdicts are:

* true: the named figure falls by at least 2 % and within 5 % of the stated gain, and no other figure grows by more
  than 5 % without a note;
* useless: the named figure falls by less than 2 %;
* false: the named figure grows or differs from the statement, or another figure grows without a note;
* not made: the finding has neither code nor an edit that follows from its text alone, or its estimate is for
  accelerators.

`--only PATTERN` selects programs.
"""

import argparse
import ast
import collections
import contextlib
import math
import os
import re
import sys
import types
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "tests" / "public_programs" / "programs.py"
_SIZES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f64": 8, "s64": 8, "u64": 8, "c64": 8}
_KINDS = "all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute"


# ---- a count of bytes that shares no code with the library's


def sent_bytes(text: str) -> float:
    """Bytes that one device sends in one call, by ring formulas, including loops of known length."""
    bodies: dict[str, list[str]] = {}
    entry = name = ""
    for line in text.splitlines():
        if head := re.match(r"(ENTRY )?%?([\w.\-]+) .*\{$", line):
            name = head[2]
            entry = name if head[1] else entry
            bodies[name] = []
        elif name:
            bodies[name].append(line)

    def of(computation: str) -> float:
        return sum(_sent(line) + _inside(line, of) for line in bodies.get(computation, ()))

    return of(entry)


def _inside(line: str, of: Any) -> float:
    if loop := re.search(r" while\(.*body=%?([\w.\-]+)", line):
        trips = re.search(r'known_trip_count":\{"n":"(\d+)"', line)
        return float(trips[1] if trips else 1) * of(loop[1])
    called = re.search(r" call\(.*to_apply=%?([\w.\-]+)", line)
    return of(called[1]) if called else 0.0


def _sent(line: str) -> float:
    found = re.search(rf"= (.*?) ({_KINDS})(?:-start)?\(", line)
    if not found:
        return 0.0
    size = 0.0
    for dtype, dimensions in re.findall(r"(\w+)\[([\d,]*)\]", found[1]):
        count = 1
        for each in filter(None, dimensions.split(",")):
            count *= int(each)
        size += count * _SIZES.get(dtype, 4)
    kind, group = found[2], _group(line)
    if kind == "collective-permute":
        pairs = re.search(r"source_target_pairs=\{(.*?)\}\}", line)
        return size if pairs and any(a != b for a, b in re.findall(r"\{(\d+),(\d+)", "{" + pairs[1])) else 0.0
    share = (group - 1) / group
    return {"all-reduce": 2 * share, "reduce-scatter": group - 1, "all-gather": share, "all-to-all": share}[kind] * size


def _group(line: str) -> int:
    if axes := re.search(r"replica_groups=mesh\[(.*?)\].*?\{('[^}]*)\}", line):
        sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", axes[1])}
        return math.prod(sizes[name] for name in re.findall(r"'(\w+)'", axes[2]))
    if short := re.search(r"replica_groups=\[(\d+),(\d+)\]", line):
        return int(short[2])
    listed = re.search(r"replica_groups=\{\{([\d,]+)\}", line)
    return len(listed[1].split(",")) if listed else 8


# ---- making the change


def module_of(text: str) -> Any:
    """The programs, loaded from a changed text of their file."""
    module = types.ModuleType("changed_programs")
    module.__file__ = str(SOURCE)
    sys.modules["changed_programs"] = module
    exec(compile(text, str(SOURCE), "exec"), module.__dict__)
    return module


def with_line_after(line: int, code: str) -> str:
    """The file with an additional statement after the statement that ends on a line."""
    text = SOURCE.read_text("utf-8")
    lines = text.splitlines()
    inner = [
        n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.stmt) and n.lineno <= line <= (n.end_lineno or 0)
    ]
    statement = max(inner, key=lambda node: node.lineno)
    end = statement.end_lineno or line
    imported = "from jax.sharding import PartitionSpec as P; "
    return "\n".join([*lines[:end], " " * statement.col_offset + imported + code, *lines[end:], ""])


def without_constraint(line: int) -> str:
    """The file in which the constraint of a line is its own operand."""
    text = SOURCE.read_text("utf-8")

    class Drop(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> Any:
            self.generic_visit(node)
            is_it = node.lineno <= line <= (node.end_lineno or 0) and ast.unparse(node.func) in (
                "C",
                "jax.lax.with_sharding_constraint",
            )
            return node.args[0] if is_it else node

    return ast.unparse(Drop().visit(ast.parse(text)))


def with_policy(name: str, policy: str) -> str:
    """The file in which every checkpoint of one program has a policy."""
    tree = ast.parse(SOURCE.read_text("utf-8"))
    for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name):
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("checkpoint"):
                node.keywords.append(ast.keyword("policy", ast.parse(policy, mode="eval").body))
    return ast.unparse(tree)


def with_checkpoint(finding: Any) -> str | None:
    """The file in which the layers of a finding are computed again; None if the text names no function."""
    text, code = SOURCE.read_text("utf-8"), finding.code
    wrapper = re.search(r"([\w.]*(?:remat|checkpoint))\(([\w.]+)((?:, [\w.=]+)*)\)", code)
    if wrapper is None or code.startswith("layer ="):
        return None
    if name := re.match(r"(\w+)(?:\.__call__)? = nnx?\.", code):
        return f"{text}\n{code}\n" if f"\nclass {name[1]}(" in text else None

    def wrapped(function: ast.expr) -> ast.expr:
        return ast.parse(f"{wrapper[1]}({ast.unparse(function)}{wrapper[3]})", mode="eval").body

    class Wrap(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> Any:
            self.generic_visit(node)
            called = ast.unparse(node.func) if node.lineno == finding.sources[0].line else ""
            if called.endswith(".scan") and ".scan(" in code:
                node.args[0] = wrapped(node.args[0])
            elif called == wrapper[2]:
                node.func = wrapped(node.func)
            return node

    return ast.unparse(Wrap().visit(ast.parse(text)))


def changed(name: str, finding: Any, fn: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]] | None:
    """The program with the finding's change; None if the text does not state the change."""
    from tests.public_programs.programs import PROGRAMS

    is_constraint = finding.rule == "gathered results" and "out_shardings" not in finding.code
    if finding.rule == "costly constraint" or is_constraint:
        return module_of(without_constraint(finding.sources[0].line)).PROGRAMS[name]()[1:]
    if finding.rule == "activations without the batch axis":
        if " = " not in finding.code:  # the value has no name
            return None
        return module_of(with_line_after(finding.sources[0].line, finding.code)).PROGRAMS[name]()[1:]
    if finding.rule == "values kept for the backward pass":
        text = with_checkpoint(finding)
        return None if text is None else module_of(text).PROGRAMS[name]()[1:]
    if finding.rule == "recomputation":
        policy = re.search(r"policy = (\S+)", finding.code)
        return None if not policy else module_of(with_policy(name, policy[1])).PROGRAMS[name]()[1:]
    if not finding.code:
        return None
    import inspect

    import jax

    def zeros(x: Any) -> Any:
        is_shape = isinstance(x, jax.ShapeDtypeStruct)
        return jax.device_put(jax.numpy.zeros(x.shape, x.dtype), x.sharding) if is_shape else x

    inner = inspect.unwrap(fn)
    parameters = list(inspect.signature(inner).parameters)
    args = jax.tree.map(zeros, args)
    names: dict[str, Any] = dict(zip(parameters, args, strict=False))
    names |= {"jax": jax, getattr(inner, "__name__", "f"): inner}
    if finding.rule == "missing donation":
        with contextlib.suppress(ImportError):
            names["nnx"] = __import__("flax.nnx").nnx
        exec(finding.code, names)
        return names[getattr(inner, "__name__", "f")], PROGRAMS[name]()[2]
    function = getattr(inner, "__name__", "f")
    is_jitted_again = finding.rule == "gathered results"
    if is_jitted_again:
        names[function] = fn
    exec(finding.code, names)
    return names[function] if is_jitted_again else fn, tuple(names[each] for each in parameters[: len(args)])


# ---- the verdict


def figures(fn: Any, args: tuple[Any, ...]) -> dict[str, float]:
    """Bytes sent, the peak of memory and FLOPs of a compiled program."""
    import jax

    lowered = (fn if hasattr(fn, "lower") else jax.jit(fn)).lower(*args)
    compiled = getattr(lowered, "lowered", lowered).compile()
    memory: Any = compiled.memory_analysis()
    return {
        "bytes sent": sent_bytes(compiled.as_text() or ""),
        "peak bytes": float(
            memory.argument_size_in_bytes
            + memory.output_size_in_bytes
            + memory.temp_size_in_bytes
            - memory.alias_size_in_bytes
        ),
        "FLOPs": float((compiled.cost_analysis() or {}).get("flops", 0.0)),
    }


def verdict(finding: Any, before: dict[str, float], after: dict[str, float]) -> str:
    """The verdict on a finding after its change."""
    gain = finding.gain
    if gain is None or gain.quantity not in before:
        return "not made"
    saved = 1 - after[gain.quantity] / before[gain.quantity] if before[gain.quantity] else 0.0
    if saved < 0.02:
        return "useless" if saved > -0.02 else "false: larger"
    # XLA counts the FLOPs of a loop's body once, so that their share is comparable and not their number.
    if gain.quantity != "FLOPs" and abs(saved - gain.saved_share) > 0.05:
        return f"false: saves {100 * saved:.0f} %, but {100 * gain.saved_share:.0f} % was predicted"
    stated = {each.quantity for each in finding.costs}
    worse = [key for key in before if key not in stated and after[key] > 1.05 * before[key]]
    return f"false: {worse[0]} grows without a note" if worse else "true"


def judged(only: str) -> Iterator[tuple[str, str, str, str]]:
    """Program, rule, gain and verdict of every finding."""
    import jax

    import workbench as wb
    from tests.public_programs.programs import PROGRAMS

    for name, make in PROGRAMS.items():
        if not re.search(only, name):
            continue
        mesh, fn, args = make()
        with jax.set_mesh(mesh) if mesh is not None else contextlib.nullcontext():
            findings = wb.advise(fn)(*args).findings
            before = figures(fn, args) if findings else {}
            if not findings:
                yield name, "no finding", "", ""
            for finding in findings:
                gain = finding.gain
                said = "" if gain is None else f"{gain.quantity} −{100 * gain.saved_share:.0f} %"
                if gain is not None and not gain.verified and "compile for an accelerator" in gain.how:
                    yield name, finding.rule, said, "not made: the estimate is for accelerators"
                    continue
                try:
                    made = changed(name, finding, fn, args)
                    word = "not made" if made is None else verdict(finding, before, figures(*made))
                except Exception as error:
                    word = f"false: {type(error).__name__}: {str(error)[:80]}"
                yield name, finding.rule, said, word


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="regular expression for names of programs")
    arguments = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
    warnings.simplefilter("ignore")
    import jax

    jax.config.update("jax_numpy_rank_promotion", "allow")
    counts: collections.Counter[str] = collections.Counter()
    programs = set()
    for name, rule, said, word in judged(arguments.only):
        programs.add(name)
        if word:
            counts[word.partition(":")[0]] += 1
        print(f"| {name} | {rule} | {said} | {word} |", flush=True)
    print(f"{len(programs)} programs, {sum(counts.values())} findings: {dict(counts)}")


if __name__ == "__main__":
    main()
