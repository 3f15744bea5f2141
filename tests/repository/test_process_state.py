"""Code of the library that changes this process: each place is listed with its reason."""

import ast

from repository_files import ROOT, tracked_files

CHANGES = {
    "os.umask", "os.dup2", "os.chdir", "os.putenv", "gc.disable", "gc.freeze", "signal.signal", "signal.setitimer",
    "warnings.catch_warnings", "warnings.simplefilter", "warnings.filterwarnings", "sys.setrecursionlimit",
    "sys.settrace", "sys.setprofile", "threading.setprofile", "locale.setlocale", "resource.setrlimit",
    "random.seed", "np.random.seed", "numpy.random.seed", "jax.config.update", "logging.basicConfig",
    "logging.disable", "contextlib.redirect_stdout", "contextlib.redirect_stderr", "contextlib.chdir",
    "faulthandler.enable", "mp.set_start_method", "multiprocessing.set_start_method", "os.environ.update",
    "os.environ.setdefault", "os.environ.pop", "sys.path.insert", "sys.path.append", "matplotlib.use",
}  # fmt: skip
"""Calls that change the process for everybody in it."""

ASSIGNED = {"os.environ", "threading.excepthook", "sys.excepthook", "sys.stdout", "sys.stderr", "sys.displayhook"}
"""What is not assigned to, as a whole or an item of it."""

ALLOWED = {
    "workbench/_processes/_shared_change.py": "a filter that is added and removed under a lock",
    "workbench/records/_base.py": "through SharedChange",
    "workbench/mesh/_simulate.py": "the user asks for simulated devices; documented",
    "workbench/engines/_artifact.py": "in a child process",
    "workbench/engines/beam/_child.py": "in a child process",
    "workbench/aot/worker.py": "in a child process",
    "workbench/launch/_child.py": "in a child process",
    "workbench/launch/_output.py": "counted, under a lock; prints of threads reach the logs of their nodes",
    "workbench/cli/_lab.py": "the command is the process",
    "workbench/cli/_main.py": "the command is the process",
    "workbench/cli/_absent_tpu.py": "the command is the process",
    "workbench/engines/flower/_simulation.py": "in a child process",
    "workbench/engines/beam/_here.py": "counted, under a lock",
    "workbench/engines/spark/_worker.py": "in Spark's worker processes",
    "workbench/_processes/_ray.py": "while Ray starts; Ray has no other way",
    "workbench/engines/spark/_session.py": "under the lock of the session; PySpark has no other way",
    "workbench/engines/spark/_jobs.py": "under the lock of the session",
    "workbench/engines/spark/_readers.py": "under the lock of the session",
    "workbench/_jax_compat/__init__.py": "the policy of checkpoints",
}


def test_changes_of_the_process_are_made_where_a_reason_is_given():
    sources = [name for name in tracked_files() if name.startswith(("workbench/", "widgets/workbench_widgets/"))]
    found = {name: changes for name in sources if name.endswith(".py") and (changes := changes_of(name))}
    assert {name: changes for name, changes in found.items() if name not in ALLOWED} == {}


def changes_of(name: str) -> list[str]:
    return changes_in((ROOT / name).read_text())


def changes_in(source: str) -> list[str]:
    tree = ast.parse(source)
    calls = [ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)]
    targets = [
        ast.unparse(target.value if isinstance(target, ast.Subscript) else target)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.Delete)
        for each in node.targets
        for target in (each.elts if isinstance(each, ast.Tuple) else [each])
    ]
    return sorted({call for call in calls if call in CHANGES} | {target for target in targets if target in ASSIGNED})


def test_the_search_finds_a_change():
    found = changes_in("import os\n\ndef f():\n    os.umask(0)\n    os.environ['A'] = 'b'\n")
    assert found == ["os.environ", "os.umask"]
