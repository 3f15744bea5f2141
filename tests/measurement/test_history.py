import json
import math

import pandas as pd
import pytest

from workbench.errors import MissingDependencyError
from workbench.measurement import History
from workbench.records.live import RoundRecord

HISTORY = History(
    [
        RoundRecord(round=0, seconds=0.5, metrics={"loss": (3.0, 1.0), "steps": ((1.0, 2.0), (3.0, 4.0)), "lr": 0.1}),
        RoundRecord(round=1, seconds=0.25, metrics={"loss": (2.0, math.nan), "lr": 0.05}),
    ]
)


def test_history_table_has_a_row_per_number():
    table = HISTORY.to_pandas()
    assert len(table) == 2 + 4 + 1 + 2 + 1
    steps = table[table.metric == "steps"]
    assert steps[["client", "step", "value"]].values.tolist() == [[0, 0, 1.0], [0, 1, 2.0], [1, 0, 3.0], [1, 1, 4.0]]
    assert table[table.metric == "lr"].client.isna().all()


def test_history_summary_has_a_row_per_round():
    summary = HISTORY.summary()
    assert summary["lr"].tolist() == [0.1, 0.05]
    assert summary["loss"].iloc[0] == 2.0
    assert math.isnan(summary["loss"].iloc[1])


def test_history_survives_json_with_numbers_that_are_not_finite(tmp_path):
    text = HISTORY.to_json(tmp_path / "history.json")
    assert json.loads((tmp_path / "history.json").read_text(), parse_constant=pytest.fail) == json.loads(text)
    back = History.from_json(text)
    assert back[0] == HISTORY[0]
    assert repr(back[1]) == repr(HISTORY[1])


def test_history_survives_parquet(tmp_path):
    pytest.importorskip("pyarrow")
    HISTORY.to_parquet(tmp_path / "history.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "history.parquet"), HISTORY.to_pandas())


def test_parquet_without_its_library_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingDependencyError, match=r"`History.to_parquet` needs the library `pyarrow`"):
        HISTORY.to_parquet(tmp_path / "history.parquet")


def test_history_is_a_sequence_that_slices_to_a_history():
    assert (len(HISTORY), HISTORY[-1].round, HISTORY[:1].metrics()) == (2, 1, ("loss", "steps", "lr"))
    assert repr(HISTORY) == "<History of 2 rounds: loss, steps, lr>"
