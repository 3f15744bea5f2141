"""Records of plans: stages, exchanged values, source lines, and client data."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from workbench.records._base import Record, deferring

# "program" is the only stage of a program without clients and server
StageKind = Literal["server", "broadcast", "clients", "reduce", "loop", "branch", "program"]
_STAGE_KINDS: tuple[StageKind, ...] = get_args(StageKind)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLine(Record):
    """A place in the user's code; frames of the workbench and of JAX are excluded."""

    file: str
    line: int
    column: int | None = None
    end_line: int | None = None
    end_column: int | None = None
    function: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRecord(Record):
    """An input or output of a stage; `shape` is global, with a leading client axis for values at the clients."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int
    sharding: str | None = None
    argument: str = ""  # for inputs of clients, the name in the client function: "params['w']"


# Printing, counting and chunk sizes take longer than the rest of a plan, and not every reader
# needs them: such fields are computed on first access.
@deferring("slots_per_device")
@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRecord(Record):
    """A named group of clients, sharded over `mesh_axes` (none: replicated)."""

    name: str
    size: int
    mesh_axes: tuple[str, ...] = ()
    slots_per_device: int | None = None  # clients per device, including masked clients; None: an equal share


@deferring("jaxpr", "flops_per_client", "elementwise_flops_per_client", "bytes_per_client")
@dataclass(frozen=True, slots=True, kw_only=True)
class StageRecord(Record):
    """One stage in a plan.

    The costs per client are predicted from the jaxpr of one call of the unbatched function: `flops_per_client` (of dot
    products and convolutions), `elementwise_flops_per_client` (one per element of an arithmetic operation or reduction)
    and `bytes_per_client`. `moved_bytes` are the bytes moved between server and clients (a broadcast counts the value
    once per client). A stage of kind `loop` or `branch`, and a `clients` stage with an inner placement, have inner
    stages in `body`.
    """

    index: int
    # "3", or "2.0" for the first stage inside loop 2; the same text appears in HLO op names as `wb:<path>:<kind>`
    path: str
    kind: StageKind
    name: str  # e.g. "train_locally", "reduce_mean", "scan"
    placement: str | None = None
    clients: int = 1
    operation: str = ""  # the primitive: "broadcast", "map_fn", "reduce_sum", ... or "" for a server stage
    inputs: tuple[ValueRecord, ...] = ()
    outputs: tuple[ValueRecord, ...] = ()
    # indices (in the same list) of the stages whose outputs it reads; -1: program inputs
    consumes: tuple[int, ...] = ()
    moved_bytes: int = 0
    flops_per_client: float | None = None
    elementwise_flops_per_client: float | None = 0.0
    bytes_per_client: int | None = None
    trip_count: int | None = None
    # number of computations per client, because rows that a later level reads may be recomputed there
    computations: int = 1
    source: SourceLine | None = None
    stack: tuple[SourceLine, ...] = ()  # the user's calls that lead to the stage, outermost first
    jaxpr: str = ""
    body: tuple["StageRecord", ...] = ()

    def walk(self, into: Container[StageKind] = _STAGE_KINDS) -> Iterator["StageRecord"]:
        """Yields this stage and its inner stages, outer first; `into` limits the kinds of stages that are entered.

        Example:
            >>> total = wb.program(clients=4)(wb.reduce_sum)
            >>> rounds = wb.trace(lambda x: jax.lax.fori_loop(0, 3, lambda _, x: x * total(x), x))(jnp.ones(4))
            >>> [stage.kind for stage in rounds.plan.stages[0].walk()]
            ['loop', 'reduce', 'server']
        """
        yield self
        if self.kind in into:
            for stage in self.body:
                yield from stage.walk(into)

    @property
    def branches(self) -> list[list["StageRecord"]]:
        """The stages of each branch, whose paths contain the number of the branch: `2[1].0`."""
        branches: dict[str, list[StageRecord]] = {}
        for stage in self.body:
            branches.setdefault(stage.path.rpartition(".")[0], []).append(stage)
        return list(branches.values())

    @property
    def flops(self) -> float | None:
        """Predicted FLOPs of all clients and loop iterations; None if the number of iterations is unknown."""
        return self._in_all(self.flops_per_client)

    @property
    def elementwise_flops(self) -> float | None:
        """Predicted FLOPs of elementwise operations and reductions, over the same executions as in `flops`."""
        return self._in_all(self.elementwise_flops_per_client)

    def _in_all(self, amount: float | None) -> float | None:
        iterations = 1 if self.kind != "loop" else self.trip_count
        if not amount or iterations is None:
            return None if amount or amount is None else 0.0
        return amount * self.clients * self.computations * iterations


@dataclass(frozen=True, slots=True, kw_only=True)
class DisclosedRecord(Record):
    """A value that a client discloses to the server.

    A "row" is the client's own value. A "partial result" is the client's share of a reduction, already merged with the
    shares of clients in the same batch.
    """

    stage: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int  # of one
    kind: Literal["row", "partial result"]
    clients: int = 1  # maximum number of clients in one partial result
    count: int = 0  # number of disclosed values in the run; 0 in a plan
    single_client: str = ""  # the only client in a masked sum of a plan: "client 3", or "one client"


@deferring("chunk_size", "chunk_limit", "auto_limits", "disclosed", "kept_local")
@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRecord(Record):
    """A traced program as stages, in program order."""

    name: str
    placements: tuple[PlacementRecord, ...]
    stages: tuple[StageRecord, ...]
    inputs: tuple[ValueRecord, ...] = ()
    outputs: tuple[ValueRecord, ...] = ()
    chunk_size: int | None = None  # None: every client of a device at once
    chunk_limit: int | None = None  # the requested chunk size, independent of the number of clients
    # limits that chunk_size="auto" selects, each with the smallest number of devices; empty for other chunk sizes
    auto_limits: tuple[tuple[int, int], ...] = ()
    # disclosed by clients to the server, on an engine that sends no other values
    disclosed: tuple[DisclosedRecord, ...] = ()
    # inputs that only clients read and that no reduction takes unchanged, with the shapes of one client
    kept_local: tuple[ValueRecord, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def moved_bytes(self) -> float | None:
        """Bytes moved between server and clients per call; None if some are moved in a loop of unknown length."""
        return _moved(self.stages)

    def walk(self, into: Container[StageKind] = _STAGE_KINDS) -> Iterator[StageRecord]:
        """Yields every stage including inner stages, in program order, outer first.

        Args:
            into: The kinds of stages whose inner stages are visited; `("loop", "branch")` omits stages inside a client.

        Example:
            >>> step = StageRecord(index=0, path="0.0", kind="clients", name="train")
            >>> loop = StageRecord(index=0, path="0", kind="loop", name="scan", body=(step,))
            >>> plan = PlanRecord(name="rounds", placements=(), stages=(loop,))
            >>> [stage.path for stage in plan.walk()]
            ['0', '0.0']
        """
        for stage in self.stages:
            yield from stage.walk(into)


def _moved(stages: Sequence[StageRecord]) -> float | None:
    total = 0.0
    for stage in stages:
        inner = _moved_inside(stage)
        if inner is None:
            return None
        total += stage.moved_bytes + inner
    return total


def _moved_inside(stage: StageRecord) -> float | None:
    """Bytes that a stage's body moves over all iterations and clients; for branches, the largest of their amounts."""
    if stage.kind == "branch":
        amounts = [_moved(body) for body in stage.branches]
        numbers = [amount for amount in amounts if amount is not None]
        return max(numbers, default=0.0) if len(numbers) == len(amounts) else None
    once = _moved(stage.body)
    if stage.kind == "loop":
        if not once:
            return once
        return None if stage.trip_count is None else once * stage.trip_count
    return None if once is None else once * stage.clients


Spread = Literal["auto", "shard_map", "vmap"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanCandidateRecord(Record):
    """One tried configuration of the client loop, and the time that the program took with it."""

    chunk_size: int | Literal["auto"] | None  # "auto": chosen by the rule; None: all clients of a device together
    spread: Spread = "auto"  # sharding of clients over a mesh
    kept_bytes: int | None = None  # rows that a later pass reads are kept up to this many bytes; None: always
    unroll: int = 1  # chunks that one iteration of the loop computes
    runs: int
    ratio: float  # median ratio of its seconds to the seconds of the rule's choice in the adjacent run
    median_seconds: float
    fastest_seconds: float
    slowest_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanChoiceRecord(Record):
    """The configuration of a program's client loop, for one set of shapes on one set of devices.

    Pass this record to `workbench.jit` as `plan` to make the same plan again, on any machine.
    """

    program: str
    chunk_size: int | Literal["auto"] | None
    spread: Spread = "auto"
    kept_bytes: int | None = None
    unroll: int = 1
    source: Literal["measured", "cache", "given", "rule"]
    why: str  # in a sentence
    candidates: tuple[PlanCandidateRecord, ...] = ()
    tuning_seconds: float = 0.0  # compilations included


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldRecord(Record):
    """A field of client data, with the shape of one example."""

    name: str
    dtype: str
    shape: tuple[int, ...] = ()
    bytes: int = 0  # over all clients


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientDataRecord(Record):
    """Statistics of client data; tuples with one entry per client are in the order of `clients`."""

    name: str = ""
    clients: tuple[str, ...] = ()
    examples: tuple[int, ...] = ()
    bytes: tuple[int, ...] = ()
    fields: tuple[FieldRecord, ...] = ()
    label: str | None = None
    classes: tuple[str, ...] = ()
    label_counts: tuple[tuple[int, ...], ...] = ()  # [clients][classes]; empty without a label
    total_variation: tuple[float, ...] = ()  # distance of each client's label shares to the global shares, 0 to 1
    mean_total_variation: float | None = None  # unweighted mean over clients with examples
    weighted_total_variation: float | None = None  # mean weighted by the number of examples
    size_variation: float = 0.0  # standard deviation of the number of examples divided by the mean

    @property
    def total_examples(self) -> int:
        """Total number of examples over all clients."""
        return sum(self.examples)
