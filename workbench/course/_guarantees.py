"""Exercises of notebooks 12, 13 and 24: Byzantine clients, privacy, compression, stragglers, attacks."""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from workbench.course._grading import (
    called,
    exercise,
    expect_disclosed,
    expect_number,
    expect_values,
    plan_of,
    several,
    stages,
    wrong,
)
from workbench.plan import PythonInterpreter


@exercise("12.1", "clip an update to a norm")
def clip_update(answer: object) -> str:
    long, short = {"a": jnp.array([3.0]), "b": jnp.array([4.0])}, {"a": jnp.array([0.3]), "b": jnp.array([0.4])}
    result = called(answer, long, 1.0)
    expect_values(
        [result["a"][0], result["b"][0]], [0.6, 0.8], "Scale by min(1, C / norm), where the norm is over all leaves."
    )
    result = called(answer, short, 1.0)
    expect_values([result["a"][0], result["b"][0]], [0.3, 0.4], "An update whose norm is below C must not change.")
    result = called(answer, long, 2.0)
    expect_values([result["a"][0], result["b"][0]], [1.2, 1.6], "With C = 2 an update of norm 5 is scaled to norm 2.")
    result = called(answer, jax.tree.map(jnp.zeros_like, long), 1.0)
    expect_values([result["a"][0], result["b"][0]], [0, 0], "An update of zeros has norm 0: do not divide 0 by 0.")
    traced = called(jax.jit(lambda update: called(answer, update, 1.0)), long)  # later cells clip inside programs
    expect_values([traced["a"][0], traced["b"][0]], [0.6, 0.8], "Under `jax.jit` the result differs.")
    return "long updates are scaled down, short updates do not change."


@exercise("12.2", "why noise around a compressor with memory is rejected")
def refused_memory(answer: object) -> str:
    if not isinstance(answer, Exception):
        wrong("the answer should be the exception: `except ValueError as error: answer = error`.")
    if "memory" not in str(answer):
        wrong(f"this is a different error: {answer}")
    return "error feedback adds up over many rounds: a message could exceed the clip, and the noise would be too small."


@exercise("12.3", "bits per number and numbers per word, for 8-bit numbers from 32 clients")
def packed_bits(answer: object) -> str:
    bits, numbers = several(answer, 2, "bits per number, numbers per word of 32 bits")
    expect_number(bits, 13, "A sum over 32 clients needs log2(32) = 5 bits more.", what="the number of bits")
    expect_number(numbers, 2, "How many numbers of this many bits fit into 32 bits?", what="the count per word")
    return "a sum over 32 clients needs 13 bits, so two numbers fit into a word of 32 bits."


@exercise("12.4", "number of Byzantine clients that a median over 32 clients tolerates")
def tolerated(answer: object) -> str:
    expect_number(
        answer, 15, "The median is between honest values as long as more than half of the clients are honest."
    )
    return "a median tolerates fewer than half of the clients; in practice, heterogeneity lowers this number."


@exercise("12.5", "a trimmed mean of eight clients that discloses 12 bytes")
def trimmed_by_three(answer: object) -> str:
    x = jnp.array([3.0, -40.0, 1.0, 2.0, 5.0, 4.0, 90.0, 0.0])
    hint = "Subtract the smallest and the largest from the sum, and divide by six."
    expect_values(called(answer, x), 15 / 6, hint)
    values = np.random.default_rng(1).normal(0, 1000, 8).astype("float32")  # too fine to be packed into 12 bytes
    expect_values(called(answer, jnp.asarray(values)), np.sort(values)[1:-1].mean(), hint)
    plan = plan_of(answer, x, clients=8)
    expect_disclosed(plan, 12)
    used = [stage.operation for stage in stages(plan, "reduce")]
    if len(used) > 3 or not set(used) <= {"reduce_sum", "reduce_mean", "reduce_min", "reduce_max"}:
        wrong(f"the plan uses the reductions {', '.join(used)}; use only one sum, one minimum and one maximum.")
    return "three reductions and 12 bytes suffice for any number of clients."


@exercise("13.1", "decode seven blocks from any seven of ten answers")
def decode_blocks(answer: object) -> str:
    random = np.random.default_rng(4)
    generator, blocks = random.normal(size=(10, 7)), random.normal(size=(7, 3, 2))
    for late in ([0, 1, 2], [3, 5, 9], [8]):
        answers = np.einsum("wb,brc->wrc", generator, blocks)
        answers[late] = np.nan
        finished = ~np.isin(np.arange(10), late)
        result = called(answer, generator, answers, finished)
        if np.isnan(np.asarray(result)).any():
            wrong(f"a late answer was used: workers {late} are late, and the result has NaN.")
        expect_values(result, blocks, "Solve generator[used] @ blocks = answers[used] for seven finished workers.")
    return "any seven of the ten answers determine all blocks."


@exercise("13.2", "the messages of a group of workers, as few as possible")
def pair_off(answer: object) -> str:
    for lists in ({0: [4, 7], 1: [1, 6, 8], 3: [2]}, {2: [5]}, {0: [3, 1], 4: [0, 2]}):
        messages = called(answer, lists)
        if not isinstance(messages, Sequence) or not all(isinstance(message, dict) for message in messages):
            wrong(
                "the messages should be a list of dictionaries, with workers as keys and the rows that they receive "
                "as values."
            )
        for worker, rows in lists.items():
            if sorted(message[worker] for message in messages if worker in message) != sorted(rows):
                wrong(f"for the lists {lists}, worker {worker} should get the rows {rows}, each row once.")
        if len(messages) > (needed := max(map(len, lists.values()))):
            wrong(f"there are {len(messages)} messages for the lists {lists}; {needed} messages would be enough.")
    return "a group needs as many messages as its longest list."


@exercise("13.3", "the workers that take part in the gradient of a coded product")
def workers_in_gradient(answer: object) -> str:
    expect_number(answer, 7, "Which workers' blocks of the result were used?")
    return "only the seven workers whose answers were used get a gradient."


@exercise("13.4", "number of pairs of late workers that repetition and the code do not survive")
def fatal_pairs(answer: object) -> str:
    repetition, code = several(answer, 2, "fatal pairs with repetition, fatal pairs with the code")
    expect_number(
        repetition, 5, "A pair is fatal if both workers hold the same block (of 5).", what="the count for repetition"
    )
    if float(code) != 0:
        wrong("any five of ten answers are enough for the code, so no pair is fatal.")
    return "the code tolerates any five late workers, and uses the same memory."


@exercise("24.1", "an input, reconstructed from the gradient of a linear layer")
def reconstruct(answer: object) -> str:
    random = np.random.default_rng(3)
    x, w, b = random.normal(size=6), random.normal(size=(6, 4)), random.normal(size=4)
    active = jnp.array([0.0, 1.0, 1.0, 1.0])  # the first unit has no gradient
    hint = "Each column of the weights' gradient is x times an entry of the bias's gradient: divide the column by it."
    for slope in (active, active * jnp.array([1.0, 1.0, -2.0, 0.5]), -active):  # also where no gradient is positive

        def loss(w: jax.Array, b: jax.Array, slope: jax.Array = slope) -> jax.Array:
            return (slope * jnp.exp(0.1 * (x @ w + b))).sum()

        grad_w, grad_b = jax.grad(loss, argnums=(0, 1))(jnp.asarray(w), jnp.asarray(b))
        expect_values(called(answer, grad_w, grad_b), x, hint, atol=1e-3)
        hint = "Some gradients are negative: the largest gradient is the one with the largest absolute value."
    return "one example's gradient of a layer with a bias *is* the example."


class RandomWords(PythonInterpreter):
    """Evaluates a function with one random word replaced wherever it is drawn; `drawn` contains all random words."""

    def __init__(self, changed: int | None = None) -> None:
        self.changed: int | None = changed
        self.drawn: set[int] = set()

    def bind(self, equation: JaxprEqn, operands: Sequence[Any]) -> list[Any]:
        """The results of one operation."""
        results = super().bind(equation, operands)
        if equation.primitive.name == "random_bits":
            (bits,) = results
            self.drawn.update(np.ravel(bits).tolist())
            if self.changed is not None:
                other = bits + jnp.asarray(1_540_483_477).astype(bits.dtype)
                results = [jnp.where(np.asarray(bits) == self.changed, other, bits)]
        return results


def expect_pairwise(answer: object, clients: int, size: int) -> None:
    """Changes each random word separately, and checks that each change affects exactly one pair of clients."""
    key = jax.random.key(1)
    closed = jax.make_jaxpr(lambda key: called(answer, key, clients, size))(key)

    def masks(words: RandomWords) -> np.ndarray:
        return np.asarray(words.run(closed, [key])[0])

    before = masks(counter := RandomWords())
    if (count := len(counter.drawn)) > 1000:
        wrong(f"{count:,} random words are drawn for {clients} clients and {size} numbers: draw fewer.")
    hidden = {pair: np.zeros(size, bool) for pair in itertools.combinations(range(clients), 2)}
    for word in counter.drawn:
        changes = masks(RandomWords(word)) != before
        owners, entries = np.flatnonzero(changes.any(1)).tolist(), changes.any(0)
        if owners and len(owners) != 2:
            wrong(f"a random word is in the masks of the clients {owners}: it should be only in the masks of one pair.")
        if entries.sum() > 1:
            wrong(f"one random word hides {entries.sum()} entries: draw one word for each entry.")
        if owners:
            hidden[owners[0], owners[1]] |= entries
    for (i, j), entries in hidden.items():
        if not entries.all():
            wrong(
                f"the sum is 0, but clients {i} and {j} share {entries.sum()} random words that no other client uses; "
                f"every pair needs {size}. Otherwise the party that draws the masks, or the other clients together, "
                "can remove these masks."
            )


@exercise("24.2", "pairwise masks that cancel in the sum")
def pairwise_masks(answer: object) -> str:
    masks = np.asarray(called(answer, jax.random.key(0), 5, 16))
    if masks.shape != (5, 16):
        wrong(f"the masks have shape {masks.shape}; expected (5, 16), one row per client.")
    if masks.dtype != np.uint32:
        wrong(f"the masks have dtype {masks.dtype}; words modulo 2³² are `uint32`.")
    if masks.sum(0, dtype=np.uint32).any():
        wrong("the sum modulo 2³² is not 0: client i adds the words of (i, j), client j subtracts them.")
    if any(not row.any() for row in masks) or len(np.unique(masks, axis=0)) < 5:
        wrong("a client's mask should hide its update: no row may be 0 or equal to another row.")
    ones = np.unpackbits(masks.view(np.uint8), axis=1).mean(axis=1)
    if (np.abs(ones - 0.5) > 0.15).any() or any(len(np.unique(row)) < 12 for row in masks):
        wrong("a client's mask repeats words or has too few bits set: use `jax.random.bits` for every word.")
    if np.mean(masks == np.asarray(called(answer, jax.random.key(1), 5, 16))) > 0.05:
        wrong("another key gives the same masks, so anyone can compute them. Draw all words from `key`.")
    expect_pairwise(answer, 4, 2)
    return "each pair shares words that no other client uses, and they cancel in the sum."


@exercise("24.3", "number of clients at which local privacy has the same noise as central privacy with 100 clients")
def local_as_central(answer: object) -> str:
    hint = (
        "Central: z C / n with n = 100. Local: a message must hide which of two clipped updates a client has, and "
        "they differ by up to 2 C. So each client adds noise of standard deviation 2 z C, and the noise in the mean "
        "over m clients has standard deviation 2 z C / √m."
    )
    expect_number(answer, 40_000, hint)
    return "local privacy needs 4 n² clients: the cost of not trusting the server."


@exercise("24.4", "the largest fraction of members that an attack can identify, for two values of ε")
def largest_true_positive_rate(answer: object) -> str:
    strong, weak = several(answer, 2, "the fraction for ε = 1, the fraction for ε = 8")
    hint = "The bound is exp(ε) · FPR + δ, with FPR = 0.01 and δ = 0.001."
    expect_number(strong, np.e * 0.01 + 0.001, hint, what="the fraction for ε = 1", rtol=2e-2)
    expect_number(weak, 1, "A fraction is at most 1.", what="the fraction for ε = 8")
    return "a bound above 1 does not exclude any attack."
