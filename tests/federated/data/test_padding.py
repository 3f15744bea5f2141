import jax
import numpy as np
import pytest

from workbench.errors import DataError
from workbench.federated import data as wd


def ragged():
    sizes = {"a": 5, "b": 2, "c": 3}
    start = {"a": 10, "b": 20, "c": 30}
    return wd.ClientData(
        arrays={c: {"x": start[c] + np.arange(n, dtype=np.int16), "v": np.ones((n, 2))} for c, n in sizes.items()}
    )


def real(padded, slot):
    return padded["x"][slot][padded.mask[slot]].tolist()


def test_padding_is_zero_and_masked_and_examples_keep_their_order():
    padded = wd.pad_clients(ragged())
    assert padded["x"].tolist() == [[10, 11, 12, 13, 14], [20, 21, 0, 0, 0], [30, 31, 32, 0, 0]]
    assert padded.mask.sum(axis=1).tolist() == padded.counts.tolist() == [5, 2, 3]
    assert padded["x"].dtype == np.int16
    assert padded["v"].shape == (3, 5, 2)
    assert padded["v"].sum() == 20  # 10 examples of two ones: padding adds nothing


def test_the_tree_is_what_a_program_takes():
    tree = wd.pad_clients(ragged()).tree
    assert list(tree) == ["x", "v", "mask", "weight"]
    assert tree["mask"].dtype == bool
    assert tree["weight"].dtype == np.float32
    assert tree["weight"].tolist() == [5.0, 2.0, 3.0]


def test_batches_cut_the_examples_into_steps():
    padded = wd.pad_clients(ragged(), batch_size=2)
    assert padded["x"].tolist() == [
        [[10, 11], [12, 13], [14, 0]],
        [[20, 21], [0, 0], [0, 0]],
        [[30, 31], [32, 0], [0, 0]],
    ]
    assert padded["v"].shape == (3, 3, 2, 2)
    assert padded.mask.shape == (3, 3, 2)


def test_every_epoch_holds_every_example_once_in_another_order():
    data = wd.ClientData(arrays={"a": {"x": np.arange(1, 31)}, "b": {"x": np.arange(100, 107)}})
    padded = wd.pad_clients(data, batch_size=8, epochs=3, key=0)
    assert padded["x"].shape == (2, 12, 8)  # 4 steps of 8 for 30 examples, three times
    assert padded.counts.tolist() == [30, 7]
    epochs = padded["x"][0].reshape(3, 32)
    assert all(sorted(epoch[:30].tolist()) == list(range(1, 31)) for epoch in epochs)
    assert len({tuple(epoch.tolist()) for epoch in epochs}) == 3


def test_fields_are_shuffled_together():
    data = wd.ClientData(arrays={"a": {"x": np.arange(20), "y": np.arange(20) * 3}})
    padded = wd.pad_clients(data, key=5)
    assert padded["x"].tolist() != [list(range(20))]
    assert (padded["y"] == padded["x"] * 3).all()


def test_a_clients_order_depends_on_key_and_id_not_on_the_cohort():
    data = ragged()
    alone = wd.pad_clients(data.select(["c"]), key=1)
    among = wd.pad_clients(data, key=1)
    assert real(alone, 0) == real(among, 2)
    orders = {tuple(real(wd.pad_clients(data, key=key), 0)) for key in range(8)}
    assert len(orders) > 1


def test_seeds_typed_keys_and_raw_keys_shuffle():
    data = wd.ClientData(arrays={"a": {"x": np.arange(50)}})
    typed, raw = jax.random.key(3), jax.random.PRNGKey(3)
    assert real(wd.pad_clients(data, key=typed), 0) == real(wd.pad_clients(data, key=raw), 0)
    assert real(wd.pad_clients(data, key=typed), 0) != real(wd.pad_clients(data, key=jax.random.key(4)), 0)
    assert real(wd.pad_clients(data, key=3), 0) == real(wd.pad_clients(data, key=np.int64(3)), 0)


def test_empty_slots_make_up_the_multiple():
    padded = wd.pad_clients(ragged(), multiple_of=4)
    assert padded.clients == ("a", "b", "c", "")
    assert padded.counts.tolist() == [5, 2, 3, 0]
    assert not padded.mask[3].any()


def test_a_client_without_examples_is_a_masked_row():
    data = wd.ClientData(arrays={"a": {"x": np.zeros(0)}, "b": {"x": np.ones(1)}})
    assert wd.pad_clients(data).mask.tolist() == [[False], [True]]


def test_put_lays_clients_out_over_the_mesh():
    mesh = jax.make_mesh((4,), ("clients",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("clients"))
    padded = wd.pad_clients(ragged(), multiple_of=4)
    placed = padded.put(sharding)
    leaves = jax.tree.leaves((dict(placed.arrays), placed.mask, placed.counts))
    assert all(leaf.sharding.is_equivalent_to(sharding, leaf.ndim) for leaf in leaves)
    assert placed.clients == padded.clients
    assert placed.tree["weight"].tolist() == [5.0, 2.0, 3.0, 0.0]


WRONG = {
    "batch": (lambda d: wd.pad_clients(d, batch_size=0), "was given batch_size=0. Sizes must be at least 1"),
    "several": (lambda d: wd.pad_clients(d, batch_size=-1, multiple_of=0), "batch_size=-1, multiple_of=0"),
    "epochs": (lambda d: wd.pad_clients(d, epochs=2), "epochs=2 without a batch_size.*batch_size=16, epochs=2"),
    "too long": (
        lambda d: wd.pad_clients(d, examples=2),
        "examples=2, but client 'a' has 5, 'c' has 3. Padding never drops an example: use examples=5 or more",
    ),
    "reserved": (
        lambda d: wd.pad_clients(wd.ClientData(arrays={"a": {"mask": np.zeros(1)}})),
        r"field\(s\) 'mask'.*rename",
    ),
    "text": (
        lambda d: wd.pad_clients(wd.ClientData(arrays={"a": {"t": np.array(["to be"])}})),
        r"field\(s\) 't' contain text. Devices store only numbers: .*`tokenize`",
    ),
    "negative seed": (lambda d: wd.pad_clients(d, key=-1), r"is -1. A key must be a seed.*jax\.random\.key\(0\)"),
    "float key": (lambda d: wd.pad_clients(d, key=np.float32(1)), "A key must be a seed"),
    "word": (lambda d: wd.pad_clients(d, key="seed"), "is 'seed'. A key must be a seed"),
    "many keys": (lambda d: wd.pad_clients(d, key=jax.random.split(jax.random.key(0))), "one JAX PRNG key"),
    "tracer": (
        lambda d: jax.jit(lambda key: wd.pad_clients(d, key=key).counts)(jax.random.key(0)),
        "is a tracer.*shuffle and draw cohorts outside `jit`",
    ),
}


@pytest.mark.parametrize(("make", "fact"), WRONG.values(), ids=WRONG.keys())
def test_impossible_padding_is_explained(make, fact):
    with pytest.raises(DataError, match=fact):
        make(ragged())
