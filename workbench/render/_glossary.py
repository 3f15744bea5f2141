"""Terms of the field, each explained to newcomers in one sentence."""

GLOSSARY = {
    "server": "The place that stores a single copy of a value and coordinates the clients.",
    "client": "One member of the group that a function is mapped over; it sees only its own slice of the data.",
    "clients": "All members of the group that a function is mapped over; each sees only its own slice of the data.",
    "broadcast": "Every client receives a copy of the server's value; the derivative is a sum over clients.",
    "reduce": "One value per client becomes one value at the server; the derivative is a broadcast.",
    "loop": "The stages inside are repeated; costs shown outside the loop include every iteration.",
    "branch": "A choice made while the program runs (cond, switch), so that only one of the bodies inside is executed.",
    "placement": "A named group of clients that a program can broadcast to, map over and reduce from.",
    "mesh axis": "One named dimension of the grid of devices; arrays are split or repeated along it.",
    "mesh": "The grid of devices, with a name for every dimension.",
    "device": "An accelerator, or a simulated device, that JAX can place arrays on.",
    "FLOPs": "Floating-point operations: additions and multiplications; a product of an m×k and a k×n matrix is 2mkn.",
    "payload": "The bytes of one device's operand in one collective.",
    "sent": "The bytes that one device sends in one call, as a ring algorithm would send them.",
    "collective": "An operation that several devices perform together, such as summing one array from each device.",
    "all-reduce": "Every device contributes an array and receives the sum (or maximum, …) of all arrays.",
    "all-gather": "Every device contributes its shard and receives the whole array.",
    "reduce-scatter": "The arrays of all devices are summed, and every device keeps only its shard of the sum.",
    "all-to-all": "Every device sends a different part to every other device: a transposition across devices.",
    "collective-permute": "Every device sends its array to one other device, for example its neighbour.",
    "jaxpr": "JAX's own typed listing of a function, with one primitive operation per line.",
    "HLO": "The compiler's listing of the program that one device runs, after partitioning and optimization.",
    "StableHLO": "The portable listing that JAX hands to the compiler, before partitioning and optimization.",
    "sharding": "How an array is divided into shards, and which devices hold each shard.",
    "shard": "The piece of an array that one device holds.",
    "replication": "How many devices hold the same piece.",
    "roofline": "The best speed that a chip allows for a given ratio of work to memory traffic.",
    "intensity": "FLOPs per byte of memory traffic; below the ridge a chip waits for its memory.",
    "predicted": "Computed from the program and the published figures of a chip. Nothing was run.",
    "estimated": "Scaled from the program's figures by the laws listed next to the estimate. Not compiled, not run.",
    "measured": "Timed while the program was actually running.",
    "padding": "Empty slots or examples that exist only to give every client or device an equal share.",
    "lockstep": "Clients on one device run together, so all of them take as long as the slowest client.",
    "straggler": "The client or device that all others wait for.",
    "bound": "The limit of a stage: arithmetic, memory traffic, or communication between devices.",
    "peak memory": "The most bytes that one device stores at the same time.",
    "source": "The line of your own code that this figure came from.",
    "host": "One computer, which contains some of the devices.",
    "torus coordinates": "Place of a TPU chip in its torus, a grid whose opposite edges are wired together.",
    "spec": "Mesh axes that shard each dimension of an array. A dash marks a dimension that is not sharded.",
    "propagation": "The compiler's choice of a sharding for every value, carried step by step from the shardings that "
    "you gave.",
    "sharding rule": "Which dimensions of an operation's operands and results correspond to each other, as in an "
    "einsum.",
    "what if": "The program lowered with different shardings and compared with the original. Nothing runs.",
    "examples": "The true number of training examples that a client holds, without padding.",
}


# Only terms that the notebooks use; terms such as "branch" or "lockstep" are explained only here.
_TAUGHT_IN = {
    "01-start-here": "server, client, clients",
    "02-placements-and-primitives": "broadcast, reduce, placement, padding",
    "03-derivatives-through-communication": "jaxpr",
    "04-shardings-and-meshes": "mesh axis, mesh, device, sharding, spec, shard, propagation, what if",
    "05-reading-the-hlo": "HLO, StableHLO, collective, all-reduce, all-gather, payload, sent, source, loop",
    "06-what-does-it-cost": "FLOPs, predicted, measured, estimated, roofline, intensity, bound, peak memory",
    "13-stragglers-and-coding": "straggler",
    "22-collectives-as-algorithms": "host, reduce-scatter, collective-permute",
    "23-one-transformer": "all-to-all",
    "25-personalisation": "examples",
}
LESSONS = {word: notebook for notebook, words in _TAUGHT_IN.items() for word in words.split(", ")}


def lesson(term: str) -> str:
    """The course notebook that teaches `term`, or "" if there is none.

    Example:
        >>> lesson("shard")
        '04-shardings-and-meshes'
    """
    return LESSONS.get(term, "")


def glossary(term: str) -> str:
    """Returns the sentence that explains `term`, or "" for a term that needs no explanation.

    Example:
        >>> glossary("shard")
        'The piece of an array that one device holds.'
    """
    return GLOSSARY.get(term, "")
