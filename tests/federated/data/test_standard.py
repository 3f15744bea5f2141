"""The loaders of standard data sets, on small files of the same form; a missing file names its download."""

import json

import numpy as np
import pytest

from workbench import data
from workbench.errors import DataError

LOADERS = {
    "fed_emnist": data.load_femnist,
    "shakespeare": data.load_shakespeare,
    "stackoverflow": data.load_stackoverflow,
    "cifar-10": data.load_cifar,
}


@pytest.mark.parametrize("name", LOADERS)
def test_missing_file_names_its_download(name, tmp_path):
    with pytest.raises(DataError, match=f"curl -O https://.*{name}"):
        LOADERS[name](tmp_path / "nothing.h5")


def write_h5(path, clients):
    h5py = pytest.importorskip("h5py")
    with h5py.File(path, "w") as file:
        for client, fields in clients.items():
            for field, value in fields.items():
                file.create_dataset(f"examples/{client}/{field}", data=value)
    return path


def test_femnist_of_tff_has_ink_one(tmp_path):
    images = np.ones((2, 28, 28), np.float32)
    images[0, 3, 4] = 0.25
    path = write_h5(tmp_path / "fed_emnist_train.h5", {"w": {"pixels": images, "label": np.array([3, 9])}})
    found = data.load_femnist(path)["w"]
    assert (found["x"].shape, found["y"].tolist()) == ((2, 784), [3, 9])
    assert found["x"].sum() == found["x"][0, 3 * 28 + 4] == 0.75


def test_femnist_of_leaf_reads_the_folder(tmp_path):
    users = {"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [[1.0] * 784], "y": [7]}}}
    (tmp_path / "all.json").write_text(json.dumps(users))
    found = data.load_femnist(tmp_path)["a"]
    assert (float(found["x"].max()), found["y"].tolist()) == (0.0, [7])


def test_shakespeare_of_tff_is_cut_into_examples(tmp_path):
    snippets = np.array([b"to be or not to be", b"that is the question"])
    path = write_h5(tmp_path / "shakespeare_train.h5", {"HAMLET": {"snippets": snippets}})
    role, vocabulary = data.load_shakespeare(path, length=10)

    def read(row):
        return "".join(vocabulary[i] for i in row)

    assert read(role["HAMLET"]["x"][0]) == "to be or n"
    assert read(role["HAMLET"]["y"][0]) == "o be or no"
    assert len(role["HAMLET"]["x"]) == (len("to be or not to be") + len("that is the question") - 1) // 10


def test_stackoverflow_numbers_its_frequent_words(tmp_path):
    tokens = np.array([b"how to sort a list", b"sort a dict"])
    path = write_h5(tmp_path / "stackoverflow_train.h5", {"7": {"tokens": tokens}})
    users, vocabulary = data.load_stackoverflow(path, words=4, length=3)
    assert vocabulary == ("", "<other>", "a", "sort")
    assert users["7"]["x"].tolist() == [[1, 1, 3], [3, 2, 1]]
    assert users["7"]["y"].tolist() == [[1, 3, 2], [2, 1, 0]]


def test_cifar_reads_label_and_planes(tmp_path):
    record = np.arange(3073, dtype=np.uint64).astype(np.uint8)
    record[0] = 6
    record.tofile(tmp_path / "data_batch_1.bin")
    found = data.load_cifar(tmp_path)
    assert (found.name, found.x.shape, found.y.tolist()) == ("CIFAR-10", (1, 3072), [6])
    assert found.x[0, 0] == np.float32(1 / 255)


def test_cut_off_cifar_file_is_refused(tmp_path):
    np.zeros(3000, np.uint8).tofile(tmp_path / "data_batch_1.bin")
    with pytest.raises(DataError, match=r"3,000 bytes\. A record has 3,073"):
        data.load_cifar(tmp_path)
