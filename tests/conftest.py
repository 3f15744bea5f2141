"""Makes JAX strict and gives it eight CPU devices before anything imports it."""

import collections
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("NPROC", "64")  # more threads than simulated devices: see workbench/mesh/_simulate.py

import jax
import pytest
from _pytest.doctest import DoctestModule

# jsonschema, which nbformat imports, builds a grammar of IRIs with this for a second; no notebook has such a field.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a background job, where Ctrl-C would reach nobody
    signal.signal(signal.SIGINT, signal.default_int_handler)
jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--require-browser", action="store_true", help="fail, instead of skip, when no browser is found")
    parser.addoption("--everything", action="store_true", help="also run what the quick suite leaves out")
    parser.addoption("--all-programs", action="store_true", help="all public programs through every call")
    parser.addoption("--new-pictures", action="store_true", help="take the reference pictures of views anew")


# The quick suite is what runs without arguments: a test of each kind, from packages whose tests need no second process.
QUICK = ("cli", "cost", "inspection", "primitives/test_placements.py", "records", "render", "repository", "widgets")
LONG = "not (browser or lab or notebook or slow)"
# Left out of it: what compiles dozens of programs.
COMPILING = (
    "cost/test_cost_scaling.py",
    "cost/test_cost_scaling_programs.py",
    "inspection/call_tree/test_programs.py",
    "inspection/test_numbers.py",
    "inspection/what_if",
    "primitives/test_placements.py::test_nested_placements",
    "repository/test_browserless.py",
)


def pytest_configure(config: pytest.Config) -> None:
    """Without arguments, collects the quick tests; what is named by a path, `-k` or `-m` always runs."""
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):  # each child process would compile all sources again
        os.environ["PYTHONPYCACHEPREFIX"] = folder = tempfile.mkdtemp(prefix="workbench-tests-bytecode-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    config.option.loadscopereorder = False  # pytest-xdist would start the files with the fewest tests last
    named = config.args_source is pytest.Config.ArgsSource.ARGS  # by a path, and not by the value of an option
    if not (named or config.getoption("--everything") or config.option.keyword or config.option.markexpr):
        config.args = [str(config.rootpath / "tests" / name) for name in QUICK]
        config.option.markexpr = LONG
        config.option.ignore = [str(config.rootpath / "tests" / name) for name in COMPILING]
        config.option.deselect = [f"tests/{name}" for name in COMPILING]


@pytest.hookimpl(wrapper=True)
def pytest_collect_file() -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """No doctests of `test_*.py`: their plugin is silent about a file that cannot be imported, and pytest after it."""
    found = yield
    return [each for each in found if not (isinstance(each, DoctestModule) and each.path.name.startswith("test_"))]


# Rough seconds of a test, so that `--dist loadfile` begins with the longest files.
SECONDS = {"notebook": 20.0, "lab": 20.0, "slow": 10.0, "browser": 2.0}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the longest files first where several workers share the tests, as the last file bounds the end."""
    if hasattr(config, "workerinput"):
        seconds: collections.Counter[str] = collections.Counter()
        for item in items:
            named = [SECONDS[mark.name] for mark in item.iter_markers() if mark.name in SECONDS]
            seconds[item.nodeid.split("::")[0]] += max(named, default=0.2)
        items.sort(key=lambda item: -seconds[item.nodeid.split("::")[0]])


def pytest_collection_finish() -> None:
    """Keeps what lives to the end of the session out of every later collection: the tests, and the modules of all."""
    gc.collect()
    gc.freeze()


# Their subject is seconds of compiled programs, so they compile as users do.
AS_USERS = ("test_calibrate.py", "test_measured_program.py", "test_on_device.py")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Keeps LLVM from optimizing, in tests alone; docs/ and docstrings do not.

    The optimized HLO, its memory and its costs are the same: tests/inspection/test_optimization.py.
    """
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", item.path.name not in AS_USERS)
    try:
        return (yield)
    finally:
        jax.config.update("jax_disable_most_optimizations", before)


@pytest.fixture(scope="module")
def settled() -> None:
    """Keeps what other files left out of this file's calls of `gc.collect`, which late in a run take 3 s each."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[Any]:
    """The one Ray cluster of this process."""
    pytest.importorskip("ray", reason="needs the extra `ray`")
    from ray_cluster import running_ray

    with running_ray() as ray:
        yield ray


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Says at the end, where it is read, that the browser tests did not run."""
    skipped = [
        report for report in terminalreporter.stats.get("skipped", []) if "NO BROWSER FOUND" in str(report.longrepr)
    ]
    if skipped:
        terminalreporter.section("browser tests skipped", red=True, bold=True)
        terminalreporter.line(
            f"{len(skipped)} tests did NOT run. {skipped[0].longrepr[2].removeprefix('Skipped: ')}", red=True
        )
