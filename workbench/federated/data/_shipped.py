"""Real data that needs no network, from scikit-learn and Python's documentation."""

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from workbench.errors import DataError, needs_library
from workbench.federated.data._client_data import ClientData, federate
from workbench.federated.data._partition import Partition, dirichlet

ShippedName = Literal["breast_cancer", "diabetes", "digits", "iris", "linnerud", "wine"]
_NAMES = ("breast_cancer", "diabetes", "digits", "iris", "linnerud", "wine")


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Examples:
    """A data set that is not yet distributed over clients.

    Attributes:
        name: Name of the data.
        x: Inputs, float32 `[examples, features]`.
        y: Classes, int32 `[examples]`, or real-valued targets, float32 `[examples, ...]`.
        features: Names of the columns of `x`.
        classes: Names of the classes; empty for real-valued targets.
    """

    name: str
    x: np.ndarray
    y: np.ndarray
    features: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.x)

    def __repr__(self) -> str:
        kind = f"{len(self.classes)} classes" if self.classes else f"targets {self.y.shape[1:] or '()'}"
        return f"Examples({self.name!r}, {len(self)} examples of shape {self.x.shape[1:]}, {kind})"

    def split(self, *, test_fraction: float = 0.2, seed: int = 0) -> tuple["Examples", "Examples"]:
        """Splits the examples at random into training and test examples.

        Raises:
            DataError: if `test_fraction` leaves either part without examples.

        Example:
            >>> train, test = shipped("iris").split(test_fraction=0.2, seed=0)
            >>> len(train), len(test)
            (120, 30)
        """
        held_out = round(len(self) * test_fraction) if 0 < test_fraction < 1 else 0
        if not 0 < held_out < len(self):
            message = (
                f"`split` was given test_fraction={test_fraction} for {len(self)} examples. Both sides need at least "
                f"one example: use a fraction between {1 / len(self):.2g} and {1 - 1 / len(self):.2g}, such as 0.2."
            )
            raise DataError(message)
        order = np.random.default_rng(seed).permutation(len(self))
        test, train = np.sort(order[:held_out]), np.sort(order[held_out:])
        return self.take(train), self.take(test)

    def take(self, rows: np.ndarray) -> "Examples":
        """Selects rows."""
        return dataclasses.replace(self, x=self.x[rows], y=self.y[rows])

    def federate(self, partition: Partition | Sequence[np.ndarray]) -> ClientData:
        """Distributes the examples over clients as the fields `x` and `y`."""
        return federate(self.x, self.y, partition, name=self.name, classes=self.classes)

    def standardized(self, like: "Examples | None" = None) -> "Examples":
        """Standardizes the columns of `x` with the means and standard deviations of `like`.

        `like` is the training part; by default it is this data set. A constant column becomes 0.
        """
        model = (like or self).x
        deviation = model.std(axis=0)
        scaled = (self.x - model.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
        return dataclasses.replace(self, x=scaled.astype(np.float32))


class Split(NamedTuple):
    """Client data for training and pooled examples for testing."""

    train: ClientData
    test: Examples


def shipped(name: ShippedName) -> Examples:
    """Loads a real data set from the workbench or scikit-learn, without a network.

    | name | examples × features | `y` |
    |---|---|---|
    | `breast_cancer` | 569 × 30 | malignant or benign |
    | `diabetes` | 442 × 10 | progression after one year, unscaled |
    | `digits` | 1797 × 64 (8×8 pixels, 0 to 1) | the digit |
    | `iris` | 150 × 4, in cm | the species |
    | `linnerud` | 20 × 3 exercises | weight, waist, pulse |
    | `wine` | 178 × 13 | the cultivar |

    Args:
        name: Name of the data set.

    Raises:
        DataError: if there is no such data set.
        MissingDependencyError: if the data set is not `digits` and scikit-learn (extra `course`) is not installed.

    Example:
        >>> shipped("wine")
        Examples('wine', 178 examples of shape (13,), 3 classes)

    References:
        scikit-learn user guide, "Toy datasets". Digits: E. Alpaydin and C. Kaynak, "Optical Recognition of Handwritten
        Digits", UCI Machine Learning Repository, 1998, doi 10.24432/C50P49 (CC BY 4.0).
    """
    if name not in _NAMES:
        message = (
            f"`shipped` was asked for {name!r}, which does not ship with scikit-learn. `shipped` offers only data that "
            f"need no network: use one of {', '.join(_NAMES)}, or a loader such as `load_npz` for your own files."
        )
        raise DataError(message)
    if name == "digits":
        return _digits()
    with needs_library("scikit-learn", extra="course", needed_for=f"`shipped({name!r})`"):
        from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    classes = tuple(str(c) for c in bunch.target_names) if name not in ("diabetes", "linnerud") else ()
    return Examples(
        name=name,
        x=np.asarray(bunch.data, np.float32),
        y=np.asarray(bunch.target, np.int32 if classes else np.float32),
        features=tuple(str(f) for f in bunch.feature_names),
        classes=classes,
    )


def _digits() -> Examples:
    """Loads the test part of "Optical Recognition of Handwritten Digits" from the package."""
    with np.load(Path(__file__).parent / "digits.npz", allow_pickle=False) as packed:
        pixels, labels = packed["pixels"], packed["labels"]
    return Examples(
        name="digits",
        x=pixels.astype(np.float32) / 16,
        y=labels.astype(np.int32),
        features=tuple(f"pixel_{row}_{column}" for row in range(8) for column in range(8)),
        classes=tuple(map(str, range(10))),
    )


def digits(
    clients: int = 64, *, alpha: float = 0.3, seed: int = 0, test_fraction: float = 0.2, min_examples: int = 1
) -> Split:
    """Distributes real handwritten digits over clients with heterogeneous labels.

    Args:
        clients: Number of clients.
        alpha: Dirichlet concentration over clients, for each digit; 0.1 gives strong label skew, and `inf` gives none.
        seed: Seed for choosing the test examples and for the partition.
        test_fraction: Share of the 1797 examples held out for testing.
        min_examples: Minimum number of examples per client.

    Returns: `(train, test)`. `train` is client data with `x`, float32 `[examples, 64]` from 0 to 1, and `y`, int32
        `[examples]`. `test` contains the held-out examples, which are not distributed.

    Raises:
        DataError: for the same reasons as `dirichlet` and `Examples.split`.

    Example:
        >>> train, test = digits(clients=64, alpha=0.3, seed=0)
        >>> len(train), int(train.counts.sum()), len(test)
        (64, 1438, 359)
    """
    train, test = shipped("digits").split(test_fraction=test_fraction, seed=seed)
    partition = dirichlet(train.y, clients, alpha=alpha, seed=seed, min_examples=min_examples)
    return Split(train.federate(partition), test)


class Text(NamedTuple):
    """Client data with word indices (one client per document), and the vocabulary."""

    data: ClientData
    vocabulary: tuple[str, ...]


def python_reference(documents: int | None = None) -> Text:
    """Loads the Python language reference as words, one topic per client.

    The reference ships with Python as `pydoc_data.topics` (what `help("LAMBDA")` shows), so its words depend on the
    Python version.

    Args:
        documents: Number of topics to keep, longest first; all by default.

    Returns:
        `(data, vocabulary)`. The field `word`, int32 `[words_of_this_topic]`, contains indices into `vocabulary`, which
        is sorted and in lower case. A client's id is the topic's name.

    Raises:
        DataError: if `documents` is below 1, or this Python was built without its topics.

    Example:
        >>> data, vocabulary = python_reference(documents=3)
        >>> len(data), vocabulary[int(data[0]["word"][0])] in vocabulary
        (3, True)
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as missing:
        message = (
            "`python_reference` found no `pydoc_data.topics` in this Python. Some distributions omit this module: "
            "install Python's documentation package (often `python3-doc` or `libpython3-stdlib`), or pass your own "
            "text to `tokenize`."
        )
        raise DataError(message) from missing
    longest = sorted(topics, key=lambda topic: (-len(topics[topic]), topic))
    if documents is not None and documents < 1:
        message = (
            f"`python_reference` was asked for {documents} documents. Client data contains at least one client: use 1 "
            f"to {len(topics)}, or None for all."
        )
        raise DataError(message)
    return tokenize({topic: topics[topic] for topic in longest[:documents]}, name="Python language reference")


def tokenize(documents: dict[str, str], *, name: str = "") -> Text:
    """Converts texts to word indices, one client per text.

    Args:
        documents: The text of each client, keyed by the client's id.
        name: Name of the data, used in titles.

    Returns:
        `(data, vocabulary)` as in `python_reference`. A word is a run of letters that may contain apostrophes.

    Example:
        >>> data, vocabulary = tokenize({"a": "to be or not", "b": "To be."})
        >>> vocabulary, data["b"]["word"].tolist()
        (('be', 'not', 'or', 'to'), [3, 0])
    """
    words = {client: re.findall(r"[^\W\d_]+(?:['’][^\W\d_]+)*", text.lower()) for client, text in documents.items()}
    vocabulary = tuple(sorted({word for tokens in words.values() for word in tokens}))
    number = {word: i for i, word in enumerate(vocabulary)}
    arrays = {client: {"word": np.array([number[w] for w in tokens], np.int32)} for client, tokens in words.items()}
    return Text(ClientData(arrays=arrays, name=name, label="word", classes=vocabulary), vocabulary)
