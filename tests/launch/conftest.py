"""Lets spawned processes import the tests' nodes by name: they get this process's `sys.path`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
