"""Transformer layers with tensor parallelism in 1, 2, 2.5 or 3 dimensions."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float

from workbench.errors import MeshError, ProgramError

Kind = Literal["1d", "2d", "2.5d", "3d"]

_AXES: dict[str, tuple[str, ...]] = {
    "1d": ("cols",),
    "2d": ("rows", "cols"),
    "2.5d": ("layers", "rows", "cols"),
    "3d": ("layers", "rows", "cols"),
}


@dataclasses.dataclass(frozen=True)
class TensorParallel:
    """Layers on global arrays in one layout; see `tensor_parallel`.

    Products come in pairs, as in a transformer: the first widens the features, and the second returns to the input's
    layout. In "2d" and "2.5d" both layouts are the same.

    Attributes:
        kind: "1d", "2d", "2.5d" or "3d".
    """

    kind: Kind

    def activations(self, *, second: bool = False) -> P:
        """Returns the layout of activations `[tokens, features]` before the first or second product of a pair."""
        if self.kind == "1d":
            return P(None, "cols") if second else P(None, None)
        if self.kind == "3d":
            return P(("layers", "cols"), "rows") if second else P(("layers", "rows"), "cols")
        return P("rows" if self.kind == "2d" else ("layers", "rows"), "cols")

    def weights(self, *, second: bool = False) -> P:
        """Returns the layout of weights `[inputs, outputs]` for the first or second product of a pair."""
        if self.kind == "1d":
            return P("cols", None) if second else P(None, "cols")
        if self.kind == "3d":
            return P("rows", ("cols", "layers")) if second else P("cols", ("rows", "layers"))
        return P("rows", "cols")

    def linear(
        self,
        x: Float[Array, " tokens inputs"],
        w: Float[Array, " inputs outputs"],
        bias: Float[Array, " outputs"] | None = None,
        *,
        second: bool = False,
    ) -> Float[Array, " tokens outputs"]:
        """Multiplies activations by weights, and adds a bias.

        `words` counts the numbers that each device sends.

        Args:
            x: Activations, laid out as `activations(second=second)`.
            w: Weights, laid out as `weights(second=second)`.
            bias: One number per output.
            second: Whether this is the second product of a pair.

        Returns:
            x w + bias, laid out as `activations(second=not second)`.

        Raises:
            MeshError: if the mesh set by `jax.set_mesh` lacks an axis that this kind needs, or is not a square grid or
                a cube.
            ProgramError: if the sizes are not multiples of the number of devices that split them.

        Example:
            >>> import workbench as wb
            >>> with jax.set_mesh(wb.make_mesh(layers=2, rows=2, cols=2)):
            ...     tensor_parallel("2.5d").linear(jnp.ones((8, 4)), jnp.ones((4, 4)))[0, 0].item()
            4.0
        """
        self._check("linear", x, (w,), second=second)
        shift = jnp.zeros(w.shape[1], x.dtype) if bias is None else bias
        out = self.activations(second=not second)
        return self._mapped(
            functools.partial(self._product, second=second),
            (self.activations(second=second), self.weights(second=second), P(out[-1])),
            out,
        )(x, w, shift)

    def layer_norm(
        self,
        x: Float[Array, " tokens features"],
        scale: Float[Array, " features"],
        offset: Float[Array, " features"],
        *,
        epsilon: float = 1e-5,
    ) -> Float[Array, " tokens features"]:
        """Normalizes the features of each token, with moments in float32.

        Costs two all-reduces of one number per token along the axis that splits the features, but none in "1d".

        Args:
            x: Activations, laid out as `activations()`.
            scale: Factor for each feature.
            offset: Offset added to each feature.
            epsilon: Number added to the variance.

        Returns:
            The activations in the layout and dtype of `x`.

        Raises:
            MeshError: if the mesh set by `jax.set_mesh` lacks an axis that this kind needs, or is not a square grid or
                a cube.
            ProgramError: if the sizes are not multiples of the number of devices that split them.
        """
        self._check("layer_norm", x, ())
        spec = self.activations()
        features, size = spec[-1], x.shape[-1]

        def total(values: Array) -> Array:
            local_sum = jnp.sum(values, axis=-1, keepdims=True)
            return local_sum if features is None else jax.lax.psum(local_sum, features)

        def normalize(rows: Array, scale: Array, offset: Array) -> Array:
            wide = rows.astype(jnp.float32 if jnp.finfo(rows.dtype).bits < 32 else rows.dtype)
            centred = wide - total(wide) / size
            normal = centred * jax.lax.rsqrt(total(centred**2) / size + epsilon)
            return (normal * scale.astype(wide.dtype)[None] + offset.astype(wide.dtype)[None]).astype(rows.dtype)

        return self._mapped(normalize, (spec, P(features), P(features)), spec)(x, scale, offset)

    def mlp(
        self,
        x: Float[Array, " tokens features"],
        widen: Float[Array, " features hidden"],
        narrow: Float[Array, " hidden features"],
        *,
        activation: Callable[[Array], Array] = jax.nn.gelu,
    ) -> Float[Array, " tokens features"]:
        """Computes `activation(x @ widen) @ narrow`.

        Args:
            x: Activations, laid out as `activations()`.
            widen: Weights, laid out as `weights()`.
            narrow: Weights, laid out as `weights(second=True)`.
            activation: Elementwise function.

        Returns:
            The activations in the layout of `x`.

        Raises:
            MeshError: if the mesh set by `jax.set_mesh` lacks an axis that this kind needs, or is not a square grid or
                a cube.
            ProgramError: if the sizes are not multiples of the number of devices that split them.
        """
        self._check("mlp", x, (widen, narrow))

        def both(rows: Array, first: Array, last: Array) -> Array:
            return self._product(activation(self._product(rows, first, None)), last, None, second=True)

        specs = (self.activations(), self.weights(), self.weights(second=True))
        return self._mapped(both, specs, self.activations())(x, widen, narrow)

    def attention(
        self,
        x: Float[Array, " tokens features"],
        qkv: Float[Array, " features three_features"],
        out: Float[Array, " features features"],
        *,
        heads: int,
        sequence: int,
        causal: bool = True,
    ) -> Float[Array, " tokens features"]:
        """Computes multi-head self-attention. Every device computes whole sequences and whole heads.

        Args:
            x: Activations of `tokens / sequence` sequences, one after the other, laid out as `activations()`.
            qkv: Weights `[features, heads * 3 * size]`, which contain the queries, keys and values of one head after
                another.
            out: Output weights, laid out as `weights(second=True)`.
            heads: Number of heads.
            sequence: Number of tokens in one sequence.
            causal: Whether a token attends only to itself and earlier tokens.

        Returns:
            The activations in the layout of `x`.

        Raises:
            MeshError: if the mesh set by `jax.set_mesh` lacks an axis that this kind needs, or is not a square grid or
                a cube.
            ProgramError: if the sizes, heads or sequences are not multiples of the number of devices that split them.
        """
        self._check("attention", x, (qkv, out), heads=heads, sequence=sequence)
        size = x.shape[1] // heads

        def attend(rows: Array, first: Array, last: Array) -> Array:
            mixed = self._product(rows, first, None)
            q, k, v = jnp.moveaxis(mixed.reshape(-1, sequence, mixed.shape[1] // (3 * size), 3, size), 3, 0)
            values = jax.nn.dot_product_attention(q, k, v, is_causal=causal)
            return self._product(values.reshape(mixed.shape[0], -1), last, None, second=True)

        specs = (self.activations(), self.weights(), self.weights(second=True))
        return self._mapped(attend, specs, self.activations())(x, qkv, out)

    def words(self, tokens: int, inputs: int, outputs: int, *, devices: Sequence[int]) -> dict[str, float]:
        """Counts the numbers that each device sends in one product, with ring algorithms.

        With q × q devices in each of d layers (d = 1 for "2d"), a device has blocks of A = `tokens inputs / (d q²)` and
        B = `inputs outputs / q²` numbers. The device sends (q − 1)(A + B) numbers forward, and twice as many backward,
        plus 2 (d − 1) / d · B for the gradient of the weights. With p³ devices ("3d") and C = `tokens outputs / p³`, A
        = `tokens inputs / p³` and B = `inputs outputs / p³`, a device sends (p − 1)(A + B + C) forward and (p − 1)(2 A
        + 2 B + C) backward. With p devices ("1d"), the first product sends nothing forward, and 2 (p − 1) / p · `tokens
        inputs` backward. The second product sends 2 (p − 1) / p · `tokens outputs` forward, and nothing backward. The
        result for "1d" is the mean of both products.

        Args:
            tokens: Number of rows of the activations.
            inputs: Number of features before the product.
            outputs: Number of features after the product.
            devices: Sizes of the mesh axes, which are (p,), (q, q), (d, q, q) or (p, p, p), depending on the kind.

        Returns:
            `forward`, `backward`, and `total`.

        Example:
            >>> deep = tensor_parallel("2.5d").words(32768, 4096, 16384, devices=(4, 4, 4))
            >>> flat = tensor_parallel("2d").words(32768, 4096, 16384, devices=(8, 8))
            >>> deep["forward"] / flat["forward"]
            0.8571428571428571

        References:
            Xu, Li, Gong and You, "An Efficient 2D Method for Training Super-Large Deep Learning Models", 2021;
            Wang, Xu, Bian and You, "2.5-dimensional Distributed Model Training", 2021.
        """
        p = devices[-1]
        if self.kind == "1d":
            share = (p - 1) / p
            forward, backward = share * tokens * outputs, share * tokens * inputs
        elif self.kind == "3d":
            a, b, c = (size / p**3 for size in (tokens * inputs, inputs * outputs, tokens * outputs))
            forward, backward = (p - 1) * (a + b + c), (p - 1) * (2 * a + 2 * b + c)
        else:
            d = devices[0] if self.kind == "2.5d" else 1
            a, b = tokens * inputs / (d * p * p), inputs * outputs / (p * p)
            forward, backward = (p - 1) * (a + b), 2 * (p - 1) * (a + b) + 2 * (d - 1) / d * b
        return {"forward": forward, "backward": backward, "total": forward + backward}

    def _product(self, x: Array, w: Array, bias: Array | None, *, second: bool = False) -> Array:
        """Computes one device's part of a product."""
        if self.kind == "1d":
            y = x @ w
            y = jax.lax.psum(y, "cols") if second else y
        elif self.kind == "3d":
            # From one product to the next, the axis that splits the input features and the axis that splits the output
            # features swap.
            inputs, outputs = ("rows", "cols") if second else ("cols", "rows")
            y = _gathered_product(x, w, of_x=(outputs, 0), of_w=("layers", 1))
            y = jax.lax.psum_scatter(y, inputs, scatter_dimension=0, tiled=True)
        else:
            if self.kind == "2.5d":  # the gradient of a block is summed over layers after the sum along the rows
                w = jax.lax.pcast(w, "layers", to="varying")
            y = _gathered_product(x, w, of_x=("cols", 1), of_w=("rows", 0))
        return y if bias is None else y + bias[None]

    def _mapped(self, fn: Callable[..., Array], specs: Sequence[P], out: P) -> Callable[..., Array]:
        return jax.shard_map(fn, in_specs=tuple(specs), out_specs=out, axis_names=set(_AXES[self.kind]))

    def _check(
        self,
        name: str,
        x: Array,
        weights: Sequence[Array],
        *,
        second: bool = False,
        heads: int | None = None,
        sequence: int = 1,
    ) -> None:
        sizes = _sizes(self.kind, name)
        of_tokens, of_features = self.activations(second=second)
        arrays = [("tokens", x.shape[0], _devices(of_tokens, sizes) * sequence)]
        arrays.append(("features", x.shape[1], _devices(of_features, sizes)))
        for place, w in enumerate(weights):
            spec = self.weights(second=bool(place) != second)
            arrays += [(f"w.shape[{i}]", w.shape[i], _devices(spec[i], sizes)) for i in range(2)]
        if heads is not None:
            arrays.append(("heads", heads, _devices(self.activations(second=True)[1], sizes)))
            arrays.append(("features", x.shape[1], heads))
        wrong = [f"{label}={size} by {by}" for label, size, by in arrays if size % by]
        if wrong:
            message = (
                f'`tensor_parallel("{self.kind}").{name}` cannot divide {", ".join(wrong)} on the mesh {sizes}. Every '
                "device must have equal blocks, whole sequences and whole heads: use sizes that the mesh axes divide, "
                "pad with zeros, or use fewer devices."
            )
            raise ProgramError(message)


def tensor_parallel(kind: Kind) -> TensorParallel:
    """Creates transformer layers with tensor parallelism over the mesh set by `jax.set_mesh`.

    Forward and backward results are the same as with plain layers. The collectives are explicit and follow the papers.
    Gathered blocks are not kept for the backward pass.

    Args:
        kind: "1d" (Megatron): weights are split over `cols`, and activations are replicated. "2d" (Optimus, SUMMA):
            weights and activations are in `rows` × `cols` blocks. "2.5d" (SUMMA2.5-LM, Tesseract): activations are in
            `layers` · `rows` × `cols` blocks, and weights are in `rows` × `cols` blocks on each layer. The forward pass
            has no sum over layers. "3d": weights and activations are split over a cube of `layers` × `rows` × `cols`.

    Returns:
        An object with the layers, layouts and counts.

    Raises:
        ProgramError: if `kind` is unknown.

    Example:
        >>> import workbench as wb
        >>> layout = tensor_parallel("2.5d")
        >>> tuple(layout.activations()), tuple(layout.weights())
        ((('layers', 'rows'), 'cols'), ('rows', 'cols'))
        >>> with jax.set_mesh(wb.make_mesh(layers=2, rows=2, cols=2)):
        ...     layout.mlp(jnp.ones((8, 4)), jnp.ones((4, 8)), jnp.ones((8, 4))).shape
        (8, 4)

    References:
        Shoeybi et al., "Megatron-LM", 2019; Xu, Li, Gong and You, "An Efficient 2D Method for Training Super-Large Deep
        Learning Models" (Optimus), 2021; Wang, Xu, Bian and You, "2.5-dimensional Distributed Model Training", 2021;
        Bian, Xu, Wang and You, "Maximizing Parallelism in Distributed Training for Huge Neural Networks", 2021.
    """
    if kind not in _AXES:
        kinds = ", ".join(map(repr, _AXES))
        message = f"`tensor_parallel` was given kind={kind!r}. The kinds are {kinds}: pass one of them."
        raise ProgramError(message)
    return TensorParallel(kind)


def _gathered_product(x: Array, w: Array, *, of_x: tuple[str, int], of_w: tuple[str, int]) -> Array:
    """Multiplies gathered blocks and gathers them again in the backward pass, as SUMMA does."""

    @jax.checkpoint
    def product(x: Array, w: Array) -> Array:
        whole_x = jax.lax.all_gather(x, of_x[0], axis=of_x[1], tiled=True)
        return whole_x @ jax.lax.all_gather(w, of_w[0], axis=of_w[1], tiled=True)

    return product(x, w)


def _sizes(kind: str, name: str) -> dict[str, int]:
    mesh = jax.sharding.get_abstract_mesh()
    mesh_axes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True)) if not mesh.empty else {}
    axes = _AXES[kind]
    sizes = {axis: mesh_axes[axis] for axis in axes if axis in mesh_axes}
    square = sizes.get("rows") == sizes.get("cols") and (kind != "3d" or len(set(sizes.values())) == 1)
    if len(sizes) < len(axes) or (kind != "1d" and not square):
        listed = ", ".join(f"{axis}={size}" for axis, size in mesh_axes.items()) or "none"
        shape = {"1d": "cols=8", "2d": "rows=2, cols=2", "2.5d": "layers=2, rows=2, cols=2"}.get(
            kind, "layers=2, rows=2, cols=2"
        )
        form = {"1d": "a line", "2d": "a square grid", "2.5d": "layers of a square grid"}.get(kind, "a cube")
        message = (
            f'`tensor_parallel("{kind}").{name}` found the mesh axes {listed}. Blocks are sent along the axes '
            f"{', '.join(axes)} of {form}: use `jax.set_mesh(wb.make_mesh({shape}))`."
        )
        raise MeshError(message)
    return sizes


def _devices(entry: object, sizes: dict[str, int]) -> int:
    names = entry if isinstance(entry, tuple) else () if entry is None else (entry,)
    return math.prod(sizes[str(name)] for name in names)
