"""Reads the data of a node's clients. In an exported project, replace `column` with a reader for your data."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from flwr.app import Context  # pyright: ignore[reportMissingImports] -- an extra


def column(context: "Context", name: str) -> np.ndarray:
    """Reads one input of the program on this node, `[clients of the node, ...]`.

    The folder is `data` in the node's configuration. If the node has none, the folder is a subfolder for the partition.
    Its parent is `data` in the run's configuration, or else the environment variable WORKBENCH_FLOWER_DATA.
    """
    if root := context.node_config.get("data"):
        folder = Path(str(root))
    else:
        folder = Path(str(context.run_config.get("data") or os.environ["WORKBENCH_FLOWER_DATA"]))
        folder /= str(context.node_config["partition-id"])
    return np.load(folder / f"{name}.npy", allow_pickle=False)
