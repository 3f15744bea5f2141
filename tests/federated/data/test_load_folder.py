"""One file per client: what is read, and errors that name the file."""

import numpy as np
import pytest

from workbench.errors import DataError
from workbench.federated import data as wd


@pytest.fixture
def folder(tmp_path):
    for name, count in (("b", 1), ("a", 3)):
        np.savez(tmp_path / f"{name}.npz", x=np.full((count, 2), float(count)), y=np.arange(count))
    return tmp_path


def test_every_file_is_a_client_in_sorted_order(folder):
    read = wd.load_folder(folder)
    assert read.clients == ("a", "b")
    assert read["a"]["x"].tolist() == [[3.0, 3.0]] * 3
    assert read.label == "y"


def test_ragged_clients_are_padded(folder):
    padded = wd.pad_clients(wd.load_folder(folder))
    assert padded["x"].shape == (2, 3, 2)
    assert padded.mask.tolist() == [[True] * 3, [True, False, False]]


def test_files_in_folders_have_ids_that_tell_them_apart(tmp_path):
    for site in ("north", "south"):
        (tmp_path / site).mkdir()
        np.savez(tmp_path / site / "0.npz", x=np.ones((1, 1)))
    assert wd.load_folder(tmp_path, "**/*.npz").clients == ("north/0", "south/0")


def test_other_formats_are_read_by_a_function(tmp_path):
    (tmp_path / "a.csv").write_text("1,2\n3,4\n")
    read = wd.load_folder(tmp_path, "*.csv", read=lambda path: {"x": np.loadtxt(path, delimiter=",")})
    assert read["a"]["x"].tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_two_files_of_one_client_are_refused(folder):
    with pytest.raises(DataError, match=r"client 'same' has a second file, 'b\.npz'"):
        wd.load_folder(folder, client=lambda _: "same")


def test_a_broken_file_is_named(folder):
    (folder / "c.npz").write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(DataError, match=r"`load_folder` of file '.*c\.npz' cannot be read"):
        wd.load_folder(folder)


def test_a_reader_that_fails_names_the_file(folder):
    with pytest.raises(DataError, match=r"(?s)a\.npz.*`read` failed \(KeyError: 'z'\)"):
        wd.load_folder(folder, read=lambda path: {"z": np.load(path)["x"][0], "w": {}["z"]})


def test_clients_with_other_fields_are_refused(folder):
    np.savez(folder / "c.npz", other=np.ones(2))
    with pytest.raises(DataError, match="'c'"):
        wd.load_folder(folder)


@pytest.mark.parametrize(("inside", "fact"), [("missing", "does not exist"), ("a.npz", "is a file")])
def test_a_path_that_is_no_folder_is_refused(folder, inside, fact):
    with pytest.raises(DataError, match=fact):
        wd.load_folder(folder / inside)


def test_a_pattern_without_files_is_refused(folder):
    with pytest.raises(DataError, match=r"no file matches '\*\.h5'"):
        wd.load_folder(folder, "*.h5")
