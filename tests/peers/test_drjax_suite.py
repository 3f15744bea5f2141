"""DrJAX's own public test suite, run against our primitives; see README.md here for how to get it."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = ("api_test.py", "impls_test.py", "impls_sharding_test.py", "primitives_test.py")
# Its expectation is one of the defects: see the table in README.md.
DEFECTS = {
    "ApiErrorsTest.test_apis_with_mixed_mode_mesh_axes_raise_error",
    "ApiErrorsTest.test_multiple_placements_raises",
    "ApiTest.test_broadcast_mesh_arg_without_placement",
    "ApiTest.test_broadcast_raises_error_on_missing_axis_explicit_mesh",
}


def _suite() -> Path | None:
    """The folder of its tests: from DRJAX_TESTS, else next to an installed drjax."""
    roots = [Path(os.environ["DRJAX_TESTS"])] if "DRJAX_TESTS" in os.environ else []
    spec = importlib.util.find_spec("drjax")
    roots += [Path(place) for place in (spec.submodule_search_locations or [])] if spec is not None else []
    found = [path.parent for root in roots for path in root.rglob(FILES[0])]
    return found[0] if found else None


def _name(test: str) -> str:
    """`peer.ApiTest.test_x_(axes_type=Auto)__with_jit [part]` is `ApiTest.test_x`."""
    return re.sub(r"(_?\(.*|__with(out)?_jit.*| \[.*|\d+)$", "", test.removeprefix("peer."))


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES, ids=str)
def test_its_suite_passes_except_where_it_expects_a_defect(file: str) -> None:
    suite = _suite()
    if suite is None:
        pytest.skip("no test suite of DrJAX here: set DRJAX_TESTS to its source tree (tests/peers/README.md)")
    for library in ("absl", "chex"):
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"DrJAX's test suite needs `{library}`: pip install absl-py chex")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), *filter(None, sys.path)])}
    done = subprocess.run(
        [sys.executable, str(HERE / "drjax_shim.py"), str(suite / file)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.stdout, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    unexpected = {test: why for test, why in result["failed"].items() if _name(test) not in DEFECTS}
    assert unexpected == {}
    assert len(result["passed"]) > 0


@pytest.mark.parametrize(
    ("test", "name"),
    [
        ("peer.ApiTest.test_x_(placement_name='XY', axes_type=Explicit)__with_jit", "ApiTest.test_x"),
        ("peer.ImplsTest.test_y__without_jit", "ImplsTest.test_y"),
        ("peer.ApiErrorsTest.test_z [map]", "ApiErrorsTest.test_z"),
    ],
    ids=["parameters", "variant", "part of a test"],
)
def test_names_of_its_tests_are_read_without_their_parameters(test: str, name: str) -> None:
    assert _name(test) == name


def test_the_readme_lists_every_defect() -> None:
    listed = set(re.findall(r"`(\w+\.test_\w+)`", (HERE / "README.md").read_text()))
    assert listed == DEFECTS
