"""TF-Replicator's model: code for one replica, run on all replicas of a mesh.

A replica is a client of a placement, so `workbench.inspect`, `measure` and `show` work as with any program.

References:
    Buchlovsky, Budden, Grewe et al., "TF-Replicator: Distributed Machine Learning for Researchers", 2019.
"""

from workbench.replicate._batch_norm import batch_moments as batch_moments, sync_batch_norm as sync_batch_norm
from workbench.replicate._context import InputContext as InputContext
from workbench.replicate._optimizer import wrap_optimizer as wrap_optimizer
from workbench.replicate._replicator import Replicator as Replicator

__all__ = ["InputContext", "Replicator", "batch_moments", "sync_batch_norm", "wrap_optimizer"]
