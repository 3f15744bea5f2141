"""The version of the installed distribution."""

import importlib.metadata

try:
    __version__ = importlib.metadata.version("mapreduce-workbench")
except importlib.metadata.PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0.0.0+unknown"
