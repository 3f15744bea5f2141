"""`workbench record`: measures, monitors and profiles the devices, and writes one file to share."""

import contextlib
import io
import json
import platform
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from workbench.aot import known_chip
from workbench.errors import CommandError, MeshError, ProfileError, WorkbenchError
from workbench.inspection import inspect_module
from workbench.measurement import measure_compiled, open_profile, trim_profile, watch_devices
from workbench.records.profile import ProfileRecord

_CALLS = 5
_README = """A recording created by `workbench record`.

profile.xplane.pb   what the devices did: planes of devices and the HLO of the programs, without host planes
summary.txt         the profile as `wb.open_profile` reads it
summary.json        the same as a record
devices.json        kinds, memory statistics and monitor samples of the devices, versions of JAX and jaxlib
measured.json       the standard programs, measured one by one
calibration.json    the rates of the devices, if `workbench calibrate` was run before
hlo/                the compiled text of every standard program

HLO names the source files of the programs. Look through the files before you share them.
"""


def write_recording(out: Path, *, profile: Path | None = None) -> int:
    """Writes a zip file that contains a recording of standard programs, or an existing profile."""
    contents: dict[str, bytes] = {"README.txt": _README.encode()}
    try:
        if profile is None:
            contents |= _of_this_machine()
        else:
            contents |= _of_profile(profile)
    except ProfileError as error:
        message = f"`workbench record` has nothing to write. {error}"
        raise CommandError(message) from error
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in contents.items():
            archive.writestr(name, data)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_bytes(buffer.getvalue())
    except OSError as error:
        message = (
            f"`workbench record` was given --out {out}, which cannot be written ({error.strerror}). The recording is "
            "one file in a writable folder: choose another file, for example `--out recording.zip`."
        )
        raise CommandError(message) from error
    print(contents["summary.txt"].decode())
    print(f"wrote {out.resolve()} ({len(buffer.getvalue()):,} bytes): {', '.join(contents)}")
    return 0


def _of_profile(path: Path) -> dict[str, bytes]:
    record = open_profile(path)
    files = {}
    for number, file in enumerate(file for file in map(Path, record.files) if file.suffix == ".pb"):
        files[f"profile{number or ''}.xplane.pb"] = trim_profile(file)
    return files | _summary(record)


def _of_this_machine() -> dict[str, bytes]:
    mesh = Mesh(np.array(jax.devices()), ("devices",))
    files: dict[str, bytes] = {}
    measured: dict[str, Any] = {}
    programs = list(_programs(mesh))
    with watch_devices(0.2) as monitor, tempfile.TemporaryDirectory() as directory:
        compiled = {}
        for name, fn, args in programs:
            compiled[name] = jax.jit(fn).lower(*args).compile()
            files[f"hlo/{name}.hlo.txt"] = compiled[name].as_text().encode()
        for name, _, args in programs:
            print(f"measuring {name} …", flush=True)
            try:
                run = measure_compiled(compiled[name], args, inspect_module(compiled[name]), rounds=_CALLS)
                measured[name] = run.replace(events=()).to_dict()
            except WorkbenchError as error:  # a failing program is also a result
                measured[name] = {"error": str(error)}
        with jax.profiler.trace(directory):
            for name, _, args in programs:
                for _ in range(_CALLS):
                    jax.block_until_ready(compiled[name](*args))
        record = open_profile(directory)
        files["profile.xplane.pb"] = trim_profile(Path(record.files[0]))
        samples = [sample.replace(arrays=()).to_dict() for sample in monitor.history()]
    devices = [
        {"id": d.id, "kind": d.device_kind, "platform": d.platform, "memory_stats": d.memory_stats()}
        for d in jax.local_devices()
    ]
    about = {
        "jax": jax.__version__,
        "jaxlib": __import__("jaxlib").__version__,
        "python": platform.python_version(),
        "devices": devices,
        "samples": samples,
    }
    files["devices.json"] = json.dumps(about, indent=1, default=str).encode()
    with contextlib.suppress(MeshError):  # these devices were never calibrated
        if (chip := known_chip("here")) is not None:
            files["calibration.json"] = chip.to_json(indent=1).encode()
    files["measured.json"] = json.dumps(measured, indent=1, default=str).encode()
    return files | _summary(record.replace(name="recording", files=("profile.xplane.pb",)))


def _summary(record: ProfileRecord) -> dict[str, bytes]:
    bare = record.replace(files=tuple(Path(file).name for file in record.files), hosts=())
    return {"summary.txt": str(bare).encode(), "summary.json": bare.to_json().encode()}


def _programs(mesh: Mesh) -> Iterator[tuple[str, Callable[..., Any], tuple[Any, ...]]]:
    """A matrix product, an elementwise chain, a reduction, collectives and a loop, sharded over all devices."""
    small = jax.default_backend() == "cpu"
    size, count = (256, len(mesh.devices.flat)) if small else (8192, len(mesh.devices.flat))
    rows = NamedSharding(mesh, PartitionSpec("devices"))
    sharding = NamedSharding(mesh, PartitionSpec())
    # Random numbers, because a chip would draw less power and run faster if all bits were the same.
    random = jax.jit(jax.random.normal, static_argnums=(1, 2), out_shardings=rows)
    x = random(jax.random.key(0), (size * count, size), jnp.bfloat16)
    w = jax.device_put(random(jax.random.key(1), (size * count, size), jnp.bfloat16)[:size] / size**0.5, sharding)

    def matrix_product(x: jax.Array, w: jax.Array) -> jax.Array:
        return x @ w

    def elementwise(x: jax.Array) -> jax.Array:
        return jnp.tanh(x) * 2 + 1

    def reduction(x: jax.Array) -> jax.Array:
        return x.astype(jnp.float32).sum(axis=1)

    def all_reduce(x: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(x.reshape(count, size, size).sum(0), sharding)

    def all_gather(x: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(x * 2, sharding)

    def loop(x: jax.Array, w: jax.Array) -> jax.Array:
        return jax.lax.scan(lambda carry, _: (jnp.tanh(carry @ w), None), x, length=4)[0]

    for fn, args in (
        (matrix_product, (x, w)),
        (elementwise, (x,)),
        (reduction, (x,)),
        (all_reduce, (x,)),
        (all_gather, (x,)),
        (loop, (x, w)),
    ):
        yield fn.__name__, fn, args
