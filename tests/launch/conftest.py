"""Lets spawned processes import the tests' nodes by name: they get this process's `sys.path`."""

import sys
from pathlib import Path

HERE = str(Path(__file__).parent)
sys.path.insert(0, HERE)
