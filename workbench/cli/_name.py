"""The name under which this library is installed."""

DISTRIBUTION = "mapreduce-workbench"
