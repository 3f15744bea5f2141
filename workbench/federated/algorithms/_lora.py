"""Low-rank adapters: clients train and send two thin matrices per frozen matrix."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Key

from workbench._types import KeyPath, PyTree
from workbench.errors import ProgramError
from workbench.federated.algorithms._aggregate import Aggregator
from workbench.federated.algorithms._algorithm import Algorithm, Loss
from workbench.federated.algorithms._fedavg import fedavg
from workbench.federated.algorithms._types import Batch, Metrics, Params

Adapters = dict[str, Metrics]


def init_adapters(
    params: Params, rank: int, key: Key[Array, ""], *, select: Callable[[str], bool] = lambda path: True
) -> Adapters:
    """Initializes adapters `a` (Gaussian) and `b` (zeros); their product is 0.

    Args:
        params: The frozen parameters.
        rank: r; a matrix `[n, m]` receives `a` `[n, r]` and `b` `[r, m]`.
        key: Random key for `a`.
        select: Function that returns whether to adapt the matrix at a path, such as "layers.0.attention.query".

    Returns:
        A dictionary with an entry `{"a": …, "b": …}` for each path.

    Raises:
        ProgramError: if no matrix is selected, or the rank is not positive.

    Example:
        >>> adapters = init_adapters({"w": jnp.ones((4, 3)), "bias": jnp.ones(3)}, 2, jax.random.key(0))
        >>> {name: each["a"].shape + each["b"].shape for name, each in adapters.items()}
        {'w': (4, 2, 2, 3)}

    References:
        Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022 (arXiv 2106.09685), section 4.1.
    """
    targets = {path: leaf for path, leaf in _named(params) if leaf.ndim == 2 and select(path)}
    if not targets or rank < 1:
        matrices = [path for path, leaf in _named(params) if leaf.ndim == 2]
        message = (
            f"`init_adapters` received rank={rank} and a `select` that chooses {len(targets)} of {len(matrices)} "
            f"matrices ({', '.join(matrices[:6])}). Adapters are added to matrices: choose at least one matrix by its "
            "path, and pass a rank of at least 1."
        )
        raise ProgramError(message)
    keys = jax.random.split(key, len(targets))
    return {
        path: {
            "a": jax.random.normal(leaf_key, (leaf.shape[0], rank), leaf.dtype) / jnp.sqrt(rank).astype(leaf.dtype),
            "b": jnp.zeros((rank, leaf.shape[1]), leaf.dtype),
        }
        for leaf_key, (path, leaf) in zip(keys, targets.items(), strict=True)
    }


def merge_adapters(params: Params, adapters: Adapters, *, scale: float = 1.0) -> PyTree[Array]:
    """Adds `scale * a @ b` to each adapted matrix.

    Example:
        >>> merged = merge_adapters({"w": jnp.zeros((1, 1))}, {"w": {"a": jnp.ones((1, 2)), "b": jnp.ones((2, 1))}})
        >>> merged["w"].tolist()
        [[2.0]]
    """

    def merged(path: KeyPath, leaf: jax.Array) -> PyTree[Array]:
        adapter = adapters.get(jax.tree_util.keystr(path, simple=True, separator="."))
        return leaf if adapter is None else leaf + scale * (adapter["a"] @ adapter["b"]).astype(leaf.dtype)

    return jax.tree_util.tree_map_with_path(merged, params)


def fedlora(
    loss: Loss,
    frozen: PyTree[Array],
    *,
    clients: int,
    client_optimizer: optax.GradientTransformation,
    scale: float = 1.0,
    freeze_a: bool = False,
    server_optimizer: optax.GradientTransformation | None = None,
    aggregator: Aggregator | None = None,
) -> Algorithm:
    """Federated averaging of low-rank adapters of a frozen model.

    Clients send only the adapters: r (n + m) numbers instead of n m for a matrix `[n, m]`. A plan counts the frozen
    parameters as broadcast in every round, because the plan cannot know that the clients already have them. The mean of
    products `a @ b` is not the product of means. With `freeze_a` only `b` is trained, so the mean is exact. The plan
    still counts `a`, which never changes and need not be sent.

    Args:
        loss: `loss(params, batch)`, a scalar that is the loss of the whole model.
        frozen: Parameters of the model, which every client already has; they are constants of the program.
        clients: Number of clients in a round.
        client_optimizer: The clients' optimizer.
        scale: Factor for `a @ b` (α / r in the paper).
        freeze_a: Whether `a` keeps its initial value (FFA-LoRA).
        server_optimizer: As in `fedavg`.
        aggregator: As in `fedavg`.

    Returns:
        The algorithm, whose parameters are the adapters. Start it with `init(init_adapters(frozen, rank, key))`.
        Batches and metrics are as in `fedavg`.

    Example:
        >>> frozen = {"w": jnp.zeros((2, 1))}
        >>> algorithm = fedlora(lambda p, x: ((p["w"][:, 0] - x) ** 2).sum(), frozen, clients=1,
        ...                     client_optimizer=optax.sgd(0.1))
        >>> state = algorithm.init(init_adapters(frozen, 1, jax.random.key(0)))
        >>> state, metrics = algorithm.round(state, jnp.ones((1, 5, 2)))
        >>> sorted(state.params["w"])
        ['a', 'b']

    References:
        Zhang et al., "Towards Building the Federated GPT: Federated Instruction Tuning", ICASSP 2024
        (arXiv 2305.05644); Sun et al., "Improving LoRA in Privacy-preserving Federated Learning", ICLR 2024
        (arXiv 2403.12313), section 4, for `freeze_a`.
    """

    def adapted_loss(adapters: Adapters, batch: Batch) -> jax.Array:
        if freeze_a:
            adapters = {path: {**a, "a": jax.lax.stop_gradient(a["a"])} for path, a in adapters.items()}
        return loss(merge_adapters(frozen, adapters, scale=scale), batch)

    algorithm = fedavg(
        adapted_loss,
        clients=clients,
        client_optimizer=client_optimizer,
        server_optimizer=server_optimizer,
        aggregator=aggregator,
    )
    return Algorithm(name="FedLoRA", init=algorithm.init, round=algorithm.round)


def _named(params: Params) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_flatten_with_path(params)[0]
    return [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in leaves]
