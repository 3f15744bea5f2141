"""The facts of a collective in the view of compiled modules."""

import jax
import jax.numpy as jnp
from workbench_widgets._hlo import hlo_state

from workbench import inspect


def test_a_collective_of_a_python_list_names_the_array_of_its_layer():
    mesh = jax.make_mesh((8,), ("model",), axis_types=(jax.sharding.AxisType.Auto,))

    def network(layers, x):
        for layer in layers:
            x = jnp.tanh(x @ layer["up"]) @ layer["down"]
        return x

    layer = {
        "up": jax.device_put(jnp.ones((16, 64)), jax.NamedSharding(mesh, jax.P(None, "model"))),
        "down": jax.device_put(jnp.ones((64, 16)), jax.NamedSharding(mesh, jax.P("model"))),
    }
    state, _ = hlo_state(inspect(jax.jit(network))([layer, layer], jnp.ones((8, 16))))
    facts = [dict(collective["rows"])["computed from"] for collective in state["collectives"]]
    assert sorted(facts) == ["layers[0]['down']", "layers[1]['down']"]
