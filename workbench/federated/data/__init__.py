"""Client data: real data sets, heterogeneous partitions, padding, cohorts and loaders."""

from workbench.federated.data._client_data import ClientData as ClientData, federate as federate
from workbench.federated.data._cohorts import cohorts as cohorts, poisson_cohorts as poisson_cohorts
from workbench.federated.data._describe import describe as describe
from workbench.federated.data._generated import rendered_glyphs as rendered_glyphs
from workbench.federated.data._load_folder import load_folder as load_folder
from workbench.federated.data._load_hdf5 import load_tff_hdf5 as load_tff_hdf5
from workbench.federated.data._load_leaf import load_leaf as load_leaf
from workbench.federated.data._load_npz import load_npz as load_npz
from workbench.federated.data._load_tables import load_hugging_face as load_hugging_face, load_parquet as load_parquet
from workbench.federated.data._load_tokens import load_tokens as load_tokens
from workbench.federated.data._padding import Cohort as Cohort, pad_clients as pad_clients
from workbench.federated.data._partition import (
    by_natural_id as by_natural_id,
    dirichlet as dirichlet,
    iid as iid,
    shards as shards,
)
from workbench.federated.data._shipped import (
    Examples as Examples,
    digits as digits,
    python_reference as python_reference,
    shipped as shipped,
    tokenize as tokenize,
)
from workbench.federated.data._standard import (
    load_cifar as load_cifar,
    load_femnist as load_femnist,
    load_shakespeare as load_shakespeare,
    load_stackoverflow as load_stackoverflow,
)
