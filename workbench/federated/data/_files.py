"""Parts shared by all loaders: paths, checks, and errors that name the file, client and field."""

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

from workbench.errors import DataError
from workbench.federated.data._checks import problems_between_clients, problems_inside, raise_all
from workbench.federated.data._client_data import ClientData


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A file to load, its loader, and the permitted irregularities."""

    loader: str
    path: Path
    allow_empty: bool = False
    allow_nan: bool = False

    def __str__(self) -> str:
        return f"`{self.loader}` of file {str(self.path)!r}"

    def existing(self, *, folder: bool = False) -> Path:
        """Returns the path of an existing file (or folder, if allowed); otherwise raises."""
        if self.path.is_file() or (folder and self.path.is_dir()):
            return self.path
        fault = "is a folder" if self.path.is_dir() else "does not exist"
        kind = "an existing file or folder" if folder else "an existing file"
        message = (
            f"{self}: the path {fault}. The path must be {kind}: check it. Working directory: {str(Path.cwd())!r}."
        )
        raise DataError(message)

    def unreadable(self, form: str, *, problem: object) -> DataError:
        """Creates the error for a truncated file or a file in a different format."""
        return DataError(
            f"{self} cannot be read: {problem}. The file must be {form}, and complete: copy or download it again, or "
            "use the loader for its real format."
        )

    def refuse(self, problems: Iterable[str]) -> None:
        """Raises one error with all problems; does nothing if there are none."""
        remedy = (
            "In a file, every client also needs at least one example, and no value may be NaN. Repair the file or "
            "remove these clients; `allow_empty=True` and `allow_nan=True` accept such data."
        )
        raise_all(str(self), problems, remedy)

    def checked(
        self,
        arrays: Mapping[str, Mapping[str, np.ndarray]],
        *,
        label: str | None,
        classes: tuple[str, ...] = (),
        problems: Iterable[str] = (),
    ) -> ClientData:
        """Creates the client data, or raises one error for all problems."""
        all_problems = [*problems, *problems_between_clients(arrays)]
        all_problems += problems_inside(arrays, allow_empty=self.allow_empty, allow_nan=self.allow_nan)
        self.refuse(all_problems)
        fields = tuple(next(iter(arrays.values())))
        if label is not None and label not in fields:
            message = (
                f"{self} was asked for the label field {label!r}, but the clients have the fields "
                f"{', '.join(map(repr, fields))}. The label is one of the fields: pass its name, or label=None."
            )
            raise DataError(message)
        return ClientData(arrays=arrays, name=self.path.stem, label=label, classes=classes)


def guess_label(fields: Iterable[str], label: str | None) -> str | None:
    """Returns the given label field; "auto" selects a field with a common label name, or None."""
    fields = tuple(fields)
    if label != "auto":
        return label
    return next((name for name in ("y", "label", "labels", "target", "character") if name in fields), None)
