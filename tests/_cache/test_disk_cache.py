import os
import resource
import sys
from pathlib import Path

import pytest

from workbench._cache import DiskCache, cache_directory


def noise(size):
    """Text that does not compress below its size in bytes."""
    return os.urandom(size).hex()


def test_stored_value_is_loaded_again(tmp_path):
    cache = DiskCache(tmp_path / "new" / "directory")
    assert cache.load("a") is None
    assert cache.store("a", {"hlo": "text"}) == ""
    assert cache.load("a") == {"hlo": "text"}
    assert DiskCache(tmp_path / "new" / "directory").load("a") == {"hlo": "text"}


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[: len(data) // 2],
        lambda data: b"",
        lambda data: b"not gzip",
        lambda data: data[:-9] + b"123456789",
    ],
    ids=["cut-off", "empty", "other-file", "wrong-checksum"],
)
def test_damaged_entry_is_as_good_as_none_and_makes_place_for_a_new_one(tmp_path, damage):
    cache = DiskCache(tmp_path)
    cache.store("a", {"hlo": noise(100)})
    (path,) = tmp_path.iterdir()
    path.write_bytes(damage(path.read_bytes()))
    assert cache.load("a") is None
    assert cache.store("a", {"hlo": "again"}) == ""
    assert cache.load("a") == {"hlo": "again"}


def test_entry_of_another_key_is_not_believed(tmp_path):
    cache = DiskCache(tmp_path)
    cache.store("a", {"hlo": "a"})
    (path,) = tmp_path.iterdir()
    path.rename(tmp_path / path.name.replace("a.", "b.", 1))
    assert cache.load("b") is None


def test_least_recently_used_entry_goes_first(tmp_path):
    cache = DiskCache(tmp_path, limit_bytes=5000)  # four of about 1.2 kB
    for number, key in enumerate("abcd"):
        cache.store(key, {"hlo": noise(1000)})
        path = next(tmp_path.glob(f"{key}.*"))
        os.utime(path, (number, number))
    assert cache.load("a") is not None  # now the most recently used one
    cache.store("e", {"hlo": noise(1000)})
    assert [key for key in "abcde" if cache.load(key) is not None] == ["a", "c", "d", "e"]
    assert cache.size_bytes() <= 5000


def test_entry_larger_than_the_cache_is_not_stored_and_says_so(tmp_path):
    cache = DiskCache(tmp_path, limit_bytes=100)
    cache.store("small", {})
    assert "exceed the limit for the whole cache (100 bytes" in cache.store("a", {"hlo": noise(1000)})
    assert cache.load("small") == {}


def test_directory_that_cannot_be_made_is_a_note(tmp_path):
    (tmp_path / "file").write_text("in the way")
    cache = DiskCache(tmp_path / "file" / "cache")
    note = cache.store("a", {"hlo": "text"})
    assert note.startswith(f"not cached: {tmp_path / 'file' / 'cache'} cannot be written")
    assert "WORKBENCH_CACHE" in note
    assert cache.load("a") is None


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_FSIZE stands for a full disk on Linux")
def test_disk_that_is_full_in_the_middle_of_writing_is_a_note_and_leaves_no_half_entry(tmp_path):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500, hard))
    try:
        note = DiskCache(tmp_path).store("a", {"hlo": noise(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "File too large" in note
    assert list(tmp_path.iterdir()) == []


def test_half_entries_of_killed_kernels_are_swept_after_an_hour(tmp_path):
    old, new = tmp_path / "old.part", tmp_path / "new.part"
    old.write_text("half")
    new.write_text("being written")
    os.utime(old, (0, 0))
    DiskCache(tmp_path).store("a", {})
    assert (old.exists(), new.exists()) == (False, True)


def test_clear_removes_every_entry(tmp_path):
    cache = DiskCache(tmp_path)
    cache.store("a", {})
    cache.store("b", {})
    assert (cache.clear(), cache.size_bytes()) == (2, 0)


def test_environment_says_where_and_how_large(tmp_path, monkeypatch):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    monkeypatch.setenv("WORKBENCH_CACHE_BYTES", "12345")
    cache = DiskCache(cache_directory("targets"))
    assert (cache.directory, cache.limit_bytes) == (tmp_path / "targets", 12345)


def test_small_entry_that_unpacks_to_gigabytes_is_no_entry(tmp_path, monkeypatch):
    cache = DiskCache(tmp_path)
    assert cache.store("a", {"hlo": "x" * 5000}) == ""
    monkeypatch.setattr("workbench._cache._disk_cache._MOST_UNPACKED", 1000)
    assert cache.load("a") is None
    assert "exceed the limit for one entry" in cache.store("a", {"hlo": "x" * 5000})


def test_directory_that_others_may_write_in_is_not_believed(tmp_path):
    cache = DiskCache(tmp_path)
    cache.store("a", {"hlo": "x"})
    tmp_path.chmod(0o777)
    assert cache.load("a") is None
    assert "other users of this machine can write" in cache.store("b", {"hlo": "x"})


def test_an_interrupt_while_an_entry_is_written_leaves_no_file(tmp_path, monkeypatch):
    def interrupted(self, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        DiskCache(tmp_path).store("key", {"value": 1})
    assert list(tmp_path.iterdir()) == []
