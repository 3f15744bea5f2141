"""Mutates the corpus of a target for a time, and keeps every input that breaks it."""

import dataclasses
import hashlib
import resource
import signal
import time
import warnings
from pathlib import Path

import numpy as np

from fuzz.targets import Target
from workbench.errors import MissingDependencyError

_SLOW_SECONDS = 1.0  # of the processor: a small input may never cost more
_HANG_SECONDS = 10
_MOST_MEMORY_BYTES = 16 * 2**30  # of addresses: JAX itself reserves some
_LONGEST = 40_000
_TOKENS = (
    b"\x00",
    b"\xff\xff\xff\xff",
    b"9" * 40,
    b"{",
    b"}",
    b"[" * 200,
    b'"',
    b"\n",
    b"-1",
    b"1e999",
    b"%x",
    b"while(",
)


@dataclasses.dataclass
class Report:
    """What came out of fuzzing one target."""

    name: str
    executions: int = 0
    refused: int = 0
    slowest_seconds: float = 0.0
    findings: list[str] = dataclasses.field(default_factory=list)

    def __str__(self) -> str:
        reported = "".join(f"\n  {finding}" for finding in self.findings)
        return (
            f"{self.name}: {self.executions} executions, {self.refused} refused, {len(self.findings)} findings, "
            f"slowest {self.slowest_seconds:.2f} s of the processor{reported}"
        )


def fuzz(target: Target, seconds: float, seed: int, findings: Path) -> Report:
    """Runs one target on mutations of its corpus until the time is over; equal seeds try equal inputs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = _MOST_MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(hard, _MOST_MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))
    before = signal.signal(signal.SIGALRM, _hang)
    try:
        return _fuzz(target, seconds, seed, findings)
    finally:
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


class HangError(Exception):
    """An input took longer than any input may."""


def _hang(*_: object) -> None:
    raise HangError(f"longer than {_HANG_SECONDS} s")  # noqa: EM102


def _fuzz(target: Target, seconds: float, seed: int, findings: Path) -> Report:
    generator = np.random.default_rng(seed)
    pool, report, kinds = target.seeds(), Report(target.name), set[str]()
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        data = mutate(pool[generator.integers(len(pool))], pool, generator)
        started = time.process_time()
        kind = ""
        try:
            signal.alarm(_HANG_SECONDS)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                report.refused += target.attempt(data) != "ok"
        except MissingDependencyError:
            return report
        except Exception as error:
            kind = f"{type(error).__name__}: {str(error)[:120]}"
        finally:
            signal.alarm(0)
        took = time.process_time() - started
        report.executions += 1
        report.slowest_seconds = max(report.slowest_seconds, took)
        if took > _SLOW_SECONDS:
            kind = f"slow: {took:.1f} s for {len(data)} bytes"
        if kind and kind.partition(":")[0] not in kinds:
            kinds.add(kind.partition(":")[0])
            report.findings.append(f"{kind} -> {_keep(data, findings / target.name)}")
    return report


def mutate(data: bytes, pool: list[bytes], generator: np.random.Generator) -> bytes:
    """One to eight changes: bytes, tokens, cuts, repetitions, parts of other inputs."""
    changed = bytearray(data)
    for _ in range(int(generator.integers(1, 9))):
        place, end = np.sort(generator.integers(0, len(changed) + 1, 2)).tolist()
        end = min(end, place + 200)
        match int(generator.integers(6)):
            case 0 if changed:
                changed[min(place, len(changed) - 1)] = int(generator.integers(256))
            case 1:
                changed[place:place] = _TOKENS[generator.integers(len(_TOKENS))]
            case 2:
                del changed[place:end]
            case 3:
                changed[place:place] = changed[place:end] * int(generator.integers(1, 20))
            case 4:
                other = pool[generator.integers(len(pool))]
                start = int(generator.integers(0, len(other) + 1))
                changed[place:end] = other[start : start + 200]
            case _:
                changed[place:end] = str(int(generator.integers(-(2**40), 2**40))).encode()
    return bytes(changed[:_LONGEST])


def _keep(data: bytes, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / hashlib.sha256(data).hexdigest()[:16]
    path.write_bytes(data)
    return path
