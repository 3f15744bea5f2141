"""What every record has in common: frozen, JSON-able, units in the field names."""

import dataclasses
import importlib
import json
from collections.abc import Mapping
from typing import Any, Self


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A frozen piece of knowledge; subclasses only add fields.

    Fields hold `None`, numbers, strings, other records, tuples and string-keyed mappings of these.
    """

    def to_dict(self) -> dict[str, Any]:
        """Nested plain dictionaries and lists, ready for `json.dumps`; `record` names the class."""
        fields = {f.name: _plain(getattr(self, f.name)) for f in dataclasses.fields(self)}
        return {"record": type(self).__name__, **fields}

    def to_json(self, *, indent: int | None = None) -> str:
        """The record as JSON text."""
        return json.dumps(self.to_dict(), indent=indent)

    def __str__(self) -> str:
        # A display hook, looked up when a record is first printed: records themselves import no renderer.
        return importlib.import_module(_RENDERER).render_text(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


_RENDERER = "workbench.render"


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value
