"""Mutation testing by cosmic-ray, sampled: `python -m tests.mutation workbench/cost --tests tests/cost --sample 40`.

Needs `pip install cosmic-ray coverage`. A first run of the tests records the tests of each line. A mutant changes one
operator, number, comparison or branch in a copy of the repository. The tests of the changed line run against it, fast
tests first, 60 of them or those of 15 s, in a fork of a process that has imported JAX. Mutants that no test notices are
printed with their lines. Annotations and lines that run only at import are left out. The exit status is 1 if the tests
notice fewer than 90 % of the mutants of a package.
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
LEAST_TESTS, MOST_SECONDS = 60, 15.0  # of a mutant, fastest first; more than these tests within these seconds

OPTIONS = ("-q", "-n0", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")

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


# Reads a list of tests and a time limit from each line of its input, and writes their exit status. A fork takes less
# time than the import of JAX; the package itself is imported in the fork.
WORKER = """
import json, os, signal, sys, time
import _hypothesis_pytestplugin, hypothesis.strategies, jax, numpy, pytest
for line in sys.stdin:
    arguments, seconds = json.loads(line)
    child = os.fork()
    if not child:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        os._exit(pytest.main(arguments))
    end = time.monotonic() + seconds
    ended, status = 0, 0
    while not ended and time.monotonic() < end:
        time.sleep(0.05)
        ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.killpg(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    print(code if code >= 0 else 1, flush=True)
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
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"}


_times = itertools.count(1_000_000_000)


def write(path: Path, source: str) -> None:
    """Writes a module with a time of change that no other version has: Python compares it with that of the bytecode."""
    path.write_text(source)
    seconds = next(_times)
    os.utime(path, (seconds, seconds))


class Worker:
    """A process with JAX imported that runs tests in forks."""

    def __init__(self, folder: Path) -> None:
        command, variables = [sys.executable, "-c", WORKER], environment(folder)
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, cwd=folder, env=variables, text=True, **streams)

    def run(self, tests: Sequence[str], seconds: float) -> int:
        """The exit status of pytest; 1 if the tests do not end within the limit."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([[*OPTIONS, "-x", *tests], seconds]) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate()


def tests_by_line(
    folder: Path, sources: Sequence[str], tests: Sequence[str]
) -> tuple[dict[tuple[str, int], set[str]], dict]:
    """The tests that run each line, and the seconds of each test; the tests must pass as they are."""
    (folder / "mutation_recorder.py").write_text(RECORDER)
    recorded = folder / "mutation_seconds.json"
    include = ",".join(f"{source}/*" if (folder / source).is_dir() else source for source in sources)
    command = [sys.executable, "-m", "coverage", "run", f"--include={include}", "-m", "pytest", *OPTIONS]
    command += ["-p", "mutation_recorder", *tests]
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
    named = [sys.executable, "-m", "pytest", *OPTIONS, "--collect-only", "@mutation_tests.txt"]
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


def fastest(tests: Sequence[str], seconds: dict[str, float]) -> list[str]:
    """The tests to run for a mutant: the fastest ones, by number or by their seconds together."""
    ordered = sorted(tests, key=lambda test: seconds.get(test, 0.0))
    ends = itertools.accumulate(seconds.get(test, 0.0) for test in ordered)
    pairs = enumerate(zip(ordered, ends, strict=True))
    return [test for at, (test, end) in pairs if at < LEAST_TESTS or end < MOST_SECONDS]


def is_noticed(folder: Path, worker: Worker, mutant: Mutant, tests: Sequence[str], seconds: float) -> bool:
    """Whether a test fails, or does not end, with the mutant in place."""
    path = folder / mutant.file
    original = path.read_text()
    write(path, mutant.source)
    try:
        status = worker.run(tests, seconds)
    finally:
        write(path, original)
    if status > 4:
        raise SystemExit("pytest ran none of these tests: " + ", ".join(tests))
    return status != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+", help="packages or files, such as workbench/cost")
    parser.add_argument("--tests", nargs="+", required=True, help="files or folders of tests")
    parser.add_argument("--sample", type=int, default=40, help="mutants of each source; 40 by default")
    parser.add_argument("--seed", type=int, default=0, help="seed of the sample; 0 by default")
    parser.add_argument("--seconds", type=float, default=600, help="time limit of one mutant's tests; 600 by default")
    chosen = parser.parse_args()
    folder, few = Path(tempfile.mkdtemp(prefix="workbench-mutation-")), False
    try:
        copy_repository(folder)
        lines, seconds = tests_by_line(folder, chosen.sources, chosen.tests)
        covered = {place for place, tests in lines.items() if tests}
        worker = Worker(folder)
        if worker.run(fastest([*seconds], seconds), chosen.seconds):
            raise SystemExit("The tests fail in a fork without a mutant.")
        for source in chosen.sources:
            possible = places(folder, {place for place in covered if Path(place[0]).is_relative_to(source)})
            random.Random(chosen.seed).shuffle(possible)
            tried = survived = 0
            for mutant in itertools.islice(mutants(folder, possible), chosen.sample):
                tests = fastest([*lines[mutant.file, mutant.line]], seconds)
                began = time.monotonic()
                noticed = is_noticed(folder, worker, mutant, tests, chosen.seconds)
                tried, survived = tried + 1, survived + (not noticed)
                said = "noticed" if noticed else "NOT NOTICED"
                print(f"{tried}. {mutant.file}:{mutant.line} {mutant.operator}: {said}, {len(tests)} tests, "
                      f"{time.monotonic() - began:.0f} s", flush=True)  # fmt: skip
                if not noticed:
                    print(f"- {mutant.before}\n+ {mutant.after}", flush=True)
            print(f"{source}: {tried - survived} of {tried} mutants noticed, of {len(possible)} possible changes.\n")
            few |= survived > (1 - NOTICED) * tried
        worker.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    raise SystemExit(few)


if __name__ == "__main__":
    main()
