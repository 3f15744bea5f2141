"""The kinds of nodes, and handles that represent nodes in other nodes' arguments."""

import copy
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from workbench.errors import ProgramError, check_settings
from workbench.launch._values import Value

if TYPE_CHECKING:  # spawned processes do not need records
    from workbench.records.launch import NodeKind

RESERVED = ("futures", "within")  # attributes of every client


class Node:
    """Base class of nodes, each with a target that is called with arguments after the launch."""

    kind: "ClassVar[NodeKind]" = "function"
    concurrency: ClassVar[int] = 1  # default of `add_node`

    def __init__(self, target: Callable[..., Any], /, *args: object, **kwargs: object) -> None:
        self.target = target
        self.args = args
        self.kwargs = kwargs
        self._check()

    def _check(self) -> None:
        if not callable(self.target):
            message = (
                f"`{type(self).__name__}` was given {self.target!r} of type {type(self.target).__name__}, which cannot "
                "be called. A node calls its target after launch: pass the function or class, followed by its "
                f"arguments, as in `{type(self).__name__}(target, argument, ...)`."
            )
            raise ProgramError(message)

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods that other nodes may call."""
        return ()

    @property
    def runs(self) -> bool:
        """True if the node has its own work, so that `wait` waits for it."""
        return True


class PyNode(Node):
    """Calls `target(*args, **kwargs)` once; the node finishes when the call returns.

    Example:
        >>> PyNode(print, "hello").runs
        True
    """


class PyClassNode(Node):
    """Constructs `target(*args, **kwargs)` in the node and calls its `run()`; the node is not a service.

    Raises:
        ProgramError: if `target` is not a class with a `run` method.

    Example:
        >>> class Worker:
        ...     def __init__(self, seed): ...
        ...     def run(self): ...
        >>> PyClassNode(Worker, 0).runs
        True
    """

    kind: "ClassVar[NodeKind]" = "class"

    def _check(self) -> None:
        _require_class(self)
        if not callable(getattr(self.target, "run", None)):
            message = (
                f"`PyClassNode` was given the class `{_name(self.target)}`, which has no `run` method. The node's work "
                "is `run()`: add this method, or use `ServiceNode` for an object that only answers calls."
            )
            raise ProgramError(message)


class ServiceNode(Node):
    """Constructs `target(*args, **kwargs)` in the node and serves its public methods.

    If the class has a `run` method, the node runs it in a separate thread while it answers calls; protect shared data
    with a lock. Calls run one after another unless `add_node(..., concurrency=n)` allows concurrent calls.

    Raises:
        ProgramError: if `target` is not a class, has no public method, or a method name is reserved for clients.

    Example:
        >>> class Counter:
        ...     def add(self, n): ...
        >>> ServiceNode(Counter).methods
        ('add',)
    """

    kind: "ClassVar[NodeKind]" = "service"

    def _check(self) -> None:
        _require_class(self)
        if not self.methods:
            message = (
                f"`ServiceNode` was given the class `{_name(self.target)}`, which has no public method besides `run`. "
                "Other nodes call a service's public methods: add a method, or use `PyClassNode` for an object that "
                "only runs."
            )
            raise ProgramError(message)
        clashes = [name for name in RESERVED if hasattr(self.target, name)]
        if clashes:
            message = (
                f"`ServiceNode` was given the class `{_name(self.target)}` with the public names {_listed(clashes)}. "
                f"These names are reserved for clients ({_listed(RESERVED)}), so such a method could not be called: "
                "rename it."
            )
            raise ProgramError(message)

    @property
    def methods(self) -> tuple[str, ...]:
        """Public methods of the class, without `run`."""
        return public_methods(self.target)

    @property
    def runs(self) -> bool:
        """True if the class has a `run` method."""
        return callable(getattr(self.target, "run", None))


@dataclass(frozen=True, slots=True)
class Handle:
    """Represents a node in other nodes' arguments; replaced by a client at launch.

    Example:
        >>> from workbench.launch import Program, PyNode, ServiceNode
        >>> program = Program("two")
        >>> handle = program.add_node(ServiceNode(dict))
        >>> handle.label, program.add_node(PyNode(print, handle)).label
        ('main/0', 'main/1')
    """

    program: str
    label: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """A node's restart policy: the limit, delay and causes.

    Args (of the constructor):
        limit: Maximum number of restarts.
        delay_seconds: Pause before each restart.
        causes: Kinds of failures that lead to a restart. A finished node is never restarted.

    Example:
        >>> Restart(limit=3, delay_seconds=1.0).causes
        ('raised', 'killed', 'hung')
    """

    limit: int = 0
    delay_seconds: float = 0.0
    causes: tuple[str, ...] = ("raised", "killed", "hung")

    def __post_init__(self) -> None:
        causes = ("raised", "killed", "hung")
        check_settings(
            "Restart",
            (self.limit >= 0, f"limit={self.limit}", "`limit` must be at least 0."),
            (self.delay_seconds >= 0, f"delay_seconds={self.delay_seconds}", "`delay_seconds` must be at least 0."),
            (set(self.causes) <= {*causes}, f"causes={self.causes!r}", f"The possible causes are {causes}."),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """Everything that an engine needs to start a node."""

    index: int
    label: str
    group: str
    program: str
    kind: "NodeKind"
    target: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    methods: tuple[str, ...]
    runs: bool
    concurrency: int = 1
    restart: Restart = field(default_factory=Restart)
    hang_seconds: float | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def handles_in(value: object, *, above: frozenset[int] = frozenset()) -> Iterator[Handle]:
    """Lists the handles in `value`, including those in containers, dataclasses, attrs classes and partials."""
    if isinstance(value, Handle):
        yield value
    elif id(value) not in above:  # an object may contain itself
        for item in _parts(value):
            yield from handles_in(item, above=above | {id(value)})


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, functools.partial):
        return (value.func, *value.args, *value.keywords.values())
    return [getattr(value, name) for name in _fields(value) if hasattr(value, name)]


def _fields(value: object) -> list[str]:
    """Returns the fields of a dataclass or attrs instance; no fields for other objects."""
    if isinstance(value, type):
        return []
    kinds = getattr(type(value), "__dataclass_fields__", None) or {}
    return [*kinds, *(attribute.name for attribute in getattr(type(value), "__attrs_attrs__", ()))]


def dereference(value: object, client_of: Callable[[Handle], Value]) -> Value:
    """Replaces each handle in `value` by a client of its node; copies the containers."""
    if isinstance(value, Handle):
        return client_of(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(dereference(item, client_of) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(dereference(item, client_of) for item in value)
    if type(value) is dict:
        return {key: dereference(item, client_of) for key, item in value.items()}
    if next(handles_in(value), None) is None:
        return value
    if isinstance(value, set | frozenset):
        return type(value)(dereference(item, client_of) for item in value)
    if isinstance(value, functools.partial):
        keywords = {key: dereference(item, client_of) for key, item in value.keywords.items()}
        function, *args = (dereference(item, client_of) for item in (value.func, *value.args))
        return type(value)(function, *args, **keywords)
    clone = copy.copy(value)
    if isinstance(clone, MutableMapping):
        clone.update({key: dereference(item, client_of) for key, item in clone.items()})
    elif isinstance(value, Mapping):
        return {key: dereference(item, client_of) for key, item in value.items()}
    for name in _fields(value):
        if hasattr(value, name):
            object.__setattr__(clone, name, dereference(getattr(value, name), client_of))  # frozen ones too
    return clone


@functools.lru_cache(256)
def public_methods(target: type) -> tuple[str, ...]:
    """Returns the sorted names of the public methods of `target`, without `run`."""
    names = {name for base in target.__mro__ for name in vars(base) if not name.startswith("_") and name != "run"}
    return tuple(name for name in sorted(names) if callable(getattr(target, name)))


def _require_class(node: Node) -> None:
    if not inspect.isclass(node.target):
        message = (
            f"`{type(node).__name__}` was given {node.target!r} of type {type(node.target).__name__}. The node "
            "constructs the object itself, perhaps in another process, so pass the class and its constructor "
            f"arguments: `{type(node).__name__}(Class, argument, ...)`. For a function, use `PyNode`."
        )
        raise ProgramError(message)


def _name(target: object) -> str:
    return getattr(target, "__qualname__", repr(target))


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
