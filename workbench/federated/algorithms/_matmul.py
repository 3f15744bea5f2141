"""SUMMA and 2.5-D matrix multiplication as MapReduce over layers of devices."""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from workbench.errors import MeshError, ProgramError
from workbench.primitives import map_fn, program, reduce_sum


def matmul_25d(a: Float[Array, " n k"], b: Float[Array, " k m"], *, panels: int = 1) -> Float[Array, " n m"]:
    """Multiplies two matrices on `layers` grids of `rows` × `cols` devices (SUMMA if one layer).

    Layer *l* is a client with a slab of A's columns and the corresponding slab of B's rows. The client computes the
    product of its slabs, and `reduce_sum` over the layers yields A B. Inside a layer every device gathers its row of A
    and its column of B, one panel at a time. `matmul_words` counts the numbers that are sent.

    Args:
        a: A, preferably laid out as `P("rows", ("layers", "cols"))`.
        b: B, preferably laid out as `P(("layers", "rows"), "cols")`.
        panels: Number of panels into which each layer splits its slab for gathering. More panels need less memory and
            send as many bytes.

    Returns:
        A B, laid out as `P("rows", "cols")`.

    Raises:
        MeshError: if the mesh set by `jax.set_mesh` lacks the axes `rows`, `cols` or `layers`, or is not a square grid.
        ProgramError: if the matrices do not divide evenly over the mesh.

    Example:
        >>> import workbench as wb
        >>> with jax.set_mesh(wb.make_mesh(layers=2, rows=2, cols=2)):
        ...     matmul_25d(jnp.eye(4), jnp.arange(16.0).reshape(4, 4))[1].tolist()
        [4.0, 5.0, 6.0, 7.0]

    References:
        van de Geijn and Watts, "SUMMA: Scalable Universal Matrix Multiplication Algorithm", 1997; Solomonik and Demmel,
        "Communication-Optimal Parallel 2.5D Matrix Multiplication and LU Factorization Algorithms", Euro-Par 2011,
        Algorithm 2.
    """
    layers, side = _grid()
    _check_division(a, b, layers, side, panels)
    slabs_of_a = jnp.moveaxis(a.reshape(a.shape[0], layers, -1), 1, 0)
    slabs_of_b = b.reshape(layers, -1, b.shape[1])
    slabs_of_a, slabs_of_b = (_laid_out(x, "layers", "rows", "cols") for x in (slabs_of_a, slabs_of_b))

    def summa(a: jax.Array, b: jax.Array) -> Array:
        # Panel t is the t-th piece of every device's own columns of A, and of the same rows of B.
        pieces_of_a = jnp.moveaxis(a.reshape(a.shape[0], side, panels, -1), 2, 0)
        pieces_of_b = jnp.moveaxis(b.reshape(side, panels, -1, b.shape[1]), 1, 0)
        start = _laid_out(jnp.zeros((a.shape[0], b.shape[1]), a.dtype), "rows", "cols")
        return jax.lax.scan(_add_panel, start, (pieces_of_a, pieces_of_b))[0]

    # Over an axis with one device there is nothing to reduce.
    with program(placements={"layers": layers}, axes={"layers": "layers" if layers > 1 else ()}):
        return reduce_sum(map_fn(summa, (slabs_of_a, slabs_of_b)))


def _add_panel(total: Array, pieces: tuple[Array, Array]) -> tuple[Array, None]:
    """Adds the product of two panels; their sharding constraints cause the gathers."""
    of_a = _laid_out(_laid_out(pieces[0], "rows", "cols", None), "rows", None, None)  # along the row
    of_b = _laid_out(_laid_out(pieces[1], "rows", None, "cols"), None, None, "cols")  # along the column
    product = of_a.reshape(of_a.shape[0], -1) @ of_b.reshape(-1, of_b.shape[-1])
    return _laid_out(total + product, "rows", "cols"), None


def _laid_out(x: Array, *axes: str | None) -> Array:
    return jax.lax.with_sharding_constraint(x, jax.P(*axes))


def matmul_words(n: int, *, side: int, layers: int = 1) -> dict[str, float]:
    """Counts the numbers that each device sends in `matmul_25d` of two n × n matrices, with ring algorithms.

    Args:
        n: Number of rows and columns of the matrices.
        side: q, the number of rows and columns in one layer's grid.
        layers: c, the number of layers; there are c q² devices.

    Returns:
        `gather`, 2 (q − 1) n² / (c q²), for the panels of A and B; `reduce`, 2 (c − 1) n² / (c q²), for the all-reduce
        of the product; and `total`, the sum of both. With p devices, `gather` is about 2 n² / √(c p).

    Example:
        >>> flat, deep = matmul_words(1024, side=8), matmul_words(1024, side=4, layers=4)
        >>> flat["total"] / 2**20, deep["total"] / 2**20
        (0.21875, 0.1875)

    References:
        Solomonik and Demmel, Euro-Par 2011, equation 3: O(n² / √(c p)).
    """
    gather = 2 * (side - 1) * n * n / (layers * side * side)
    reduce = 2 * (layers - 1) * n * n / (layers * side * side)
    return {"gather": gather, "reduce": reduce, "total": gather + reduce}


def _grid() -> tuple[int, int]:
    mesh = jax.sharding.get_abstract_mesh()
    sizes = dict(zip(mesh.axis_names, mesh.axis_sizes, strict=True)) if not mesh.empty else {}
    if not {"layers", "rows", "cols"} <= set(sizes) or sizes["rows"] != sizes["cols"]:
        axes_text = ", ".join(f"{name}={size}" for name, size in sizes.items()) or "none"
        message = (
            f"`matmul_25d` found the mesh axes {axes_text}. Panels are sent along the rows and columns of a square "
            "grid of devices, in one or more layers: use `jax.set_mesh(wb.make_mesh(layers=2, rows=2, cols=2))`, or "
            "layers=1 for SUMMA."
        )
        raise MeshError(message)
    return sizes["layers"], sizes["rows"]


def _check_division(a: jax.Array, b: jax.Array, layers: int, side: int, panels: int) -> None:
    inner = layers * side * max(panels, 1)
    (n, k), (depth, m) = a.shape, b.shape
    sizes = (("n", n, side), ("k", k, inner), ("m", m, side))
    wrong = [f"{name}={size} is not a multiple of {unit}" for name, size, unit in sizes if size % unit]
    if k != depth:
        wrong = [f"the inner sizes {k} and {depth} differ"]
    if wrong or panels < 1:
        fact = ", ".join(wrong) or "the number of panels is not positive"
        message = (
            f"`matmul_25d` was given matrices {a.shape} and {b.shape} for {layers} layer(s) of {side} × {side} devices "
            f"with panels={panels}: {fact}. Every device stores equal blocks, so n and m must be multiples of {side}, "
            f"and k a multiple of {math.prod((layers, side))} × panels; pad with zeros, or use fewer panels."
        )
        raise ProgramError(message)
