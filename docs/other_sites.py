"""Names of other projects that our pages link to, and where their documentation has them.

Sphinx's intersphinx usually fetches an inventory of every project from the network. The site is built without one, so
the inventories are written from this table: a site, its pages, and the names that a page documents.
"""

import zlib
from pathlib import Path

# project -> (address, {page: names}); `{name}` in a page stands for the name itself.
SITES: dict[str, tuple[str, dict[str, str]]] = {
    "python": (
        "https://docs.python.org/3/",
        {
            "library/pathlib.html": "pathlib.Path",
            "library/os.html": "os.PathLike",
            "library/threading.html": "threading.Event",
            "library/types.html": "types.MappingProxyType",
            "library/concurrent.futures.html": "concurrent.futures.Executor",
            "library/collections.abc.html": """
                collections.abc.Callable collections.abc.Mapping collections.abc.Sequence collections.abc.Iterator
                collections.abc.Iterable
            """,
        },
    ),
    "jax": (
        "https://docs.jax.dev/en/latest/",
        {
            "jax.sharding.html": """
                jax.sharding.Mesh jax.sharding.NamedSharding jax.sharding.PartitionSpec jax.sharding.Sharding
            """,
            "jax.stages.html": "jax.stages.Compiled jax.stages.Lowered jax.stages.Traced",
            "jax.export.html": "jax.export.Exported",
            "_autosummary/{name}.html": """
                jax.Array jax.ShapeDtypeStruct jax.jit jax.grad jax.value_and_grad jax.hessian jax.vmap
                jax.shard_map jax.checkpoint jax.set_mesh jax.make_mesh jax.device_put jax.devices jax.pure_callback
                jax.linear_transpose jax.lax.scan jax.lax.map jax.lax.cond jax.lax.psum jax.lax.pmin
                jax.lax.ppermute jax.lax.all_gather jax.lax.all_to_all jax.lax.with_sharding_constraint jax.tree.map
                jax.tree.leaves jax.tree.reduce jax.random.key jax.random.split jax.random.fold_in jax.debug.print
                jax.debug.callback jax.debug.breakpoint jax.distributed.initialize jax.profiler.trace
                jax.profiler.start_trace jax.profiler.stop_trace jax.nn.softmax jax.nn.sigmoid jax.numpy.roll
                jax.numpy.where jax.numpy.sum jax.numpy.max jax.numpy.min jax.numpy.tanh jax.numpy.searchsorted
                jax.numpy.nonzero jax.numpy.flatnonzero jax.numpy.arange jax.numpy.copy jax.numpy.fft.fft
            """,
        },
    ),
    "numpy": (
        "https://numpy.org/doc/stable/",
        {
            "reference/generated/{name}.html": "numpy.ndarray numpy.dtype numpy.load numpy.memmap numpy.digitize",
            "reference/arrays.scalars.html": "numpy.number numpy.bool",
        },
    ),
    "optax": (
        "https://optax.readthedocs.io/en/latest/",
        {
            "api/optimizers.html": "optax.sgd optax.adam optax.adamw optax.adagrad optax.yogi",
            "api/transformations.html": "optax.GradientTransformation optax.GradientTransformationExtraArgs",
        },
    ),
    "flax": (
        "https://flax.readthedocs.io/en/latest/",
        {
            "api_reference/flax.nnx/module.html": "flax.nnx.Module",
            "api_reference/flax.nnx/variables.html": "flax.nnx.Param",
            "api_reference/flax.nnx/nn/linear.html": "flax.nnx.Linear",
            "api_reference/flax.nnx/transforms.html": "flax.nnx.jit flax.nnx.scan",
        },
    ),
    "pandas": ("https://pandas.pydata.org/docs/", {"reference/api/{name}.html": "pandas.DataFrame"}),
    "matplotlib": ("https://matplotlib.org/stable/", {"api/figure_api.html": "matplotlib.figure.Figure"}),
}

# Where types are defined, or how they stand in a signature -> what the documentation calls them.
ALIASES = {
    "Array": "jax.Array",
    "jax.jaxlib._jax.Array": "jax.Array",
    "jaxlib._jax.Array": "jax.Array",
    "jax._src.mesh.Mesh": "jax.sharding.Mesh",
    "jax._src.stages.Compiled": "jax.stages.Compiled",
    "jax._src.stages.Lowered": "jax.stages.Lowered",
    "jax._src.export._export.Exported": "jax.export.Exported",
    "ndarray": "numpy.ndarray",
    "optax._src.base.GradientTransformation": "optax.GradientTransformation",
    "optax._src.base.GradientTransformationExtraArgs": "optax.GradientTransformationExtraArgs",
    "concurrent.futures._base.Executor": "concurrent.futures.Executor",
    "pd.DataFrame": "pandas.DataFrame",
    "Figure": "matplotlib.figure.Figure",
}


def write_inventories(folder: Path) -> dict[str, tuple[str, str]]:
    """Writes an inventory per site in Sphinx's format, version 2; the value is what `intersphinx_mapping` takes."""
    folder.mkdir(parents=True, exist_ok=True)
    mapping = {}
    for site, (address, pages) in SITES.items():
        lines = [
            f"{name} py:class 1 {page.format(name=name)}#{name} -"
            for page, names in pages.items()
            for name in names.split()
        ]
        head = (
            f"# Sphinx inventory version 2\n# Project: {site}\n# Version: \n# The remainder is compressed using zlib.\n"
        )
        file = folder / f"{site}.inv"
        file.write_bytes(head.encode() + zlib.compress("\n".join([*lines, ""]).encode()))
        mapping[site] = (address, str(file))
    return mapping
