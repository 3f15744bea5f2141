"""Tokenised text: packed exactly, from every format, and refused with file and row."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.errors import DataError
from workbench.federated.data import load_tokens

ROWS = [
    {"who": "b", "input_ids": [1, 2, 3]},
    {"who": "a", "input_ids": [10, 11, 12, 13, 14]},
    {"who": "b", "input_ids": []},
    {"who": "b", "input_ids": [4, 5]},
]


def written(folder: Path, kind: str) -> Path:
    if kind == "jsonl":
        file = folder / "text.jsonl"
        file.write_text("\n".join(map(json.dumps, ROWS)) + "\n")
        return file
    pa = pytest.importorskip("pyarrow", reason="needs the extra `data`")
    table = pa.table({name: [row[name] for row in ROWS] for name in ROWS[0]})
    file = folder / f"text.{'parquet' if kind == 'parquet' else 'arrow'}"
    if kind == "parquet":
        import pyarrow.parquet as pq  # pyright: ignore[reportMissingImports]

        pq.write_table(table, file)
        return file
    make = pa.ipc.new_stream if kind == "arrow stream" else pa.ipc.new_file
    with make(str(file), table.schema) as writer:
        writer.write_table(table)
    return file


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow stream", "arrow file"])
def test_every_format_packs_the_same_sequences(kind: str, tmp_path: Path) -> None:
    held = load_tokens(written(tmp_path, kind), length=2, client="who")
    assert held.clients == ("a", "b")
    assert held["b"]["x"].tolist() == [[1, 2], [3, 4]]
    assert held["b"]["y"].tolist() == [[2, 3], [4, 5]]
    assert held["a"]["x"].dtype == np.int32


def test_what_datasets_saved_is_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra `data`")
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    assert load_tokens(tmp_path / "saved", length=2, client="who")["b"]["y"].tolist() == [[2, 3], [4, 5]]


def test_a_folder_of_splits_names_them(tmp_path: Path) -> None:
    (tmp_path / "saved" / "train").mkdir(parents=True)
    with pytest.raises(DataError, match="the folders train: pass one of them"):
        load_tokens(tmp_path / "saved", length=2, client="who")


def test_rows_are_dealt_out_in_order_with_a_token_between_them(tmp_path: Path) -> None:
    held = load_tokens(written(tmp_path, "jsonl"), length=3, clients=2, separator=0)
    assert held["client_0"]["x"].tolist() == [[1, 2, 3]]
    assert held["client_1"]["x"].tolist() == [[10, 11, 12], [13, 14, 0]]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"who": "a", "input_ids": [1, ', "line 1 of text.jsonl is not JSON"),
        ("[" * 100_000, "line 1 of text.jsonl is not JSON"),
        ("[1, 2]", "line 1 of text.jsonl is not an object"),
        ('{"who": "a", "text": "words"}', "line 1 of text.jsonl, lacks 'input_ids'"),
        ('{"who": "a", "input_ids": "words"}', "has no token ids in 'input_ids'"),
        ('{"who": "a", "input_ids": [1.5, 2.0]}', "has no token ids"),
        ('{"who": "a", "input_ids": [-1, 2]}', "has no token ids"),
        ('{"who": "a", "input_ids": [[1], [2, 3]]}', "has no token ids"),
        ('{"who": "a", "input_ids": [4294967296]}', "has no token ids"),
        ('{"who": "a", "input_ids": [1, 2]}', "client 'a' has 2 tokens, but at least length \\+ 1 = 3 are needed"),
        ("", "it has no rows"),
    ],
)
def test_a_bad_row_is_named(line: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "text.jsonl"
    file.write_text(line)
    with pytest.raises(DataError, match=said):
        load_tokens(file, length=2, client="who")


@pytest.mark.parametrize("options", [{"length": 0, "clients": 2}, {"length": 2}, {"length": 2, "clients": 0}])
def test_a_length_and_one_way_to_find_owners_are_needed(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="pass a positive `length`, and either `client` or a positive `clients`"):
        load_tokens(written(tmp_path, "jsonl"), **options)


def test_a_file_that_is_no_arrow_file_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="needs the extra `data`")
    (tmp_path / "text.arrow").write_bytes(b"nothing of the kind")
    with pytest.raises(DataError, match="is truncated or not an Arrow file"):
        load_tokens(tmp_path / "text.arrow", length=2, clients=1)
