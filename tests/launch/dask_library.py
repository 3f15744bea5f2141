"""Dask's library, or a skip that says why."""

import importlib
from typing import Any

import pytest


def import_distributed() -> Any:
    pytest.importorskip("distributed.client", reason="needs the extra `dask`")  # a folder can be called `distributed`
    return importlib.import_module("distributed")
