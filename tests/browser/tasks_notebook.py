"""The cells of the notebook in which the ten tasks are done: programs as a user writes them, each opened once."""

SETUP = """
import jax, jax.numpy as jnp, numpy as np, optax
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec as P

import workbench as wb
from workbench import measurement

wb.simulate_devices(8)
mesh = wb.make_mesh(clients=4, model=2)
"""

# Federated averaging: its biggest collective (i), its straggler (ii), twice the model on 16 chips (iii), one client's
# gradient (iv), and a page to mail (viii).
FEDERATED = """
def loss_of(params, x, y):
    return jnp.mean((jax.nn.relu(x @ params["in"]) @ params["out"] - y) ** 2)


def train(local, batches):
    def step(local, batch):
        gradient = jax.grad(loss_of)(local, *batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, local, gradient), None

    after, _ = jax.lax.scan(step, local, batches)
    return jax.tree.map(jnp.subtract, after, local)


@wb.program(clients=32)
def training_round(params, data):
    update = wb.map_fn(train, (wb.broadcast(params), data))
    return jax.tree.map(jnp.add, params, wb.reduce_mean(update))


draw = np.random.default_rng(0)
array = lambda *shape: jnp.asarray(draw.normal(size=shape), jnp.float32)
params = {"in": array(16, 32), "out": array(32, 4)}
data = (array(32, 5, 8, 16), jnp.zeros((32, 5, 8, 4)))
with jax.set_mesh(mesh):
    record = wb.inspect(training_round, on="v5e")(params, data)
speed = np.full(32, 1e9)
speed[11] = 1e8
profiles = measurement.ClientProfiles(flops_per_second=speed, down_bytes_per_second=2e9, up_bytes_per_second=2e9)
sent = record.plan.stages[0].moved_bytes / 32
flops = np.array([each.flops for each in record.cost.clients])
late = measurement.simulate_round(profiles, flops, sent, sent)
with jax.set_mesh(mesh):
    round_view = wb.explore(training_round, on="v5e", timeline=late)(params, data)
round_view
"""

# Clients in pods: the collective that matters comes from a line of the user (i, nested).
NESTED = """
@wb.program(placements={"pods": 2, "clients": 4})
def pod_round(weights, data):
    def in_pod(weights, rows):
        update = wb.map_fn(lambda w, x: jnp.tanh(x @ w), (wb.broadcast(weights, to="clients"), rows), over="clients")
        return wb.reduce_mean(update, over="clients")

    return wb.reduce_mean(wb.map_fn(in_pod, (wb.broadcast(weights, to="pods"), data), over="pods"), over="pods")


rows = jax.device_put(jnp.ones((2, 4, 64, 64)), NamedSharding(mesh, P(None, "clients")))
with jax.set_mesh(mesh):
    nested_view = wb.explore(pod_round)(jnp.ones((64, 64)), rows)
nested_view
"""

# An ordinary train step of Flax NNX: its line (i, plain), why an array is whole and how to shard it (v), before and
# after another spec (vi).
PLAIN = """
class Block(nnx.Module):
    def __init__(self, width, rngs):
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)

    def __call__(self, x):
        return x + self.down(jax.nn.gelu(self.up(self.norm(x))))


class Model(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Linear(32, 128, rngs=rngs)
        self.blocks = nnx.List([Block(128, rngs) for _ in range(2)])
        self.head = nnx.Linear(128, 8, rngs=rngs)

    def __call__(self, x):
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


@nnx.jit
def train_step(model, optimizer, x, y):
    def loss(model):
        return jnp.mean((model(x) - y) ** 2)

    value, gradient = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradient)
    return value


chips = wb.make_mesh(data=4, model=2)
model = Model(nnx.Rngs(0))
optimizer = nnx.Optimizer(model, optax.sgd(1e-3), wrt=nnx.Param)
x, y = (jax.device_put(jnp.ones((512, size)), NamedSharding(chips, P("data"))) for size in (32, 8))
plain_view = wb.explore(train_step, on="v5e")(model, optimizer, x, y)
plain_view
"""

# The same step on 16 chips that are not here, as their compiler makes it (x).
ABSENT = """
pod = jax.sharding.AbstractMesh((8, 2), ("data", "model"))
batch = [jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=NamedSharding(pod, P("data"))) for each in (x, y)]
if next(target for target in wb.aot.list_targets() if target.chip == "v5e").installed:
    wb.show(train_step, on="v5e:4x4")(model, optimizer, *batch)
"""

# Rounds to pause, resume and stop; many, so that they are not over before somebody comes (vii).
RUN = """
import time
def step(state, round):
    time.sleep(0.03)
    return state + 1, {"loss": 1 / (1 + state)}
run = wb.Run(step, 0, 10**6, progress=False)
run.start(background=True)
wb.show(run)
"""

PLAYGROUND = """
play = wb.playground(clients=8, rounds=10, local_steps=4)
play
"""

# What a client that has done three of its local steps holds.
LOCAL = """
local_17 = params
for done in range(3):
    slope = jax.grad(loss_of)(local_17, *(each[17, done] for each in data))
    local_17 = jax.tree.map(lambda p, g: p - 0.1 * g, local_17, slope)
"""

VIEWS = ("round", "nested", "plain", "run", "playground", "absent")
CELLS = (SETUP, FEDERATED, LOCAL, NESTED, PLAIN, RUN, PLAYGROUND, ABSENT)
