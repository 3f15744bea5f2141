"""The history of a run on disk: one line per round, only ever appended to."""

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
    """Appends rounds, and says by length and digest which part of the file belongs to a checkpoint."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME
        self.rounds = 0
        self._bytes = 0
        self._digest = hashlib.sha256()

    def append(self, rounds: Sequence[RoundRecord], finished: int) -> dict[str, Any]:
        """Writes the rounds that are not yet there; a failed write leaves those of earlier checkpoints whole.

        Args:
            rounds: All rounds.
            finished: How many of them, from the first, are finished.

        Returns:
            Number of rounds, length in bytes and SHA-256 of what belongs to them: what `read` wants to see.
        """
        new = "".join(f"{line_of(record)}\n" for record in rounds[self.rounds : finished]).encode()
        with self.path.open("r+b" if self.path.exists() else "w+b") as opened:
            opened.truncate(self._bytes)  # what an interrupted write or another checkpoint left behind
            opened.seek(self._bytes)
            opened.write(new)
            opened.flush()
            os.fsync(opened.fileno())
        self._digest.update(new)
        self._bytes += len(new)
        self.rounds = finished
        return {"rounds": self.rounds, "bytes": self._bytes, "sha256": self._digest.hexdigest()}

    def read(self, known: Mapping[str, Any]) -> History:
        """The rounds of a checkpoint; later ones in the file are left out.

        Raises:
            DataError: if they are not what was written.
        """
        with self.path.open("rb") as opened:
            content = opened.read(known["bytes"])
        digest = hashlib.sha256(content)
        if len(content) != known["bytes"] or digest.hexdigest() != known["sha256"]:
            msg = f"the history in {NAME} was cut off or changed"
            raise DataError(msg)
        rounds = [round_of(json.loads(line)) for line in content.splitlines()]
        if len(rounds) != known["rounds"]:
            msg = f"{NAME} holds {len(rounds)} rounds where {known['rounds']} were written"
            raise DataError(msg)
        self.rounds, self._bytes, self._digest = len(rounds), len(content), digest
        return History(rounds)
