"""The shape of the house: packages have faces, imports go downwards, nothing goes round in circles."""

import ast
import importlib
import inspect
import re
import subprocess
import sys
from functools import cache

import grimp
import pytest
from repository_files import ROOT, python_files

# From the top. Packages of one line do not know each other; root modules are listed by their own names.
LAYERS = (
    ("__main__",),
    ("cli", "magics"),
    ("testing", "course"),
    ("api",),
    ("federated",),
    ("launch", "replicate", "distributed"),
    ("advice",),
    ("engines",),
    ("measurement",),
    ("inspection",),
    ("cost",),
    ("aot",),
    ("render",),
    ("plan",),
    ("primitives",),
    ("mesh",),
    ("records",),
    ("_cache",),
    ("_renderer",),
    ("errors", "_jax_compat", "_processes", "_version"),
    ("_types",),
    ("_open_types",),
)
FLOOR = {name: floor for floor, names in enumerate(LAYERS) for name in names}
# Open to all packages although their names begin with an underscore: the cache on disk, private JAX, child processes,
# the package that draws records, types of many signatures, the version.
SHARED = ("_cache", "_jax_compat", "_open_types", "_processes", "_renderer", "_types", "_version")


@cache
def imports() -> dict[str, frozenset[str]]:
    """Every module of ours with the modules of ours that it imports, also inside functions and for types."""
    graph = grimp.build_graph("workbench", "workbench_widgets")
    return {module: frozenset(graph.find_modules_directly_imported_by(module)) for module in graph.modules}


def home(module: str) -> str | None:
    """The package whose business a module is; None for a face."""
    parts = module.split(".")
    private = [i for i, part in enumerate(parts) if part.startswith("_") and part not in SHARED and part != "__main__"]
    return ".".join(parts[: private[0]]) if private else None


def test_packages_import_each_other_by_their_faces():
    private = [
        f"{module} imports {target}"
        for module, targets in imports().items()
        for target in targets
        if (owner := home(target)) is not None and not f"{module}.".startswith(f"{owner}.")
    ]
    assert sorted(private) == []


def private_imports(name: str) -> set[tuple[str, str]]:
    """What a file imports from inside of our packages: the package, and the name."""
    found = set()
    for node in ast.walk(ast.parse((ROOT / name).read_text())):
        if isinstance(node, ast.ImportFrom) and (owner := home(node.module or "")) not in (None, "", "workbench"):
            found |= {(owner, alias.name) for alias in node.names}
    return found


def test_tests_take_from_the_face_what_it_offers():
    taken = {(name, *found) for name in python_files("tests", "benchmarks") for found in private_imports(name)}
    # A package may hold a function and a module of one name; and in a kernel made by hand there are no faces.
    offered = [
        f"{name} imports {thing} from inside of {owner}"
        for name, owner, thing in taken
        if not inspect.ismodule(getattr(importlib.import_module(owner), thing, inspect)) and "fake_kernel" not in name
    ]
    assert sorted(offered) == []


def test_packages_import_only_from_lower_layers():
    upward = [
        f"{module} imports {target}"
        for package, floor in FLOOR.items()
        for module, targets in imports().items()
        if f"{module}.".startswith(f"workbench.{package}.")
        for target in targets
        if (other := target.partition(".")[2].partition(".")[0]) != package
        and not target.startswith("workbench_widgets")
        and FLOOR.get(other, -1) <= floor
    ]
    assert sorted(upward) == []


def test_every_package_has_a_layer():
    tops = {module.split(".")[1] for module in imports() if module.startswith("workbench.")}
    assert sorted(tops - FLOOR.keys()) == []


def test_widgets_are_opened_from_the_api_and_the_playground_only():
    users = {
        module
        for module, targets in imports().items()
        if module.startswith("workbench.") and any(target.startswith("workbench_widgets") for target in targets)
    }
    known = ("workbench.api.", "workbench.federated.experiments._playground")
    assert sorted(user for user in users if not user.startswith(known)) == []


def test_the_core_knows_neither_federated_learning_nor_launched_programs():
    apart = ("workbench.federated", "workbench.launch", "workbench.replicate")
    core = {
        f"{module} imports {target}"
        for module, targets in imports().items()
        if module.startswith("workbench.") and not module.startswith((*apart, "workbench.cli", "workbench.course"))
        for target in targets
        if target.startswith(apart)
    }
    assert sorted(core) == []


def test_widgets_know_records_and_pictures_and_nothing_that_runs():
    allowed = {"records", "render", "errors", "cost", "aot"}  # none of these imports JAX
    found = {
        f"{module} imports {target}"
        for module, targets in imports().items()
        if module.startswith("workbench_widgets")
        for target in targets
        if target.startswith("workbench.") and target.split(".")[1] not in allowed
    }
    assert sorted(found) == []


def test_widgets_and_what_they_import_know_no_jax():
    code = "import sys; sys.modules['jax'] = None; import workbench_widgets; workbench_widgets.Explorer"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


# Attributes of JAX, NNX, Ray, `re` and named tuples that an upper class of ours also has.
OF_OTHERS = {"_make", "cause", "compile", "jaxpr", "lower", "pattern", "stop", "trace", "traced"}


@cache
def members() -> dict[str, frozenset[str]]:
    """The attributes of our classes, each with the packages that define them."""
    homes: dict[str, set[str]] = {}
    for path in python_files("workbench"):
        for node in ast.walk(ast.parse((ROOT / path).read_text())):
            if isinstance(node, ast.ClassDef) and "Protocol" not in ast.unparse(node.bases[:1] or node):
                names = [each.name for each in node.body if isinstance(each, ast.FunctionDef)]
                names += [ast.unparse(each.target) for each in node.body if isinstance(each, ast.AnnAssign)]
                for name in names:
                    homes.setdefault(name, set()).add(path.split("/")[1].removesuffix(".py"))
    return {name: frozenset(packages) for name, packages in homes.items()}


def is_above(module: str, package: str) -> bool:
    """Returns whether a name in a string or a call is a module of ours that the package must not import."""
    name = module.removeprefix("workbench.").split(".")[0]
    return (name == "workbench_widgets" and package != "cli") or FLOOR.get(name, 99) < FLOOR.get(package, 0)


def hidden_edges(source: str, package: str) -> list[str]:
    """Edges to other packages that no import statement states: names in strings, attributes, copied private members."""
    tree = ast.parse(source)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any("Protocol" in ast.unparse(base) for base in node.bases):
            private = [each.name for each in ast.walk(node) if re.match("_[a-z]", getattr(each, "name", None) or "")]
            found += [f"the protocol {node.name} declares {name}" for name in private]
        if not isinstance(node, ast.Call) or not node.args:
            continue
        name, arguments = ast.unparse(node.func).rpartition(".")[2], [ast.unparse(each) for each in node.args]
        module, attribute = re.sub("^f?['\"]|['\"]$", "", arguments[0]), arguments[-1]
        if name in ("import_module", "__import__", "find_spec") and is_above(module, package):
            found.append(f"imports {module}")
        if name == "getattr" and not isinstance(node.args[1], ast.Constant) and is_above(module, package):
            found.append(f"takes {attribute} of {module}")
        if name == "hasattr" or (name == "getattr" and len(arguments) == 3):
            attribute = arguments[1].strip("'")
            homes = members().get(attribute, frozenset()) if isinstance(node.args[1], ast.Constant) else frozenset()
            if attribute in OF_OTHERS or attribute.startswith("__") or package not in FLOOR or not homes:
                continue
            if all(FLOOR.get(home, -1) < FLOOR[package] for home in homes):
                found.append(f"looks for {attribute}, which {', '.join(homes)} defines")
    return found


def test_no_edge_is_hidden():
    hidden = [
        f"{path} {edge}"
        for path in python_files("workbench")
        for edge in hidden_edges((ROOT / path).read_text(), path.split("/")[1].removesuffix(".py"))
    ]
    assert hidden == []


@pytest.mark.parametrize(
    ("source", "edge"),
    [
        ("import importlib\nimportlib.import_module('workbench.api')", "imports workbench.api"),
        ("import workbench_widgets\ngetattr(workbench_widgets, x.view)", "takes x.view of workbench_widgets"),
        ("hasattr(x, 'call_tree_of')", None),
        ("hasattr(x, 'plan_choice')", "looks for plan_choice, which"),
        ("class Question(Protocol):\n    def _call(self): ...", "the protocol Question declares _call"),
    ],
)
def test_a_hidden_edge_is_found(source, edge):
    assert [found.startswith(edge) for found in hidden_edges(source, "records")] == ([] if edge is None else [True])


def test_a_class_name_is_for_one_thing():
    homes: dict[str, list[str]] = {}
    for path in python_files("workbench", "widgets"):
        for node in ast.parse((ROOT / path).read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(path)
    assert {name: paths for name, paths in homes.items() if len(paths) > 1} == {}


def test_imports_do_not_go_round_in_circles():
    assert circles(imports()) == []


def circles(graph: dict[str, frozenset[str]]) -> list[list[str]]:
    """The groups of modules that import each other (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(module: str) -> None:
        index[module] = low[module] = len(index)
        stack.append(module)
        for target in sorted(graph[module]):
            if target not in index:
                visit(target)
            if target in stack:
                low[module] = min(low[module], low[target])
        if low[module] == index[module]:
            group = stack[stack.index(module) :]
            del stack[stack.index(module) :]
            if len(group) > 1:
                found.append(sorted(group))

    for module in sorted(graph):
        if module not in index:
            visit(module)
    return found


def test_a_circle_is_found():
    graph = {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("a"), "d": frozenset("a")}
    assert circles(graph) == [["a", "b", "c"]]
