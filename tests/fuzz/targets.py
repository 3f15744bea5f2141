"""One fuzz target per parser: bytes in; an error of the tree `WorkbenchError` is an answer, anything else a finding."""

import dataclasses
import hashlib
import json
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path

from workbench.aot import parse_target
from workbench.aot._locations import drop_callers
from workbench.engines import read_header, unpack_apart
from workbench.engines._artifact import MAGIC, BodyReader, seal
from workbench.errors import MissingDependencyError, WorkbenchError
from workbench.federated.data import load_leaf, load_npz, load_tff_hdf5
from workbench.inspection import inspect_module
from workbench.measurement import History, open_profile
from workbench.measurement._profile_reader import ProfileReader
from workbench.records import Record, read_source_lines

CORPUS = Path(__file__).parent / "corpus"


@dataclasses.dataclass(frozen=True)
class Target:
    """A parser, and the folder of its corpus."""

    name: str
    run: Callable[[bytes], object]

    def seeds(self) -> list[bytes]:
        """The committed inputs: well-formed ones, and those that once broke the parser."""
        return [path.read_bytes() for path in sorted((CORPUS / self.name).glob("*"))] or [b""]

    def attempt(self, data: bytes) -> str:
        """Parses; "ok", or the name of the error that refused the input.

        Raises:
            Exception: whatever is no error of the library: the finding.
        """
        try:
            self.run(data)
        except MissingDependencyError:
            raise
        except WorkbenchError as error:
            return type(error).__name__
        return "ok"


def _hlo(data: bytes) -> None:
    str(inspect_module(data.decode("utf-8", "replace")))


def _signed(data: bytes) -> None:
    """The header of an artifact, with the right digest: what lies behind the first check."""
    length, rest = data[:1], data[1:]
    header = rest[: length[0] * 8] if length else b""
    content = rest[len(header) :] + header + struct.pack("<I", len(header))
    read_header(content + hashlib.sha256(content).digest() + MAGIC)


_bodies = BodyReader()


def _body(data: bytes) -> None:
    """The body of an artifact, with a header and a digest that fit it."""
    unpack_apart(sign_body(data), _bodies)


def sign_body(body: bytes) -> bytes:
    """An artifact with this body: the header is that of a well-formed one."""
    header = read_header((CORPUS / "artifact" / "export.wb").read_bytes())
    return seal(json.dumps({**header, "body_bytes": len(body)}).encode(), body)


def _history(data: bytes) -> None:
    History.from_json(data.decode("utf-8", "replace"))


def _from_file(ending: str, load: Callable[[Path], object]) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"data{ending}"
            path.write_bytes(data)
            load(path)

    return run


def _profile(data: bytes) -> None:
    """All that a profile says of devices; its HLO is read by the target `hlo`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "host.xplane.pb"
        path.write_bytes(data)
        ProfileReader(100, []).read(path, None)


def _plain_target(data: bytes) -> None:
    parse_target(data.decode("utf-8", "replace"))


def _source(data: bytes) -> None:
    for line in data.decode("utf-8", "replace").splitlines():
        read_source_lines(line)


def _record(data: bytes) -> None:
    Record.from_json(data)


def _stablehlo(data: bytes) -> None:
    drop_callers(data.decode("utf-8", "replace"))


TARGETS = {
    target.name: target
    for target in (
        Target("hlo", _hlo),
        Target("artifact", unpack_apart),
        Target("artifact_body", _body),
        Target("artifact_header", _signed),
        Target("history", _history),
        Target("record", _record),
        Target("stablehlo", _stablehlo),
        Target("leaf", _from_file(".json", load_leaf)),
        Target("npz", _from_file(".npz", load_npz)),
        Target("hdf5", _from_file(".h5", load_tff_hdf5)),
        Target("profile", _profile),
        Target("trace", _from_file(".trace.json", open_profile)),
        Target("target_string", _plain_target),
        Target("source_name", _source),
    )
}
