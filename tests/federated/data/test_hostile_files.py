"""Files that are damaged or made to do harm: refused with one error, nothing else read, nothing silently changed."""

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.errors import DataError
from workbench.federated.data import load_leaf, load_npz, load_tff_hdf5


def _leaf(tmp_path: Path, values: str) -> Path:
    path = tmp_path / "data.json"
    path.write_text('{"users": ["a"], "num_samples": [1], "user_data": {"a": {"x": [' + values + "]}}}")
    return path


def test_smallest_integer_is_kept(tmp_path: Path):
    assert load_leaf(_leaf(tmp_path, "-9223372036854775808"))["a"]["x"].tolist() == [-(2**63)]


@pytest.mark.parametrize("value", ["1e999", "-1e300", "Infinity"])
def test_infinite_number_is_refused(tmp_path: Path, value: str):
    with pytest.raises(DataError, match=r"client 'a', field 'x': 1 of 1 values are infinite"):
        load_leaf(_leaf(tmp_path, value))


@pytest.mark.parametrize("value", ["[" * 100_000, "9" * 5000], ids=["nested", "digits"])
def test_json_that_python_cannot_read_is_refused(tmp_path: Path, value: str):
    with pytest.raises(DataError, match=r"cannot be read: it is truncated or not a JSON file"):
        load_leaf(_leaf(tmp_path, value))


def _npy(shape: str) -> bytes:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode()


def test_archive_that_announces_more_than_there_is_memory_is_refused(tmp_path: Path):
    path = tmp_path / "huge.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/x.npy", _npy("(1000000000000000,)"))
    with pytest.raises(DataError, match=r"client 'a', field 'x': "):
        load_npz(path)


def test_encrypted_archive_is_refused(tmp_path: Path):
    path = tmp_path / "locked.npz"
    np.savez(path, **{"a/x": np.arange(3)})
    whole = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        whole[whole.index(mark) + place] |= 1
    path.write_bytes(whole)
    with pytest.raises(DataError, match="cannot be read"):
        load_npz(path)


def _hdf5(path: Path, make: Any) -> Path:
    h5py = pytest.importorskip("h5py", reason="the extra `data` is not installed")
    with h5py.File(path, "w") as file:
        make(h5py, file.create_group("examples/a"))
    return path


def test_hdf5_with_numbers_in_another_file_is_refused(tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_bytes(b"password" * 10)

    def make(h5py: Any, group: Any) -> None:
        group.create_dataset("x", (10,), np.uint64, external=[(str(secret), 0, 80)])

    with pytest.raises(DataError, match=r"client 'a', field 'x': its values are in another file"):
        load_tff_hdf5(_hdf5(tmp_path / "data.h5", make))


def test_hdf5_with_a_link_into_another_file_is_refused(tmp_path: Path):
    def make(h5py: Any, group: Any) -> None:
        group["x"] = h5py.ExternalLink("other.h5", "/examples/a/x")

    with pytest.raises(DataError, match=r"'x' of '/examples/a' is a link into another file"):
        load_tff_hdf5(_hdf5(tmp_path / "data.h5", make))


def test_hdf5_that_announces_more_than_it_holds_is_refused(tmp_path: Path):
    def make(h5py: Any, group: Any) -> None:
        group.create_dataset("x", (10**10,), np.float64, chunks=(1000,))

    with pytest.raises(DataError, match=r"declares 80000000000 bytes but stores 0"):
        load_tff_hdf5(_hdf5(tmp_path / "data.h5", make))


def test_damaged_hdf5_is_one_error(tmp_path: Path):
    path = _hdf5(tmp_path / "data.h5", lambda h5py, group: group.create_dataset("x", data=np.arange(100.0)))
    whole, generator = path.read_bytes(), np.random.default_rng(0)
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[generator.integers(len(damaged))] = int(generator.integers(256))
        path.write_bytes(damaged)
        try:
            load_tff_hdf5(path)
        except DataError:
            pass


def test_users_that_json_repeats_are_refused(tmp_path: Path):
    path = tmp_path / "data.json"
    path.write_text(json.dumps({"users": ["a", "a"], "num_samples": [1, 1], "user_data": {"a": {"x": [1]}}}))
    with pytest.raises(DataError, match="2 times"):
        load_leaf(path)
