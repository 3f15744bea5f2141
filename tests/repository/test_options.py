"""The benchmarks read the options that they declare: argparse finds a wrong name only when somebody runs them."""

import ast
from collections.abc import Iterator

from repository_files import ROOT, offenders

BENCHMARKS = [f"benchmarks/{path.name}" for path in sorted((ROOT / "benchmarks").glob("*.py"))]


def declared(tree: ast.AST) -> Iterator[str]:
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") in ("add_argument", "add_subparsers"):
            names = [arg for arg in call.args if isinstance(arg, ast.Constant)]
            names += [
                each.value for each in call.keywords if each.arg == "dest" and isinstance(each.value, ast.Constant)
            ]
            yield from (str(name.value).lstrip("-").replace("-", "_") for name in names)


def read(tree: ast.AST) -> Iterator[str]:
    def parses(node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "parse_args"

    named = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and parses(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            if parses(node.value) or (isinstance(node.value, ast.Name) and node.value.id in named):
                yield node.attr


def test_options_that_are_read_are_declared():
    def undeclared(name: str) -> set[str]:
        tree = ast.parse((ROOT / name).read_text())
        return set(read(tree)) - set(declared(tree))

    assert offenders(BENCHMARKS, undeclared) == []


def test_a_renamed_option_would_be_found():
    tree = ast.parse('parser.add_argument("--turns")\nasked = parser.parse_args()\nprint(asked.iterations)')
    assert not set(read(tree)) <= set(declared(tree))
