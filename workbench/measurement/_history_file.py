"""The history of a run on disk: an append-only file with one line per round."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.errors import DataError
from workbench.measurement._history import History, line_of, round_of
from workbench.records.live import RoundRecord

NAME = "history.jsonl"


class HistoryFile:
    """Appends rounds to the file; length and digest identify the part that belongs to a checkpoint."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME
        self.rounds = 0
        self._bytes = 0
        self._digest = hashlib.sha256()

    def append(self, rounds: Sequence[RoundRecord], finished: int) -> dict[str, Any]:
        """Appends missing rounds; a failed write does not damage rounds that belong to earlier checkpoints.

        Args:
            rounds: All rounds.
            finished: Number of finished rounds, from the first.

        Returns: The number of rounds, and for their part of the file, the length in bytes and the SHA-256; pass all
            three to `read`.
        """
        new = "".join(f"{line_of(record)}\n" for record in rounds[self.rounds : finished]).encode()
        with self.path.open("r+b" if self.path.exists() else "w+b") as opened:
            opened.truncate(self._bytes)  # remove the rest of an interrupted write or of another checkpoint
            opened.seek(self._bytes)
            opened.write(new)
            opened.flush()
            os.fsync(opened.fileno())
        self._digest.update(new)
        self._bytes += len(new)
        self.rounds = finished
        return {"rounds": self.rounds, "bytes": self._bytes, "sha256": self._digest.hexdigest()}

    def read(self, about: Mapping[str, Any]) -> History:
        """Reads a checkpoint's rounds, without later rounds in the file."""
        with self.path.open("rb") as opened:
            content = opened.read(about["bytes"])
        digest = hashlib.sha256(content)
        if len(content) != about["bytes"] or digest.hexdigest() != about["sha256"]:
            msg = f"the history in {NAME} was truncated or changed"
            raise DataError(msg)
        rounds = [round_of(json.loads(line)) for line in content.splitlines()]
        if len(rounds) != about["rounds"]:
            msg = f"{NAME} has {len(rounds)} rounds, but {about['rounds']} were written"
            raise DataError(msg)
        self.rounds, self._bytes, self._digest = len(rounds), len(content), digest
        return History(rounds)
