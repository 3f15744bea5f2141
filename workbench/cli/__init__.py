"""The `workbench` command: `lab` opens the notebooks, `demo` writes a report, `doctor` says what is installed."""

from workbench.cli._main import main as main
