"""Programs of nodes, with groups, handles and the graph."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from workbench import render
from workbench.errors import ProgramError
from workbench.launch._nodes import Handle, Node, NodeSpec, Restart, handles_in
from workbench.records.launch import EdgeRecord, NodeRecord, ProgramGraphRecord
from workbench.render import display_object


@dataclass(frozen=True, slots=True)
class _Group:
    label: str
    resources: Mapping[str, float] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    restart: Restart = field(default_factory=Restart)
    colocate: bool = False


_MAIN = _Group("main")


class Program:
    """A graph of nodes, to be launched on threads, processes or a cluster.

    Args (of the constructor):
        name: Name in pictures, logs and errors.

    Example:
        >>> from workbench.launch import Program, PyNode, ServiceNode
        >>> class Store:
        ...     def put(self, value): ...
        >>> program = Program("example")
        >>> with program.group("store"):
        ...     store = program.add_node(ServiceNode(Store))
        >>> with program.group("worker"):
        ...     _ = program.add_node(PyNode(lambda s: s.put(1), store))
        >>> [(edge.source, edge.target) for edge in program.graph().edges]
        [('worker/0', 'store/0')]

    References:
        Yang et al., "Launchpad: A Programming Model for Distributed Machine Learning Research", arXiv 2106.04516.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.specs: list[NodeSpec] = []
        self._handles: set[Handle] = set()
        self._hosts: list[int] = []  # for each node, the first node of its process
        self._group: _Group | None = None

    @contextlib.contextmanager
    def group(
        self,
        label: str,
        *,
        resources: Mapping[str, float] | None = None,
        environment: Mapping[str, str] | None = None,
        restart: Restart | None = None,
        colocate: bool = False,
    ) -> Iterator[None]:
        """Names the nodes that are added inside the block: `label/0`, `label/1`, and so on.

        Args:
            label: The group's name, without "/".
            resources: Each node's resources, e.g. `{"GPU": 1}`. Dask and Ray use them to place nodes (on Dask, they are
                a worker's `resources=`); threads and processes on this machine only display them.
            environment: Environment variables of each node's process, set before imports.
            restart: Each node's restart policy. Default: no restarts.
            colocate: Whether to put all nodes of the group into one process, where they call each other directly.

        Raises:
            ProgramError: if groups are nested, or the label is empty or contains "/".
        """
        if self._group is not None or not label or "/" in label:
            message = (
                f"`Program.group` of {self.name!r} was given the label "
                f"{label!r}{f' inside group {self._group.label!r}' if self._group else ''}. A group's label must not "
                "be empty or contain '/', and groups cannot be nested: use a single label, such as 'actors-left'."
            )
            raise ProgramError(message)
        self._group = _Group(label, dict(resources or {}), dict(environment or {}), restart or Restart(), colocate)
        first = len(self.specs)
        try:
            yield
        finally:
            self._group = None
        if colocate:
            self._share_host(range(first, len(self.specs)))

    def add_node(
        self,
        node: Node,
        *,
        concurrency: int | None = None,
        restart: Restart | None = None,
        hang_seconds: float | None = None,
    ) -> Handle:
        """Adds `node` to the current group.

        Args:
            node: The node; handles in its arguments become edges.
            concurrency: Maximum number of concurrent calls to a service; other calls wait. The default is 1, so that a
                service needs no locks. A `ReplayNode` uses locks and has a larger default.
            restart: Overrides the group's policy.
            hang_seconds: Time without a heartbeat after which a working node is reported as hung. Answered calls,
                `current_node().heartbeat()`, `.log()` and `.stop_requested` count as heartbeats.

        Returns:
            The node's handle, to pass to other nodes' constructors.

        Raises:
            ProgramError: if `node` is not a node, a number is not positive, or a handle is from another program or has
                no methods.
        """
        group = self._group or _MAIN
        index = len(self.specs)
        label = f"{group.label}/{sum(spec.group == group.label for spec in self.specs)}"
        self._check(node, label, 1 if concurrency is None else concurrency, hang_seconds)
        spec = NodeSpec(
            index=index,
            label=label,
            group=group.label,
            program=self.name,
            kind=node.kind,
            target=node.target,
            args=node.args,
            kwargs=node.kwargs,
            methods=node.methods,
            runs=node.runs,
            concurrency=node.concurrency if concurrency is None else concurrency,
            restart=restart or group.restart,
            hang_seconds=hang_seconds,
            resources=group.resources,
            environment=group.environment,
        )
        self.specs.append(spec)
        self._hosts.append(index)
        handle = Handle(self.name, label, index)
        self._handles.add(handle)
        return handle

    def colocate(self, *handles: Handle) -> None:
        """Puts nodes into one process, in which they start, end and restart together.

        Raises:
            ProgramError: if a handle belongs to another program, or the nodes have different environments.
        """
        self._check_owned(handles, "colocate")
        self._share_host([handle.index for handle in handles])

    def hosts(self) -> tuple[tuple[NodeSpec, ...], ...]:
        """Returns the nodes grouped by process."""
        shared: dict[int, list[NodeSpec]] = {}
        for spec, host in zip(self.specs, self._hosts, strict=True):
            shared.setdefault(host, []).append(spec)
        return tuple(tuple(specs) for specs in shared.values())

    def graph(self) -> ProgramGraphRecord:
        """Returns the graph of the program as a record."""
        hosts = {spec.index: number for number, specs in enumerate(self.hosts()) for spec in specs}
        nodes = tuple(
            NodeRecord(
                label=spec.label,
                group=spec.group,
                kind=spec.kind,
                target=getattr(spec.target, "__qualname__", type(spec.target).__qualname__),
                methods=spec.methods,
                runs=spec.runs,
                host=hosts[spec.index],
                concurrency=spec.concurrency,
                restart_limit=spec.restart.limit,
                resources=spec.resources,
            )
            for spec in self.specs
        )
        return ProgramGraphRecord(name=self.name, nodes=nodes, edges=tuple(self._edges()))

    @property
    def record(self) -> ProgramGraphRecord:
        """The graph as a record, for `workbench.show`."""
        return self.graph()

    def _edges(self) -> Iterator[EdgeRecord]:
        for spec in self.specs:
            targets = dict.fromkeys(handle.label for handle in handles_in((spec.target, spec.args, spec.kwargs)))
            yield from (EdgeRecord(source=spec.label, target=label) for label in targets)

    def _check(self, node: Node, label: str, concurrency: int, hang_seconds: float | None) -> None:
        if not isinstance(node, Node):
            message = (
                f"`Program.add_node` of {self.name!r} was given {node!r} of type {type(node).__name__}. A program "
                "consists of nodes: wrap a function in `PyNode`, a class with `run` in `PyClassNode`, or a class "
                "that other nodes call in `ServiceNode`."
            )
            raise ProgramError(message)
        if concurrency < 1 or (hang_seconds is not None and hang_seconds <= 0):
            message = (
                f"`Program.add_node` was given concurrency={concurrency} and hang_seconds={hang_seconds} for "
                f"{label!r}. Pass a `concurrency` of at least 1 and `hang_seconds` above 0, or `hang_seconds=None` for "
                "no heartbeat limit."
            )
            raise ProgramError(message)
        handles = list(handles_in((node.target, node.args, node.kwargs)))
        if not handles:
            return
        self._check_owned(handles, "add_node")
        mute = sorted({handle.label for handle in handles if self.specs[handle.index].kind != "service"})
        if mute:
            message = (
                f"`Program.add_node` was given handles to {', '.join(map(repr, mute))} in the arguments of {label!r}. "
                "These nodes have no methods to call: create each of them as a `ServiceNode`, which still runs its "
                "`run` method."
            )
            raise ProgramError(message)

    def _check_owned(self, handles: Iterable[Handle], operation: str) -> None:
        foreign = sorted(f"{handle.label} of {handle.program}" for handle in handles if handle not in self._handles)
        if foreign:
            message = (
                f"`Program.{operation}` of {self.name!r} was given handles from another program: {', '.join(foreign)}. "
                "A handle is valid only in its own program: add those nodes to this program."
            )
            raise ProgramError(message)

    def _share_host(self, indices: Iterable[int]) -> None:
        hosts = {self._hosts[index] for index in indices}
        members = [spec for spec, host in zip(self.specs, self._hosts, strict=True) if host in hosts]
        if len({tuple(sorted(spec.environment.items())) for spec in members}) > 1:
            message = (
                f"`Program` {self.name!r} was asked to colocate {', '.join(spec.label for spec in members)}, whose "
                "groups set different environment variables. One process has one environment: give these groups the "
                "same `environment`, or do not colocate the nodes."
            )
            raise ProgramError(message)
        for spec in members:
            self._hosts[spec.index] = min(hosts)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        graph = self.graph()
        return display_object("Program", render.describe(graph), picture=render.svg(graph))
