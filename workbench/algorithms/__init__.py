"""Algorithms in terms of the primitives, each a short file with its paper cited."""

from workbench.algorithms._algorithm import Algorithm as Algorithm, ServerState as ServerState
from workbench.algorithms._fedavg import fedavg as fedavg, fedopt as fedopt, fedprox as fedprox
from workbench.algorithms._kmeans import kmeans as kmeans
from workbench.algorithms._linear import newton as newton, power_iteration as power_iteration
from workbench.algorithms._local import Trained as Trained, train_locally as train_locally
from workbench.algorithms._scaffold import ScaffoldState as ScaffoldState, scaffold as scaffold
from workbench.algorithms._self_tuning import hypergradient as hypergradient
from workbench.algorithms._statistics import histogram as histogram, quantile as quantile, word_count as word_count
