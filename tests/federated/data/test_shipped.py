import builtins
import math

import numpy as np
import pytest
from sklearn import datasets

from workbench.errors import DataError
from workbench.federated import data as wd


@pytest.mark.parametrize("name", ["breast_cancer", "diabetes", "digits", "iris", "linnerud", "wine"])
def test_shipped_data_equal_scikit_learns(name):
    examples = wd.shipped(name)
    bunch = getattr(datasets, f"load_{name}")()
    scale = 16 if name == "digits" else 1
    np.testing.assert_allclose(examples.x * scale, bunch.data, rtol=1e-6)
    np.testing.assert_allclose(examples.y, bunch.target, rtol=1e-6)
    assert examples.x.dtype == np.float32
    assert examples.y.dtype == (np.int32 if examples.classes else np.float32)
    assert len(examples.features) == examples.x.shape[1]


def test_a_split_keeps_every_example_on_one_side():
    whole = wd.shipped("wine")
    train, test = whole.split(test_fraction=0.25, seed=1)
    assert (len(train), len(test)) == (134, 44)  # round(178 / 4) = 44
    both = np.concatenate([train.x, test.x])
    np.testing.assert_array_equal(both[np.lexsort(both.T)], whole.x[np.lexsort(whole.x.T)])
    np.testing.assert_array_equal(whole.split(test_fraction=0.25, seed=1)[1].x, test.x)
    assert not np.array_equal(whole.split(test_fraction=0.25, seed=2)[1].x, test.x)


def test_standardizing_uses_the_training_part():
    train, test = wd.shipped("wine").split()
    assert np.allclose(train.standardized().x.mean(axis=0), 0, atol=1e-5)
    assert np.allclose(train.standardized().x.std(axis=0), 1, atol=1e-5)
    expected = (test.x - train.x.mean(axis=0)) / train.x.std(axis=0)
    np.testing.assert_allclose(test.standardized(train).x, expected, rtol=1e-4, atol=1e-5)


def test_a_constant_column_standardizes_to_zero():
    digits = wd.shipped("digits")
    assert not digits.x[:, 0].any()
    assert not digits.standardized().x[:, 0].any()


def test_digits_hand_out_every_training_example_and_no_test_example():
    train, test = wd.digits(clients=16, alpha=0.3, seed=2)
    pooled = np.concatenate([train.pooled()["x"], test.x])
    whole = wd.shipped("digits").x
    np.testing.assert_array_equal(pooled[np.lexsort(pooled.T)], whole[np.lexsort(whole.T)])
    assert train.classes == tuple("0123456789")
    assert train.label == "y"


def test_digits_are_more_heterogeneityed_at_smaller_alpha():
    skews = [wd.describe(wd.digits(clients=32, alpha=a).train).mean_total_variation for a in (0.1, 1.0, math.inf)]
    assert skews == sorted(skews, reverse=True)


def test_unstratified_regression_data_are_dealt_out():
    data = wd.shipped("diabetes").federate(wd.iid(442, 5, seed=0))
    assert (data.label, len(data)) == (None, 5)


def test_python_reference_has_a_client_per_topic_and_counts_like_a_dictionary():
    data, vocabulary = wd.python_reference(documents=4)
    assert len(data) == 4
    words = data.pooled()["word"]
    assert words.max() == len(vocabulary) - 1
    assert list(vocabulary) == sorted(set(vocabulary))
    the = vocabulary.index("the")
    assert (words == the).sum() > 100


def test_tokenize_by_hand():
    data, vocabulary = wd.tokenize({"a": "Don't panic: don't! x2 É", "b": ""}, name="guide")
    assert vocabulary == ("don't", "panic", "x", "é")
    assert data["a"]["word"].tolist() == [0, 1, 0, 2, 3]
    assert data["b"]["word"].tolist() == []
    assert data.name == "guide"


def test_python_without_topics_is_explained(monkeypatch):
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "pydoc_data.topics":
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(DataError, match=r"no `pydoc_data.topics` in this Python.*`tokenize`"):
        wd.python_reference()


@pytest.mark.parametrize(
    ("call", "fact"),
    [
        (lambda: wd.shipped("mnist"), "asked for 'mnist'.*use one of breast_cancer, .*digits"),
        (lambda: wd.shipped("iris").split(test_fraction=0.0), r"test_fraction=0\.0 for 150 examples.*such as 0\.2"),
        (lambda: wd.shipped("iris").split(test_fraction=0.999), "at least one example"),
        (lambda: wd.python_reference(documents=0), "asked for 0 documents.*or None for all"),
    ],
    ids=["unknown", "no test", "no train", "no documents"],
)
def test_impossible_requests_are_explained(call, fact):
    with pytest.raises(DataError, match=fact):
        call()
