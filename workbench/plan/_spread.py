"""Lowering of a phase over a mesh: a `shard_map`, or a `vmap` that the compiler partitions.

`shard_map` is preferred where it works, because a client's data cannot reach other clients' devices. On a mesh with
additional axes, the `shard_map` is only partly manual. Some operations then have no lowering (callbacks, kernels) or
make XLA abort (a gather over two more axes: `spmd_partitioner_util.cc`, jaxlib 0.10 to 0.12).
"""

from jax.extend.core import Jaxpr
from jax.sharding import AxisType

from workbench import _jax_compat
from workbench.plan._loop_form import Spread
from workbench.plan._phases import Phase
from workbench.primitives import CALLBACKS, Layout

# With two more axes, XLA miscomputes the device groups of these operations in a partly manual program, and aborts.
_GATHERS = frozenset({"gather", "scatter", "scatter_add", "scatter_mul", "scatter_min", "scatter_max", "scatter_sub"})
_GATHER_NAMES = frozenset({*_GATHERS, *(name.replace("_", "-") for name in _GATHERS)})
# JAX cannot lower these in a partly manual program.
_OPAQUE = frozenset({*CALLBACKS, "pallas_call", "new_ref", "get", "swap", "addupdate", "run_state", "ffi_call"})


def choose_spread(phase: Phase, choice: Spread) -> Spread:
    """Chooses the lowering of a phase: the requested lowering or, for "auto", one that works in XLA."""
    if choice != "auto":
        return choice
    if phase.layout is None:
        return "shard_map"
    auto_axes = other_axes(phase.layout)
    if not auto_axes:
        return "shard_map"
    names = set().union(*(_primitives(step.jaxpr.jaxpr) for step in phase.steps if step.jaxpr is not None))
    if names & _OPAQUE or (len(auto_axes) > 1 and names & _GATHER_NAMES):
        return "vmap"
    return "shard_map"


def other_axes(layout: Layout) -> tuple[str, ...]:
    """The additional mesh axes: larger than 1, not yet manual, and not client axes."""
    mesh = layout.mesh
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return tuple(
        name for name, kind in kinds if name not in layout.axes and kind is not AxisType.Manual and mesh.shape[name] > 1
    )


def manual_axes(phase: Phase) -> set[str]:
    """The axes that a phase's `shard_map` makes manual.

    The manual axes include axes of size 1 if the client uses operations that JAX lowers only in fully manual programs.
    """
    layout = phase.layout
    assert layout is not None
    names = set().union(*(_primitives(step.jaxpr.jaxpr) for step in phase.steps if step.jaxpr is not None))
    if names & _OPAQUE and not other_axes(layout):
        return {
            name
            for name, kind in zip(layout.mesh.axis_names, layout.mesh.axis_types, strict=True)
            if kind is not AxisType.Manual
        }
    return set(layout.axes)


@_jax_compat.once_per_jaxpr
def _primitives(jaxpr: Jaxpr) -> frozenset[str]:
    names: set[str] = set()
    for equation in jaxpr.eqns:
        names.add(equation.primitive.name)
        for inner in _jax_compat.inner_jaxprs(equation):
            names |= _primitives(inner)
    return frozenset(names)
