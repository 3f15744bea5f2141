"""Programs that compute the right values and let someone read the rows of all clients: no exercise accepts them.

Each takes a function of all data, such as those of `course_answers.PLAIN`, and a number of clients.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

import workbench as wb


def of_clients(x, clients):
    return jnp.shape(x)[:1] == (clients,)


def plus(tree, zero):
    return jax.tree.map(lambda leaf: leaf + zero.astype(leaf.dtype), tree)


def nothing(clients):
    return 0 * wb.reduce_max(jnp.ones(clients))


def from_rows(rows_of):
    """A cheat whose server gathers the rows by `rows_of(x, clients)`, and computes from them."""

    def cheat(plain, clients):
        def answer(*args):
            with wb.program(clients=clients):
                rows = jax.tree.map(lambda x: rows_of(x, clients) if of_clients(x, clients) else x, args)
                return plus(plain(*rows), nothing(clients))

        return answer

    return cheat


def own_row(x, i, clients):
    mine = wb.map_fn(
        lambda own, me, i: jnp.where(me == i, own, jnp.zeros_like(own)), (x, jnp.arange(clients), wb.broadcast(i))
    )
    return wb.reduce_sum(mine)


def slots(x, clients):
    def alone_in_zeros(own, me):
        return jnp.zeros((clients, *own.shape), own.dtype).at[me].set(own)

    return wb.reduce_sum(wb.map_fn(alone_in_zeros, (x, jnp.arange(clients))))


def products(x, clients):
    def product(one):
        return wb.reduce_sum(wb.map_fn(lambda own, k: own * k.astype(own.dtype), (x, one)))

    return jax.vmap(product)(jnp.eye(clients))


def masked_sums(x, clients):
    return jnp.stack([wb.reduce_sum(x, where=jnp.arange(clients) == i) for i in range(clients)])


def loop_of_known_length(x, clients):
    return jax.lax.map(lambda i: own_row(x, i, clients), jnp.arange(clients))


def loop_of_unknown_length(x, clients):
    def step(carry):
        i, rows = carry
        return i + 1, rows.at[i].set(own_row(x, i, clients))

    return jax.lax.while_loop(lambda carry: carry[0] < clients, step, (0, jnp.zeros_like(x)))[1]


def sent_to_all(plain, clients):
    def answer(*args):
        with wb.program(clients=clients):
            every = jax.tree.map(wb.broadcast, args)
            return wb.reduce_max(wb.map_fn(lambda *every: plain(*every), every))

    return answer


def captured(plain, clients):
    def answer(*args):
        with wb.program(clients=clients):
            return wb.reduce_max(wb.map_fn(lambda me: plain(*args), jnp.arange(clients)))

    return answer


def gathered_by_clients(plain, clients):
    def answer(*args):
        def of_all(*own):
            leaves = [jax.lax.all_gather(leaf, "clients") for leaf in jax.tree.leaves(own)]
            return plain(*jax.tree.unflatten(jax.tree.structure(own), leaves))

        with wb.program(clients=clients):
            placed = [jax.tree.map(lambda x: x if of_clients(x, clients) else wb.broadcast(x), each) for each in args]
            return wb.reduce_max(wb.map_fn(of_all, tuple(placed)))

    return answer


def batched_rule(plain, clients):
    """The rule of `custom_vmap` gets the rows of all clients at once."""

    def answer(*args):
        result = jax.eval_shape(plain, *args)

        @jax.custom_batching.custom_vmap
        def own(*rows):
            return jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), result)

        @own.def_vmap
        def of_all(size, batched, *rows):
            whole = [x if of_clients(given, clients) else x[0] for x, given in zip(rows, args, strict=True)]
            found = plain(*whole)
            copies = jax.tree.map(lambda each: jnp.broadcast_to(each, (size, *each.shape)), found)
            return copies, jax.tree.map(lambda each: True, found)

        with wb.program(clients=clients):
            placed = tuple(x if of_clients(x, clients) else wb.broadcast(x) for x in args)
            return wb.reduce_max(wb.map_fn(own, placed))

    return answer


def called_back(plain, clients):
    """Clients hand their rows to Python, and the server takes them from there."""

    def answer(*args):
        seen = {}

        def keep(me, *rows):
            seen[int(me)] = [np.array(row) for row in rows]
            return np.float32(0)

        def of_all(_):
            whole = [
                np.stack([seen[i][k] for i in range(clients)]) if of_clients(x, clients) else seen[0][k]
                for k, x in enumerate(args)
            ]
            return jax.tree.map(np.asarray, plain(*map(jnp.asarray, whole)))

        zero = jax.ShapeDtypeStruct((), jnp.float32)
        with wb.program(clients=clients):
            placed = tuple(x if of_clients(x, clients) else wb.broadcast(x) for x in args)
            told = wb.map_fn(
                lambda *own: jax.pure_callback(keep, zero, *own, vmap_method="sequential"),
                (jnp.arange(clients), *placed),
            )
            return jax.pure_callback(
                of_all, jax.eval_shape(plain, *args), wb.reduce_sum(told), vmap_method="sequential"
            )

    return answer


def is_traced(args):
    return any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(args))


def another_program_when_traced(plain, clients):
    def answer(*args):
        if not is_traced(args):
            return plain(*args)
        with wb.program(clients=clients):
            zero = wb.reduce_sum(jnp.zeros(clients))
            shapes = jax.eval_shape(plain, *args)
            return plus(jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), shapes), zero)

    return answer


def remembered(plain, clients):
    seen = {}

    def answer(*args):
        if not is_traced(args):
            seen["result"] = plain(*args)
            return seen["result"]
        with wb.program(clients=clients):
            return plus(seen["result"], nothing(clients))

    return answer


# cheat -> a fact of the message about 02.1, where values and the number of reductions are as asked for
CHEATS = {
    sent_to_all: "every client receives the data of all clients: ",
    captured: "every client receives the data of all clients: ",
    gathered_by_clients: "a collective of `jax.lax` over all clients",
    batched_rule: "of each client computed separately",
    called_back: "calls Python",
    another_program_when_traced: "of each client computed separately",
    remembered: "of each client computed separately",
    from_rows(lambda x, n: wb.map_fn(lambda own: own, x)): "a row of each client|own data",
    from_rows(lambda x, n: jax.lax.scan(lambda count, row: (count, row * 1), 0, x)[1]): "reads the clients' own data",
    from_rows(lambda x, n: wb.reduce_by_key(x, jnp.arange(n), n)): "discloses 20 bytes",
    from_rows(slots): "discloses 20 bytes",
    from_rows(products): "discloses 20 bytes",
    from_rows(masked_sums): "adds up the values of client 0 alone",
    from_rows(loop_of_known_length): "adds up the values of one client alone",
    from_rows(loop_of_unknown_length): "adds up the values of one client alone",
}
