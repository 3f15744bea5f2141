"""The distribution name of this library, and the command that reinstalls it."""

DISTRIBUTION = "mapreduce-workbench"
REINSTALL = "pip install --force-reinstall --no-deps ."  # in a clone: no package index has a release yet
