"""Caches are bounded: what a process keeps must not grow with the programs, runs and files that it has seen."""

import ast
from collections.abc import Iterator

import pytest
from repository_files import ROOT

FOLDERS = (ROOT / "workbench", ROOT / "widgets" / "workbench_widgets")
CACHES = ("functools.cache", "functools.lru_cache", "cache", "lru_cache")
CONTAINERS = {"dict", "list", "set", "defaultdict", "OrderedDict", "WeakKeyDictionary", "WeakSet", "SimpleQueue"}

# What bounds each: "where: name" -> why it cannot grow without end.
BOUNDED = {
    # Caches without a size
    "workbench/_jax_compat/checks.py: _class_at_client": "one per class of `checkify` errors",
    "workbench/_jax_compat/__init__.py: _forked": "one for each fork between the first process and this one",
    "workbench/measurement/_profile.py: _RUNNING": "weak references to running profiles, one at a time",
    "workbench/records/_base.py: _readers": "one per class of records",
    "workbench/plan/_choices.py: _versions": "no arguments",
    "workbench/plan/_describe.py: _dtype_name": "one per dtype",
    "workbench/plan/_describe.py: chunks": "of one plan, by its phases",
    "workbench/plan/_describe.py: disclosure": "of one plan, no arguments",
    "workbench/plan/_describe.py: jaxpr": "of one stage, no arguments",
    "workbench/plan/_describe.py: work": "of one stage, no arguments",
    "workbench/engines/_client_loop.py: functions": "of one phase of one run, by the size of a batch",
    "workbench/engines/_remote.py: end_with_parent": "no arguments",
    "workbench/engines/spark/_worker.py: shorten_collections": "no arguments",
    "workbench/render/_theme.py: palette": "light and dark",
    "widgets/workbench_widgets/_bundle.py: *": "one per built file",
    "widgets/workbench_widgets/_export.py: _packed_chunks": "no arguments",
    "widgets/workbench_widgets/_scopes.py: scope_of": "of one call",
    # Containers of modules
    "workbench/records/_base.py: _CLASSES": "one per class of records",
    "workbench/engines/beam/_child.py: _working": "the pipeline in progress",
    "workbench/engines/beam/_here.py: _pipelines": "the pipelines in progress",
    "workbench/engines/flower/_app/stages.py: _LOADED": "at most _MOST_STAGES",
    "workbench/engines/_remote.py: _LOADED": "at most _MOST_STAGES",
    "workbench/engines/_artifact.py: _read_before": "at most _MOST_READ",
    "workbench/plan/_listen.py: _LISTENERS": "removed when their block ends",
    "workbench/course/_check.py: _ANSWERS": "one per exercise",
    "workbench/course/_check.py: _SOLUTIONS": "one per exercise",
    "workbench/measurement/_watch.py: _REMEMBERED": "one per name of a watched function",
    "workbench/primitives/_emit.py: _dropped": "one per name of an emission, emptied by the next listener",
    "workbench/inspection/_compile_once.py: _LATEST": "at most _MOST_PROGRAMS",
    "workbench/api/_lab.py: _monitors": "one",
    "workbench/api/_lab.py: _panels": "one",
    "workbench/aot/_process.py: _workers": "weak",
    "workbench/aot/_process.py: _shared": "one per platform",
    "workbench/course/_grading.py: EXERCISES": "those of the course",
    "workbench/_processes/_folders.py: _removers": "one",
    "workbench/_processes/_ray.py: _session": "one",
    "workbench/launch/_processes.py: _registered": "one folder, and a socket per server that forks",
    "workbench/launch/_launched.py: _RUNNING": "weak",
    "workbench/launch/_launched.py: _DROPPED": "emptied by the thread that ends what was dropped",
    "workbench/measurement/_operation_facts.py: _LATEST": "one",
    "widgets/workbench_widgets/_bundle.py: _models": "one per built file",
}


def called(node: ast.expr) -> str:
    return ast.unparse(node.func if isinstance(node, ast.Call) else node)


def is_unbounded_cache(node: ast.expr) -> bool:
    """Whether a decorator or call makes a cache that keeps everything."""
    name = called(node)
    if name not in CACHES:
        return False
    if name.endswith("lru_cache"):
        if not isinstance(node, ast.Call):
            return False
        sizes = [*node.args, *(each.value for each in node.keywords if each.arg == "maxsize")]
        return any(isinstance(size, ast.Constant) and size.value is None for size in sizes)
    return True


def caches(tree: ast.Module) -> Iterator[str]:
    """Functions behind a cache without a size."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (node.name for each in node.decorator_list if is_unbounded_cache(each))
        elif isinstance(node, ast.Assign):
            calls = [each for each in ast.walk(node.value) if isinstance(each, ast.Call) and is_unbounded_cache(each)]
            target = node.targets[0]
            yield from (target.id if isinstance(target, ast.Name) else ast.unparse(call.args[0]) for call in calls)


def containers(tree: ast.Module) -> Iterator[str]:
    """Empty containers at the level of a module, which something fills later."""
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        value, target = node.value, node.targets[0] if isinstance(node, ast.Assign) else node.target
        empty = ast.unparse(value) in ("{}", "[]")
        made = isinstance(value, ast.Call) and called(value).rpartition(".")[2] in CONTAINERS
        filled = isinstance(value, ast.Call) and value.args and called(value) in ("dict", "list", "set")
        if (empty or (made and not filled)) and isinstance(target, ast.Name):
            yield target.id


def found() -> set[str]:
    names = set()
    for folder in FOLDERS:
        for path in sorted(folder.rglob("*.py")):
            tree, where = ast.parse(path.read_text()), path.relative_to(ROOT).as_posix()
            for name in [*caches(tree), *containers(tree)]:
                whole = f"{where}: *"
                names.add(whole if whole in BOUNDED and f"{where}: {name}" not in BOUNDED else f"{where}: {name}")
    return names


def test_every_cache_is_bounded_or_says_what_bounds_it() -> None:
    new, gone = found() - BOUNDED.keys(), BOUNDED.keys() - found()
    assert sorted(new) == [], "give each a size, or write what bounds it into BOUNDED"
    assert sorted(gone) == []


@pytest.mark.parametrize(
    "code",
    [
        "import functools\n@functools.cache\ndef f(x): ...",
        "import functools\n@functools.lru_cache(maxsize=None)\ndef f(x): ...",
        "import functools\n@functools.lru_cache(None)\ndef f(x): ...",
        "import functools\nf = functools.cache(len)",
        "f = {}",
        "f: dict[str, int] = {}",
        "f = collections.OrderedDict()",
    ],
)
def test_new_unbounded_caches_are_found(code: str) -> None:
    tree = ast.parse(code)
    assert [*caches(tree), *containers(tree)] == ["f"]


@pytest.mark.parametrize(
    "code",
    ["@functools.lru_cache(maxsize=8)\ndef f(x): ...", "@lru_cache\ndef f(x): ...", "f = {1: 2}", "f = dict(a)"],
)
def test_bounded_caches_are_not_found(code: str) -> None:
    tree = ast.parse(code)
    assert [*caches(tree), *containers(tree)] == []
