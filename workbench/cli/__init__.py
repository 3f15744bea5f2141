"""The `workbench` command: `lab` opens notebooks, `demo` writes a report, `doctor` checks the installation."""

from workbench.cli._main import main as main
