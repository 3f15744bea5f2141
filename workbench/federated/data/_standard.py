"""Loaders for standard federated data sets, from the files that their authors publish."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from workbench.errors import DataError
from workbench.federated.data._client_data import ClientData
from workbench.federated.data._load_hdf5 import load_tff_hdf5
from workbench.federated.data._load_leaf import load_leaf
from workbench.federated.data._shipped import Examples, Text

_TFF = "https://storage.googleapis.com/tff-datasets-public"
_WHERE = {
    "FEMNIST": f"curl -O {_TFF}/fed_emnist.tar.bz2 && tar xf fed_emnist.tar.bz2",
    "Shakespeare": f"curl -O {_TFF}/shakespeare.tar.bz2 && tar xf shakespeare.tar.bz2",
    "Stack Overflow": f"curl -O {_TFF}/stackoverflow.tar.bz2 && tar xf stackoverflow.tar.bz2",
    "CIFAR": "curl -O https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz && tar xf cifar-10-binary.tar.gz",
}
_CHARACTERS = "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"


def load_femnist(path: str | Path, *, clients: int | Sequence[str] | None = None) -> ClientData:
    """Loads handwritten characters by writer, from TensorFlow Federated or LEAF.

    Args:
        path: `fed_emnist_train.h5`, or LEAF's folder of `.json` files.
        clients: Writers to load, or N to load the first N writers; all by default. Only for `.h5` files.

    Returns:
        Clients with the fields `x`, float32 `[examples, 784]` (ink is 1), and `y`, int32.

    Raises:
        DataError: if there is no such file; the message contains the download command.

    Example:
        >>> load_femnist("fed_emnist_train.h5", clients=10)  # doctest: +SKIP
    """
    location = _existing("FEMNIST", path)
    if location.suffix == ".h5":
        raw = load_tff_hdf5(location, clients=clients)
        images, labels, ink = "pixels", "label", lambda x: 1 - x
    else:
        raw = load_leaf(location)
        images, labels, ink = "x", "y", lambda x: 1 - x
    arrays = {
        client: {
            "x": ink(np.asarray(fields[images], np.float32)).reshape(len(fields[labels]), -1),
            "y": np.asarray(fields[labels], np.int32),
        }
        for client, fields in raw.arrays.items()
    }
    return ClientData(arrays=arrays, name="FEMNIST", label="y", metadata=raw.metadata)


def load_shakespeare(path: str | Path, *, clients: int | Sequence[str] | None = None, length: int = 80) -> Text:
    """Loads Shakespeare's plays by role, as characters, from TensorFlow Federated or LEAF.

    Args:
        path: `shakespeare_train.h5`, or LEAF's folder of `.json` files.
        clients: Roles to load, or N to load the first N roles; all by default. Only for `.h5` files.
        length: Number of characters in an example; LEAF's examples have 80.

    Returns:
        `(data, vocabulary)`. The data has the fields `x`, int32 `[examples, length]`, and `y`, the same text one
        character later (for LEAF, only the next character, int32 `[examples]`). Roles whose text is too short for one
        example are left out.

    Raises:
        DataError: if there is no such file; the message contains the download command.

    Example:
        >>> load_shakespeare("shakespeare_train.h5", clients=10)  # doctest: +SKIP
    """
    location = _existing("Shakespeare", path)
    vocabulary = ("\x00", *_CHARACTERS)
    number = {character: i for i, character in enumerate(vocabulary)}

    def numbers(text: str) -> np.ndarray:
        return np.array([number.get(character, 0) for character in text], np.int32)

    arrays = {}
    if location.suffix == ".h5":
        for client, fields in load_tff_hdf5(location, clients=clients, label=None).arrays.items():
            text = numbers("".join(_text(snippet) for snippet in fields["snippets"]))
            if count := (len(text) - 1) // length:
                arrays[client] = {
                    "x": text[: count * length].reshape(count, length),
                    "y": text[1 : count * length + 1].reshape(count, length),
                }
    else:
        for client, fields in load_leaf(location, label=None).arrays.items():
            arrays[client] = {
                "x": np.stack([numbers(_text(row)) for row in fields["x"]]),
                "y": np.concatenate([numbers(_text(row)) for row in fields["y"]]),
            }
    return Text(ClientData(arrays=arrays, name="Shakespeare"), vocabulary)


def load_stackoverflow(
    path: str | Path, *, clients: int | Sequence[str] | None = None, words: int = 10_000, length: int = 20
) -> Text:
    """Loads Stack Overflow posts by user, as words, from TensorFlow Federated's file.

    Args:
        path: `stackoverflow_train.h5`, `stackoverflow_test.h5` or `stackoverflow_held_out.h5`.
        clients: Users to load, or N to load the first N users; all by default.
        words: Size of the vocabulary, which contains the most frequent words of the loaded clients.
        length: Number of words in an example. Shorter examples are padded with 0; longer examples are truncated.

    Returns:
        `(data, vocabulary)`. The data has the fields `x`, int32 `[examples, length]`, and `y`, the same text one word
        later. Entry 0 of the vocabulary is padding, and entry 1 represents all other words.

    Raises:
        DataError: if there is no such file; the message contains the download command.

    Example:
        >>> load_stackoverflow("stackoverflow_train.h5", clients=100)  # doctest: +SKIP
    """
    raw = load_tff_hdf5(_existing("Stack Overflow", path), clients=clients, label=None)
    sentences = {client: [_text(row).split() for row in fields["tokens"]] for client, fields in raw.arrays.items()}
    counted = Counter(word for rows in sentences.values() for row in rows for word in row)
    frequent = sorted(counted, key=lambda word: (-counted[word], word))[: words - 2]
    vocabulary = ("", "<other>", *frequent)
    number = {word: i for i, word in enumerate(vocabulary)}
    arrays = {}
    for client, rows in sentences.items():
        table = np.zeros((len(rows), length + 1), np.int32)
        for i, row in enumerate(rows):
            ids = [number.get(word, 1) for word in row[: length + 1]]
            table[i, : len(ids)] = ids
        arrays[client] = {"x": table[:, :-1], "y": table[:, 1:]}
    return Text(ClientData(arrays=arrays, name="Stack Overflow"), vocabulary)


def load_cifar(path: str | Path) -> Examples:
    """Loads CIFAR-10 or CIFAR-100, without clients, from the authors' binary files.

    Args:
        path: A `.bin` file, or the folder `cifar-10-batches-bin` (training batches) or `cifar-100-binary`.

    Returns: Examples with `x`, float32 `[examples, 3072]` from 0 to 1 (the red, green and blue planes of 32 × 32
        pixels), and `y`, the class (for CIFAR-100, the fine class).

    Raises:
        DataError: if there is no such file (the message contains the download command), or if a file is truncated.

    Example:
        >>> load_cifar("cifar-10-batches-bin")  # doctest: +SKIP
        Examples('CIFAR-10', 50000 examples of shape (3072,), 10 classes)
    """
    location = _existing("CIFAR", path)
    files = (
        [location] if location.is_file() else sorted(f for f in location.glob("*.bin") if not f.name.startswith("test"))
    )
    rows, hundred = [], False
    for file in files:
        flat = np.fromfile(file, np.uint8)
        hundred = "100" in str(file.resolve().parent.name) or file.stem in ("train", "test")
        width = 3072 + (2 if hundred else 1)
        if not len(flat) or len(flat) % width:
            message = (
                f"`load_cifar` read {file.name}, which has {len(flat):,} bytes. A record has {width:,} bytes, so the "
                f"file is truncated or has another format. Download it again: {_WHERE['CIFAR']}"
            )
            raise DataError(message)
        rows.append(flat.reshape(-1, width))
    if not rows:
        _missing("CIFAR", location)
    table = np.concatenate(rows)
    classes = 100 if hundred else 10
    return Examples(
        name=f"CIFAR-{classes}",
        x=(table[:, -3072:] / np.float32(255)).astype(np.float32),
        y=table[:, -3073].astype(np.int32),
        classes=tuple(str(i) for i in range(classes)),
    )


def _existing(name: str, path: str | Path) -> Path:
    location = Path(path)
    if not location.exists():
        _missing(name, location)
    return location


def _missing(name: str, path: Path) -> None:
    message = (
        f"The loader of {name} found nothing at {path}. The workbench does not download data. Run in a terminal with "
        f"network access: {_WHERE[name]}"
    )
    raise DataError(message)


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
