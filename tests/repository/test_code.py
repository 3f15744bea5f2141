"""The rules of the house that a program can check."""

import ast
import importlib
import importlib.metadata
import pkgutil
import re
import subprocess
import sys
import warnings
from functools import cache

import pytest
import workbench_widgets
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from repository_files import ROOT, offenders, project, python_files

import workbench
from workbench._jax_compat import warn_of_newer_jax

LIBRARY = python_files("workbench", "widgets")
PACKAGES = ["workbench", "workbench_widgets"]


def parse(name):
    return ast.parse((ROOT / name).read_text())


def functions(tree):
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_imports_at_the_top_are_core_dependencies():
    def optional(name):
        return {module.split(".")[0] for module in top_level_imports(parse(name))} - ALLOWED

    early = [name for name in LIBRARY if module_name(name) in imported_at_the_top()]
    assert offenders(early, optional) == []


def modules_of(requirements):
    """The names under which the libraries of some requirements are imported."""
    declared = {canonicalize_name(Requirement(line).name) for line in requirements}
    found = importlib.metadata.packages_distributions()
    return {module for module, names in found.items() if declared & set(map(canonicalize_name, names))}


# Never installed apart from a declared library: three with jax, the kernel's parts with JupyterLab and ipywidgets.
COMES_WITH = {"jaxlib", "ml_dtypes", "scipy", "IPython", "traitlets", "comm", "jupyter_client", "jupyter_core"}
OURS = {*PACKAGES, "examples"}
ALLOWED = modules_of(project()["dependencies"]) | set(sys.stdlib_module_names) | OURS | COMES_WITH


def top_level_imports(tree):
    """All modules that are imported when the file is, those under `if TYPE_CHECKING` left out."""
    waiting, found = list(tree.body), set()
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            waiting += [*node.body, *node.orelse]
    return found


@cache
def imported_at_the_top():
    """Our modules that are imported as soon as a package of ours is: they may not need an optional library."""
    files = {module_name(name): name for name in LIBRARY}
    packages = {module for module, name in files.items() if name.endswith("/__init__.py") and "_app" not in name}
    reached, waiting = set(), list(packages)
    while waiting:
        module = waiting.pop()
        if module in files and module not in reached:
            reached.add(module)
            waiting += top_level_imports(parse(files[module]))
    return reached


def module_name(name):
    return name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def test_front_ends_use_only_public_names_of_the_workbench():
    def private(name):
        imports = [node for node in ast.walk(parse(name)) if isinstance(node, ast.ImportFrom) and node.module]
        ours = [node for node in imports if node.module.split(".")[0] == "workbench"]
        taken = {f"{node.module}.{alias.name}" for node in ours for alias in node.names}
        taken |= {alias.name for node in ast.walk(parse(name)) if isinstance(node, ast.Import) for alias in node.names}
        return [path for path in taken if re.search(r"^workbench\b.*\._", path)]

    assert offenders(python_files("widgets", "notebooks"), private) == []


def test_public_names_are_documented():
    named = {name: getattr(workbench, name) for name in workbench.__all__ if name[0] != "_"}
    assert len(named) > 20
    assert [name for name, thing in named.items() if not (thing.__doc__ or "").strip()] == []


def test_every_module_can_be_imported():
    found = [
        info.name
        for package in (workbench, workbench_widgets)
        for info in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
    ]
    assert len(found) > 20
    missing = set()
    for name in found:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            module = str(error.name)  # may be spelt otherwise than its distribution
            missing.add(BROUGHT.get(module, module.replace("_", "-")))
    optional = [line for libraries in project()["optional-dependencies"].values() for line in libraries]
    assert missing <= {Requirement(line).name for line in optional}


def python(code):
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)


def test_import_of_the_workbench_prints_nothing_and_starts_no_device_and_no_front_end():
    code = (
        "import sys, workbench; from jax._src import xla_bridge\n"
        "assert not xla_bridge._backends, 'devices'\n"
        "loaded = {'widgets', 'jupyterlab', 'matplotlib.pyplot', 'sklearn'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    done = python(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_modules_of_the_user_named_like_our_folders_change_nothing(tmp_path):
    for name in ("widgets", "workbench_course", "records", "render"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('the module of the user was imported')")
    code = "import workbench as wb, workbench_widgets; wb.render.to_pandas; wb.show; workbench_widgets.Explorer"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("version", "warns"), [((0, 10, 2), False), ((0, 12, 9), False), ((0, 13, 0), True)])
def test_a_jax_newer_than_those_that_were_tried_warns_and_is_not_refused(version, warns):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_newer_jax(version)
    assert [f"this is JAX {version[0]}.{version[1]}" in str(each.message) for each in caught] == [True] * warns


def test_records_are_drawn_without_jax():
    done = python("import sys; sys.modules['jax'] = None; import workbench.records, workbench.render")
    assert (done.returncode, done.stderr) == (0, "")


# Declared, and imported nowhere in Python: what they are for.
NOT_IMPORTED = {
    "flatbuffers": "jax.export writes with it and does not declare it",
    "ipywidgets": "named by the user, and JupyterLab's half of anywidget",
    "flax": "a notebook of the course",
    "loky": "its executor is handed to `engines.Executor`",
    "google-crc32c": "Beam is slow without it",
    "sqlalchemy": "MLflow's database needs it, and its small package does not declare it",
    "alembic": "MLflow's database needs it, and its small package does not declare it",
}


@cache
def imported_anywhere():
    """First names of all modules that the library and its examples import, also by name as text."""
    found = set()
    for name in [*LIBRARY, *python_files("examples")]:
        text = (ROOT / name).read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
                found.add(node.module.split(".")[0])
        found |= set(re.findall(r'(?:import_module|find_spec|needs_library)\(\s*"([\w.-]+)"', text))
    return {name.split(".")[0] for name in found}


def test_what_is_declared_is_imported():
    extras = [line for name, lines in project()["optional-dependencies"].items() if name != "docs" for line in lines]
    declared = {canonicalize_name(Requirement(line).name) for line in (*project()["dependencies"], *extras)}
    modules = importlib.metadata.packages_distributions()
    used = {canonicalize_name(owner) for name in imported_anywhere() for owner in modules.get(name, [name])}
    spelt = {"apache-beam": "apache_beam", "nvidia-ml-py": "pynvml", "flwr": "flwr", "google-crc32c": "google_crc32c"}
    spelt["mlflow-skinny"] = "mlflow"
    used |= {library for library, module in spelt.items() if module in imported_anywhere()}
    unused = declared - used - NOT_IMPORTED.keys() - {project()["name"]}
    assert sorted(unused) == []


# Imported where an extra's library brings it, or where whoever calls has it: `workbench.testing` runs under pytest.
BROUGHT = {
    "apache_beam": "apache-beam",
    "dask": "distributed",
    "dp_accounting": "dp-accounting",
    "google": "federated-language",
    "grpc": "apache-beam",
    "libtpu": "jax",
    "mlflow": "mlflow-skinny",
    "orbax": "orbax-checkpoint",
    "pynvml": "nvidia-ml-py",
    "sklearn": "scikit-learn",
    "upath": "universal-pathlib",
    "uvicorn": "flwr",
}
# `typing_extensions` is for type checkers alone; JupyterLab brings what reads notebooks; an error message names the two
# that write slides.
NOT_DECLARED = {"pytest", "typing_extensions", "nbformat", "nbclient", "nbconvert", "latex2mathml", "sphinx_revealjs"}


def test_what_is_imported_is_declared():
    declared = {Requirement(line).name for lines in project()["optional-dependencies"].values() for line in lines}
    found = {module for module in imported_anywhere() - ALLOWED - NOT_DECLARED if module.isidentifier()}
    assert sorted({BROUGHT.get(module, module.replace("_", "-")) for module in found} - declared) == []
