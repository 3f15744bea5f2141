"""Base of all records: frozen, with units in the field names, and convertible to and from JSON."""

import dataclasses
import functools
import gc
import json
import math
import types
import typing
from collections.abc import Callable, ItemsView, Mapping, Sequence
from types import ModuleType
from typing import Any, Literal, Self, TypeAlias, TypeVar

from workbench import _renderer
from workbench._processes import SharedChange
from workbench.errors import RecordError
from workbench.records._source import shorten_paths

VERSION = 1
"""The version of the JSON form, in every text that `Record.to_json` writes. It changes when a field is renamed or
removed, or when the meaning of a field changes; a new field with a default does not change it."""

_CLASSES: dict[str, type["Record"]] = {}
_NONFINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


R = TypeVar("R", bound="Record")
T = TypeVar("T")

Results: TypeAlias = Any
"""Result of a user's program: a pytree of arrays, or an array in it. Records do not depend on an array library."""


class _Deferred:
    def __init__(self, make: Callable[[], object]) -> None:
        self.make = make


def deferred(make: Callable[[], T]) -> T:
    """Makes a lazy value for a field of a `deferring` record; the value is computed on first access."""
    return _Deferred(make)  # pyright: ignore[reportReturnType]


def deferring(*names: str) -> Callable[[type[R]], type[R]]:
    """Lets fields of a record contain `deferred` values, computed on first access.

    Reading the field, or comparing, printing, saving or copying the record, computes the value; it is computed only
    once.
    """

    def decorate(cls: type[R]) -> type[R]:
        for name in names:
            setattr(cls, name, _DeferredField(vars(cls)[name]))
        return cls

    return decorate


class _DeferredField:
    def __init__(self, slot: types.MemberDescriptorType) -> None:
        self._slot = slot

    def peek(self, record: object) -> object:
        """The slot's value, without computing it."""
        return self._slot.__get__(record)

    def __get__(self, record: object, owner: type | None = None) -> object:
        if record is None:
            return self
        value = self._slot.__get__(record)
        if isinstance(value, _Deferred):
            value = value.make()
            self._slot.__set__(record, value)
        return value

    def __set__(self, record: object, value: object) -> None:
        self._slot.__set__(record, value)


def renderer() -> ModuleType:
    """Returns the text renderer module that the root package registered."""
    return _renderer.load()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Base class of frozen records; subclasses only add fields.

    Fields contain `None`, numbers, strings, other records, tuples and string-keyed mappings of these. The JSON form
    omits fields that are excluded from comparisons (`compare=False`): results and values of a program.
    """

    def __init_subclass__(cls) -> None:
        _CLASSES[cls.__name__] = cls  # a class with slots is created twice, and users see the second class
        if "__repr__" not in vars(cls):  # otherwise the `repr` of `dataclass` prints all fields of all parts
            cls.__repr__ = Record.__repr__

    def to_dict(self) -> dict[str, Any]:
        """Converts the record to nested dictionaries and lists.

        `record` is the class, and `version` is the version of the JSON form.

        Example:
            >>> from workbench.records.program import PlacementRecord
            >>> list(PlacementRecord(name="clients", size=4).to_dict())
            ['version', 'record', 'name', 'size', 'mesh_axes', 'slots_per_device']
        """
        return {"version": VERSION, **_fields(self)}

    def to_json(self, *, indent: int | None = None, short_paths: bool = False) -> str:
        """Converts the record to JSON text; NaN is written as `{"float": "NaN"}`, and infinities in the same way.

        Args:
            indent: Spaces per level; None means one line.
            short_paths: Whether to name source files relative to the working folder, a library folder or the home
                folder, to hide the folders of this machine.

        Returns:
            The text for `from_json`.
        """
        plain = shorten_paths(self.to_dict()) if short_paths else self.to_dict()
        return json.dumps(_finite(plain), indent=indent, allow_nan=False)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Makes the record from the result of `to_dict`.

        Args:
            plain: The result of `to_dict`, or of `json.loads` on text that `to_json` wrote.

        Returns:
            A record equal to the original. Fields that are not in the JSON form have their default values.

        Raises:
            RecordError: if `plain` does not describe a record of this class and version, or if its fields do not match
                the class.
        """
        if not isinstance(plain, Mapping) or "record" not in plain:
            content = (
                f"keys {', '.join(map(repr, plain)) or 'none'}" if isinstance(plain, Mapping) else f"{plain!r:.60}"
            )
            message = (
                f"`{cls.__name__}.from_dict` received {content}, which does not describe a record. The JSON form of a "
                "record has the keys `record` and `version`. Pass the result of `Record.to_dict` or `Record.to_json`."
            )
            raise RecordError(message)
        if plain.get("version") != VERSION:
            message = (
                f"`{cls.__name__}.from_dict` received {plain['record']} of version {plain.get('version')!r}. "
                f"This workbench reads version {VERSION}. Read the record with the version of the workbench that "
                "wrote it, or create it again."
            )
            raise RecordError(message)
        return _record(cls, plain, "")

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Reads a record from text that `to_json` wrote.

        Call it on the expected class; `Record.from_json` reads any record.

        Example:
            >>> from workbench.records.program import PlacementRecord
            >>> PlacementRecord.from_json(PlacementRecord(name="clients", size=4).to_json()).size
            4

        Raises:
            RecordError: if the text is not JSON, or not a record of this class and version.
        """
        try:
            plain = json.loads(text)
        except (ValueError, RecursionError) as error:
            message = (
                f"`{cls.__name__}.from_json` received text that is not JSON: {error}. Pass the complete text that "
                "`Record.to_json` wrote."
            )
            raise RecordError(message) from error
        return cls.from_dict(plain)

    def __str__(self) -> str:
        return renderer().text(self)

    def __repr__(self) -> str:
        return _one_line(self)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        return renderer().display_record(self)

    def __treescope_repr__(self, path: str | None, subtree_renderer: Callable[..., object]) -> object:
        return renderer().treescope_record(self, path, subtree_renderer)

    def replace(self, **changes: object) -> Self:
        """Returns a copy with some fields changed."""
        return dataclasses.replace(self, **changes)


_LONGEST_REPR = 160  # characters


def _one_line(record: "Record") -> str:
    """Shows the class and the non-default fields; nested records are only counted."""
    shown = []
    for field in dataclasses.fields(record):
        slot = getattr(type(record), field.name)
        value = slot.peek(record) if isinstance(slot, _DeferredField) else getattr(record, field.name)
        if field.repr and not (isinstance(value, str | int | float | tuple | None) and value == field.default):
            shown.append(f"{field.name}={_brief(value)}")
    text = ", ".join(shown)
    room = _LONGEST_REPR - len(type(record).__name__) - 2
    return f"{type(record).__name__}({text if len(text) <= room else text[: room - 1] + '…'})"


def _brief(value: object) -> str:
    if isinstance(value, Record):
        return f"{type(value).__name__}(…)"
    if isinstance(value, tuple) and value and isinstance(value[0], Record):
        return f"<{len(value)} × {type(value[0]).__name__}>"
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:39] + "…")
    if isinstance(value, tuple | Mapping) and len(value) > 8:
        return f"<{len(value)} entries>"
    text = "…" if isinstance(value, _Deferred) else repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _fields(record: "Record") -> dict[str, object]:
    fields = (field for field in dataclasses.fields(record) if field.compare)
    return {"record": type(record).__name__, **{field.name: _plain(getattr(record, field.name)) for field in fields}}


def _plain(value: object) -> object:
    if isinstance(value, Record):
        return _fields(value)
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return value


def _finite(plain: object) -> object:
    if isinstance(plain, float) and not math.isfinite(plain):
        return {"float": "NaN" if math.isnan(plain) else "Infinity" if plain > 0 else "-Infinity"}
    if isinstance(plain, list):
        return [_finite(item) for item in plain]
    if isinstance(plain, dict):
        return {key: _finite(item) for key, item in plain.items()}
    return plain


def _record(record_type: type[R], plain: object, where: str) -> R:
    cls = _CLASSES.get(str(plain.get("record"))) if isinstance(plain, Mapping) else None
    if not isinstance(plain, Mapping) or cls is None or not issubclass(cls, record_type):
        raise _misfit(
            where or record_type.__name__,
            plain,
            f"records of type {record_type.__name__}" if record_type is not Record else "records",
        )
    readers, where = _readers(cls), where or cls.__name__
    entries = {key: value for key, value in plain.items() if key not in ("record", "version")}
    unknown = [key for key in entries if key not in readers]
    needed = [f.name for f in dataclasses.fields(cls) if _is_required(f) and f.name not in entries]
    if unknown or needed:
        lacks = [f"lacks {', '.join(needed)}"] * bool(needed) + [f"has {', '.join(unknown)}"] * bool(unknown)
        message = (
            f"{where} received a record of type {cls.__name__} that {' and '.join(lacks)}. The fields of this type are "
            f"{', '.join(readers)}. Pass the unchanged result of `Record.to_json`."
        )
        raise RecordError(message)
    return cls(**{key: readers[key](value, f"{where}.{key}") for key, value in entries.items()})


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _misfit(where: str, value: object, rule: str) -> RecordError:
    content = f"{value!r:.60}"
    if isinstance(value, Mapping) and "record" in value:
        content = f"a record of type {value['record']}"
    message = f"{where} received {content}, but accepts only {rule}. Pass the unchanged result of `Record.to_json`."
    return RecordError(message)


_Reader = Callable[[object, str], object]


@functools.cache
def _readers(cls: type[Record]) -> dict[str, _Reader]:
    """Makes a reader for each field of the JSON form, from the type of the field."""
    hints = typing.get_type_hints(cls)
    return {field.name: _reader(hints[field.name]) for field in dataclasses.fields(cls) if field.compare}


def _reader(hint: object) -> _Reader:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, Record):
        return functools.partial(_record, hint)
    if origin is Literal:
        return _accepting(lambda value: value in args, " or ".join(map(repr, args)))
    if origin in (typing.Union, types.UnionType):
        return _first_that_fits([_reader(arg) for arg in args], str(hint))
    if hint is tuple or origin is tuple:
        return _tuple_reader(args)
    if origin in (dict, Mapping):
        inner = _reader(args[1])
        return lambda value, where: {key: inner(item, f"{where}[{key!r}]") for key, item in _mapping(value, where)}
    if hint is types.NoneType:
        return _accepting(lambda value: value is None, "null")
    if hint is float:
        return _read_float
    if hint is bool or hint is str:
        return _accepting(lambda value: isinstance(value, hint), "text" if hint is str else "true or false")
    if hint is int:
        return _accepting(lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number")
    message = f"the type {hint} of a record's field has no JSON form"
    raise TypeError(message)


def _accepting(fits: Callable[[object], bool], rule: str) -> _Reader:
    def read(value: object, where: str) -> object:
        if not fits(value):
            raise _misfit(where, value, rule)
        return value

    return read


def _read_float(value: object, where: str) -> float:
    if isinstance(value, Mapping) and value.get("float") in _NONFINITE:
        return _NONFINITE[value["float"]]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _misfit(where, value, "a number")
    return value


def _first_that_fits(readers: Sequence[_Reader], rule: str) -> _Reader:
    def read(value: object, where: str) -> object:
        reason: RecordError | None = None
        for reader in readers:
            try:
                return reader(value, where)
            except RecordError as error:
                reason = reason or (error if isinstance(value, Mapping) else None)  # inner errors name their place
        raise reason or _misfit(where, value, rule)

    return read


def _mapping(value: object, where: str) -> ItemsView[str, object]:
    if not isinstance(value, Mapping):
        raise _misfit(where, value, "an object")
    return value.items()


def _tuple_reader(args: tuple[Any, ...]) -> _Reader:
    if args in {(), (Any, ...)}:  # numbers, nested to any depth
        return lambda value, where: tuple(
            _tuple_reader(())(item, where) if isinstance(item, list) else _read_float(item, where)
            for item in _sequence(value, where)
        )
    if args[-1] is Ellipsis:
        inner = _reader(args[0])
        return lambda value, where: tuple(
            inner(item, f"{where}[{i}]") for i, item in enumerate(_sequence(value, where))
        )
    inners = [_reader(arg) for arg in args]

    def read(value: object, where: str) -> object:
        items = _sequence(value, where)
        if len(items) != len(inners):
            raise _misfit(where, value, f"{len(inners)} values")
        return tuple(reader(item, where) for reader, item in zip(inners, items, strict=True))

    return read


def _sequence(value: object, where: str) -> Sequence[object]:
    if not isinstance(value, list | tuple):
        raise _misfit(where, value, "a list")
    return value


def _pause() -> Callable[[], object]:
    enabled = gc.isenabled()
    gc.disable()
    return gc.enable if enabled else lambda: None


_PAUSE = SharedChange(_pause)


def without_collections() -> SharedChange:
    """Pauses cyclic garbage collection, which takes 0.2 s in a notebook kernel, because it scans all objects.

    Example:
        >>> with without_collections():
        ...     gc.isenabled()
        False
    """
    return _PAUSE
