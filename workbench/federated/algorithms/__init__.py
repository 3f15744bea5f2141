"""Federated algorithms written with the primitives; each file cites its paper."""

from workbench.federated.algorithms._aggregate import Aggregator as Aggregator, weighted_mean as weighted_mean
from workbench.federated.algorithms._algorithm import Algorithm as Algorithm
from workbench.federated.algorithms._apfl import apfl as apfl
from workbench.federated.algorithms._buffered_fedavg import buffered_fedavg as buffered_fedavg
from workbench.federated.algorithms._byzantine import (
    bulyan as bulyan,
    geometric_median as geometric_median,
    krum as krum,
)
from workbench.federated.algorithms._coded import (
    best_needed as best_needed,
    coded_matmul as coded_matmul,
    decode_blocks as decode_blocks,
    encode_blocks as encode_blocks,
    expected_latency as expected_latency,
    simulate_latency as simulate_latency,
)
from workbench.federated.algorithms._coded_shuffle import (
    coded_shuffle as coded_shuffle,
    plan_shuffle as plan_shuffle,
    shuffle_messages as shuffle_messages,
)
from workbench.federated.algorithms._cohorts import in_cohorts as in_cohorts
from workbench.federated.algorithms._compression import quantized_mean as quantized_mean, top_k_mean as top_k_mean
from workbench.federated.algorithms._diloco import diloco as diloco
from workbench.federated.algorithms._error_feedback import (
    Compressor as Compressor,
    compressed_mean as compressed_mean,
    low_rank as low_rank,
    random_k as random_k,
    round_to_bits as round_to_bits,
    scaled_sign as scaled_sign,
    top_k as top_k,
)
from workbench.federated.algorithms._fedavg import fedavg as fedavg, fedopt as fedopt, fedprox as fedprox
from workbench.federated.algorithms._fedbuff import fedbuff as fedbuff
from workbench.federated.algorithms._kmeans import kmeans as kmeans
from workbench.federated.algorithms._linear import newton as newton, power_iteration as power_iteration
from workbench.federated.algorithms._local import train_locally as train_locally
from workbench.federated.algorithms._lora import (
    fedlora as fedlora,
    init_adapters as init_adapters,
    merge_adapters as merge_adapters,
)
from workbench.federated.algorithms._matmul import matmul_25d as matmul_25d, matmul_words as matmul_words
from workbench.federated.algorithms._meta import fine_tuning as fine_tuning, maml as maml, reptile as reptile
from workbench.federated.algorithms._mime import mime_lite as mime_lite
from workbench.federated.algorithms._normalized import feddyn as feddyn, fedlin as fedlin, fednova as fednova
from workbench.federated.algorithms._personal import ditto as ditto, fedrep as fedrep
from workbench.federated.algorithms._population import branch_train_merge as branch_train_merge, papa as papa
from workbench.federated.algorithms._powersgd import power_sgd_mean as power_sgd_mean
from workbench.federated.algorithms._privacy import epsilon as epsilon, gaussian_mean as gaussian_mean
from workbench.federated.algorithms._private_trees import (
    adaptive_clip_mean as adaptive_clip_mean,
    ftrl_epsilon as ftrl_epsilon,
    ftrl_mean as ftrl_mean,
)
from workbench.federated.algorithms._robust import median as median, trimmed_mean as trimmed_mean
from workbench.federated.algorithms._scaffold import scaffold as scaffold
from workbench.federated.algorithms._secure_cost import secure_aggregation_cost as secure_aggregation_cost
from workbench.federated.algorithms._secure_mean import masked_sum as masked_sum, secure_mean as secure_mean
from workbench.federated.algorithms._secure_noise import secure_epsilon as secure_epsilon
from workbench.federated.algorithms._secure_session import SecureSession as SecureSession
from workbench.federated.algorithms._self_tuning import hypergradient as hypergradient, reweighted as reweighted
from workbench.federated.algorithms._statistics import (
    histogram as histogram,
    inverted_index as inverted_index,
    quantile as quantile,
    word_count as word_count,
)
from workbench.federated.algorithms._streaming import streaming_diloco as streaming_diloco
from workbench.federated.algorithms._tensor_parallel import tensor_parallel as tensor_parallel
