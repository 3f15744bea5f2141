"""The name under which this library is installed, and the command that installs it again."""

DISTRIBUTION = "mapreduce-workbench"
REINSTALL = "pip install --force-reinstall --no-deps ."  # in a clone: no package index has a release yet
