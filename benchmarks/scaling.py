"""Papers at their own sizes: programs compiled for chips that are not attached, with predicted seconds.

`python -m benchmarks.papers scaling` compiles the points that `benchmarks/scaling.json` lacks, one after another, and
writes the pages. The command can be resumed. A point is one compilation, without an interval.
"""

import itertools
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec as P

import workbench as wb
from workbench import algorithms
from workbench.replicate import Replicator, sync_batch_norm

STORE = Path(__file__).with_name("scaling.json")
Point = dict[str, Any]


def predict(key: str, chip: str, mesh: AbstractMesh, fn: Callable[..., Any], args: Any, specs: Any) -> Point:
    """Compiles a program for chips that are not attached, unless the store already has the point.

    Args:
        key: Name of the point in the store.
        chip: Target, such as "v5e:16x16".
        mesh: Mesh of the program.
        fn: Program.
        args: Shapes and dtypes of the program's arguments, a tuple of trees.
        specs: `PartitionSpec`s of the arguments, a prefix of `args`.

    Returns:
        Predicted seconds, bytes that a chip sends along each axis, and bytes of memory of a chip.
    """
    stored = json.loads(STORE.read_text(encoding="utf-8")) if STORE.exists() else {}
    if key not in stored:
        began = time.perf_counter()
        shapes = jax.tree.map(
            lambda spec, tree: jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=NamedSharding(mesh, spec)), tree
            ),
            specs,
            args,
            is_leaf=lambda x: isinstance(x, P),
        )
        with jax.sharding.use_abstract_mesh(mesh):
            record = wb.inspect(fn, on=chip)(*shapes)
        assert record.module is not None
        assert record.cost is not None
        sent: dict[str, float] = {}
        for each in record.module.collectives:
            axes = " and ".join(dict.fromkeys(axis.split("[")[0] for axis in each.axes or ("unknown",)))
            sent[axes] = sent.get(axes, 0) + (each.wire_bytes or 0) * (each.executions or 0)
        memory = record.module.memory
        stored[key] = {
            "chip": chip,
            "seconds": record.cost.seconds,
            "sent": sent,
            "peak": memory.peak_bytes,
            "arguments": memory.argument_bytes,
            "compiled in": round(time.perf_counter() - began, 1),
        }
        STORE.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"  {key}: {stored[key]}", flush=True)
    return stored[key]


def _page(
    paper: str,
    link: str,
    claim: str,
    settings: str,
    rule: tuple[str, bool],
    points: Iterable[Point],
    rows: dict[str, str],
    runs: dict,
    axes: tuple[str, str],
    deviation: str,
) -> dict:
    asked, agrees = rule
    return {
        "paper": paper,
        "link": link,
        "claim": claim,
        "settings": f"{settings} The seconds are predicted, not measured ([prediction errors](../predictions.md)). "
        f"The verdict requires {asked}.",
        "result": rows,
        "verdict": "agrees" if agrees else "disagrees",
        "runs": {name: {"values": values} for name, values in runs.items()},
        "axes": axes,
        "deviation": f"There is one compilation per point, so there is no interval. {deviation}",
        "seconds": sum(p["compiled in"] for p in points),
    }


# Language models


def language_model(layers: int, width: int, heads: int, *, dtype: Any = jnp.bfloat16) -> tuple[Any, Any, Any]:
    """A decoder whose heads and hidden features are split over the axis "model"; layers are a loop.

    Returns:
        The loss of parameters and tokens `[batch, length + 1]`, the parameters' shapes, and their specs.
    """
    head, words = width // heads, 32_000
    sizes = {
        "qkv": ((layers, width, 3, heads, head), P(None, None, None, "model", None)),
        "out": ((layers, heads, head, width), P(None, "model", None, None)),
        "up": ((layers, width, 4 * width), P(None, None, "model")),
        "down": ((layers, 4 * width, width), P(None, "model", None)),
        "scale": ((layers, 2, width), P()),
        "embedding": ((words, width), P("model", None)),
    }

    def norm(x: Any, scale: Any) -> Any:
        wide = x.astype(jnp.float32)
        normal = wide * jax.lax.rsqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
        return normal.astype(x.dtype) * scale.astype(x.dtype)

    @jax.checkpoint
    def layer(x: Any, w: Any) -> tuple[Any, None]:
        q, k, v = jnp.einsum("bld,dthk->tblhk", norm(x, w["scale"][0]), w["qkv"].astype(jnp.bfloat16))
        scores = jnp.einsum("blhk,bmhk->bhlm", q, k).astype(jnp.float32) * head**-0.5
        causal = jnp.tril(jnp.ones(scores.shape[-2:], bool))
        shares = jax.nn.softmax(jnp.where(causal, scores, -1e9)).astype(x.dtype)
        x = x + jnp.einsum("bhlm,bmhk,hkd->bld", shares, v, w["out"].astype(jnp.bfloat16))
        hidden = jax.nn.gelu(norm(x, w["scale"][1]) @ w["up"].astype(jnp.bfloat16))
        return x + hidden @ w["down"].astype(jnp.bfloat16), None

    def loss(params: Any, tokens: Any) -> Any:
        embedding = params["embedding"].astype(jnp.bfloat16)
        x, _ = jax.lax.scan(layer, embedding[tokens[:, :-1]], {k: v for k, v in params.items() if k != "embedding"})
        right = (x * embedding[tokens[:, 1:]]).sum(-1).astype(jnp.float32)
        return (jax.nn.logsumexp((x @ embedding.T).astype(jnp.float32), axis=-1) - right).mean()

    shapes = {name: jax.ShapeDtypeStruct(shape, dtype) for name, (shape, _) in sizes.items()}
    return loss, shapes, {name: spec for name, (_, spec) in sizes.items()}


def count(shapes: Any) -> int:
    """Number of parameters."""
    return sum(int(np.prod(x.shape)) for x in jax.tree.leaves(shapes))


def local_steps(loss: Any, clients: int) -> Callable[..., Any]:
    """A round of local SGD: every client takes its steps, and the models are averaged."""

    @wb.program(clients=clients)
    def local_sgd(params: Any, tokens: Any) -> Any:
        def train(params: Any, tokens: Any) -> Any:
            def step(params: Any, batch: Any) -> tuple[Any, None]:
                gradient = jax.grad(loss)(params, batch)
                return jax.tree.map(lambda p, g: p - jnp.asarray(0.01, p.dtype) * g, params, gradient), None

            return jax.lax.scan(step, params, tokens)[0]

        return wb.reduce_mean(wb.map_fn(train, (wb.broadcast(params), tokens)))

    return local_sgd


_MODELS = {"350M": (24, 1024, 16), "1B": (20, 2048, 16), "8B": (38, 4096, 32)}
_CHIPS = {16: "v5e:4x4", 64: "v5e:8x8", 256: "v5e:16x16", 1024: "v5e:16x16*4"}


def _round(key: str, model: tuple[int, int, int], chips: int, clients: int) -> Point:
    loss, shapes, specs = language_model(*model)
    mesh = AbstractMesh((chips // 16, 16), ("clients", "model"))
    tokens = jax.ShapeDtypeStruct((clients, 4, 8, 513), jnp.int32)
    fn = local_steps(loss, clients)
    return predict(key, _CHIPS[chips], mesh, fn, (shapes, tokens), (specs, P("clients")))


def local_sgd() -> dict:
    """Weak scaling of local SGD: sixteen chips for each client."""
    rows, runs, sizes, every, worst = {}, {}, [], [], 0.0
    for name, model in _MODELS.items():
        points = {n: _round(f"local_sgd {name} {n}", model, n, n // 16) for n in _CHIPS}
        sizes.append(f"{count(language_model(*model)[1]) / 1e9:.2f}")
        runs[name] = [list(points), [p["seconds"] for p in points.values()]]
        for n, p in points.items():
            over = {axis: f"{sent / 1e6:,.0f} MB over the axis `{axis}`" for axis, sent in p["sent"].items()}
            rows[f"{name}, {n} chips, {n // 16} client{'s' * (n > 16)}"] = (
                f"predicted {p['seconds']:.4f} s, {', '.join(over.values())}, peak {p['peak'] / 1e9:.2f} GB"
            )
        seconds = [p["seconds"] for p in points.values()]
        worst, every = max(worst, max(seconds) / seconds[0]), [*every, *points.values()]
        rows[f"{name}, longest round relative to 16 chips"] = f"{max(seconds) / seconds[0]:.3f} × (predicted)"
    return _page(
        "Rush et al., DrJAX, 2024, section 5",
        "https://arxiv.org/abs/2403.07128",
        "Weak scaling: rounds of local SGD take the same time if the numbers of clients and chips grow together, for "
        "models of 350M, 1B and 8B parameters.",
        "Each client takes four steps on 8 sequences of 512 tokens, in bfloat16. The models have "
        f"{', '.join(sizes[:-1])} and {sizes[-1]} billion parameters. Each client uses 16 TPU v5e chips, over which "
        "the model is split; 1,024 chips are four slices of 256.",
        ("rounds to be at most 10 % longer than on 16 chips", worst <= 1.1),
        every,
        rows,
        runs,
        ("number of chips", "predicted seconds of a round"),
        "The paper measures TPU v2 to v4 chips. The models on this page have the paper's sizes, but our own layers.",
    )


def client_memory() -> dict:
    """Memory of a chip against the number of clients."""
    points = {n: _round(f"client_memory {n}", _MODELS["350M"], 64, n) for n in (4, 16, 64, 256, 1024)}
    temporary = {n: (p["peak"] - p["arguments"]) / 1e6 for n, p in points.items()}
    return _page(
        "Rush et al., DrJAX, 2024, section 5",
        "https://arxiv.org/abs/2403.07128",
        "If many clients are placed on one mesh, a chip's memory use grows only by the size of the clients' data.",
        "The program is the 350M model of {doc}`local SGD <local_sgd>` on 64 TPU v5e chips, with 4 clients at a time.",
        (
            "at most 10 % more memory (not counting the arguments) for 1,024 clients than for 16 clients, which is the "
            "smallest number that needs a loop",
            temporary[1024] <= 1.1 * temporary[16],
        ),
        points.values(),
        {
            f"{n} clients": f"peak {p['peak'] / 1e6:,.0f} MB, without the arguments {temporary[n]:,.0f} MB, "
            f"predicted time {p['seconds']:.2f} s"
            for n, p in points.items()
        },
        {"without the arguments": [list(temporary), list(temporary.values())]},
        ("number of clients", "peak memory of a chip in MB"),
        "In the paper, there are as many clients as groups of chips.",
    )


def data_centres() -> dict:
    """DiLoCo on slices: seconds and bytes between data centres against the steps of a round."""
    clients, batch, lengths = 8, 64, (1, 50, 500)
    loss, shapes, specs = language_model(12, 1536, 12, dtype=jnp.float32)
    mesh = AbstractMesh((clients, 4, 4), ("clients", "data", "model"))
    by_shape = {x.shape: specs[name] for name, x in shapes.items()}

    def spec_of(x: Any) -> P:
        """The spec of a parameter, of a parameter per client, or of a number."""
        return by_shape[x.shape] if x.shape in by_shape else P("clients", *by_shape.get(x.shape[1:], ()))

    algorithm = algorithms.diloco(loss, clients=clients, inner_optimizer=optax.adamw(4e-4))
    state = jax.eval_shape(algorithm.init, shapes)
    of_state = jax.tree.map(lambda x: spec_of(x) if x.ndim else P(), state)
    points = {}
    for steps in lengths:
        tokens = jax.ShapeDtypeStruct((clients, steps, batch, 1025), jnp.int32)
        points[steps] = predict(
            f"data_centres {steps}",
            "v5e:4x4*8",
            mesh,
            algorithm.round,
            (state, tokens),
            (of_state, P("clients", None, "data")),
        )
    between = {n: p["sent"].get("clients", 0) / n for n, p in points.items()}
    each = {n: p["seconds"] / n for n, p in points.items()}
    return _page(
        "Douillard et al., DiLoCo, 2023, section 3",
        "https://arxiv.org/abs/2311.08105",
        "Eight data centres that communicate every 500 steps send 500 times fewer bytes than with data parallelism.",
        f"The model is a decoder with {count(shapes) / 1e6:.0f} million parameters (the paper's 400M), 12 layers and "
        f"width 1,536. In each step, each of eight slices of 16 TPU v5e chips processes {batch} sequences of 1,024 "
        "tokens. The inner optimizer is AdamW, and the outer optimizer is Nesterov momentum.",
        ("a ratio of 500, within 1 %", abs(between[1] / between[500] / 500 - 1) < 0.01),
        points.values(),
        {
            f"a round every {f'{n} steps' if n > 1 else 'step'}": f"predicted {each[n]:.4f} s per step; each chip "
            f"sends {between[n] / 1e6:,.2f} MB per step between slices; peak {p['peak'] / 1e9:.2f} GB"
            for n, p in points.items()
        }
        | {"bytes between slices: a round every step / a round every 500 steps": f"{between[1] / between[500]:.0f} ×"},
        {"each chip": [list(between), [x / 1e6 for x in between.values()]]},
        ("steps per round", "MB sent between slices per step"),
        "The page {doc}`DiLoCo <diloco>` covers quality. A round with one step stands for data parallelism.",
    )


# Tensor parallelism


def tensor_parallel_sizes() -> dict:
    """A transformer layer in three layouts, on 4 to 256 chips, the paper's weak scaling."""
    features, per_chip = 4096, 512
    layouts = {
        4: {"2-D [2, 2, 1]": ("2d", (2, 2)), "1-D": ("1d", (4,))},
        16: {"2-D [4, 4, 1]": ("2d", (4, 4)), "2.5-D [2, 2, 4]": ("2.5d", (4, 2, 2)), "1-D": ("1d", (16,))},
        64: {"2-D [8, 8, 1]": ("2d", (8, 8)), "2.5-D [4, 4, 4]": ("2.5d", (4, 4, 4)), "1-D": ("1d", (64,))},
        256: {"2-D [16, 16, 1]": ("2d", (16, 16)), "2.5-D [8, 8, 4]": ("2.5d", (4, 8, 8)), "1-D": ("1d", (256,))},
    }
    chips = {4: "v4:2x2x1", 16: "v4:2x2x4", 64: "v4:4x4x4", 256: "v4:4x8x8"}
    rows: dict[str, str] = {}
    runs: dict[str, list[list[Any]]] = {}
    points: list[Point] = []
    for n, kinds in layouts.items():
        for name, (kind, sides) in kinds.items():
            layout = algorithms.tensor_parallel(kind)  # pyright: ignore[reportArgumentType]
            axes = {1: ("cols",), 2: ("rows", "cols"), 3: ("layers", "rows", "cols")}[len(sides)]
            mesh = AbstractMesh(sides, axes)
            specs = (layout.activations(), layout.weights(), layout.weights(second=True))
            sizes = (per_chip * n, features), (features, 4 * features), (4 * features, features)

            def loss(x: Any, widen: Any, narrow: Any, layout: Any = layout) -> Any:
                return (layout.mlp(x, widen, narrow).astype(jnp.float32) ** 2).mean()

            shapes = tuple(jax.ShapeDtypeStruct(size, jnp.bfloat16) for size in sizes)
            key = f"tensor_parallel {n} {name}"
            p = predict(key, chips[n], mesh, jax.grad(loss, argnums=(0, 1, 2)), shapes, specs)
            points.append(p)
            rows[f"{n} chips, {name}"] = (
                f"predicted {p['seconds'] * 1e3:.2f} ms, {sum(p['sent'].values()) / 1e6:,.0f} MB sent per chip, "
                f"peak {p['peak'] / 1e6:,.0f} MB"
            )
            line = runs.setdefault(name.split(" ")[0], [[], []])
            line[0].append(n)
            line[1].append(p["seconds"])
    at = {name: dict(zip(*line, strict=True)) for name, line in runs.items()}
    fastest = all(at["2.5-D"][n] <= min(at["2-D"][n], at["1-D"][n]) for n in (16, 64))
    return _page(
        "Wang, Xu, Bian and You, 2.5-dimensional Distributed Model Training, 2021, section 4",
        "https://arxiv.org/abs/2105.14500",
        "Weak scaling: if the number of tokens grows in proportion to the number of devices, a layer takes less time "
        "in a 2.5-D layout than in 2-D and 1-D layouts.",
        f"The program is an MLP layer with {features} features and {per_chip} tokens for each TPU v4 chip, in "
        "bfloat16, and its gradient with respect to all inputs.",
        ("the 2.5-D layout to be the fastest on 16 and on 64 chips", fastest),
        points,
        rows,
        runs,
        ("number of chips", "predicted seconds of a layer"),
        "The paper also increases the hidden size, and times a whole model on GPUs in a cluster.",
    )


# Replicas


def _conv(x: Any, w: Any, stride: int = 1) -> Any:
    layout = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(x, w.astype(x.dtype), (stride, stride), "SAME", dimension_numbers=layout)


def _block(x: Any, w: Any, norm: Any, resize: Any) -> Any:
    hidden = _conv(resize(jax.nn.relu(norm(x, w.get("norm_a")))), w["a"])
    skipped = _conv(resize(x), w["skip"]) if "skip" in w else x
    return _conv(jax.nn.relu(norm(hidden, w.get("norm_b"))), w["b"]) + skipped


def _double(x: Any) -> Any:
    return jnp.repeat(jnp.repeat(x, 2, axis=1), 2, axis=2)


def _pooled(x: Any, reduce: Any) -> Any:
    return reduce(x.reshape(len(x), x.shape[1] // 2, 2, x.shape[2] // 2, 2, -1), (2, 4))


def _halve(x: Any) -> Any:
    return _pooled(x, jnp.mean)


def _attend(x: Any, w: Any) -> Any:
    """Attention of every pixel to pooled pixels, as in SAGAN."""
    flat = lambda y: y.reshape(len(y), -1, y.shape[-1])  # noqa: E731
    query, key, value = flat(_conv(x, w["query"])), *(flat(_pooled(_conv(x, w[k]), jnp.max)) for k in ("key", "value"))
    shares = jax.nn.softmax(jnp.einsum("bqc,bkc->bqk", query, key).astype(jnp.float32)).astype(x.dtype)
    seen = jnp.einsum("bqk,bkc->bqc", shares, value).reshape(*x.shape[:3], -1)
    return x + w["gain"].astype(x.dtype) * _conv(seen, w["out"])


def _unit(x: Any) -> Any:
    return x * jax.lax.rsqrt((x**2).sum() + 1e-12)


def _iterated(w: Any, vector: Any) -> Any:
    """One power iteration for the largest singular value of a matrix or kernel."""
    matrix = w.reshape(-1, w.shape[-1]) if w.ndim > 1 else None
    return vector if matrix is None else _unit(_unit(matrix @ vector) @ matrix)


def _spectral(w: Any, vector: Any) -> Any:
    """Divides a matrix or kernel by its largest singular value."""
    if w.ndim < 2:
        return w
    matrix = w.reshape(-1, w.shape[-1])
    left = _unit(jax.lax.stop_gradient(matrix) @ vector)
    return w / (left @ (matrix @ vector))


_UPS, _DOWNS = (16, 16, 8, 4, 2, 1), (1, 2, 4, 8, 16, 16)  # widths in multiples of the channels
_CHUNK, _EMBEDDED = 20, 128


def _attention_maps(width: int) -> Any:
    sizes = {"query": (width, width // 8), "key": (width, width // 8), "value": (width, width // 2)}
    maps = {name: jnp.zeros((1, 1, *size)) for name, size in sizes.items()}
    return maps | {"out": jnp.zeros((1, 1, width // 2, width)), "gain": jnp.zeros(())}


def _kernels(i: int, o: int) -> Any:
    return {"a": jnp.zeros((3, 3, i, o)), "b": jnp.zeros((3, 3, o, o)), "skip": jnp.zeros((1, 1, i, o))}


def _biggan_nets(channels: int, classes: int) -> Any:
    """Parameters of generator and discriminator: 70.4 and 88.0 million for 96 channels and 1,000 classes."""
    wide, narrow = [channels * each for each in _UPS], [channels * each for each in _DOWNS]
    norms = [{f"norm_{k}": jnp.zeros((2, _CHUNK + _EMBEDDED, n)) for k, n in (("a", i), ("b", o))}
             for i, o in itertools.pairwise(wide)]  # fmt: skip
    generator = {
        "classes": jnp.zeros((classes, _EMBEDDED)),
        "in": jnp.zeros((_CHUNK, 16 * wide[0])),
        "blocks": [_kernels(*size) | norm for size, norm in zip(itertools.pairwise(wide), norms, strict=True)],
        "attention": _attention_maps(wide[4]),
        "out": jnp.zeros((3, 3, wide[-1], 3)),
    }
    discriminator = {
        "classes": jnp.zeros((classes, narrow[-1])),
        "blocks": [_kernels(*size) for size in itertools.pairwise((3, *narrow))],
        "attention": _attention_maps(narrow[0]),
        "out": jnp.zeros((narrow[-1], 1)),
    }
    del discriminator["blocks"][-1]["skip"]  # the last block keeps size and width
    return {"generator": generator, "discriminator": discriminator}


def biggan(replicas: int, channels: int = 96, classes: int = 1000) -> tuple[Callable[..., Any], Any]:
    """A step of BigGAN for 128 × 128 images, with global batch normalisation, and the shapes of its batch and state.

    Class embeddings set the gains of the generator's batch norm and the discriminator's projection; both nets have
    attention at 64 × 64 pixels and spectral norm.
    """
    replicator = Replicator(replicas=replicas)
    optimizer = replicator.wrap_optimizer(optax.adam(1e-4, b1=0.0))

    def start() -> Any:
        nets = _biggan_nets(channels, classes)
        vectors = jax.tree.map(lambda w: jnp.zeros(w.shape[-1:]), nets)
        return nets, vectors, {name: optimizer.init(net) for name, net in nets.items()}

    def step(ctx: Any, batch: Any, state: Any) -> Any:
        nets, vectors, moments = state
        vectors = jax.tree.map(_iterated, nets, vectors)
        labels = batch["labels"]

        def draw(net: Any) -> Any:
            first, *chunks = jnp.split(batch["latents"].astype(jnp.bfloat16), 6, axis=1)
            known = net["classes"][labels].astype(first.dtype)
            x = (first @ net["in"].astype(first.dtype)).reshape(len(first), 4, 4, -1)
            for number, (w, latent) in enumerate(zip(net["blocks"], chunks, strict=True)):

                def norm(x: Any, maps: Any, latent: Any = latent) -> Any:
                    condition = jnp.concatenate([latent, known], axis=1)
                    gain, offset = jnp.einsum("bi,tio->tbo", condition, maps.astype(x.dtype))[:, :, None, None]
                    return sync_batch_norm(ctx, x) * (1 + gain) + offset

                x = _block(x, w, norm, _double)
                if number == 3:  # 64 × 64
                    x = _attend(x, net["attention"])
            return jnp.tanh(_conv(jax.nn.relu(sync_batch_norm(ctx, x)), net["out"]))

        def judge(net: Any, x: Any) -> Any:
            for number, w in enumerate(net["blocks"]):
                last = number == len(_DOWNS) - 1
                x = _block(x, w, lambda x, _: x, (lambda x: x) if last else _halve)
                if number == 0:  # 64 × 64
                    x = _attend(x, net["attention"])
            features = jax.nn.relu(x).sum((1, 2))
            projected = (features * net["classes"][labels].astype(x.dtype)).sum(1)
            return ((features @ net["out"].astype(x.dtype))[:, 0] + projected).astype(jnp.float32)

        def normal(name: str, net: Any) -> Any:
            return jax.tree.map(_spectral, net, vectors[name])

        def of_discriminator(net: Any) -> Any:
            made = jax.lax.stop_gradient(draw(normal("generator", nets["generator"])))
            net = normal("discriminator", net)
            real = judge(net, batch["images"].astype(jnp.bfloat16))
            return jax.nn.relu(1 - real).mean() + jax.nn.relu(1 + judge(net, made)).mean()

        def of_generator(net: Any) -> Any:
            made = draw(normal("generator", net))
            return -judge(normal("discriminator", nets["discriminator"]), made).mean()

        nets, moments, values = dict(nets), dict(moments), {}
        for name, loss in {"discriminator": of_discriminator, "generator": of_generator}.items():
            values[name], gradient = jax.value_and_grad(loss)(nets[name])
            updates, moments[name] = optimizer.update(gradient, moments[name], nets[name])
            nets[name] = optax.apply_updates(nets[name], updates)
        return (nets, vectors, moments), values

    batch = {"images": jnp.zeros((4, 128, 128, 3)), "latents": jnp.zeros((4, 120)), "labels": jnp.zeros(4, jnp.int32)}
    return replicator.step(step, check_state=False), _rows(replicas, lambda: batch, start)


def learner(replicas: int) -> tuple[Callable[..., Any], Any]:
    """A step of an actor-critic learner on unrolls of frames, with V-trace, and the shapes of its batch and state."""
    replicator = Replicator(replicas=replicas)
    optimizer = replicator.wrap_optimizer(optax.rmsprop(6e-4))
    widths, actions, length, batch = (3, 16, 32, 32), 18, 20, 32

    def start() -> Any:
        convs = [jnp.zeros((3, 3, i, o)) for i, o in itertools.pairwise(widths)]
        net = {"convs": convs, "wide": jnp.zeros((9 * 12 * 32, 256)), "out": jnp.zeros((256, actions + 1))}
        return net, optimizer.init(net)

    def forward(net: Any, frames: Any) -> Any:
        x = frames.reshape(-1, *frames.shape[2:]).astype(jnp.bfloat16) / 255
        for w in net["convs"]:
            x = jax.nn.relu(_conv(x, w, 2))
        hidden = jax.nn.relu(x.reshape(len(x), -1) @ net["wide"].astype(x.dtype))
        out = (hidden @ net["out"].astype(x.dtype)).astype(jnp.float32).reshape(*frames.shape[:2], -1)
        return jax.nn.log_softmax(out[..., :-1]), out[..., -1]

    def step(ctx: Any, data: Any, state: Any) -> Any:
        net, moments = state

        def loss(net: Any) -> Any:
            logits, values = forward(net, data["frames"])
            chosen = jnp.take_along_axis(logits[:, :-1], data["actions"][..., None], -1)[..., 0]
            ratio = jnp.minimum(jnp.exp(jax.lax.stop_gradient(chosen) - data["behaviour"]), 1)
            error = ratio * (data["rewards"] + 0.99 * values[:, 1:] - values[:, :-1])

            def back(carry: Any, one: Any) -> Any:
                delta, weight = one
                carry = delta + 0.99 * weight * carry
                return carry, carry

            _, ahead = jax.lax.scan(back, jnp.zeros(batch), (error.T, ratio.T), reverse=True)
            goal = jax.lax.stop_gradient(values[:, :-1] + ahead.T)
            advantage = jax.lax.stop_gradient(error)
            entropy = -(jnp.exp(logits) * logits).sum(-1).mean()
            return ((goal - values[:, :-1]) ** 2).mean() / 2 - (advantage * chosen).mean() - 0.01 * entropy

        updates, moments = optimizer.update(jax.grad(loss)(net), moments, net)
        return (optax.apply_updates(net, updates), moments), ()

    def inputs() -> Any:
        numbers = {name: jnp.zeros((batch, length)) for name in ("rewards", "behaviour")}
        frames = jnp.zeros((batch, length + 1, 72, 96, 3), jnp.uint8)
        return {"frames": frames, "actions": jnp.zeros((batch, length), jnp.int32), **numbers}

    return replicator.step(step, check_state=False), _rows(replicas, inputs, start)


def _rows(replicas: int, *makers: Callable[[], Any]) -> Any:
    """Shapes of trees with a row for each replica."""
    rows = lambda x: jax.ShapeDtypeStruct((replicas, *x.shape), x.dtype)  # noqa: E731
    return tuple(jax.tree.map(rows, jax.eval_shape(make)) for make in makers)


def _replicas(name: str, make: Callable[[int], tuple[Any, Any]]) -> dict[int, Point]:
    chips, points = {8: "v4:2x2x2", 64: "v4:4x4x4", 512: "v4:8x8x8"}, {}
    for n, chip in chips.items():
        fn, shapes = make(n)
        points[n] = predict(f"{name} {n}", chip, AbstractMesh((n,), ("replicas",)), fn, shapes, (P("replicas"),) * 2)
    return points


def replicas() -> dict:
    """BigGAN and a learner on 8 to 512 chips."""
    rows, runs, every, worst = {}, {}, [], 0.0
    for name, make, items, what in (("BigGAN", biggan, 4, "images"), ("learner", learner, 32 * 20, "frames")):
        points = _replicas(name, make)
        seconds = [p["seconds"] for p in points.values()]
        runs[name] = [list(points), seconds]
        every, worst = [*every, *points.values()], max(worst, seconds[-1] / seconds[0])
        for n, p in points.items():
            rows[f"{name}, {n} chips, {n * items:,} {what} a step"] = (
                f"predicted {p['seconds'] * 1e3:.2f} ms, {n * items / p['seconds']:,.0f} {what} a second, "
                f"{sum(p['sent'].values()) / 1e6:,.1f} MB sent per chip, peak {p['peak'] / 1e6:,.0f} MB"
            )
    return _page(
        "Buchlovsky et al., TF-Replicator, 2019, section 5",
        "https://arxiv.org/abs/1902.00465",
        "The code for one replica trains BigGAN with global batch normalisation and a batch of 2,048 on 512 chips, and "
        "also trains a reinforcement learner on many chips.",
        "BigGAN generates 128 × 128 images of 1,000 classes. Each TPU v4 chip processes 4 images, moments are computed "
        "over all images, and a step updates each network once. For the learner, each chip processes 32 unrolls of 20 "
        "frames of 72 × 96 pixels.",
        ("steps on 512 chips to be at most 25 % longer than on 8 chips", worst <= 1.25),
        every,
        rows,
        runs,
        ("number of chips", "predicted seconds of a step"),
        "The paper's GAN ran on a TPU v3 pod. Orthogonal regularisation and moving averages of the generator are left "
        "out here.",
    )


SCALING: dict[str, tuple[str, Callable[[], dict]]] = {
    "local_sgd": ("Local SGD from 16 to 1,024 chips", local_sgd),
    "client_memory": ("Memory and number of clients", client_memory),
    "data_centres": ("DiLoCo between data centres", data_centres),
    "tensor_parallel_sizes": ("SUMMA2.5-LM from 4 to 256 chips", tensor_parallel_sizes),
    "replicas": ("TF-Replicator's BigGAN and learner", replicas),
}
