"""Mutation testing by cosmic-ray, sampled: `python -m tests.mutation workbench/cost --tests tests/cost --sample 40`.

Needs `pip install cosmic-ray coverage`. A first run of the tests records the tests of each line. A mutant changes one
operator, number, comparison or branch in a copy of the repository. The tests of the changed line run against it, fast
tests first. Mutants that no test notices are listed with their lines. Annotations and lines that run only at import are
left out. The exit status is 1 if the tests notice fewer than 90 % of the mutants.
"""

import argparse
import ast
import importlib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
OPERATORS = ("Binary", "Comparison", "NumberReplacer", "ReplaceTrue", "ReplaceFalse", "ReplaceAnd", "ReplaceOr",
             "ReplaceUnary", "AddNot", "ReplaceBreak", "ReplaceContinue", "ZeroIteration")  # fmt: skip
NOTICED = 0.9
MOST_TESTS = 60  # of a mutant, fastest first

PYTEST = (sys.executable, "-m", "pytest", "-q", "-n0", "-p", "no:cacheprovider")

RECORDER = """
import json, os, time
import coverage, pytest
seconds = {}
@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    coverage.Coverage.current().switch_context(item.nodeid)
    began = time.perf_counter()
    result = yield
    seconds[item.nodeid] = time.perf_counter() - began
    coverage.Coverage.current().switch_context("")
    return result
def pytest_sessionfinish():
    with open(os.environ["MUTATION_SECONDS"], "w") as file:
        json.dump(seconds, file)
"""


@dataclass(frozen=True)
class Mutant:
    """One change of one file."""

    file: str
    line: int
    operator: str
    before: str
    after: str
    source: str


def copy_repository(folder: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in filter(None, listed.split("\0")):
        if not name.startswith(("notebooks/", "docs/images/", "widgets/src/")) and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)


def environment(folder: Path) -> dict[str, str]:
    paths = (str(folder), str(folder / "widgets"), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1", "JAX_PLATFORMS": "cpu"}


def tests_by_line(folder: Path, sources: str, tests: Sequence[str]) -> tuple[dict[tuple[str, int], set[str]], dict]:
    """The tests that run each line, and the seconds of each test; the tests must pass as they are."""
    (folder / "mutation_recorder.py").write_text(RECORDER)
    recorded = folder / "mutation_seconds.json"
    command = [sys.executable, "-m", "coverage", "run", f"--source={sources}", "-m", "pytest", "-q", "-n0", "-p"]
    command += ["mutation_recorder", "-p", "no:cacheprovider", *tests]
    variables = {**environment(folder), "MUTATION_SECONDS": str(recorded)}
    subprocess.run(command, cwd=folder, env=variables, check=True)
    data = importlib.import_module("coverage").CoverageData(str(folder / ".coverage"))
    data.read()
    lines: dict[tuple[str, int], set[str]] = {}
    for file in data.measured_files():
        for line, contexts in data.contexts_by_lineno(file).items():
            lines[os.path.relpath(file, folder), line] = {context for context in contexts if context}
    seconds = json.loads(recorded.read_text())
    (folder / "mutation_tests.txt").write_text("\n".join(seconds))
    # A name that is not found must not count as a failing test.
    named = [*PYTEST, "--collect-only", "@mutation_tests.txt"]
    subprocess.run(named, cwd=folder, env=environment(folder), check=True, stdout=subprocess.DEVNULL)
    return lines, seconds


def plain(source: str) -> str:
    """A module without annotations and docstrings, to find mutants that change nothing which runs."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            node.annotation = ast.Constant(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
    return ast.dump(tree)


def places(folder: Path, covered: set[tuple[str, int]]) -> list[tuple[str, str, int, int]]:
    """File, operator, number and line of every possible change of a line that a test runs."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast

    found = []
    operators = [name for name in plugins.operator_names() if name.partition("/")[2].startswith(OPERATORS)]
    for file in sorted({file for file, _ in covered}):
        nodes = list(ast_nodes(get_ast((folder / file).read_text())))
        for name in operators:
            operator = plugins.get_operator(name)()
            starts = [start for node in nodes for start, _ in operator.mutation_positions(node)]
            found += [(file, name, number, at[0]) for number, at in enumerate(starts) if (file, at[0]) in covered]
    return found


def mutants(folder: Path, drawn: Sequence[tuple[str, str, int, int]]) -> Iterator[Mutant]:
    """The mutants at these places, without those that change nothing which runs."""
    from cosmic_ray import mutating, plugins

    for file, name, number, line in drawn:
        source = (folder / file).read_text()
        after = mutating.mutate_code(source, plugins.get_operator(name)(), number)
        try:
            same = after is None or plain(after) == plain(source)
        except SyntaxError:
            same = True
        if after is not None and not same:
            before, changed = (text.splitlines()[line - 1].strip() for text in (source, after))
            yield Mutant(file, line, name.partition("/")[2], before, changed, after)


def is_noticed(folder: Path, mutant: Mutant, tests: Sequence[str], seconds: float) -> bool:
    """Whether a test fails, or does not end, with the mutant in place."""
    path = folder / mutant.file
    original = path.read_text()
    path.write_text(mutant.source)
    (folder / "mutation_tests.txt").write_text("\n".join(tests))
    command = [*PYTEST, "-x", "@mutation_tests.txt"]
    try:
        ended = subprocess.run(command, cwd=folder, env=environment(folder), timeout=seconds, capture_output=True)
    except subprocess.TimeoutExpired:
        return True
    finally:
        path.write_text(original)
    if ended.returncode > 4:  # nothing was run
        raise SystemExit(ended.stdout.decode() + ended.stderr.decode())
    return ended.returncode != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", help="a package or a file, such as workbench/cost")
    parser.add_argument("--tests", nargs="+", required=True, help="files or folders of tests")
    parser.add_argument("--sample", type=int, default=40, help="number of mutants; 40 by default")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample; 0 by default")
    parser.add_argument("--seconds", type=float, default=600, help="time limit of one mutant's tests; 600 by default")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="workbench-mutation-"))
    try:
        copy_repository(folder)
        lines, seconds = tests_by_line(folder, chosen.sources, chosen.tests)
        covered = {place for place, tests in lines.items() if tests}
        possible = places(folder, covered)
        random.Random(chosen.seed).shuffle(possible)
        survivors, tried = [], 0
        for mutant in itertools.islice(mutants(folder, possible), chosen.sample):
            tests = sorted(lines[mutant.file, mutant.line], key=lambda test: seconds.get(test, 0.0))[:MOST_TESTS]
            began = time.monotonic()
            noticed = is_noticed(folder, mutant, tests, chosen.seconds)
            survivors += [] if noticed else [mutant]
            tried += 1
            said = "noticed" if noticed else "NOT NOTICED"
            print(f"{tried}. {mutant.file}:{mutant.line} {mutant.operator}: {said}, {len(tests)} tests, "
                  f"{time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    print(f"\n{tried - len(survivors)} of {tried} mutants noticed, of {len(possible)} possible changes.")
    for mutant in survivors:
        print(f"\n{mutant.file}:{mutant.line}\n- {mutant.before}\n+ {mutant.after}")
    raise SystemExit(len(survivors) > (1 - NOTICED) * tried)


if __name__ == "__main__":
    main()
