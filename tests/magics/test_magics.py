"""The magics, in a real IPython shell."""

import jax.numpy as jnp
import pytest
from IPython.core.interactiveshell import InteractiveShell

import workbench as wb
from workbench.errors import ProgramError


@pytest.fixture
def shell():
    """A shell with the extension, a function `f` and an argument `x`."""
    made = InteractiveShell()
    made.run_line_magic("load_ext", "workbench")
    made.user_ns.update(wb=wb, jnp=jnp, x=jnp.ones(4), f=lambda x, scale=1.0: (x * scale).sum())
    return made


def test_inspect_reads_the_call_of_a_line(shell):
    assert shell.run_line_magic("inspect", "f(x)").module is not None


def test_inspect_takes_options_after_the_call(shell):
    record = shell.run_line_magic("inspect", 'f(x, scale=2.0) on="v5e"')
    assert record.cost.chip.name == "v5e"


def test_measure_runs_the_cell_and_times_its_last_call(shell):
    run = shell.run_cell_magic("measure", "rounds=2", "y = 3.0\ndef g(x):\n    return f(x, y)\ng(x)")
    assert (run.rounds, float(run.results)) == (2, 12.0)
    assert shell.user_ns["y"] == 3.0


def test_explore_opens_the_call(shell):
    view = shell.run_cell_magic("explore", "", "f(*[x], **{'scale': 2.0})")
    assert view.record.module is not None


@pytest.mark.parametrize("code", ["y = f(x)", "x", "def g():\n    pass"])
def test_code_without_a_call_is_refused(shell, code):
    with pytest.raises(ProgramError, match=r"not a call\. .*end with `fn\(x, y\)`"):
        shell.run_cell_magic("measure", "", code)


def test_options_that_are_no_keywords_are_refused(shell):
    with pytest.raises(ProgramError, match="received the options '5', which are not keyword arguments"):
        shell.run_cell_magic("measure", "5", "f(x)")


def test_functions_of_the_cell_keep_their_lines(shell):
    view = shell.run_cell_magic("explore", "", "import jax\n@jax.jit\ndef g(x):\n    return x * 2\ng(x)")
    assert view.record.plan.stages[0].source.line in (3, 4)
