"""Terms of federated learning and sharding, for the glossary page and for the search."""

C = "course/"
# term -> (explanation, page that says more)
TERMS: dict[str, tuple[str, str]] = {
    "α–β model": (
        "Cost of a message: a latency α plus its bytes divided by the bandwidth.",
        C + "22-collectives-as-algorithms",
    ),
    "activation": (
        "The output of a layer, which is stored or recomputed for the backward pass.",
        C + "23-one-transformer",
    ),
    "adapter": ("A small set of trained weights that is added to a frozen model.", C + "31-adapters"),
    "adaptive server": (
        "A server that applies Adam, Yogi or Adagrad to the pseudo-gradient.",
        C + "21-sweeps-and-intervals",
    ),
    "aggregator": ("A rule that combines the clients' updates: a mean, a median, a clipped sum.", "algorithms"),
    "ahead-of-time compilation": (
        "Compilation before the program runs, also for a machine that is not attached.",
        "absent-hardware",
    ),
    "asynchronous rounds": (
        "Training in which the server applies each update as soon as it arrives.",
        C + "16-services",
    ),
    "axis type": (
        "A property of a mesh axis (Auto, Explicit or Manual) that determines how shardings along the axis are chosen.",
        "shardings",
    ),
    "bisection bandwidth": (
        "Bytes per second between two halves of a network.",
        C + "22-collectives-as-algorithms",
    ),
    "bootstrap interval": (
        "A confidence interval whose ends are quantiles of the means of resampled values.",
        C + "21-sweeps-and-intervals",
    ),
    "buffered aggregation": (
        "An asynchronous method in which the server takes a step once a fixed number of updates has arrived (FedBuff).",
        C + "20-a-hundred-million-phones",
    ),
    "bubble": ("Fraction of the time in which the stages of a pipeline are idle.", C + "23-one-transformer"),
    "Byzantine client": (
        "A client that may send arbitrary messages.",
        C + "12-robustness-privacy-compression",
    ),
    "chunk size": ("Number of clients that a device processes at once.", "how-to/chunk-size"),
    "client drift": (
        "The divergence of clients during local steps, which lead each client towards its own optimum.",
        C + "09-client-drift",
    ),
    "client sampling": ("The server's choice of a random cohort for each round.", "how-to/client-sampling"),
    "clipping": ("Scaling an update down to a maximum norm.", "how-to/differential-privacy"),
    "coded computation": (
        "Redundant computation, so that the answers of only some of the workers are needed.",
        C + "13-stragglers-and-coding",
    ),
    "cohort": ("The clients that take part in one round.", "how-to/client-sampling"),
    "combiner": ("A partial sum at the worker, before anything is sent.", C + "26-mapreduce"),
    "compression": ("Sending fewer bits or entries of an update.", C + "12-robustness-privacy-compression"),
    "context parallelism": (
        "A sharding that splits the sequence over devices, including in attention.",
        C + "29-inference",
    ),
    "control variate": ("SCAFFOLD's correction of a client's gradient.", C + "09-client-drift"),
    "cross-device": ("Many small clients that are rarely online, such as phones.", C + "20-a-hundred-million-phones"),
    "cross-silo": ("A few large clients that always answer, such as hospitals.", C + "10-diloco"),
    "data parallelism": (
        "A sharding in which every device stores all weights and processes a part of the batch.",
        C + "23-one-transformer",
    ),
    "δ": (
        "Additive term of the guarantee: roughly, the probability that the bound ε fails.",
        "how-to/differential-privacy",
    ),
    "differential privacy": (
        "A bound on how much the data of one member can change the distribution of the result.",
        "how-to/differential-privacy",
    ),
    "DiLoCo": ("A method with many local AdamW steps between outer steps with Nesterov momentum.", C + "10-diloco"),
    "Dirichlet partition": (
        "A partition with label distributions drawn from a Dirichlet distribution; a smaller α skews them more.",
        C + "08-fedavg-on-real-data",
    ),
    "disclosure": ("The sending of a value from a client to the server.", "how-to/disclosure"),
    "distributed differential privacy": (
        "Differential privacy with noise from every client; secure aggregation hides the individual messages.",
        C + "24-attacks-and-privacy",
    ),
    "dropout of clients": ("Clients that begin a round and do not finish it.", C + "20-a-hundred-million-phones"),
    "ε": ("Bound on the privacy loss; a smaller ε is a stronger guarantee.", "how-to/differential-privacy"),
    "error feedback": (
        "Adding the compression error of one update to the next update.",
        C + "12-robustness-privacy-compression",
    ),
    "expert parallelism": (
        "A sharding in which each device stores some experts, and tokens are sent to the devices of their experts.",
        C + "23-one-transformer",
    ),
    "FedAvg": ("Federated averaging: local training, then a weighted mean.", C + "01-start-here"),
    "FedAvgM": ("FedAvg with momentum at the server.", C + "21-sweeps-and-intervals"),
    "FedProx": ("Local training with a pull towards the server's parameters.", C + "09-client-drift"),
    "FSDP": (
        "Fully sharded data parallelism: weights are stored as shards and gathered when they are used.",
        C + "23-one-transformer",
    ),
    "gradient accumulation": ("Adding the gradients of several small batches before one optimizer step.", "advice"),
    "gossip": ("Repeated averaging with neighbours on a graph, without a server.", C + "28-gossip"),
    "gradient inversion": ("Reconstructing inputs from a gradient.", C + "24-attacks-and-privacy"),
    "gradient tracking": (
        "A gossip method in which each client also keeps, and exchanges, an estimate of the mean gradient.",
        C + "28-gossip",
    ),
    "grouped-query attention": (
        "Attention in which several query heads use the same key and value head.",
        C + "29-inference",
    ),
    "heterogeneity": ("Differences between the clients' data, sizes or speeds.", C + "08-fedavg-on-real-data"),
    "hierarchical reduction": (
        "A sum that is computed first inside each host or pod, then between hosts or pods.",
        C + "22-collectives-as-algorithms",
    ),
    "Holm's correction": (
        "A step-by-step correction of the p-values of several comparisons.",
        C + "21-sweeps-and-intervals",
    ),
    "hypergradient": ("Derivative of a training run with respect to a learning rate or weight.", C + "11-self-tuning"),
    "importance sampling": ("Sampling some items more often, with smaller weights.", C + "17-actor-learner"),
    "key skew": (
        "An uneven distribution of values over keys, which gives one reducer most of the work.",
        C + "26-mapreduce",
    ),
    "KV cache": ("The keys and values of earlier tokens, which are kept during inference.", C + "29-inference"),
    "LiRA": ("A membership attack that uses likelihood ratios from shadow models.", C + "24-attacks-and-privacy"),
    "local differential privacy": (
        "Differential privacy in which every client adds enough noise to its own message.",
        C + "24-attacks-and-privacy",
    ),
    "local steps": ("Optimizer steps of a client within a round.", C + "08-fedavg-on-real-data"),
    "LoRA": ("Low-rank adapters for a frozen model.", C + "31-adapters"),
    "MAML": ("Training initial parameters that adapt well in a few steps.", C + "25-personalisation"),
    "membership inference": ("Guessing whether an example was used in training.", C + "24-attacks-and-privacy"),
    "micro-batch": ("A part of the batch that flows through a pipeline separately.", C + "23-one-transformer"),
    "mixed precision": ("Computation with products in 16 bits, and sums and weights in 32 bits.", "advice"),
    "mixing matrix": (
        "The matrix of weights in one round of gossip; its rows and columns sum to one.",
        C + "28-gossip",
    ),
    "model parallelism": ("A sharding that splits the weights over devices.", C + "04-shardings-and-meshes"),
    "non-IID": ("Describes clients whose data have different distributions.", C + "08-fedavg-on-real-data"),
    "over-selection": (
        "Selecting more clients than needed, and stopping the slowest.",
        C + "20-a-hundred-million-phones",
    ),
    "parameter server": ("A process that stores parameters and applies updates.", C + "16-services"),
    "participation": ("Probability that a client takes part in a round.", C + "27-convergence"),
    "PartitionSpec": ("The mesh axes that split each dimension of an array.", C + "04-shardings-and-meshes"),
    "personalisation": ("A model, or a part of it, for each client.", C + "25-personalisation"),
    "pipeline parallelism": (
        "A sharding in which each device stores some of the layers, and micro-batches flow from device to device.",
        C + "23-one-transformer",
    ),
    "privacy accountant": ("A program that computes the total ε over all rounds.", "how-to/differential-privacy"),
    "pseudo-gradient": ("The mean update, which the server's optimizer uses as a gradient.", C + "01-start-here"),
    "quantisation": ("Rounding numbers to a few bits.", C + "12-robustness-privacy-compression"),
    "rematerialisation": (
        "Recomputing activations in the backward pass instead of storing them.",
        C + "30-two-axes",
    ),
    "replica": ("A copy of the model that trains together with other copies.", C + "15-replicas"),
    "ring attention": ("Attention whose keys and values are passed around a ring of devices.", "attribution"),
    "robust aggregation": (
        "A mean that a few faulty clients cannot change much.",
        C + "12-robustness-privacy-compression",
    ),
    "round": (
        "One iteration of federated training: broadcast, local work, reduction and server step.",
        C + "01-start-here",
    ),
    "SCAFFOLD": ("FedAvg with a control variate for each client.", C + "09-client-drift"),
    "secure aggregation": (
        "A protocol by which the server learns the sum of the updates and nothing else.",
        C + "24-attacks-and-privacy",
    ),
    "sensitivity": (
        "Largest change of a result that the data of one member can cause.",
        C + "24-attacks-and-privacy",
    ),
    "sequence parallelism": (
        "A sharding that splits activations along the sequence between layers.",
        C + "23-one-transformer",
    ),
    "shadow model": (
        "A model that an attacker trains to learn how outputs differ for members.",
        C + "24-attacks-and-privacy",
    ),
    "spectral gap": (
        "1 minus the second largest absolute eigenvalue of a mixing matrix.",
        C + "28-gossip",
    ),
    "SPMD": ("Execution of one program on all devices, each with its own data.", C + "05-reading-the-hlo"),
    "staleness": ("Number of server steps since a client received its parameters.", C + "20-a-hundred-million-phones"),
    "SUMMA": (
        "An algorithm that multiplies matrices by panels, along the rows and columns of a grid of devices.",
        C + "14-summa",
    ),
    "synchronous batch norm": ("Batch normalisation with moments computed over all replicas.", C + "15-replicas"),
    "tensor parallelism": (
        "A sharding that splits matrices over devices; partial products are summed.",
        C + "23-one-transformer",
    ),
    "total variation distance": (
        "Half of the sum of absolute differences between two distributions.",
        C + "25-personalisation",
    ),
    "transpose of a program": (
        "The backward program, in which a broadcast becomes a sum and a sum becomes a broadcast.",
        C + "03-derivatives-through-communication",
    ),
    "trimmed mean": (
        "A mean that leaves out the largest and the smallest values.",
        C + "12-robustness-privacy-compression",
    ),
    "update": (
        "Parameters before local training minus parameters after it; some papers use the opposite sign.",
        C + "01-start-here",
    ),
    "ZeRO": (
        "Sharding of the optimizer state, gradients or weights over data-parallel devices.",
        C + "23-one-transformer",
    ),
}

# pages for terms of the views that no notebook teaches
PAGES = {
    "branch": C + "15-replicas",
    "lockstep": "advice",
    "replication": C + "04-shardings-and-meshes",
    "sharding rule": C + "04-shardings-and-meshes",
    "torus coordinates": C + "06-what-does-it-cost",
}

# page that the search shows first -> what readers type, where it is no term of the glossary or has another page there
SEARCHED = {
    C + "00-the-jax-you-need": "vmap, jax.vmap, jit, jax.jit, scan, pytree, learn jax",
    C + "01-start-here": "federated averaging, federated learning, fedavg from scratch, first notebook",
    C + "02-placements-and-primitives": "primitives, placements, mapreduce primitives",
    C + "03-derivatives-through-communication": "jax.grad, gradient through communication, autodiff, backward pass",
    C + "04-shardings-and-meshes": "named sharding, jax.make_mesh, device mesh",
    C + "05-reading-the-hlo": "collectives, read hlo, compiled program",
    C + "06-what-does-it-cost": "communication cost, arithmetic intensity, cost model",
    C + "08-fedavg-on-real-data": "dirichlet, noniid, non-i.i.d., label skew, heterogeneous data",
    C + "10-diloco": "local sgd, streaming diloco, outer optimizer",
    C + "11-self-tuning": "hyperparameter tuning, learning rate tuning, meta-learning",
    C + "12-robustness-privacy-compression": "quantization, top-k, byzantine, poisoning, malicious clients",
    C + "13-stragglers-and-coding": "stragglers, coded computing",
    C + "14-summa": "matrix multiplication, matrix product, matmul",
    C + "15-replicas": "batch norm, replicas",
    C + "16-services": "asynchronous, asynchronous training, fedasync, services",
    C + "17-actor-learner": "reinforcement learning, replay buffer, actor learner",
    C + "20-a-hundred-million-phones": "phones, energy, fedbuff, simulate a population",
    C + "21-sweeps-and-intervals": "momentum, confidence interval, fedopt, fedadam, fedyogi, p-value, sweep, seeds",
    C + "22-collectives-as-algorithms": "shard_map, ring all-reduce, allreduce, ppermute, latency and bandwidth",
    C + "23-one-transformer": "model parallel, mixture of experts, transformer, megatron, expert parallel",
    C + "24-attacks-and-privacy": "privacy attack, data leakage, gradient leakage, membership attack",
    C + "25-personalisation": "personalization, personalized federated learning, fedper, clustering, clustered clients",
    C + "26-mapreduce": "mapreduce, word count, mapreduce word count, k-means, kmeans, quantiles, combiners",
    C + "27-convergence": "convergence, convergence rate, convergence of fedavg, theorem, partial participation",
    C + "28-gossip": "decentralised learning, decentralized learning, peer to peer, without a server",
    C + "29-inference": "inference, decoding, attention cache, serving",
    C + "30-two-axes": "2d parallelism, 3d parallelism, remat, jax.checkpoint, combining axes",
    C + "31-adapters": "federated lora, fine-tuning, low-rank adaptation",
    "course": "exercises, notebooks, course, tutorial, lessons, examples",
    "teaching/index": "slides, grading, nbgrader, students, lecture",
    "teaching/exam": "exam, exam questions",
    "install": "install, pip install, colab",
    "quickstart": "quickstart, getting started, hello world",
    "does-it-fit": "memory, out of memory, oom, peak memory, does it fit",
    "which-collective": "collective, remove a collective, why all-gather",
    "shardings": "mesh, sharding, what if",
    "advice": "optimizer state, donation, donate, make it faster",
    "profile-from-your-pod": "profile, profiler, trace viewer, xprof, tensorboard",
    "watch": "recompilation, jit recompilation, training loop, nan",
    "engines": "spark, beam, apache spark, dask, engine",
    "clusters": "ray, kubernetes, slurm, cluster",
    "coming-from/flower": "flower",
    "how-to/chunk-size": "chunk_size, chunks of clients",
    "how-to/client-sampling": "cohort, sampling clients, sample clients",
    "how-to/differential-privacy": "dp, dp-sgd, dp-fedavg, epsilon, privacy budget",
    "how-to/flax-step": "flax, equinox, haiku",
    "how-to/disclosure": "what leaves a client, privacy of clients",
    "how-to/testing-in-ci": "testing in ci, ci",
    "reference/workbench": "simulate devices, simulate_devices",
}
