"""States of finished rounds on disk, through orbax."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from workbench.errors import DataError
from workbench.measurement._history import History


def load_checkpoint(directory: str | Path, like: Any, *, round: int | None = None) -> tuple[int, Any, History]:
    """Reads back what a run with `checkpoint_dir` left behind.

    Args:
        directory: The `checkpoint_dir` of the run.
        like: A state of the same structure, shapes, dtypes and shardings, such as the initial one; typed PRNG keys and
            optax states come back as what they are.
        round: Number of finished rounds to go back to; None: the newest checkpoint that can be read.

    Returns:
        The number of finished rounds, the state after them, bit for bit, and their history.

    Raises:
        DataError: there is no such checkpoint, or none that can be read as a state like this one.
    """
    with Checkpoints(directory, read_only=True) as checkpoints:
        return checkpoints.load(like, round=round)


class Checkpoints:
    """A folder with the states of the last `keep` rounds that were written; every write is complete or not there."""

    def __init__(self, directory: str | Path, *, keep: int | None = None, read_only: bool = False) -> None:
        self.directory = Path(directory).expanduser().absolute()
        self._keep = keep
        self._read_only = read_only  # does not tidy away what another process may be writing
        self._manager: Any = None

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go of the folder."""
        if self._manager is not None:
            manager, self._manager = self._manager, None
            manager.close()

    def rounds(self) -> list[int]:
        """The numbers of finished rounds that there are checkpoints of."""
        return sorted(self._open().all_steps()) if self.directory.is_dir() else []

    def save(self, finished: int, state: Any, history: History) -> None:
        """Writes the state after `finished` rounds; what was there stays readable when this fails."""
        import orbax.checkpoint as ocp  # half a second that only runs with checkpoints pay

        arguments = ocp.args.Composite(
            state=ocp.args.StandardSave(_rooted(state)), history=ocp.args.JsonSave({"rounds": history.to_json()})
        )
        try:
            self._open().save(finished, args=arguments, force=True)
        except BaseException:
            self._manager = None  # a manager that failed half-way may take the unfinished checkpoint for a finished one
            raise

    def load(self, like: Any, *, round: int | None = None) -> tuple[int, Any, History]:
        """The number of finished rounds, the state and the history; see `load_checkpoint`."""
        import orbax.checkpoint as ocp

        known = self.rounds()
        wanted = known[::-1] if round is None else [step for step in known if step == round]
        problems = []
        for finished in wanted:
            arguments = ocp.args.Composite(
                state=ocp.args.StandardRestore(jax.tree.map(_template, _rooted(like))), history=ocp.args.JsonRestore()
            )
            try:
                restored = self._open().restore(finished, args=arguments)
            except Exception as error:  # whatever a damaged checkpoint makes orbax raise, an older one may be whole
                problems.append(f"{finished} ({type(error).__name__}: {str(error).splitlines()[0][:200]})")
                continue
            return finished, restored["state"]["state"], History.from_json(restored["history"]["rounds"])
        msg = (
            f"`load_checkpoint` was asked for {'the newest round' if round is None else f'round {round}'} in "
            f"{str(self.directory)!r}, which holds rounds {known or 'none'}"
            + (f"; unreadable as a state like the given one: {', '.join(problems)}" if problems else "")
            + ". A checkpoint is read into a state of the structure, shapes and dtypes that it was written with: pass "
            "`like=` the initial state of that run, or another folder or round."
        )
        raise DataError(msg)

    def _open(self) -> Any:
        if self._manager is None:
            import orbax.checkpoint as ocp

            options = ocp.CheckpointManagerOptions(
                max_to_keep=self._keep,
                enable_async_checkpointing=False,
                cleanup_tmp_directories=not self._read_only,
                create=not self._read_only,
            )
            self._manager = ocp.CheckpointManager(self.directory, options=options)
        return self._manager


def _rooted(state: Any) -> Mapping[str, Any]:
    """Orbax wants a container at the root, a state may be a single array."""
    return {"state": state}


def _template(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
    return leaf
