import builtins
import importlib.util
import json
import zipfile

import numpy as np
import pytest

from workbench.errors import DataError, MissingDependencyError
from workbench.federated import data as wd


def has(library):
    return importlib.util.find_spec(library) is not None


NEEDS = {
    library: pytest.mark.skipif(not has(library), reason=f"{library} (extra `data`) is not installed")
    for library in ("h5py", "pyarrow", "datasets")
}


def write_leaf(path, **changes):
    whole = {
        "users": ["ann", "bob"],
        "num_samples": [2, 1],
        "user_data": {"ann": {"x": [[0, 1.5], [2, 3]], "y": [0, 1]}, "bob": {"x": [[4, 5]], "y": [1]}},
    } | changes
    path.write_text(json.dumps(whole))
    return path


def write_hdf5(path, arrays, group="examples"):
    import h5py

    with h5py.File(path, "w") as file:
        for client, fields in arrays.items():
            for field, value in fields.items():
                file[f"{group}/{client}/{field}"] = value
    return path


def write_npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def write_parquet(path, **columns):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), path)
    return path


def cut(path):
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    return path


def plain(data):
    return {client: {field: value.tolist() for field, value in data[client].items()} for client in data}


EXPECTED = {"ann": {"x": [[0.0, 1.5], [2.0, 3.0]], "y": [0, 1]}, "bob": {"x": [[4.0, 5.0]], "y": [1]}}


def test_leaf_json_is_read_with_one_dtype_per_field(tmp_path):
    data = wd.load_leaf(write_leaf(tmp_path / "train.json"))
    assert plain(data) == EXPECTED
    assert (data.name, data.label) == ("train", "y")
    assert (data["bob"]["x"].dtype, data["bob"]["y"].dtype) == (np.float32, np.int32)


def test_leaf_folders_join_their_files(tmp_path):
    write_leaf(tmp_path / "0.json", users=["ann"], num_samples=[1], user_data={"ann": {"x": [1], "y": ["to be"]}})
    write_leaf(tmp_path / "1.json", users=["bob"], num_samples=[1], user_data={"bob": {"x": [2], "y": ["or"]}})
    data = wd.load_leaf(tmp_path, label=None)
    assert plain(data) == {"ann": {"x": [1], "y": ["to be"]}, "bob": {"x": [2], "y": ["or"]}}
    assert data.label is None


def test_leaf_keeps_whole_numbers_too_large_for_32_bits(tmp_path):
    data = wd.load_leaf(write_leaf(tmp_path / "a.json", users=["a"], num_samples=[1], user_data={"a": {"x": [2**40]}}))
    assert data["a"]["x"].tolist() == [2**40]


LEAF = {
    "no part": ({"users": None}, "lacks `users`.*must be LEAF's JSON"),
    "twice": ({"users": ["ann", "ann"]}, "client 'ann' is in `users` 2 times"),
    "no data": ({"users": ["ann", "bob", "eve"]}, "client 'eve' is in `users` but not in `user_data`"),
    "no user": ({"users": ["ann"], "num_samples": [2]}, "client 'bob' is in `user_data` but not in `users`"),
    "samples": ({"num_samples": [2, 5]}, "client 'bob', field 'x': 1 examples, but `num_samples` is 5"),
    "samples length": ({"num_samples": [2]}, "`num_samples` has 1 numbers for 2 clients"),
    "no lists": (
        {"user_data": {"ann": {"x": [1, 2]}, "bob": 3}},
        "client 'bob' is not an object of lists",
    ),
    "missing field": (
        {"user_data": {"ann": {"x": [1, 2], "y": [0, 1]}, "bob": {"x": [1]}}},
        "client 'bob' lacks field 'y', which client 'ann' has",
    ),
    "ragged rows": (
        {"user_data": {"ann": {"x": [[1], [1, 2]]}, "bob": {"x": [[1]]}}},
        "client 'ann', field 'x': rows of different lengths",
    ),
    "shape": (
        {"user_data": {"ann": {"x": [[1], [2]]}, "bob": {"x": [[1, 2]]}}},
        r"client 'bob', field 'x': examples of shape \(2,\), but \(1,\) for 'ann'",
    ),
    "mixed kinds": (
        {"user_data": {"ann": {"x": [1, "b"]}, "bob": {"x": [1]}}},
        "client 'ann', field 'x': wrong dtype, a mixture of int, str",
    ),
    "null": (
        {"user_data": {"ann": {"x": [1, None]}, "bob": {"x": [1]}}},
        "client 'ann', field 'x': wrong dtype, a mixture of NoneType, int",
    ),
    "text and numbers": (
        {"user_data": {"ann": {"x": [1, 2]}, "bob": {"x": ["b"]}}},
        "client 'bob', field 'x': dtype <U1, but int32 for 'ann'",
    ),
    "empty": (
        {"num_samples": [2, 0], "user_data": {"ann": {"x": [1, 2]}, "bob": {"x": []}}},
        "client 'bob' is empty: no examples.*allow_empty=True",
    ),
    "nan": (
        {"user_data": {"ann": {"x": [1.0, float("nan")]}, "bob": {"x": [1.0]}}},
        "client 'ann', field 'x': 1 of 2 values are NaN.*allow_nan=True",
    ),
}


@pytest.mark.parametrize(("changes", "fact"), LEAF.values(), ids=LEAF.keys())
def test_bad_leaf_names_file_client_and_field(tmp_path, changes, fact):
    with pytest.raises(DataError, match=r"(?s)`load_leaf` of file '.*bad\.json' cannot.*" + fact):
        wd.load_leaf(write_leaf(tmp_path / "bad.json", **changes))


def test_leaf_refuses_cut_off_repeated_and_absent_files(tmp_path):
    with pytest.raises(
        DataError, match=r"cut\.json' cannot be read: it is truncated or not a JSON file.*line 1.*download it"
    ):
        wd.load_leaf(cut(write_leaf(tmp_path / "cut.json")))
    twice = tmp_path / "twice.json"
    twice.write_text('{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [1]}, "a": {"x": [2]}}}')
    with pytest.raises(DataError, match="client or field 'a' appears twice"):
        wd.load_leaf(twice)
    with pytest.raises(DataError, match=r"no\.json': the path does not exist.*check it"):
        wd.load_leaf(tmp_path / "no.json")
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match=r"the folder contains no \.json file"):
        wd.load_leaf(tmp_path / "none")


def test_leaf_refuses_a_client_in_two_files(tmp_path):
    write_leaf(tmp_path / "0.json")
    write_leaf(tmp_path / "1.json")
    with pytest.raises(DataError, match=r"client 'ann' is in several files; '1\.json' repeats it"):
        wd.load_leaf(tmp_path)


def test_empty_and_nan_are_taken_when_allowed(tmp_path):
    path = write_leaf(
        tmp_path / "a.json", num_samples=[1, 0], user_data={"ann": {"x": [[float("nan")]]}, "bob": {"x": []}}
    )
    data = wd.load_leaf(path, allow_empty=True, allow_nan=True)
    assert data.counts.tolist() == [1, 0]
    assert data["bob"]["x"].shape == (0, 1)


@NEEDS["h5py"]
def test_tff_hdf5_is_read_client_by_client(tmp_path):
    pixels = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    arrays = {
        "f0": {"pixels": pixels, "label": np.array([1, 2], np.int32)},
        "f1": {"pixels": pixels[:1], "label": np.array([3], np.int32)},
    }
    path = write_hdf5(tmp_path / "emnist.h5", arrays)
    data = wd.load_tff_hdf5(path)
    assert plain(data) == {c: {f: v.tolist() for f, v in fields.items()} for c, fields in arrays.items()}
    assert (data.label, data[0]["pixels"].dtype) == ("label", np.float32)
    assert wd.load_tff_hdf5(path, clients=1).clients == ("f0",)
    assert wd.load_tff_hdf5(path, clients=["f1"]).clients == ("f1",)


@NEEDS["h5py"]
def test_tff_text_becomes_strings(tmp_path):
    path = write_hdf5(tmp_path / "s.h5", {"THE_KING": {"snippets": [b"To be", "or n\u00f6t".encode()]}})
    assert wd.load_tff_hdf5(path)["THE_KING"]["snippets"].tolist() == ["To be", "or n\u00f6t"]


HDF5 = {
    "missing field": (
        {"a": {"x": [1.0], "y": [1]}, "b": {"x": [1.0]}},
        {},
        "client 'b' lacks field 'y', which client 'a' has",
    ),
    "ragged": (
        {"a": {"x": [1.0], "y": [1, 2]}},
        {},
        "client 'a' has fields of different lengths: field 'x' has 1, 'y' has 2",
    ),
    "dtype": ({"a": {"x": [1.0]}, "b": {"x": [1]}}, {}, "client 'b', field 'x': dtype int64, but float64 for 'a'"),
    "nan": ({"a": {"x": [np.nan, 1.0]}}, {}, "client 'a', field 'x': 1 of 2 values are NaN"),
    "empty": ({"a": {"x": np.zeros((0, 2))}}, {}, "client 'a' is empty"),
    "no group": ({"a/b": {}, "a": {"x": [1.0]}}, {"group": "other"}, "no group `examples`, only 'other'"),
    "nested": ({"a/deep": {"x": [1.0]}}, {}, "client 'a', field 'deep': cannot be read"),
}


@NEEDS["h5py"]
@pytest.mark.parametrize(("arrays", "how", "fact"), HDF5.values(), ids=HDF5.keys())
def test_bad_hdf5_names_file_client_and_field(tmp_path, arrays, how, fact):
    with pytest.raises(DataError, match=r"`load_tff_hdf5` of file '.*bad\.h5' cannot be .*" + fact):
        wd.load_tff_hdf5(write_hdf5(tmp_path / "bad.h5", arrays, **how))


@NEEDS["h5py"]
def test_tff_refuses_cut_off_files_and_unknown_clients(tmp_path):
    path = write_hdf5(tmp_path / "a.h5", {"a": {"x": np.zeros(2000)}})
    with pytest.raises(DataError, match=r"asked for 2 clients but contains only 1: use 1 to 1"):
        wd.load_tff_hdf5(path, clients=2)
    with pytest.raises(DataError, match=r"asked for 'q', which the file does not contain.*in the file are 'a'"):
        wd.load_tff_hdf5(path, clients=["q"])
    with pytest.raises(DataError, match="it is truncated or not an HDF5 file"):
        wd.load_tff_hdf5(cut(path))


def test_npz_with_an_array_for_each_field_of_a_client(tmp_path):
    train = wd.digits(clients=5, seed=0).train
    arrays = {f"{client}/{field}": value for client, fields in train.arrays.items() for field, value in fields.items()}
    again = wd.load_npz(write_npz(tmp_path / "digits.npz", **arrays))
    assert plain(again) == plain(train)
    assert (again.name, again.label, again.clients) == ("digits", "y", train.clients)
    assert again[0]["x"].dtype == np.float32


def test_npz_with_a_client_column_is_grouped(tmp_path):
    path = write_npz(tmp_path / "a.npz", who=np.array([7, 3, 7]), x=np.arange(6).reshape(3, 2))
    assert plain(wd.load_npz(path, client="who")) == {"3": {"x": [[2, 3]]}, "7": {"x": [[0, 1], [4, 5]]}}


NPZ = {
    "nameless": ({"x": np.zeros(2)}, "it contains 'x', but no array 'client' with the client of each row"),
    "nothing": ({}, "it contains nothing"),
    "rows": (
        {"client": np.array([1, 2]), "x": np.zeros(3)},
        "field 'x' has 3 rows, but 'client' names the clients of 2",
    ),
    "ids": ({"client": np.zeros(2), "x": np.zeros(2)}, "its array 'client' has dtype float64"),
    "objects": ({"a/x": np.array([1, {}], object)}, "client 'a', field 'x': cannot be read .*allow_pickle=False"),
    "missing field": ({"a/x": np.zeros(1), "b/y": np.zeros(1)}, "client 'b' lacks field 'x'"),
    "nan": ({"a/x": np.array([np.nan])}, "client 'a', field 'x': 1 of 1 values are NaN"),
    "ragged": ({"a/x": np.zeros(1), "a/y": np.zeros(2)}, "client 'a' has fields of different lengths"),
    "empty": ({"a/x": np.zeros(0)}, "client 'a' is empty"),
}


@pytest.mark.parametrize(("arrays", "fact"), NPZ.values(), ids=NPZ.keys())
def test_bad_npz_names_file_client_and_field(tmp_path, arrays, fact):
    with pytest.raises(DataError, match=r"(?s)`load_npz` of file '.*bad\.npz' cannot be .*" + fact):
        wd.load_npz(write_npz(tmp_path / "bad.npz", **arrays))


def test_npz_refuses_cut_off_repeated_and_single_arrays(tmp_path):
    with pytest.raises(DataError, match=r"it is truncated or not an \.npz file"):
        wd.load_npz(cut(write_npz(tmp_path / "cut.npz", **{"a/x": np.zeros(9)})))
    twice = write_npz(tmp_path / "twice.npz", **{"a/x": np.zeros(1)})
    with zipfile.ZipFile(twice, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr("a/x.npy", archive.read("a/x.npy"))
    with pytest.raises(DataError, match="client 'a', field 'x' appears 2 times"):
        wd.load_npz(twice)
    np.save(tmp_path / "one.npy", np.zeros(2))
    with pytest.raises(DataError, match=r"it contains a single array \(\.npy\)"):
        wd.load_npz(tmp_path / "one.npy")
    with pytest.raises(DataError, match="is a folder"):
        wd.load_npz(tmp_path)


COLUMNS = {
    "who": ["bob", "ann", "bob"],
    "x": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]],
    "y": [0, 1, 1],
    "note": ["a", "bb", "c"],
}


@NEEDS["pyarrow"]
def test_parquet_rows_go_to_their_clients(tmp_path):
    data = wd.load_parquet(write_parquet(tmp_path / "visits.parquet", **COLUMNS), client="who")
    assert plain(data) == {
        "ann": {"x": [[3.0, 4.0]], "y": [1], "note": ["bb"]},
        "bob": {"x": [[1.0, 2.0], [5.0, 6.0]], "y": [0, 1], "note": ["a", "c"]},
    }
    assert (data.name, data.label) == ("visits", "y")
    assert wd.load_parquet(tmp_path, client="who", fields=["x"]).fields == ("x",)


@NEEDS["pyarrow"]
def test_parquet_nested_lists_and_categories_become_arrays(tmp_path):
    import pandas as pd

    frame = pd.DataFrame({"who": [1, 2], "kind": pd.Categorical(["b", "a"])})
    frame["x"] = [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
    frame.to_parquet(tmp_path / "p.parquet")
    data = wd.load_parquet(tmp_path / "p.parquet", client="who")
    assert plain(data) == {"1": {"kind": ["b"], "x": [[[1, 2], [3, 4]]]}, "2": {"kind": ["a"], "x": [[[5, 6], [7, 8]]]}}


PARQUET = {
    "no client column": ({"x": [1]}, r"lacks the column\(s\) 'who'; its columns are 'x'"),
    "no field": ({"who": ["a"]}, "has no column except 'who'"),
    "no rows": ({"who": [], "x": []}, "it has no rows"),
    "null id": ({"who": ["a", None], "x": [1, 2]}, "row 1 has the client id None"),
    "null value": (
        {"who": ["a", "b"], "x": [1, None]},
        r"client 'b', field 'x': 1 missing value\(s\), the first in row 1",
    ),
    "ragged": (
        {"who": ["a", "b"], "x": [[1], [1, 2]]},
        "client 'b', field 'x': rows of different lengths: 2 values in row 1, 1 in row 0",
    ),
    "null inside": ({"who": ["a", "b"], "x": [[1, 2], [3, None]]}, "client 'b', field 'x': 1 missing"),
    "struct": ({"who": ["a"], "x": [{"b": 1}]}, "field 'x': wrong dtype, struct<b: int64>, which is neither"),
    "nan": ({"who": ["a", "b"], "x": [1.0, float("nan")]}, "client 'b', field 'x': 1 of 1 values are NaN"),
}


@NEEDS["pyarrow"]
@pytest.mark.parametrize(("columns", "fact"), PARQUET.values(), ids=PARQUET.keys())
def test_bad_parquet_names_file_client_and_field(tmp_path, columns, fact):
    with pytest.raises(DataError, match=r"`load_parquet` of file '.*bad\.parquet' .*" + fact):
        wd.load_parquet(write_parquet(tmp_path / "bad.parquet", **columns), client="who")


@NEEDS["pyarrow"]
def test_parquet_refuses_cut_off_files_and_labels_that_are_not_there(tmp_path):
    path = write_parquet(tmp_path / "a.parquet", **COLUMNS)
    with pytest.raises(DataError, match="the label field 'z', but the clients have the fields 'x', 'y', 'note'"):
        wd.load_parquet(path, client="who", label="z")
    with pytest.raises(DataError, match="it is truncated or not a Parquet file"):
        wd.load_parquet(cut(path), client="who")


def save_hugging_face(path):
    import datasets

    features = datasets.Features(
        {
            "who": datasets.Value("string"),
            "label": datasets.ClassLabel(names=["no", "yes"]),
            "x": datasets.Sequence(datasets.Value("float32"), length=2),
        }
    )
    rows = {"who": ["b", "a", "b"], "label": [1, 0, 1], "x": [[1, 2], [3, 4], [5, 6]]}
    whole = datasets.Dataset.from_dict(rows, features=features)
    datasets.DatasetDict({"train": whole.select([2, 1]), "test": whole}).save_to_disk(path)
    return path


@NEEDS["datasets"]
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # `datasets` itself uses deprecated parts of its libraries
def test_hugging_face_folders_are_read_with_their_class_names(tmp_path):
    data = wd.load_hugging_face(save_hugging_face(tmp_path / "hf"), client="who", split="train")
    assert plain(data) == {"a": {"label": [0], "x": [[3.0, 4.0]]}, "b": {"label": [1], "x": [[5.0, 6.0]]}}
    assert (data.classes, data.label) == (("no", "yes"), "label")


@NEEDS["datasets"]
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_bad_hugging_face_folders_are_explained(tmp_path):
    path = save_hugging_face(tmp_path / "hf")
    with pytest.raises(DataError, match=r"split='dev', but the folder contains the splits 'train', 'test'"):
        wd.load_hugging_face(path, client="who", split="dev")
    with pytest.raises(DataError, match=r"lacks the column\(s\) 'speaker'"):
        wd.load_hugging_face(path, client="speaker", split="test")
    (arrow,) = (path / "test").glob("*.arrow")
    cut(arrow)
    with pytest.raises(DataError, match="`datasets` says"):
        wd.load_hugging_face(path, client="who", split="test")
    with pytest.raises(DataError, match="it is a file"):
        wd.load_hugging_face(write_leaf(tmp_path / "a.json"), client="who")


@pytest.mark.parametrize(
    ("library", "call"),
    [
        ("h5py", lambda: wd.load_tff_hdf5("a.h5")),
        ("pyarrow", lambda: wd.load_parquet("a.parquet", client="c")),
        ("datasets", lambda: wd.load_hugging_face("a", client="c")),
    ],
    ids=["h5py", "pyarrow", "datasets"],
)
def test_missing_libraries_say_what_to_install(monkeypatch, library, call):
    original = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == library:
            raise ImportError(name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=rf'`{library}`.*pip install "mapreduce-workbench\[data\]"'):
        call()
