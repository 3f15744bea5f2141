"""Events in a block of code: retraces, compilations, memory that ran out."""

from dataclasses import dataclass

from workbench.records._base import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class RetraceRecord(Record):
    """A jitted function that was traced again after its first time, and why."""

    function: str
    defined: str  # "train.py:12"
    called: str  # the line of the last call that traced it
    count: int
    reasons: tuple[tuple[str, int], ...] = ()  # in words, with how often


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilationRecord(Record):
    """Seconds that tracing, lowering and compiling a function took in the block, over all its compilations."""

    function: str
    count: int
    trace_seconds: float
    lower_seconds: float
    compile_seconds: float
    called: str = ""

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.trace_seconds + self.lower_seconds + self.compile_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveArrayRecord(Record):
    """Arrays of one kind that were alive when memory ran out: the line that made them, the variables that hold them."""

    shape: tuple[int, ...]
    dtype: str
    count: int
    device_bytes: int  # of all of them, on the fullest device
    names: tuple[str, ...] = ()  # "state.params['w'] in train (loop.py:31)"
    made_at: str = ""  # "model.py:12 in init", the user's line that all of them were made on


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemoryRecord(Record):
    """The moment at which memory ran out."""

    message: str
    line: str
    in_use_bytes: int | None = None
    limit_bytes: int | None = None
    arrays: tuple[LiveArrayRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplanationRecord(Record):
    """Events that `with explain():` recorded in a block."""

    seconds: float
    retraces: tuple[RetraceRecord, ...] = ()
    compilations: tuple[CompilationRecord, ...] = ()
    out_of_memory: OutOfMemoryRecord | None = None
    slow_seconds: float = 1.0  # from which on a compilation is worth a line
    notes: tuple[str, ...] = ()
